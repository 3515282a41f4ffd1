"""What a server may be told, and how `dcmh serve` tells its workers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dcmh.errors import ParameterError

INDEX = "DCMH_INDEX"
_SETTINGS = "DCMH_SERVE"  # from `dcmh serve` to its workers; not for people

SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """How an index is served. Nothing can be changed by callers unless there is a token file."""

    token_file: str | None = None
    read_only: bool = False
    hosts: tuple[str, ...] = ()
    """Host names besides those of the loopback interface that requests may be for; empty: any, but on loopback."""
    rate: float = 500.0
    """Requests a second that one client may keep up, in one worker; 0: any number. A picture counts ten times."""
    upload_bytes: int = 20_000_000
    megapixels: int = 50
    upload_seconds: float = 60.0
    waiting: int = 64
    """Pictures that may be uploaded, wait or be encoded at the same time."""
    picture_threads: int = field(default_factory=lambda: max(1, min(4, _cores() - 1)))
    preload: bool = False
    """Load the image network at the start; otherwise the first picture does, for which word queries wait a moment."""
    thumbnail_bytes: int = 32_000_000
    """Of thumbnails kept in memory."""
    check_seconds: float = 1.0
    """How long a change of the index folder may go unnoticed."""
    access_log: str | None = "-"
    """A file, - for stderr, or None."""
    shared: str | None = None
    """A folder in which several workers put their counters together."""
    parent: int | None = None
    """The process whose worker this is: when it is gone, so is the worker."""

    def __post_init__(self) -> None:
        for name, least in (
            ("rate", 0),
            ("upload_bytes", 1),
            ("megapixels", 1),
            ("waiting", 1),
            ("picture_threads", 1),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise ParameterError(f"{name} must be at least {least}, not {value!r}.")

    @classmethod
    def from_environment(cls) -> Self:
        record = json.loads(os.environ.get(_SETTINGS) or "{}")
        return cls(**record | {"hosts": tuple(record.get("hosts", ()))})

    def to_environment(self) -> dict[str, str]:
        return {_SETTINGS: json.dumps(dataclasses.asdict(self))}

    def token_digest(self) -> bytes | None:
        """The digest of the token that changes need; None where none are taken."""
        if self.token_file is None or self.read_only:
            return None
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            said = getattr(error, "strerror", None) or "it is no text"
            raise ParameterError(f"Cannot read the token file {self.token_file}: {said}. {_MAKE}") from error
        if len(token) < SHORTEST_TOKEN or not token.isascii() or len(token.split()) != 1:
            raise ParameterError(
                f"The token in {self.token_file} must be one word of at least {SHORTEST_TOKEN} ASCII characters. {_MAKE}"
            )
        return hashlib.sha256(token.encode()).digest()


_MAKE = "Make one: python -c 'import secrets; print(secrets.token_urlsafe())' > FILE"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
