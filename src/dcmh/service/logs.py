"""Logs as JSON lines. The access log never holds a query, a body, a header or a token."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime

access = logging.getLogger("dcmh.service.access")
events = logging.getLogger("dcmh.service")

MAX_PATH = 200


def configure(target: str | None) -> None:
    """Send the access log to a file, to stderr (-) or nowhere (None); other events always go to stderr."""
    access.propagate = False
    access.setLevel(logging.INFO if target is not None else logging.CRITICAL)
    for handler in access.handlers[:]:
        access.removeHandler(handler)
        handler.close()
    if target is not None:
        output = logging.StreamHandler(sys.stderr) if target == "-" else logging.FileHandler(target, encoding="utf-8")
        output.setFormatter(logging.Formatter("%(message)s"))
        access.addHandler(output)
    if not events.handlers:
        output = logging.StreamHandler(sys.stderr)
        output.setFormatter(_JSONFormatter())
        events.addHandler(output)
        events.setLevel(logging.INFO)
        events.propagate = False
        for name in ("uvicorn", "uvicorn.error"):
            logging.getLogger(name).handlers = [output]
            logging.getLogger(name).setLevel(logging.WARNING)
            logging.getLogger(name).propagate = False


def log_request(
    request_id: str, client: str, method: str, path: str, route: str, status: int, milliseconds: float, size: int
) -> None:
    """Write the access log line of one request."""
    if not access.isEnabledFor(logging.INFO):
        return
    record = {
        "time": _now(),
        "request": request_id,
        "client": client,
        "method": method[:16],
        "path": path[:MAX_PATH],
        "route": route,
        "status": status,
        "ms": round(milliseconds, 2),
        "bytes": size,
    }
    access.info(json.dumps(record))


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _now(), "level": record.levelname.lower(), "event": record.getMessage()}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _now() -> str:
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
