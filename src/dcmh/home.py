"""The folder in which dcmh keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The cache folder: $DCMH_HOME, or ~/.cache/dcmh. It need not exist yet."""
    given = os.environ.get("DCMH_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "dcmh"
