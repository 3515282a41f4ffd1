"""Connections: a limit on their number and on the time that each may wait, so that silent clients cannot lock others out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from dcmh.service.limits import ACCEPTED_AT_ONCE, Connections
from dcmh.service.settings import Settings

WRITE_SECONDS = 60.0  # for a client to read what it was sent, before more is sent

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n"
    b"connection: close\r\ncontent-length: 0\r\n\r\n"
)


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with limits. It is waiting from its start, or the end of a response, to the end of a header."""

    address = ""
    _held: Connections | None = None
    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection; another one is closed, or this one refused, where there are too many."""
        super().connection_made(transport)
        self._held = self.app.state.service.connections
        self.address = self.client[0] if self.client else ""
        self._held.count += 1
        if not self._held.make_room():
            transport.write(_BUSY)
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The time for a header runs from its first byte to its last: more bytes do not extend it."""
        super().data_received(data)
        if self._at_work():
            self._stop_waiting()
        elif self._timer is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing() and not self._at_work():
            self._wait()

    def pause_writing(self) -> None:
        """A client that does not read what it asked for is not waited for."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self.drop)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def drop(self) -> None:
        """Close the connection at once."""
        self._release()
        self.transport.abort()

    def _at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._held is None:
            return
        self._held.waiting[self] = None
        self._timer = self._timer or self.loop.call_later(self._held.header_seconds, self.drop)

    def _stop_waiting(self) -> None:
        if self._held is not None:
            self._held.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _release(self) -> None:
        self._stop_waiting()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._held is not None:
            self._held.count -= 1
            self._held = None


def options(settings: Settings) -> dict[str, Any]:
    """uvicorn's settings for limited connections."""
    return {
        "http": LimitedProtocol,
        "timeout_keep_alive": max(1, round(settings.idle_seconds)),
        "backlog": ACCEPTED_AT_ONCE,
        "h11_max_incomplete_event_size": 64 * 1024,
    }
