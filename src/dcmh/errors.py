"""Everything that dcmh raises on purpose.

    DCMHError
     ├─ DataError (ValueError)        a data set is missing, incomplete or inconsistent
     │   └─ ImageError                a picture cannot be read; the message is a short reason
     ├─ ParameterError (ValueError)   a parameter is invalid
     ├─ ModelError (ValueError)       a folder is not a model, is damaged, or is newer than this version
     │   └─ DamagedError              a file does not match its checksum; `which` is its path
     ├─ ModelMismatch (ValueError)    codes, index and model do not belong together
     ├─ EncoderError (ValueError)     the files of an encoder are damaged or incomplete
     ├─ QueryError (ValueError)       nothing in the query can be encoded
     │   └─ UnknownWords              none of its words is in the vocabulary
     ├─ DivergedError (ArithmeticError) training gave values that are not finite
     ├─ NotFittedError (RuntimeError) a model was used before fit or load
     ├─ DeviceError (RuntimeError)    the requested device does not exist
     ├─ BusyError (RuntimeError)      another process is writing the same folder or collection
     ├─ EngineError (RuntimeError)    a database server is unreachable, refuses a request, or fails
     ├─ StorageError (OSError)        a disk is full, read-only or failing
     ├─ TrainingStopped (RuntimeError) training was interrupted on request; its state is saved
     └─ MissingExtra (ImportError)    an optional dependency is not installed

Each error says what happened (`what`), to which thing (`which`), and what to do (`hint`); its message is all of it.
Code decides by class and by these fields, never by the words of a message. Each class is also a built-in exception,
so that ordinary `except` works.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Literal


class DCMHError(Exception):
    """The base class of every error that dcmh raises on purpose.

    Parameters
    ----------
    what
        What happened, in one or more sentences.
    which
        The thing it happened to, such as a path, a parameter's name or a line, where code needs to know.
    hint
        What to do about it. The message is `what` followed by `hint`.
    """

    def __init__(self, what: str = "", *, which: object = None, hint: str = "") -> None:
        super().__init__(f"{what} {hint}".strip())
        self.what = what
        self.which = which
        self.hint = hint


class DataError(DCMHError, ValueError):
    """A data set is missing, incomplete or inconsistent."""


class ImageError(DataError):
    """A picture cannot be read; the message is a short reason, such as 'truncated after 41 kB'."""


class ParameterError(DCMHError, ValueError):
    """A parameter is invalid."""


class ModelError(DCMHError, ValueError):
    """A folder is not a model, is damaged, or is newer than this version reads."""


class DamagedError(ModelError):
    """A file does not match its checksum; `which` is its path."""


class ModelMismatch(DCMHError, ValueError):
    """Codes, index and model do not belong together."""


class EncoderError(DCMHError, ValueError):
    """The files of an encoder are damaged or incomplete."""


class QueryError(DCMHError, ValueError):
    """Nothing in the query can be encoded."""


class UnknownWords(QueryError):
    """None of the query's words is known. `which`: the vocabulary, where one limits the query; `nearest`: words in it."""

    def __init__(self, what: str, *, which: object = None, hint: str = "", nearest: tuple[str, ...] = ()) -> None:
        super().__init__(what, which=which, hint=hint)
        self.nearest = nearest


class DivergedError(DCMHError, ArithmeticError):
    """Training gave values that are not finite. `which`: the setting to change, where one is known."""


class NotFittedError(DCMHError, RuntimeError):
    """A model was used before fit or load."""


class DeviceError(DCMHError, RuntimeError):
    """The requested device does not exist."""


class BusyError(DCMHError, RuntimeError):
    """Another process is writing the same folder or collection."""


class EngineError(DCMHError, RuntimeError):
    """A database server is unreachable, refuses a request, or fails."""


_STATES: dict[int, Literal["full", "read-only", "failing"]] = {
    **dict.fromkeys((errno.ENOSPC, errno.EFBIG, errno.EDQUOT), "full"),
    errno.EROFS: "read-only",
    **dict.fromkeys((errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE), "failing"),
    **dict.fromkeys([117] if os.name == "posix" else [], "failing"),  # EUCLEAN: the file system is damaged
}
_SQLITE = {"SQLITE_FULL": errno.ENOSPC, "SQLITE_IOERR": errno.EIO, "SQLITE_READONLY": errno.EROFS}
_WHAT = {"full": "The disk is full", "read-only": "The disk is read-only", "failing": "The disk fails"}
_HINTS = {
    "full": "Free some space (or raise the quota), then try again.",
    "read-only": "Make it writable, or choose another place.",
    "failing": "Check the disk and the system log, then try again.",
}


class StorageError(DCMHError, OSError):
    """A disk is full, read-only or failing; what was stored before is intact.

    `state` is "full", "read-only" or "failing"; `which` is the path.
    """

    def __init__(
        self,
        what: str,
        *,
        state: Literal["full", "read-only", "failing"],
        which: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what, which=which, hint=_HINTS[state] if hint is None else hint)
        self.state: Literal["full", "read-only", "failing"] = state

    @classmethod
    def of(cls, error: BaseException, path: object = None) -> StorageError | None:
        """The StorageError for an operating-system error, even one wrapped by a library; None if it is not about a disk."""
        if isinstance(error, StorageError):
            return error
        number = error.errno if isinstance(error, OSError) else None
        if number is None and (rust := re.search(r"\(os error (\d+)\)", str(error))):  # safetensors
            number = int(rust.group(1))
        if number is None:
            name = getattr(error, "sqlite_errorname", "")
            number = next((number for prefix, number in _SQLITE.items() if name.startswith(prefix)), None)
        if number not in _STATES:
            return None
        path = getattr(error, "filename", None) or path
        state = _STATES[number]
        does = "read or write" if state == "failing" else "write"
        where = "" if path is None else f": cannot {does} {path}"
        return cls(f"{_WHAT[state]}{where} ({os.strerror(number)}).", state=state, which=path)


class TrainingStopped(DCMHError, RuntimeError):
    """Training was interrupted on request; its state is saved."""


class MissingExtra(DCMHError, ImportError):
    """An optional dependency is not installed."""


@contextlib.contextmanager
def needs(what: str, package: str) -> Iterator[None]:
    """Inside the block, an import that fails is a MissingExtra: `what` needs this package, or this extra of dcmh."""
    try:
        yield
    except ImportError as error:
        quoted = f'"{package}"' if "[" in package else package
        raise MissingExtra(f"{what}.", hint=f"Install: pip install {quoted}") from error
