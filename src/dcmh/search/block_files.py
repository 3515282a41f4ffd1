"""The Parquet file of a finished block: one row per item, with its codes and fine vectors, or why there are none."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import codes
from dcmh.data.frames import import_pyarrow

if TYPE_CHECKING:
    from dcmh.search.encode import Encoders


@dataclass(frozen=True)
class EncodedItem:
    """An item as a worker has encoded it: everything that reading its pictures tells, or why they cannot be read."""

    content: bytes | None = None
    taken: datetime | None = None
    codes: Mapping[str, bytes] = field(default_factory=dict)
    fine: Mapping[str, bytes] = field(default_factory=dict)
    error: str | None = None


def block_file(
    ids: Sequence[str],
    traces: Sequence[bytes],
    items: Sequence[EncodedItem],
    modalities: Sequence[str],
    encoders: Encoders,
) -> bytes:
    """The file of a block. `traces` are hashes of what was encoded, by which a finished block is recognised."""
    pa = import_pyarrow()
    import pyarrow.parquet as parquet

    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.string()),
        "trace": pa.array(traces, pa.binary(16)),
        "error": pa.array([item.error for item in items], pa.string()),
        "content": pa.array([item.content for item in items], pa.binary()),
        "taken": pa.array([item.taken for item in items], pa.timestamp("s")),
    }
    width = codes.bytes_of(encoders.bits)
    for name in modalities:
        columns[f"code_{name}"] = pa.array([item.codes.get(name) for item in items], pa.binary(width))
        if encoders.fine is not None:
            vectors = [item.fine.get(name) for item in items]
            columns[f"fine_{name}"] = pa.array(vectors, pa.binary(encoders.fine.dimensions))
    file = io.BytesIO()
    about = {"dcmh": "block", "model": str(encoders.record["fingerprint"]), "bits": str(encoders.bits)}
    table = pa.table(columns).replace_schema_metadata(about)
    parquet.write_table(table, file, compression="zstd", use_dictionary=False, write_page_checksum=True)
    return file.getvalue()


def read_block(file: Path) -> tuple[list[tuple[str, bytes]], list[EncodedItem]]:
    """The items of a finished block with (id, trace), in order; a ValueError or OSError if it is damaged."""
    pa = import_pyarrow()
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(file, page_checksum_verification=True, memory_map=False)
        table.validate(full=True)
        if (table.schema.metadata or {}).get(b"dcmh") != b"block":
            raise ValueError("it is not a block")
        rows = table.to_pydict()
        coded = {name.removeprefix("code_"): rows[name] for name in rows if name.startswith("code_")}
        fine = {name.removeprefix("fine_"): rows[name] for name in rows if name.startswith("fine_")}
        head = [rows[name] for name in ("id", "trace", "content", "taken", "error")]
    except (pa.ArrowException, KeyError, OverflowError, MemoryError) as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    known, items = [], []
    for row, (name, trace, content, taken, reason) in enumerate(zip(*head, strict=True)):
        known.append((name, trace))
        items.append(EncodedItem(content, taken, _present(coded, row), _present(fine, row), reason))
    return known, items


def _present(columns: dict[str, list[bytes | None]], row: int) -> dict[str, bytes]:
    return {name: value for name, values in columns.items() if (value := values[row]) is not None}
