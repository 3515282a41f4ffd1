"""Errors as problem documents (RFC 9457): what happened, and what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from dcmh.errors import BusyError, DCMHError, ParameterError, QueryError, StorageError, UnknownWords
from dcmh.service import logs

MEDIA_TYPE = "application/problem+json"

# Status to type, and description for the schema.
KINDS = {
    400: ("bad-request", "The body is not what it claims to be"),
    401: ("token-needed", "A change without the token"),
    403: ("read-only", "The server is read-only, or the request comes from another site"),
    404: ("not-found", "No such address, item or picture"),
    405: ("method-not-allowed", "Another method is needed"),
    408: ("too-slow", "The upload took too long"),
    413: ("too-large", "Too many bytes or pixels"),
    415: ("not-a-picture", "Content of a type that is not accepted"),
    421: ("wrong-host", "A host name that this server does not have"),
    422: ("bad-parameter", "A parameter is wrong, or nothing in the query can be encoded"),
    429: ("too-many-requests", "Too many requests; Retry-After says when to try again"),
    500: ("bug", "A bug in the server"),
    503: ("busy", "Overloaded; Retry-After says when to try again. Or the disk is read-only or failing"),
    507: ("disk-full", "The disk is full; nothing was changed"),
}


class Problem(Exception):
    """An error response."""

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
        """The problem document."""
        body = json.dumps(self.record, ensure_ascii=False).encode("utf-8", "replace")
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def busy(title: str, seconds: int = 1) -> Problem:
    """The server cannot answer now, but may after some seconds."""
    wait = "a second" if seconds == 1 else f"{seconds} seconds"
    return Problem(503, title, f"Try again in {wait}.", headers={"Retry-After": str(seconds)})


def no_item(item: int) -> Problem:
    """There is no item with this id."""
    return Problem(404, f"There is no item {item}.", "Search for one: GET /api/search?text=…", kind="no-such-item")


def not_encodable(hint: str) -> Problem:
    """A text has no word that the model knows."""
    return Problem(422, "No part of the text can be encoded.", hint, kind="query-not-encodable")


def explain(error: DCMHError) -> Problem | None:
    """The problem that a library error is for a client; None where it is the server's fault."""
    if isinstance(error, UnknownWords) and error.which is not None:
        known = f"Closest known: {', '.join(error.nearest)}. " if error.nearest else ""
        hint = f"{known}GET /api/words lists them all."
        return Problem(422, error.what, hint, kind="query-not-encodable", nearest=list(error.nearest))
    if isinstance(error, QueryError | ParameterError):
        kind = "query-not-encodable" if isinstance(error, QueryError) else "bad-parameter"
        return Problem(422, error.what, error.hint, kind=kind)
    if isinstance(error, BusyError):
        return busy("Another process is writing the index.", 2)
    if isinstance(error, StorageError):  # without paths, which are for the log
        hint = "Nothing was changed. The operator of the server must check its disk."
        if error.state == "full":
            return Problem(507, "The disk of the server is full.", hint)
        title = "The index is read-only." if error.state == "read-only" else "The disk of the server is failing."
        return Problem(503, title, hint, kind=f"disk-{error.state}")
    return None


async def on_problem(request: Request, error: Exception) -> Response:
    """Exception handler for `Problem`."""
    assert isinstance(error, Problem)
    return error.response()


async def on_error(request: Request, error: Exception) -> Response:
    """Exception handler for library errors and for system errors."""
    known = error if isinstance(error, DCMHError) else StorageError.of(error)
    problem = None if known is None else explain(known)
    if problem is None:
        raise error  # a bug, or a damaged index: the middleware logs it
    if isinstance(known, StorageError):
        logs.events.error("%s", known)
    return problem.response()


async def on_http(request: Request, error: Exception) -> Response:
    """Exception handler for what Starlette refuses."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    known = {
        404: ("There is nothing at this address.", "GET / is the page, GET /docs lists the API."),
        405: (f"{request.method} is not allowed here.", "GET /docs lists the methods."),
    }
    title, hint = known.get(status, (str(error.detail), "See GET /docs."))
    kind = KINDS.get(status, ("refused", ""))[0]
    return Problem(status, title, hint, kind=kind, headers=error.headers).response()


async def on_invalid(request: Request, error: Exception) -> Response:
    """Exception handler for parameters that violate the schema."""
    assert isinstance(error, RequestValidationError)
    wrong = [f"{_place(detail['loc'])}: {detail['msg']}" for detail in error.errors()]
    return Problem(422, f"{wrong[0]}.", "GET /docs describes the parameters.", errors=wrong[:10]).response()


def _place(location: Sequence[int | str]) -> str:
    """The name of a parameter; the location of one in a list ends with its number there."""
    return next((part for part in reversed(location) if isinstance(part, str)), "request")


def bug(request_id: str) -> Problem:
    """An unexpected exception. Details are in the log only."""
    hint = "This is a bug in the server, not in the request. The log has the details under this request id."
    return Problem(500, "The server could not answer.", hint, request=request_id)


def document(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of an endpoint, for the schema; those of every endpoint are included."""
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
        "type": {"type": "string", "description": "Short name of the kind of error"},
        "status": {"type": "integer"},
        "title": {"type": "string", "description": "What happened"},
        "hint": {"type": "string", "description": "What to do; may be empty"},
        "nearest": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Known words similar to the unknown ones, where a vocabulary limits the query",
        },
        "errors": {"type": "array", "items": {"type": "string"}, "description": "Every invalid parameter"},
        "request": {"type": "string", "description": "Request id, under which the log has the details"},
    },
}
