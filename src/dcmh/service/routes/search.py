"""Search endpoints: by words, by a picture, by a code, by an item; and the encoding of texts and pictures."""

from __future__ import annotations

import difflib
import inspect
import json
import os
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field
from starlette.responses import Response

from dcmh.errors import DataError, ParameterError, QueryError
from dcmh.search import Filter, SearchIndex
from dcmh.search.query import ask_words
from dcmh.search.results import Hit, Hits
from dcmh.search.results import Query as SearchQuery
from dcmh.service import schemas, uploads
from dcmh.service.problems import Problem, document, no_item, not_encodable
from dcmh.service.state import OpenIndex, Service

MAX_HITS, MAX_OFFSET, MAX_QUERY = 1000, 10_000, 1000  # the last in characters
MAX_TEXTS, MAX_ENCODE_BYTES = 100, 1_000_000
MAX_EXAMPLES, MAX_CONDITIONS = 100, 50

router = APIRouter()

ItemId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The id that a hit has")]
_PICTURE_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "string", "format": "binary"}},
}
_QUERY_FORM = _PICTURE_FORM | {
    "properties": _PICTURE_FORM["properties"] | {"text": {"type": "string", "maxLength": MAX_QUERY}}
}
Examples = Annotated[
    list[Annotated[int, Field(ge=1, le=2**63 - 1)]] | None, Query(max_length=MAX_EXAMPLES, description="Ids of items")
]
Conditions = list[Annotated[str, Field(max_length=1000)]] | None


@dataclass(frozen=True)
class Page:
    """Parameters that all searches share."""

    k: Annotated[int, Query(ge=1, le=MAX_HITS, description="Maximum number of hits")] = 20
    offset: Annotated[int, Query(ge=0, le=MAX_OFFSET, description="Number of hits to skip")] = 0
    radius: Annotated[int | None, Query(ge=0, le=1024, description="Maximum distance of hits, in bits")] = None
    in_: Annotated[
        str | None, Query(alias="in", max_length=100, description="Modality to search, such as image or text")
    ] = None
    at_least: Annotated[float | None, Query(ge=0, le=1, description="Minimum precision of hits")] = None
    label: Annotated[Conditions, Query(max_length=MAX_CONDITIONS, description="Only items with any of these")] = None
    folder: Annotated[str | None, Query(max_length=1000, description="Only items in this folder")] = None
    since: Annotated[str | None, Query(max_length=40, description="First date: 2019, 2019-07 or 2019-07-14")] = None
    until: Annotated[str | None, Query(max_length=40, description="Last date")] = None
    where: Annotated[
        Conditions, Query(max_length=MAX_CONDITIONS, description="Conditions on columns, such as rating >= 4")
    ] = None

    @property
    def filter(self) -> Filter:
        """The filter that the parameters describe."""
        return Filter(self.label or (), self.folder, self.since, self.until, self.where or ())

    def wanted(self, index: SearchIndex) -> dict[str, Any]:
        """Arguments for `SearchIndex.search`: one hit more than shown tells whether there is a next page."""
        if self.at_least is not None and not index.calibration.is_measured:
            raise Problem(
                422,
                "The precision of hits was not measured for the model of this index.",
                "Leave out at_least, or train a model on items of this collection: dcmh train measures it.",
                kind="precision-not-measured",
            )
        wanted = {
            "k": self.k + 1,
            "offset": self.offset,
            "radius": self.radius,
            "modality": self.in_,
            "at_least": self.at_least,
        }
        return {**wanted, "filter": self.filter}

    def is_full(self, hits: Hits) -> bool:
        """Whether there is a next page."""
        return len(hits) > self.k

    def next_page(self, path: str, **query: Any) -> str | None:
        """The address of the next page; None beyond the last offset."""
        if self.offset + self.k > MAX_OFFSET:
            return None
        given: dict[str, Any] = {**query, "k": self.k, "radius": self.radius, "in": self.in_, "at_least": self.at_least}
        given |= {"label": self.label, "folder": self.folder, "since": self.since, "until": self.until}
        given |= {"where": self.where}
        parameters = {key: value for key, value in given.items() if value is not None}
        return f"{path}?{urlencode(parameters | {'offset': self.offset + self.k}, doseq=True)}"


async def _page(request: Request, **parameters: Any) -> Page:
    """A page. FastAPI would call the class itself, which is not a coroutine, in a thread, which takes longer than the rest.

    A parameter that no search has is refused: a misspelt filter would go unnoticed.
    """
    for name in request.query_params:
        if name not in PARAMETERS:
            near = difflib.get_close_matches(name, PARAMETERS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(sorted(PARAMETERS))}."
            raise Problem(422, f"There is no parameter {name!r}.", hint)
    return Page(**parameters)


_fields = inspect.signature(Page)
_request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
_page.__signature__ = _fields.replace(parameters=[_request, *_fields.parameters.values()])  # type: ignore[attr-defined]
PARAMETERS = {"text", "code", "modality", "like", "unlike"} | {name.rstrip("_") for name in _fields.parameters}
Paged = Annotated[Page, Depends(_page)]


@router.get(
    "/api/search", response_model=schemas.Search, responses=document(), summary="Hits for words, examples or a code"
)
async def search(
    request: Request,
    page: Paged,
    text: Annotated[str | None, Query(max_length=MAX_QUERY, description="Words")] = None,
    code: Annotated[
        str | None, Query(pattern="^[0-9a-f]{2,768}$", description="Code or key of an earlier response")
    ] = None,
    modality: Annotated[str | None, Query(max_length=100, description="Modality of the code")] = None,
    like: Examples = None,
    unlike: Examples = None,
) -> Response:
    service: Service = request.app.state.service
    if text is None and code is None and not like and not unlike:
        raise Problem(422, "Give text, like, unlike or code to search for.", "For example: GET /api/search?text=dog")
    body = await service.answer(
        request.scope["query_string"],
        text,
        lambda opened: bytes(_answer(opened.index, page, text, code, modality, like, unlike).body),
    )
    return Response(body, media_type="application/json")


@router.post(
    "/api/search",
    response_model=schemas.Search,
    responses=document(408, 413, 415),
    summary="Hits for a picture, and words",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _QUERY_FORM}}}},
)
async def search_picture(request: Request, page: Paged, like: Examples = None, unlike: Examples = None) -> Response:
    service: Service = request.app.state.service
    form = await uploads.read_form(request, service)
    text = (form.last("text") or "").strip() or None
    if text is not None and len(text) > MAX_QUERY:
        raise Problem(422, "The text is too long.", f"The limit is {MAX_QUERY:,} characters.")

    def find(opened: OpenIndex, query: SearchQuery, modality: str) -> Response:
        return _answer(opened.index, page, text, query.key.hex(), modality, like, unlike)

    with service.pictures.slot():
        return await service.with_picture(form.image or b"", find)


def _answer(
    index: SearchIndex,
    page: Page,
    text: str | None,
    code: str | None,
    modality: str | None,
    like: list[int] | None,
    unlike: list[int] | None,
) -> Response:
    """The hits for words, for the code of a picture, for examples, or for several of them."""
    like, unlike = like or [], unlike or []
    known = index.store.get([*like, *unlike]) if like or unlike else {}
    for item in (*like, *unlike):
        if item not in known:
            raise Problem(422, f"There is no item {item}.", "Give the ids of hits.", kind="no-such-item")
    examples: dict[str, Any] = {"like": like, "unlike": unlike}
    if code is None:
        hits = index.search(text, **examples, **page.wanted(index))
        shown = (index.encoders.text if text is not None else index.encoders.picture) or "text"
        following = page.next_page("/api/search", text=text, **examples)
    else:
        shown = modality or index.encoders.picture or ""
        hits = index.near(_packed(code), shown, text=text, **examples, **page.wanted(index))
        following = page.next_page("/api/search", code=code, modality=shown, text=text, **examples)
    return search_response(index.bits, hits, shown, page, following, text=text)


@router.get(
    "/api/items/{id}/similar", response_model=schemas.Search, responses=document(404), summary="Hits for an item"
)
async def similar(request: Request, id: ItemId, page: Paged) -> Response:  # noqa: A002 - the parameter's name
    service: Service = request.app.state.service

    def find(opened: OpenIndex) -> Response:
        index = opened.index
        codes = index.codes_of(id)
        if not codes:
            raise no_item(id)
        modality = next((name for name in codes if name != index.encoders.text), next(iter(codes)))
        wanted = page.wanted(index)
        try:
            hits = index.similar(id, **wanted)
        except (QueryError, DataError) as error:
            try:
                index.ask(like=[id])
            except (QueryError, DataError):  # removed since, or not yet loaded
                raise no_item(id) from error
            raise
        return search_response(index.bits, hits, modality, page, page.next_page(f"/api/items/{id}/similar"), item=id)

    return await service.with_index(find)


@router.post(
    "/api/encode",
    response_model=schemas.Codes,
    responses=document(408, 413, 415),
    summary="The codes of texts, or of a picture",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["text"],
                        "properties": {
                            "text": {
                                "type": "array",
                                "minItems": 1,
                                "maxItems": MAX_TEXTS,
                                "items": {"type": "string", "maxLength": MAX_QUERY},
                            }
                        },
                    }
                },
                "multipart/form-data": {"schema": _PICTURE_FORM},
            },
        }
    },
)
async def encode(request: Request) -> Response:
    service: Service = request.app.state.service
    kind = uploads.media_type(request)
    if kind == "multipart/form-data":
        form = await uploads.read_form(request, service)
        with service.pictures.slot():
            codes = await service.with_picture(form.image or b"", lambda opened, query, modality: [query.code.hex()])
    elif kind == "application/json":
        async with service.bodies.receive(uploads.client_of(request)):
            body = await _body(request)
        texts = _texts(body)
        codes = await service.with_index(lambda opened: [_code(opened.index, text) for text in texts])
    else:
        hint = 'Send application/json such as {"text": ["dog beach"]}, or multipart/form-data with the field image.'
        raise Problem(415, "This content type is not accepted.", hint, kind="not-a-form")
    bits = await service.with_index(lambda opened: opened.index.bits)
    return schemas.Codes(codes=codes, bits=bits).response()


def search_response(
    bits: int,
    hits: Hits,
    modality: str,
    page: Page,
    following: str | None,
    *,
    text: str | None = None,
    item: int | None = None,
) -> Response:
    """The hits of a query in a modality, as JSON. `following`: the address of the next page, if there is one."""
    query = hits.query
    words = query.text is not None and item is None
    return schemas.Search(
        query=schemas.Query(
            text=text,
            item=item,
            modality=modality,
            used=query.used if words else (),
            ignored=query.ignored if words else (),
            nearest=query.nearest if words else {},
            corrected=query.corrected if words else {},
            code=query.code.hex(),
            key=query.key.hex(),
            without=query.without,
            like=query.like if item is None else (),
            unlike=query.unlike,
            filter=schemas.Filter(**query.filter.to_json()),
        ),
        searched=hits.searched,
        took_ms=round(hits.took_ms, 2),
        bits=bits,
        k=page.k,
        offset=page.offset,
        radius=page.radius,
        candidates=hits.candidates,
        at_least=page.at_least,
        below=hits.below,
        unlikely=hits.unlikely,
        hits=[hit_json(hit) for hit in hits.hits[: page.k]],
        nearest=hit_json(hits.nearest) if hits.nearest and not hits.hits else None,
        next=following if page.is_full(hits) else None,
    ).response()


def hit_json(hit: Hit) -> schemas.Hit:
    """A hit as the API shows it."""
    address = f"/api/items/{hit.id}"
    has_picture = hit.path is not None
    return schemas.Hit(
        id=hit.id,
        distance=hit.distance,
        bits=hit.bits,
        precision=_rounded(hit.precision),
        score=_rounded(hit.score),
        fine=_rounded(hit.fine),
        words=hit.words,
        name=public_name(hit.name),
        text=hit.text,
        labels=hit.labels,
        modality=hit.modality,
        thumbnail=f"{address}/thumbnail" if has_picture else None,
        image=f"{address}/image" if has_picture else None,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def public_name(name: str) -> str:
    """An item's name, without the folder where it lies outside the data folder."""
    return schemas.printable(os.path.basename(name) if os.path.isabs(name) else name)


def _code(index: SearchIndex, text: str) -> str:
    query, request = ask_words(index.encoders, text)
    if not request.known:
        raise not_encodable("Send other words.")
    return query.code.hex()


def _packed(code: str) -> bytes:
    try:
        return bytes.fromhex(code)
    except ValueError:
        raise ParameterError(
            "code must have an even number of hexadecimal digits.", hint="Give the code of an earlier response."
        ) from None


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_ENCODE_BYTES:
            raise Problem(413, "The body is too large.", f"The limit is {MAX_ENCODE_BYTES:,} bytes.")
    return body


def _texts(body: bytes) -> list[str]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "The body is not JSON.", 'Send for example {"text": ["dog beach"]}.') from None
    texts = record.get("text") if isinstance(record, dict) else None
    valid = isinstance(texts, list) and 1 <= len(texts) <= MAX_TEXTS
    if not valid or not all(isinstance(text, str) and len(text) <= MAX_QUERY for text in texts or ()):
        hint = f'Send for example {{"text": ["dog beach"]}}, with at most {MAX_TEXTS} texts of {MAX_QUERY} characters.'
        raise Problem(422, "text must be a list of texts.", hint)
    return list(texts or ())
