"""Servers: a socket that listens, and uvicorn with one process or several."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

from dcmh.errors import MissingExtra, ParameterError
from dcmh.service.settings import INDEX, Settings

FINISH = 10  # seconds that running requests have when the server stops


class Ready(NamedTuple):
    """A server that is ready to run, until a signal ends it."""

    items: int
    run: Callable[[socket.socket], None]


def prepare(index: str, settings: Settings, workers: int) -> Ready:
    """Open the index; what is wrong with it is said before anything runs."""
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra('dcmh serve needs FastAPI. Install: pip install "dcmh[serve]"') from error
    settings.token_digest()
    ready = _one(uvicorn, index, settings) if workers == 1 else _several(uvicorn, index, settings, workers)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server follows it
    return ready


def listen(index: str, host: str, port: int) -> socket.socket:
    """A socket that listens; a port in use is a sentence with one that is not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on: 40 ms more
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.set_inheritable(True)
    except OverflowError:
        listener.close()
        raise ParameterError(f"--port must be 0 to 65535, not {port}.") from None
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            free = _free_port(family, host, port)
            raise ParameterError(f"Port {port} is in use. Try: dcmh serve {index} --port {free}") from None
        said = error.strerror or str(error)
        raise ParameterError(f"Cannot listen at {host}, port {port}: {said}. Try another --host or --port.") from error
    return listener


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _one(uvicorn: Any, index: str, settings: Settings) -> Ready:
    from dcmh.service import create_app, log

    log.set_up(settings.access_log)
    app = create_app(index, settings)
    with app.state.service.served.use() as opened:
        items = len(opened.index)
    server = uvicorn.Server(_config(uvicorn, app))

    def run(listener: socket.socket) -> None:
        # After its own orderly end the server hands the signal on, to these.
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: None)
        server.run(sockets=[listener])

    return Ready(items, run)


def _several(uvicorn: Any, index: str, settings: Settings, workers: int) -> Ready:
    """Workers open the index themselves; it is opened here first, so that what is wrong with it is said once."""
    from uvicorn.supervisors import Multiprocess

    from dcmh.search import SearchIndex
    from dcmh.service import app

    with SearchIndex.open(index) as opened:
        items = len(opened)
    os.environ |= {INDEX: index, **settings.to_environment()}
    config = _config(uvicorn, f"{app.__module__}:{app.__name__}", factory=True, workers=workers)
    return Ready(items, lambda listener: Multiprocess(config, sockets=[listener]).run())


def _config(uvicorn: Any, app: Any, **more: Any) -> Any:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client must not choose the address it is limited by
        timeout_graceful_shutdown=FINISH,
        **more,
    )


def _free_port(family: int, host: str, port: int) -> int:
    for candidate in range(port + 1, min(port + 100, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as trial, contextlib.suppress(OSError):
            trial.bind((host, candidate))
            return candidate
    return 0
