"""The access log: one line of JSON for each request. It never holds a query, a body, a header or a token."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime

access = logging.getLogger("dcmh.service.access")
events = logging.getLogger("dcmh.service")

LONGEST_PATH = 200


def set_up(target: str | None) -> None:
    """Send access lines to a file, to stderr (-) or nowhere (None); what else happens always goes to stderr."""
    access.propagate = False
    access.setLevel(logging.INFO if target is not None else logging.CRITICAL)
    for old in access.handlers[:]:
        access.removeHandler(old)
        old.close()
    if target is not None:
        handler = logging.StreamHandler(sys.stderr) if target == "-" else logging.FileHandler(target, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(message)s"))
        access.addHandler(handler)
    if not events.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Event())
        events.addHandler(handler)
        events.setLevel(logging.INFO)
        events.propagate = False
        for name in ("uvicorn", "uvicorn.error"):
            logging.getLogger(name).handlers = [handler]
            logging.getLogger(name).setLevel(logging.WARNING)
            logging.getLogger(name).propagate = False


def write(
    request_id: str, client: str, method: str, path: str, route: str, status: int, milliseconds: float, size: int
) -> None:
    """One request."""
    if not access.isEnabledFor(logging.INFO):
        return
    record = {
        "time": _now(),
        "request": request_id,
        "client": client,
        "method": method[:16],
        "path": path[:LONGEST_PATH],
        "route": route,
        "status": status,
        "ms": round(milliseconds, 2),
        "bytes": size,
    }
    access.info(json.dumps(record))


class _Event(logging.Formatter):
    """What else happens, as JSON as well."""

    def format(self, record: logging.LogRecord) -> str:
        said = {"time": _now(), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            said["trace"] = self.formatException(record.exc_info)
        return json.dumps(said)


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
