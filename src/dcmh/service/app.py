"""The application: endpoints, what they share, and how errors are told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import python_multipart  # noqa: F401 - needed for forms; missing, it should be said at once
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from dcmh import __version__
from dcmh.errors import DCMHError
from dcmh.search import SearchIndex
from dcmh.service import about, docs, items, problems, search, static
from dcmh.service.middleware import Door
from dcmh.service.settings import Settings
from dcmh.service.state import Service


def build(index: SearchIndex | Path | str, settings: Settings) -> FastAPI:
    """The whole application."""
    service = Service(index, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        _reload_on_hangup(service)
        await asyncio.to_thread(service.preload)
        watch = asyncio.create_task(_end_with(settings.parent))
        yield
        watch.cancel()
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="dcmh",
        version=__version__,
        description="Words find pictures, and pictures find pictures and words.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    app.openapi = lambda: docs.schema(app)  # type: ignore[method-assign]
    for part in (search, items, about, static, docs):
        app.include_router(part.router)
    app.add_exception_handler(problems.Problem, problems.on_problem)
    app.add_exception_handler(DCMHError, problems.on_error)
    app.add_exception_handler(HTTPException, problems.on_http)
    app.add_exception_handler(RequestValidationError, problems.on_invalid)
    app.add_middleware(Door, service=service)
    return app


async def _end_with(parent: int | None) -> None:
    """A worker whose parent was killed would hold the port for ever."""
    while parent is not None:
        await asyncio.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _reload_on_hangup(service: Service) -> None:
    """SIGHUP takes in changes of the index."""
    waiting: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(service.check(wait=True))
        waiting.add(task)
        task.add_done_callback(waiting.discard)

    with contextlib.suppress(
        NotImplementedError, RuntimeError, ValueError, AttributeError
    ):  # Windows; not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
