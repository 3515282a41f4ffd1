"""Deep Cross-Modal Hashing: words find pictures, pictures find words, in a few bytes an item."""

__version__ = "0.1.0"
