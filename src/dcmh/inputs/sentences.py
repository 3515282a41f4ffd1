"""Vectors of texts, by any encoder of `dcmh.inputs.encoders`: many at a time, remembered and cached."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError
from dcmh.inputs.encoders import TextEncoder
from dcmh.util.blas import one_blas_thread
from dcmh.util.cache import VectorStore

KEPT = 1000  # texts from which on vectors are kept in the cache folder

REMEMBERED = 2048  # texts: code and fine vector of a text ask for the same vector

_recent: dict[str, dict[str, NDArray[np.float32]]] = {}  # encoder to text to vector; replaced, never changed


def encode(encoder: TextEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors (texts, width). The last texts are remembered; many texts are looked up in a cache on disk, and kept there."""
    distinct = list(dict.fromkeys(texts))
    recent = _recent.get(encoder.sha256, {})
    known = {text: recent[text] for text in distinct if text in recent}
    missing = [text for text in distinct if text not in known]
    if len(missing) >= KEPT:
        store = VectorStore("sentences", f"{encoder.name.rpartition(os.sep)[2]}-{encoder.sha256[:16]}")
        encoded = ((text, text.encode("utf-8", "surrogatepass")) for text in missing)
        keys = {text: hashlib.blake2b(data, digest_size=16).digest() for text, data in encoded}
        kept: dict[bytes, NDArray[np.float32]] = {}
        with contextlib.suppress(DataError):  # it is only a cache
            kept = store.get(list(keys.values()))
        known |= {text: kept[key] for text, key in keys.items() if key in kept}
        fresh = [text for text in missing if text not in known]
        known |= dict(zip(fresh, _encode(fresh, encoder), strict=True))
        with contextlib.suppress(DataError):
            store.put([(keys[text], known[text]) for text in fresh])
    elif missing:
        known |= dict(zip(missing, _encode(missing, encoder), strict=True))
        room = recent if len(recent) + len(missing) <= REMEMBERED else {}
        _recent[encoder.sha256] = room | {text: known[text] for text in missing}
    found = np.empty((len(texts), encoder.width), np.float32)
    for row, text in enumerate(texts):
        found[row] = known[text]
    return found


def _encode(texts: Sequence[str], encoder: TextEncoder) -> Iterator[NDArray[np.float32]]:
    batches = [texts[start : start + encoder.batch] for start in range(0, len(texts), encoder.batch)]
    with one_blas_thread():  # products of a sentence are small: threads would mostly wait for each other
        if len(batches) < 2:
            for batch in batches:
                yield from encoder.encode_texts(batch)
            return
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-sentences") as pool:
            for vectors in pool.map(encoder.encode_texts, batches):
                yield from vectors
