"""Errors as problem documents (RFC 9457): the command line's sentence, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dcmh.errors import BusyError, DCMHError, ParameterError, QueryError, UnknownWords

MEDIA_TYPE = "application/problem+json"

# Status to type, and what a reader of the schema should know.
KINDS = {
    400: ("bad-request", "The body is not what it claims to be"),
    401: ("token-needed", "A change without the token"),
    403: ("read-only", "The server takes no changes, or not from another site"),
    404: ("not-found", "No such address, item or picture"),
    405: ("method-not-allowed", "Another method is needed"),
    408: ("too-slow", "The upload took too long"),
    413: ("too-large", "Too many bytes or pixels"),
    415: ("not-a-picture", "Not a kind of content that is taken here"),
    421: ("wrong-host", "A host name that this server does not have"),
    422: ("bad-parameter", "A parameter is wrong, or nothing in the query can be encoded"),
    429: ("too-many-requests", "Too many requests; Retry-After says when"),
    500: ("bug", "A mistake of the server"),
    503: ("busy", "Too much to do; Retry-After says when"),
}

_SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z'\"(])")


class Problem(Exception):
    """What is wrong with a request."""

    def __init__(
        self,
        status: int,
        title: str,
        hint: str = "",
        *,
        kind: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(title)
        self.status = status
        self.headers = dict(headers or {})
        self.record = {"type": kind or KINDS[status][0], "status": status, "title": title, "hint": hint, **more}

    def response(self) -> Response:
        body = json.dumps(self.record, ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def busy(title: str, seconds: int = 1) -> Problem:
    return Problem(503, title, f"Try again in {_spelt(seconds)}.", headers={"Retry-After": str(seconds)})


def no_item(item: int) -> Problem:
    return Problem(404, f"There is no item {item}.", "Search for one: GET /api/search?text=…", kind="no-such-item")


def not_encodable(hint: str) -> Problem:
    return Problem(422, "No part of the text can be encoded.", hint, kind="query-not-encodable")


def explain(error: DCMHError) -> Problem | None:
    """The problem that an error of the library is for a caller; None where it is none of the caller's business."""
    if isinstance(error, UnknownWords):
        if error.which is None:
            return Problem(422, error.what, error.hint, kind="query-not-encodable")
        known = f"Closest known: {', '.join(error.nearest)}. " if error.nearest else ""
        hint = f"{known}GET /api/words lists them all."
        return Problem(422, error.what, hint, kind="query-not-encodable", nearest=list(error.nearest))
    if isinstance(error, QueryError | ParameterError):
        kind = "query-not-encodable" if isinstance(error, QueryError) else "bad-parameter"
        title, _, hint = _SENTENCE.sub("\n", str(error), count=1).partition("\n")
        return Problem(422, title, hint, kind=kind)
    if isinstance(error, BusyError):
        return busy("Another process is writing the index.", 2)
    return None


async def on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def on_error(request: Request, error: Exception) -> Response:
    """An error of the library."""
    assert isinstance(error, DCMHError)
    found = explain(error)
    if found is None:
        raise error  # a bug, or an index that is damaged: the log has it
    return found.response()


async def on_http(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    said = {
        404: ("There is nothing at this address.", "GET /docs lists what there is."),
        405: (f"{request.method} is not possible here.", "GET /docs says what is."),
    }
    title, hint = said.get(status, (str(error.detail), "See GET /docs."))
    kind = KINDS.get(status, ("refused", ""))[0]
    return Problem(status, title, hint, kind=kind, headers=error.headers).response()


async def on_invalid(request: Request, error: Exception) -> Response:
    """Parameters that are not what the schema says."""
    assert isinstance(error, RequestValidationError)
    wrong = [f"{_name(one['loc'])}: {one['msg']}" for one in error.errors()]
    return Problem(422, f"{wrong[0]}.", "GET /docs describes the parameters.", errors=wrong[:10]).response()


def bug(request_id: str) -> Problem:
    hint = "This is a mistake of the server. Its log has the details under this request."
    return Problem(500, "The server could not answer.", hint, request=request_id)


def document(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an endpoint, for the schema. Those that any endpoint may give are always among them."""
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": KINDS[status][1], "content": {MEDIA_TYPE: reference}}
        for status in sorted({*statuses, 400, 421, 422, 429, 500, 503})
    }


SCHEMA = {
    "title": "Problem",
    "type": "object",
    "required": ["type", "status", "title", "hint"],
    "properties": {
        "type": {"type": "string", "description": "A short name of the kind of error"},
        "status": {"type": "integer"},
        "title": {"type": "string", "description": "What happened"},
        "hint": {"type": "string", "description": "What to do; may be empty"},
        "nearest": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Known words like the unknown ones, where a vocabulary limits the query",
        },
        "errors": {"type": "array", "items": {"type": "string"}, "description": "All that is wrong"},
        "request": {"type": "string", "description": "The id under which the log has the details"},
    },
}


def _name(place: tuple[int | str, ...]) -> str:
    return str(place[-1]) if place else "request"


def _spelt(seconds: int) -> str:
    return "a second" if seconds == 1 else f"{seconds} seconds"
