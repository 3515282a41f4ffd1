"""A whole column to packed codes, for programs that want codes and no index."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dcmh import codes
from dcmh.data.columns import Column, Images, Texts
from dcmh.errors import ImageError
from dcmh.inputs.images import content_hash
from dcmh.search.encode import Encoders, PictureEncoder, Prepared, encode_texts

Codes = dict[int, bytes]  # row to packed code
Failed = dict[int, str]  # row to reason


def encode_column(
    encoders: Encoders, column: Column, modality: str, *, progress: Callable[[int, int], None] | None = None
) -> tuple[Codes, Failed]:
    """The packed codes of the rows that are there and can be encoded, and why others cannot."""
    rows = np.flatnonzero(column.observed).tolist()
    if isinstance(column, Images):
        try:
            return _pictures(encoders.pictures(modality), column, rows, progress)
        except BaseException:
            encoders.rest()
            raise
    if isinstance(column, Texts):
        texts = [column.values[row] for row in rows]
        found = dict(zip(rows, encode_texts(encoders.words_of(modality), texts), strict=True))
        failed = {row: "no word that the model knows" for row, code in found.items() if code is None}
        return {row: code for row, code in found.items() if code is not None}, failed
    outputs, _ = encoders.vectors(modality, column.take(np.array(rows)))
    packed = codes.pack(codes.sign(outputs))
    return {row: code.tobytes() for row, code in zip(rows, packed, strict=True)}, {}


def _pictures(
    encoder: PictureEncoder, column: Images, rows: list[int], progress: Callable[[int, int], None] | None
) -> tuple[Codes, Failed]:
    """Two batches are decoded while one is in the network."""
    found: Codes = {}
    failed: Failed = {}
    ahead: deque[tuple[list[int], Prepared]] = deque()

    def finish() -> None:
        batch, prepared = ahead.popleft()
        for row, code in zip(batch, encoder.finish(prepared), strict=True):
            if isinstance(code, ImageError):
                failed[row] = str(code)
            else:
                found[row] = code
        if progress:
            progress(len(found) + len(failed), len(rows))

    def content(row: int) -> bytes | ImageError:
        try:
            return content_hash(column.source(row))  # type: ignore[arg-type] # it is observed
        except ImageError as error:
            return error

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "dcmh-hash") as pool:
        for start in range(0, len(rows), encoder.batch):
            batch, contents = [], []
            part = rows[start : start + encoder.batch]
            for row, hashed in zip(part, pool.map(content, part), strict=True):
                if isinstance(hashed, ImageError):
                    failed[row] = str(hashed)
                else:
                    batch.append(row)
                    contents.append(hashed)
            ahead.append((batch, encoder.prepare(column, batch, contents)))
            if len(ahead) > 2:
                finish()
        while ahead:
            finish()
    return found, failed
