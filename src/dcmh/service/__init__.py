"""A search page and an HTTP API for an index. Needs the extra `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dcmh.errors import MissingExtra, ParameterError
from dcmh.service.settings import INDEX, Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dcmh.search import SearchIndex

__all__ = ["Settings", "app", "create_app"]


def create_app(index: SearchIndex | Path | str, settings: Settings | None = None) -> FastAPI:
    """An ASGI application that serves an index, given open or as the address that `SearchIndex.open` takes.

    Mount it in your own application, or run it with any ASGI server, as `dcmh serve` does.
    """
    try:
        from dcmh.service.app import build
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in (
            "fastapi",
            "starlette",
            "pydantic",
            "python_multipart",
            "multipart",
            "anyio",
            "prometheus_client",
        ):
            raise MissingExtra('dcmh serve needs FastAPI. Install: pip install "dcmh[serve]"') from error
        raise
    return build(index, settings or Settings())


def app() -> FastAPI:
    """The application for the index that $DCMH_INDEX names: uvicorn --factory dcmh.service:app."""
    import os

    from dcmh.service import logs

    address = os.environ.get(INDEX)
    if not address:
        raise ParameterError(f"{INDEX} is not set.", hint=f"Set it to the index to serve: {INDEX}=photos.dcmh")
    settings = Settings.from_environment()
    logs.configure(settings.access_log)
    return create_app(address, settings)
