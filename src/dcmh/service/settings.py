"""Settings of a server, and how `dcmh serve` passes them to its workers."""

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
SHARED_METRICS = "PROMETHEUS_MULTIPROC_DIR"  # workers add up their counters there; prometheus_client reads it
_SETTINGS = "DCMH_SERVE"  # internal: from `dcmh serve` to its workers

MIN_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """How an index is served. Clients can change nothing unless there is a token file."""

    token_file: str | None = None
    read_only: bool = False
    hosts: tuple[str, ...] = ()
    """Host names that requests may be for, besides those of loopback; empty: any, except on loopback."""
    rate: float = 500.0
    """Requests per second and client, in each worker; 0: no limit. A picture counts as ten."""
    upload_bytes: int = 20_000_000
    megapixels: int = 50
    upload_seconds: float = 60.0
    waiting: int = 64
    """Maximum number of pictures that are uploaded, waiting or being encoded at the same time."""
    picture_threads: int = field(default_factory=lambda: max(1, min(4, _cores() - 1)))
    uploads_per_client: int = 16
    """Maximum number of bodies that one client sends at the same time. Beyond it, the slowest is given up for a new one."""
    connections: int = 512
    """Maximum number of connections to a worker; fewer where the limit of file descriptors is low."""
    header_seconds: float = 10.0
    """Limit for the header of a request, and for the first byte of a new connection."""
    idle_seconds: float = 5.0
    """How long a connection is kept without a request."""
    decode_seconds: float = 10.0
    """Limit for decoding one picture, of a client or for a thumbnail."""
    decode_megabytes: int = 1000
    """Limit for the memory that decoding one picture takes."""
    preload: bool = False
    """Load the image network in the background after the start. Otherwise the first picture loads it."""
    thumbnail_bytes: int = 32_000_000
    """Size of the in-memory cache of thumbnails."""
    answer_bytes: int = 16_000_000
    """Size of the in-memory cache of search responses."""
    check_seconds: float = 1.0
    """Interval between checks for changes of the index."""
    access_log: str | None = "-"
    """A file, - for stderr, or None."""
    parent: int | None = None
    """The process whose worker this is. The worker ends when it does."""

    def __post_init__(self) -> None:
        for name, least in (
            ("rate", 0),
            ("upload_bytes", 1),
            ("megapixels", 1),
            ("waiting", 1),
            ("picture_threads", 1),
            ("uploads_per_client", 1),
            ("upload_seconds", 0.01),
            ("connections", 1),
            ("header_seconds", 0.01),
            ("idle_seconds", 1),
            ("decode_seconds", 0.01),
            ("decode_megabytes", 1),
        ):
            value = getattr(self, name)
            if not value >= least:
                raise ParameterError(f"{name} must be at least {least}, not {value!r}.")

    @classmethod
    def from_environment(cls) -> Self:
        """The settings that `to_environment` wrote; defaults where there are none."""
        record = json.loads(os.environ.get(_SETTINGS) or "{}")
        return cls(**record | {"hosts": tuple(record.get("hosts", ()))})

    def to_environment(self) -> dict[str, str]:
        """Environment variables for a worker."""
        return {_SETTINGS: json.dumps(dataclasses.asdict(self))}

    def token_digest(self) -> bytes | None:
        """The digest of the token that changes need; None where the server is read-only."""
        if self.token_file is None or self.read_only:
            return None
        try:
            token = Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not a text file"
            raise ParameterError(f"Cannot read the token file {self.token_file}: {reason}.", hint=_MAKE) from error
        if len(token) < MIN_TOKEN or not token.isascii() or len(token.split()) != 1:
            raise ParameterError(
                f"The token in {self.token_file} must be one word of at least {MIN_TOKEN} ASCII characters.", hint=_MAKE
            )
        return hashlib.sha256(token.encode()).digest()


_MAKE = "Make one: python -c 'import secrets; print(secrets.token_urlsafe())' > FILE"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
