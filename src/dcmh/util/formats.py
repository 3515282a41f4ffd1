"""Reading JSON, TOML and .npy files, which may be damaged, cut off or hostile.

The readers here raise an OSError or a ValueError and nothing else, whatever the file holds. Inside `readable(path, ModelError,
hint=...)` those, and the errors of code that looks for an entry and finds something else, become one error of dcmh that
names the file.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dcmh import __version__
from dcmh.errors import DataError, DCMHError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_JSON = 1 << 30  # bytes: a split of ten million items
MAX_TOML = 1 << 24
# NumPy parses headers as Python, which CPython 3.11 cannot do in two threads at once (gh-106905).
_parsing = threading.Lock()
# What can be raised by parsing a damaged file, or by relying on its content.
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RuntimeError,
)


@contextlib.contextmanager
def readable(
    path: Path, kind: type[DCMHError] = DataError, *, what: str = "{path} is damaged ({reason}).", hint: str
) -> Iterator[None]:
    """Inside the block, whatever goes wrong with a file becomes an error of this kind; errors of dcmh pass as they are.

    {path} and {reason} in `what` are filled in.
    """
    try:
        yield
    except DCMHError:
        raise
    except UNREADABLE as error:
        if isinstance(error, PermissionError):
            raise kind(f"Permission denied: {path}.", which=path, hint="Check the file permissions.") from error
        message = what.replace("{path}", str(path)).replace("{reason}", reason(error))
        raise kind(message, which=path, hint=hint) from error


def reason(error: BaseException) -> str:
    """Why a file could not be read, in a few words."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it does not fit in memory"
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return str(error) or type(error).__name__


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a ValueError if it is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(reason(error)) from None


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return parse_json(_text(path, MAX_JSON))


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object of a JSON text; a ValueError if it holds another value."""
    record = parse_json(text)
    if not isinstance(record, dict):
        raise ValueError("it does not hold a JSON object")
    return record


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; a ValueError if it holds another value."""
    return parse_object(_text(path, MAX_JSON))


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    """The objects of a text with one JSON object per line."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if line:
            try:
                record = parse_json(line)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(record, dict):
                raise ValueError(f"line {number} is not a JSON object")
            records.append(record)
    return records


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    text = _text(path, MAX_TOML)
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(reason(error)) from None


def read_npy(path: Path | str, *, mmap: Literal["r", "c"] | None = None) -> NDArray[Any]:
    """The array of a .npy file, memory-mapped where a mode is given; never pickle, and never more memory than the file has."""
    import numpy as np

    with open(path, "rb") as file:
        try:
            major, _ = np.lib.format.read_magic(file)
            if major not in (1, 2):
                raise ValueError(f"version {major} of the format is unknown")
            read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
            with _parsing:
                shape, is_fortran, dtype = read(file)
        except Exception as error:  # NumPy parses the header as Python, which fails in many ways
            raise ValueError(f"its header cannot be read: {reason(error)}") from None
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if min(shape, default=0) < 0 or not dtype.itemsize:
            raise ValueError(f"its header is damaged: shape {shape}, {dtype}")
        needed = math.prod(shape) * dtype.itemsize
        start = file.tell()
        order: Literal["C", "F"] = "F" if is_fortran else "C"
        if start + needed > os.fstat(file.fileno()).st_size:
            raise ValueError(f"it is cut off: {needed:,} bytes of shape {shape} are expected")
        if mmap is None or not needed:  # an empty array cannot be mapped
            return np.fromfile(file, dtype, math.prod(shape)).reshape(shape, order=order)
        try:
            return np.asarray(np.memmap(path, dtype, mmap, start, shape, order))
        except (ArithmeticError, TypeError) as error:
            raise ValueError(reason(error)) from error


def check_format(version: object, latest: int, where: object, kind: type[DCMHError]) -> None:
    """Refuse a format number that is not a whole number from 1 to `latest`: 0, true, 1.5 and "1" are damage."""
    if type(version) is not int or version < 1:
        raise kind(
            f"{where} is damaged: it says that it has format {version!r}.",
            which=where,
            hint="Make it again, or copy it again.",
        )
    if version > latest:
        raise kind(
            f"{where} has format {version}; this dcmh ({__version__}) reads up to {latest}.",
            which=where,
            hint="Upgrade: pip install -U dcmh",
        )


def check_types(record: dict[str, Any], **types: type) -> None:
    """A ValueError unless the record has these entries, of these types."""
    for name, expected in types.items():
        if type(record[name]) is not expected:
            raise ValueError(f"{name} is not of type {expected.__name__}")


def _text(path: Path, limit: int) -> str:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"it has {size:,} bytes; the limit is {limit:,}")
        content = file.read(size)
    return content.decode("utf-8")
