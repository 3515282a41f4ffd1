"""/docs: the schema as a plain page, which needs no script and nothing from elsewhere."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from dcmh.service.problems import SCHEMA

STYLE = Path(__file__).parent / "docs.css"

router = APIRouter(include_in_schema=False)


def schema(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document; errors are problem documents."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = found.setdefault("components", {}).setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):
            parts.pop(unused, None)
        parts["Problem"] = SCHEMA
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        app.openapi_schema = found
    return app.openapi_schema


@router.get("/docs")
async def docs(request: Request) -> Response:
    found = schema(request.app)
    parts = [_endpoint(path, method, said) for path, ways in found["paths"].items() for method, said in ways.items()]
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(found["info"]["title"])}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="docs/style.css">'
        f"</head><body><h1>{escape(found['info']['title'])} {escape(found['info']['version'])}</h1>"
        f'<p>{escape(found["info"]["description"])} For programs: <a href="openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}</body></html>"
    )
    return Response(page, media_type="text/html; charset=utf-8")


@router.get("/docs/style.css")
async def style() -> Response:
    return Response(STYLE.read_bytes(), media_type="text/css; charset=utf-8", headers={"Cache-Control": "no-cache"})


def _endpoint(path: str, method: str, said: dict[str, Any]) -> str:
    lines = [
        f'<h2><span class="method">{method.upper()}</span> <code>{escape(path)}</code></h2>',
        f"<p>{escape(said.get('summary', ''))}</p>",
    ]
    rows = [_row(parameter["name"], parameter["in"], parameter) for parameter in said.get("parameters", ())]
    for media_type, content in said.get("requestBody", {}).get("content", {}).items():
        for name, shape in content["schema"].get("properties", {}).items():
            rows.append(_row(name, media_type, {"schema": shape}))
    if rows:
        lines.append(f"<table><tr><th>parameter<th>in<th>values<th>meaning</tr>{''.join(rows)}</table>")
    answers = [_answer(status, answer) for status, answer in said["responses"].items()]
    lines.append(f"<p>Answers: {', '.join(answers)}.</p>")
    return "".join(lines)


def _row(name: str, where: str, parameter: dict[str, Any]) -> str:
    shape = parameter.get("schema", {})
    options = [option for option in shape.get("anyOf", [shape]) if option.get("type") != "null"]
    said = [str(option.get("type", "")) for option in options]
    for option in options:
        bounds = [f"{word} {option[key]}" for key, word in _BOUNDS.items() if key in option]
        said += bounds
    if shape.get("default") is not None:
        said.append(f"default {shape['default']}")
    cells = (f"<code>{escape(name)}</code>", where, ", ".join(said), parameter.get("description", ""))
    return "<tr>" + "".join(f"<td>{cell if place == 0 else escape(cell)}" for place, cell in enumerate(cells)) + "</tr>"


_BOUNDS = {"minimum": "from", "maximum": "to", "maxLength": "length to", "pattern": "like", "maxItems": "items to"}


def _answer(status: str, answer: dict[str, Any]) -> str:
    kinds = " ".join(answer.get("content", {}))
    return (
        f"<code>{escape(status)}</code> {escape(answer.get('description', ''))}{f' ({escape(kinds)})' if kinds else ''}"
    )
