"""Signatures of pictures for finding copies: the low frequencies of their brightness, one byte for each of 96.

A resized, recompressed or grey copy has nearly the same signature, a slightly cropped one a similar one, and a mirrored
copy the same up to known signs. The image network's features, in contrast, also change with sharpness, and are alike for
different photos of the same kind of thing (benchmarks/results/duplicates.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcmh.util.cache import VectorStore

LENGTH = 96  # bytes
BITS = 64  # of the code that finds candidates: the signs of the first coefficients
GRID = 32  # blocks along each side of a picture
FLAT = 1.0  # grey levels: a picture whose brightness varies less has no signature

Signatures = NDArray[np.int8]


def _frequencies() -> NDArray[np.intp]:
    """The frequencies (vertical, horizontal), shape (LENGTH, 2), lowest first, without the mean."""
    pairs = [(v, h) for v in range(GRID) for h in range(GRID) if v + h]
    return np.array(sorted(pairs, key=lambda pair: (sum(pair), max(pair), pair[0]))[:LENGTH])


FREQUENCIES = _frequencies()
# Mirroring a picture changes the sign of every coefficient whose horizontal frequency is odd.
MIRRORED = np.where(FREQUENCIES[:, 1] % 2, -1, 1).astype(np.int8)
MIRROR_MASK = np.packbits(MIRRORED[:BITS] < 0, bitorder="little").view("<u8")[0]


def _cosines() -> NDArray[np.float32]:
    """The discrete cosine transform of GRID values, orthonormal, shape (frequencies, GRID)."""
    count = int(FREQUENCIES.max()) + 1
    angles = np.pi * np.arange(count)[:, None] * (2 * np.arange(GRID) + 1) / (2 * GRID)
    return np.asarray(np.cos(angles) * np.sqrt(2 / GRID), np.float32)


def compute(pixels: NDArray[np.uint8]) -> Signatures:
    """Signatures (n, LENGTH) of decoded pictures (n, size, size, 3) whose size is a multiple of GRID.

    A picture without structure has zeros.
    """
    count, block = len(pixels), pixels.shape[1] // GRID
    rows = pixels.reshape(count, GRID, block, -1).sum(axis=2, dtype=np.uint16)
    weights = np.tile(np.array([0.299, 0.587, 0.114], np.float32), block) / block**2
    brightness = rows.reshape(count, GRID, GRID, 3 * block).astype(np.float32) @ weights
    cosines = _cosines()
    spectrum = cosines @ (brightness - brightness.mean(axis=(1, 2), keepdims=True)) @ cosines.T
    values = spectrum[:, FREQUENCIES[:, 0], FREQUENCIES[:, 1]]
    flat = np.sqrt((values**2).sum(axis=1, keepdims=True)) / GRID < FLAT
    values = np.sign(values) * np.sqrt(np.abs(values))  # otherwise the lowest frequencies would decide alone
    values /= np.maximum(np.sqrt((values**2).sum(axis=1, keepdims=True)), 1e-9)
    return np.where(flat, 0, np.clip(np.rint(254 * values), -127, 127)).astype(np.int8)


def codes(signatures: Signatures) -> NDArray[np.uint64]:
    """The signs of the first BITS coefficients as one word each."""
    packed = np.packbits(signatures[:, :BITS] >= 0, axis=1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").reshape(-1)


class SignatureStore(VectorStore):
    """The cache from the hash of a picture's content to its signature."""

    def __init__(self) -> None:
        super().__init__("signatures", f"dct{LENGTH}-1", np.int8)
