"""Binary codes: the only module that knows how bits are packed into bytes.

A code is a row of +1 and -1 (int8). Packed, +1 is a set bit; bit 0 of the code is bit 0 (the lowest) of byte 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.errors import DataError, ParameterError

MAX_BITS = 1024


def check_bits(bits: int) -> int:
    """The number of bits as an int; a ParameterError unless codes can have that length."""
    if isinstance(bits, bool) or not isinstance(bits, int | np.integer) or not 1 <= bits <= MAX_BITS:
        raise ParameterError(
            f"bits must be a whole number from 1 to {MAX_BITS}, not {bits!r}. Common lengths: 16, 32, 64."
        )
    return int(bits)


def bytes_of(bits: int) -> int:
    """The number of bytes of a packed code."""
    return -(-bits // 8)


def sign(values: NDArray[Any]) -> NDArray[np.int8]:
    """+1 where a value is at least 0, -1 elsewhere: the paper's sign, with sign(0) = +1."""
    return np.where(np.asarray(values) >= 0, 1, -1).astype(np.int8)


def pack(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack codes of +1 and -1, shape (n, bits), into bytes, shape (n, ceil(bits / 8))."""
    codes = np.asarray(codes)
    if codes.ndim != 2:
        raise DataError(
            f"Codes must have two dimensions (items, bits), not shape {codes.shape}. Reshape one code to (1, bits)."
        )
    if not ((codes == 1) | (codes == -1)).all():
        raise DataError("Codes must be +1 or -1 everywhere. Apply dcmh.codes.sign to real-valued outputs first.")
    return np.packbits(codes > 0, axis=1, bitorder="little")


def unpack(packed: ArrayLike, bits: int) -> NDArray[np.int8]:
    """Undo `pack`: bytes (uint8, or lists of 0 to 255), shape (n, ceil(bits / 8)), to codes of +1 and -1, (n, bits)."""
    array = packed if isinstance(packed, np.ndarray) else _bytes_in(packed)
    check_packed(array, bits)
    ones = np.unpackbits(array, axis=1, count=bits, bitorder="little")
    return (2 * ones.astype(np.int8) - 1).astype(np.int8)


def _bytes_in(lists: ArrayLike) -> NDArray[Any]:
    """Lists of integers from 0 to 255 as uint8; anything else unchanged, for `check_packed` to refuse."""
    try:
        array = np.asarray(lists)
    except ValueError:
        raise DataError("Packed codes differ in length. Give the same number of bytes for each.") from None
    fits = array.dtype.kind == "i" and array.size and array.min() >= 0 and array.max() <= 255
    return array.astype(np.uint8) if fits else array


def check_packed(packed: NDArray[Any], bits: int) -> None:
    """Raise a DataError unless these can be packed codes of this many bits."""
    check_bits(bits)
    if packed.ndim != 2 or packed.dtype != np.uint8:
        raise DataError(
            f"Packed codes must be a uint8 array of two dimensions, not {packed.dtype} of shape {packed.shape}. "
            "Use dcmh.codes.pack."
        )
    if packed.shape[1] != bytes_of(bits):
        raise DataError(
            f"Packed codes of {bits} bits have {bytes_of(bits)} bytes each, these have {packed.shape[1]}. "
            "Encode both sides with the same model."
        )


def hamming(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.uint16]:
    """Hamming distances between the rows of a and the rows of b, shape (n_a, n_b).

    Both are codes of +1 and -1 (any signed or real dtype), or both are packed (uint8).
    """
    a, b = np.asarray(a), np.asarray(b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise DataError(
            f"Cannot compare codes of shapes {a.shape} and {b.shape}. Both need two dimensions and the same length."
        )
    if (a.dtype == np.uint8) != (b.dtype == np.uint8):
        raise DataError("One side is packed (uint8), the other is not. Pack both with dcmh.codes.pack, or neither.")
    if a.dtype == np.uint8:
        return _hamming_packed(a, b)
    # For +1/-1 codes d = (bits - a.b) / 2; float32 products of at most 1024 ones are exact.
    inner = a.astype(np.float32) @ b.astype(np.float32).T
    return np.asarray((a.shape[1] - inner) / 2, np.uint16)


def _hamming_packed(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> NDArray[np.uint16]:
    distance = np.zeros((len(a), len(b)), np.uint16)
    for byte in range(a.shape[1]):
        distance += np.bitwise_count(a[:, byte, None] ^ b[None, :, byte])
    return distance
