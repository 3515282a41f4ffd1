"""A model whose codes are known."""

from __future__ import annotations

import numpy as np

from dcmh import codes

BITS = 12


class Signs:
    """A model whose codes are the signs of its vectors, or of their sums."""

    bits = BITS

    def __init__(self, *modalities: str):
        self.modalities = modalities

    def encode(self, **columns):
        return codes.sign(np.sum([column.values for column in columns.values()], axis=0))
