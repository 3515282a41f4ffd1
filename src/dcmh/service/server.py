"""`dcmh serve`: the listening socket, and uvicorn with one process or several."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from dcmh.errors import ParameterError, needs
from dcmh.service.settings import INDEX, SHARED_METRICS, Settings

SHUTDOWN_SECONDS = 10  # for running requests to finish


class Ready(NamedTuple):
    """A server that is ready to run until a signal ends it."""

    items: int
    run: Callable[[socket.socket], None]


def prepare(index: str, settings: Settings, workers: int) -> Ready:
    """Open the index, so that errors surface before the server runs."""
    with needs("dcmh serve needs FastAPI", "dcmh[serve]"):
        import uvicorn
    settings.token_digest()
    ready = _in_process(uvicorn, index, settings) if workers == 1 else _with_workers(uvicorn, index, settings, workers)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server handles it
    return ready


def listen(index: str, host: str, port: int) -> socket.socket:
    """A listening socket. The error for a port in use suggests a free one."""
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
        reason = error.strerror or str(error)
        raise ParameterError(
            f"Cannot listen at {host}, port {port}: {reason}. Try another --host or --port."
        ) from error
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _in_process(uvicorn: Any, index: str, settings: Settings) -> Ready:
    from dcmh.service import create_app, logs

    logs.configure(settings.access_log)
    app = create_app(index, settings)
    with app.state.service.holder.use() as opened:
        items = len(opened.index)
    server = uvicorn.Server(_config(uvicorn, settings, app))

    def run(listener: socket.socket) -> None:
        # uvicorn raises the signal again after its shutdown.
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, lambda *_: None)
        server.run(sockets=[listener])

    return Ready(items, run)


def _with_workers(uvicorn: Any, index: str, settings: Settings, workers: int) -> Ready:
    """Workers open the index themselves; opening it here first reports its errors once."""
    from uvicorn.supervisors import Multiprocess

    from dcmh.search import SearchIndex
    from dcmh.service import app

    with SearchIndex.open(index) as opened:
        items = len(opened)
    os.environ |= {INDEX: index, **settings.to_environment()}
    config = _config(uvicorn, settings, f"{app.__module__}:{app.__name__}", factory=True, workers=workers)

    def run(listener: socket.socket) -> None:
        with tempfile.TemporaryDirectory(prefix="dcmh-") as shared:
            os.environ[SHARED_METRICS] = shared
            Multiprocess(config, sockets=[listener]).run()

    return Ready(items, run)


def _config(uvicorn: Any, settings: Settings, app: Any, **options: Any) -> Any:
    from dcmh.service import connections

    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # clients must not choose the address by which they are rate limited
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        **connections.options(settings),
        **options,
    )


def _free_port(family: int, host: str, port: int) -> int:
    for candidate in range(port + 1, min(port + 100, 65536)):
        with socket.socket(family, socket.SOCK_STREAM) as trial, contextlib.suppress(OSError):
            trial.bind((host, candidate))
            return candidate
    return 0
