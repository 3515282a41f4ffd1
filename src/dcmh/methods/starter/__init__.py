"""The starter model: pictures of any collection are found by any words, without captions, labels or training.

It was learned from photos and captions of MS-COCO (cocodataset.org; captions and labels CC BY 4.0) with the method `semantic`,
by `python benchmarks/starter.py`. There is one for each of the sentence encoders that dcmh names, and for
the qualities fast and good.
"""

from __future__ import annotations

from pathlib import Path

from dcmh.errors import ParameterError
from dcmh.inputs import encoders

SOURCE = "11,000 photos of MS-COCO with their captions (cocodataset.org, CC BY 4.0)"


def folder(text_encoder: str | None = None, quality: str | None = None) -> Path:
    """The model folder of the starter model for a sentence encoder and a quality of the picture features."""
    name = text_encoder or encoders.DEFAULT
    if name not in encoders.NAMES:
        raise ParameterError(
            f"There is no starter model for the text encoder {name!r}; there is one for {' and '.join(encoders.NAMES)}. "
            "Train a model of your own: dcmh train DATA --text-encoder FOLDER"
        )
    return Path(__file__).parent / (f"{name}-{quality}" if quality == "good" else name)
