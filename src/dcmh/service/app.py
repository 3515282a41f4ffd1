"""The application: routes, middleware, error handlers, lifespan, OpenAPI schema."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import python_multipart  # noqa: F401 - FastAPI needs it for forms; if it is missing, the start should say so
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException

from dcmh import __version__
from dcmh.errors import DCMHError
from dcmh.search import SearchIndex
from dcmh.service import problems
from dcmh.service.middleware import RequestMiddleware
from dcmh.service.routes import about, items, page, search
from dcmh.service.settings import Settings
from dcmh.service.state import START_AFTER, Service


def build(index: SearchIndex | Path | str, settings: Settings) -> FastAPI:
    """The whole application."""
    service = Service(index, settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        _reload_on_hangup(service)
        await asyncio.to_thread(service.preload)
        service.prepare_soon(START_AFTER)
        watch = asyncio.create_task(_exit_with(settings.parent))
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
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    for routes in (search, items, about, page):
        app.include_router(routes.router)
    app.add_exception_handler(problems.Problem, problems.on_problem)
    app.add_exception_handler(DCMHError, problems.on_error)
    app.add_exception_handler(OSError, problems.on_error)
    app.add_exception_handler(HTTPException, problems.on_http)
    app.add_exception_handler(RequestValidationError, problems.on_invalid)
    app.add_middleware(RequestMiddleware, service=service)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI schema, in which errors are problem documents."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = schema.setdefault("components", {})
        models = components.setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            models.pop(unused, None)
        models["Problem"] = problems.SCHEMA
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = schema
    return app.openapi_schema


async def _exit_with(parent: int | None) -> None:
    """End this worker when its parent is gone, so that it does not hold the port."""
    while parent is not None:
        await asyncio.sleep(1)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def _reload_on_hangup(service: Service) -> None:
    """Reload the index on SIGHUP."""
    tasks: set[asyncio.Task[bool]] = set()

    def reload() -> None:
        task = asyncio.get_running_loop().create_task(service.reload(wait=True))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with contextlib.suppress(
        NotImplementedError, RuntimeError, ValueError, AttributeError
    ):  # Windows; not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
