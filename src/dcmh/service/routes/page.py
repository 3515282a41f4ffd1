"""The search page and /docs: the OpenAPI schema as a plain page, without scripts."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

FILES = StaticFiles(directory=Path(__file__).parents[1] / "page")

router = APIRouter(include_in_schema=False)


@router.head("/")
@router.get("/")
async def index(request: Request) -> Response:
    return await _file(request, "index.html")


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return await _file(request, "icon.svg")


@router.get("/page/{name:path}")
async def file(request: Request, name: str) -> Response:
    return await _file(request, name)


@router.get("/docs/style.css")
async def style(request: Request) -> Response:
    return await _file(request, "docs.css")


async def _file(request: Request, name: str) -> Response:
    """A file of the page, which browsers keep and revalidate."""
    response = await FILES.get_response(name, request.scope)
    response.headers["Cache-Control"] = "no-cache"
    return response


@router.get("/docs")
async def docs(request: Request) -> Response:
    schema = request.app.openapi()
    info = schema["info"]
    endpoints = [
        _endpoint(path, method, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="docs/style.css">'
        f"</head><body><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>{escape(info["description"])} For programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(endpoints)}</body></html>"
    )
    return Response(page, media_type="text/html; charset=utf-8")


def _endpoint(path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>',
        f"<p>{escape(operation.get('summary', ''))}</p>",
    ]
    rows = [_row(parameter["name"], parameter["in"], parameter) for parameter in operation.get("parameters", ())]
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        for name, shape in content["schema"].get("properties", {}).items():
            rows.append(_row(name, media_type, {"schema": shape}))
    if rows:
        lines.append(f"<table><tr><th>parameter<th>in<th>values<th>meaning</tr>{''.join(rows)}</table>")
    responses = [_response(status, response) for status, response in operation["responses"].items()]
    lines.append(f"<p>Responses: {', '.join(responses)}.</p>")
    return "".join(lines)


_BOUNDS = {"minimum": "from", "maximum": "to", "maxLength": "length to", "pattern": "like", "maxItems": "items to"}


def _row(name: str, location: str, parameter: dict[str, Any]) -> str:
    schema = parameter.get("schema", {})
    options = [option for option in schema.get("anyOf", [schema]) if option.get("type") != "null"]
    values = [str(option.get("type", "")) for option in options]
    for option in options:
        values += [f"{word} {option[key]}" for key, word in _BOUNDS.items() if key in option]
    if schema.get("default") is not None:
        values.append(f"default {schema['default']}")
    cells = (location, ", ".join(values), parameter.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>"


def _response(status: str, response: dict[str, Any]) -> str:
    media_types = " ".join(response.get("content", {}))
    suffix = f" ({escape(media_types)})" if media_types else ""
    return f"<code>{escape(status)}</code> {escape(response.get('description', ''))}{suffix}"
