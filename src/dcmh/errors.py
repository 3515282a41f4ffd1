"""Everything that dcmh raises on purpose.

DCMHError
 ├─ DataError (ValueError)        a data set is missing, incomplete or inconsistent
 │   └─ ImageError                a picture cannot be read; the message is a short reason
 ├─ ParameterError (ValueError)   a setting is outside what makes sense
 ├─ ModelError (ValueError)       a folder is not a model, is damaged, or is newer than this version
 ├─ ModelMismatch (ValueError)    codes, index and model do not belong together
 ├─ EncoderError (ValueError)     the weights of a text encoder are damaged or incomplete
 ├─ QueryError (ValueError)       nothing in the query can be encoded
 │   └─ UnknownWords              none of its words is in the vocabulary
 ├─ DivergedError (ArithmeticError) training gave values that are not finite
 ├─ NotFittedError (RuntimeError) a model was used before fit or load
 ├─ DeviceError (RuntimeError)    a device was asked for that is not there
 ├─ BusyError (RuntimeError)      another process is writing the same folder or collection
 ├─ EngineError (RuntimeError)    a database server is away, refuses, or fails
 ├─ TrainingStopped (RuntimeError) training was interrupted on request; its state is saved
 └─ MissingExtra (ImportError)    an optional dependency is not installed

Each error says what happened (`what`), to which thing (`which`), and what to do (`hint`); its message is all of it.
Code decides by class and by these fields, never by the words of a message. Each class is also a built-in exception,
so that ordinary `except` works.
"""

from __future__ import annotations


class DCMHError(Exception):
    """The root: whoever catches this catches every error that dcmh raises on purpose.

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
    """A setting is outside what makes sense."""


class ModelError(DCMHError, ValueError):
    """A folder is not a model, is damaged, or is newer than this version reads."""


class ModelMismatch(DCMHError, ValueError):
    """Codes, index and model do not belong together."""


class EncoderError(DCMHError, ValueError):
    """The weights of a text encoder are damaged or incomplete."""


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
    """A device was asked for that is not there."""


class BusyError(DCMHError, RuntimeError):
    """Another process is writing the same folder or collection."""


class EngineError(DCMHError, RuntimeError):
    """A database server is away, refuses, or fails."""


class TrainingStopped(DCMHError, RuntimeError):
    """Training was interrupted on request; its state is saved."""


class MissingExtra(DCMHError, ImportError):
    """An optional dependency is not installed."""
