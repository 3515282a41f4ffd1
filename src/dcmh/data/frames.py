"""Tables of other libraries: DataFrames, Arrow tables, Parquet files, Hugging Face data sets.

Each becomes a `Frame`, whose rows are read in batches. Pictures stay where they are until they are decoded.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Store, Stored
from dcmh.data.remote import RemoteFile
from dcmh.data.values import as_picture, is_missing, is_picture, plain
from dcmh.errors import DataError, ImageError, MissingExtra, needs

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
BATCH, PICTURE_BATCH = 4096, 256  # rows; rows of tables that may hold pictures, which are large
ROW_GROUPS = 2  # of a Parquet file that are kept in memory while its pictures are read

Record = dict[str, Any]


@dataclass(frozen=True)
class Frame:
    """A table: its columns, and a function from the columns that hold modalities to the rows.

    Of the other columns only texts, numbers and lists are read.
    """

    name: str
    fields: list[str]
    records: Callable[[set[str]], Iterator[Record]]


def open_object(source: Any) -> Frame:
    """The rows of a pandas or polars DataFrame, an Arrow table, a Hugging Face data set, or a dictionary of columns."""
    name = type(source).__name__
    if isinstance(source, Mapping):
        splits = [str(key) for key, value in source.items() if hasattr(value, "column_names")]
        if splits:
            raise DataError(
                f"This {name} holds several tables: {', '.join(splits)}.", hint=f"Give one: [{splits[0]!r}]."
            )
        return _from_columns(name, {str(key): plain(values) for key, values in source.items()})
    if hasattr(source, "with_format") and hasattr(source, "column_names"):
        return _from_hugging_face(source)
    if hasattr(source, "iloc"):  # pandas: its cells may be anything, so not by way of Arrow
        return _from_columns(name, {str(key): plain(source[key]) for key in source.columns})
    if hasattr(source, "__arrow_c_stream__"):
        with contextlib.suppress(MissingExtra):
            table = import_pyarrow().table(source)
            return _from_arrow(name, table.schema, lambda: table.to_batches(BATCH), lambda row: table.slice(row, 1))
    if hasattr(source, "columns") and hasattr(source, "__getitem__"):  # polars without pyarrow
        return _from_columns(name, {str(key): plain(source[key]) for key in source.columns})
    raise DataError(
        f"Cannot read data from a {name}.",
        hint="Give a path, a name, a DataFrame, an Arrow table, a Hugging Face data set, or a dictionary of columns; "
        "for arrays use Dataset.from_arrays(image=…, text=…).",
    )


# -- columns in memory ------------------------------------------------------------------------------------------


def _from_columns(name: str, columns: Mapping[str, Any]) -> Frame:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise DataError(
            f"The columns of the {name} differ in length: {sorted(lengths)}.", hint="Give one value per item."
        )

    def records(modalities: set[str]) -> Iterator[Record]:
        for cells in zip(*columns.values(), strict=True):
            row = dict(zip(columns, map(_cell, cells), strict=True))
            yield {
                key: cell
                for key, cell in row.items()
                if key in modalities or not (isinstance(cell, np.ndarray) or is_picture(cell))
            }

    return Frame(name, list(columns), records)


def _cell(value: Any) -> Any:
    """A cell of a table in memory: text, a number, a list, a vector, a picture, or None."""
    if is_missing(value) or isinstance(value, str):
        return value if isinstance(value, str) else None
    value = as_picture(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fiub":
        return value.tolist()
    return plain(value) if hasattr(value, "__len__") and not is_picture(value) else value


# -- Arrow ------------------------------------------------------------------------------------------------------


def import_pyarrow() -> Any:
    """The module pyarrow; a MissingExtra where it is not installed."""
    with needs("Parquet and Arrow need pyarrow", "dcmh[tables]"):
        import pyarrow
    return pyarrow


class _Rows:
    """Pictures in a column of an Arrow table that is in memory, or mapped into it."""

    def __init__(self, one_row: Callable[[int], Any], column: str) -> None:
        self._one_row = one_row
        self._column = column

    def read(self, key: int) -> bytes:
        return _file_bytes(self._one_row(key).column(self._column)[0].as_py())


class _ParquetRows:
    """Pictures in a column of a Parquet file. The row groups that were read last are kept."""

    def __init__(self, file: Path | RemoteFile, column: str) -> None:
        import pyarrow.parquet

        self.file = file
        self._file = pyarrow.parquet.ParquetFile(_opened(file))
        self._column = column
        metadata = self._file.metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: int) -> bytes:
        group = int(np.searchsorted(self._starts, key, side="right")) - 1
        with self._lock:
            if group not in self._groups:
                while len(self._groups) >= ROW_GROUPS:  # first, unlike functools.lru_cache: a row group may be large
                    self._groups.popitem(last=False)
                self._groups[group] = self._read(group)
            self._groups.move_to_end(group)
            column = self._groups[group]
        return _file_bytes(column[key - int(self._starts[group])].as_py())

    def __reduce__(self) -> tuple[Any, tuple[Path | RemoteFile, str]]:
        return _parquet_rows, (self.file, self._column)  # a worker keeps the row groups from block to block

    def _read(self, group: int) -> Any:
        try:
            table = self._file.read_row_group(group, columns=[self._column])
            table.validate(full=True)
        except (import_pyarrow().ArrowException, OSError, ValueError) as error:
            raise ImageError("damaged in the Parquet file") from error
        return table.column(0)


def _opened(file: Path | RemoteFile) -> Any:
    """What Arrow reads: a path, or an open file."""
    return file if isinstance(file, Path) else file.open()


@lru_cache(8)
def _parquet_rows(file: Path | RemoteFile, column: str) -> _ParquetRows:
    return _ParquetRows(file, column)


def _file_bytes(cell: Any) -> bytes:
    picture = as_picture(cell)
    if not isinstance(picture, Stored):
        raise ImageError("has no bytes in the table")
    return bytes(picture.read())


def open_arrow_file(file: Path | RemoteFile) -> Frame:
    """The rows of a Parquet, Arrow or Feather file."""
    with _intact(file):
        if file.suffix.lower() == ".parquet":
            frame = _open_parquet(file)
        else:
            assert isinstance(file, Path)  # `remote.find` leaves out the others
            table = _map_arrow(file)
            table.validate(full=True)  # offsets that point outside would end the process
            frame = _from_arrow(
                file.name, table.schema, lambda: table.to_batches(BATCH), lambda row: table.slice(row, 1)
            )

    def records(modalities: set[str]) -> Iterator[Record]:
        with _intact(file):
            yield from frame.records(modalities)

    return Frame(frame.name, frame.fields, records)


def vector_columns(file: Path) -> list[str]:
    """The columns of a Parquet or Arrow file that hold lists of numbers."""
    with _intact(file):
        if file.suffix.lower() == ".parquet":
            import pyarrow.parquet

            schema = pyarrow.parquet.read_schema(file)
        else:
            schema = _map_arrow(file).schema
    types = import_pyarrow().types
    names = [
        field.name
        for field in schema
        if (kind := getattr(field.type, "value_type", None)) is not None
        and (types.is_floating(kind) or types.is_integer(kind))
        and field.name not in ("labels", "label")
    ]
    if not names:
        raise DataError(
            f"{file} has no column of vectors. It has: {', '.join(schema.names)}.",
            which=file,
            hint="Write vectors as lists of numbers.",
        )
    return names


def _open_parquet(file: Path | RemoteFile) -> Frame:
    import pyarrow.parquet

    parquet = pyarrow.parquet.ParquetFile(_opened(file))
    size = PICTURE_BATCH if any(_is_binary(field.type) for field in parquet.schema_arrow) else BATCH

    def batches() -> Iterator[Any]:
        streamed = pyarrow.parquet.ParquetFile(_opened(file), pre_buffer=False, buffer_size=1 << 20)  # little memory
        for batch in streamed.iter_batches(size):
            batch.validate(full=True)
            yield batch

    def store(column: str) -> Store:
        return _ParquetRows(file, column)

    return _from_arrow(file.name, parquet.schema_arrow, batches, store=store, rows=parquet.metadata.num_rows)


def _map_arrow(file: Path) -> Any:
    """The table of an Arrow file, mapped into memory; Feather files and streams."""
    ipc = import_pyarrow().ipc
    mapped = import_pyarrow().memory_map(str(file))
    try:
        return ipc.open_file(mapped).read_all()
    except import_pyarrow().ArrowInvalid:
        return ipc.open_stream(mapped).read_all()


@contextlib.contextmanager
def _intact(file: Path | RemoteFile) -> Iterator[None]:
    """Turn whatever Arrow raises on a damaged file into a DataError."""
    pa = import_pyarrow()
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(f"{file} cannot be read: {reason}.", which=file, hint="Write it again.") from error


def _from_hugging_face(source: Any) -> Frame:
    arrow = source.with_format("arrow")
    features = source.features or {}
    names = {field: getattr(getattr(feature, "feature", feature), "names", None) for field, feature in features.items()}
    sliced = (lambda row: arrow[row : row + 1]) if hasattr(source, "__len__") else None
    fields = source.column_names or list(features)
    return _from_arrow("Dataset", fields, lambda: arrow.iter(PICTURE_BATCH), sliced, classes=names)


def _from_arrow(
    name: str,
    schema: Any,
    batches: Callable[[], Any],
    one_row: Callable[[int], Any] | None = None,
    *,
    store: Callable[[str], Store] | None = None,
    classes: Mapping[str, Sequence[str] | None] | None = None,
    rows: int = 0,
) -> Frame:
    """Batches of Arrow columns. Pictures are read with `store`, or from one row at a time, or kept if neither is given.

    `classes`: the names of the classes that the numbers of a column stand for. `rows`: their number, where the vectors of
    all batches are to be collected in one array.
    """
    fields = list(getattr(schema, "names", schema))
    class_names = dict(classes if classes is not None else _classes_in(getattr(schema, "metadata", None)))
    stores: dict[str, Store] = {}

    def store_of(column: str) -> Store | None:
        if column not in stores and (store is not None or one_row is not None):
            stores[column] = store(column) if store is not None else _Rows(one_row, column)  # type: ignore[arg-type]
        return stores.get(column)

    def records(modalities: set[str]) -> Iterator[Record]:
        start = 0
        matrices: dict[str, NDArray[np.float32]] = {}
        for batch in batches():
            columns: dict[str, Any] = {}
            for field in fields:
                column = batch.column(field)
                if _is_binary(column.type):
                    columns |= {field: _pictures(column, store_of(field), start)} if field in modalities else {}
                    continue
                values = plain(column)
                if isinstance(values, np.ndarray) and values.ndim == 2:
                    if field not in modalities | {"labels"}:
                        continue
                    if rows and field in modalities:
                        values = collect(matrices, field, values, start)
                columns[field] = _named(values, class_names.get(field))
            for cells in zip(*columns.values(), strict=True):
                yield dict(zip(columns, map(_simple, cells), strict=True))
            start += batch.num_rows

    def collect(matrices: dict[str, NDArray[np.float32]], field: str, values: NDArray[Any], start: int) -> NDArray[Any]:
        if field not in matrices:
            matrices[field] = np.empty((rows, values.shape[1]), np.float32)
        matrix = matrices[field]
        if matrix.shape[1] != values.shape[1]:
            return values
        matrix[start : start + len(values)] = values
        return matrix[start : start + len(values)]

    return Frame(name, fields, records)


def _is_binary(kind: Any) -> bool:
    """Whether a column of this Arrow type may hold the files of pictures."""
    types = import_pyarrow().types
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _pictures(column: Any, store: Store | None, start: int) -> list[Any]:
    """The pictures of a column of bytes, or of Hugging Face's records of bytes and path, without reading the bytes."""
    if store is None:
        return [as_picture(cell) for cell in column.to_pylist()]
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    fields = [column.type.field(i).name for i in range(column.type.num_fields)]  # of a record; none of bytes
    has_bytes = (array.field("bytes") if fields else array).is_valid().to_pylist()
    paths = array.field("path").to_pylist() if "path" in fields else [None] * len(has_bytes)
    return [
        Stored(store, start + row) if has else path
        for row, (has, path) in enumerate(zip(has_bytes, paths, strict=True))
    ]


def _simple(value: Any) -> Any:
    """A cell as text, a number, a list or a vector; a date, for example, as text."""
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, str | int | float | list | np.ndarray | Stored):
        return None if is_missing(value) else value
    return str(value)


def _named(values: Any, names: Sequence[str] | None) -> Any:
    """Classes by name instead of number, one or several per cell."""
    if names is None:
        return values
    cells = values.tolist() if isinstance(values, np.ndarray) else values
    return [
        None
        if cell is None
        else [names[i] for i in cell]
        if isinstance(cell, list)
        else names[cell]
        if cell >= 0
        else None
        for cell in cells
    ]


def _classes_in(metadata: Mapping[bytes, bytes] | None) -> dict[str, Sequence[str] | None]:
    """The names of classes that Hugging Face writes into the files of its data sets."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {field: (feature.get("feature") or feature).get("names") for field, feature in features.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
