"""The page: files that lie in the package, sent as they are."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from dcmh.service.problems import Problem

FOLDER = Path(__file__).parent / "page"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}

router = APIRouter(include_in_schema=False)


class File(NamedTuple):
    body: bytes
    media_type: str
    tag: str


@functools.cache
def files() -> dict[str, File]:
    """All files of the page by name. Read once: what is not among them cannot be asked for."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file() and path.suffix in TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.blake2b(body, digest_size=8).hexdigest()}"'
            found[path.relative_to(FOLDER).as_posix()] = File(body, TYPES[path.suffix], tag)
    return found


@router.head("/")
@router.get("/")
async def page(request: Request) -> Response:
    return _send(request, "index.html")


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return _send(request, "icon.svg")


@router.get("/page/{name:path}")
async def part(request: Request, name: str) -> Response:
    return _send(request, name)


def _send(request: Request, name: str) -> Response:
    file = files().get(name)
    if file is None:
        raise Problem(404, "There is nothing at this address.", "GET / is the page, GET /docs lists the API.")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
