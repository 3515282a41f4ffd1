"""Database servers that hold an index where one machine is not enough: addresses, connections, patience."""

from dcmh.engines.address import Address, is_address, parse

__all__ = ["Address", "is_address", "parse"]
