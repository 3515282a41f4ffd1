"""A download server on this machine, which can break off, lie about sizes, redirect, or refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Mirror:
    """Files by path, and how each misbehaves: {"/a.zip": ["break 1000", "status 503", "ok"]}, one per request."""

    files: dict[str, bytes] = field(default_factory=dict)
    plans: dict[str, list[str]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # paths requested
    address: str = ""

    def url(self, path: str) -> str:
        return f"{self.address}{path}"

    def plan(self, path: str) -> str:
        steps = self.plans.get(path, [])
        return steps.pop(0) if len(steps) > 1 else steps[0] if steps else "ok"


@contextmanager
def mirror() -> Iterator[Mirror]:
    made = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.seen.append(self.path)
            word, _, value = made.plan(self.path).partition(" ")
            if word == "status":
                self.send_error(int(value))
            elif word == "redirect":
                self.send_response(302)
                self.send_header("Location", value)
                self.end_headers()
            else:
                self._send(made.files[self.path], word, value)

        def _send(self, content: bytes, word: str, value: str) -> None:
            self.send_response(200)
            self.send_header("Content-Length", value if word == "claim" else str(len(content)))
            self.end_headers()
            self.wfile.write(content[: int(value)] if word == "break" else content)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
