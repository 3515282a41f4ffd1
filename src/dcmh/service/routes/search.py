"""Search endpoints: by words, by a picture, by a code, by an item; and the encoding of texts and pictures."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from dcmh.errors import DataError, ParameterError, QueryError
from dcmh.search import SearchIndex
from dcmh.search.results import Hit, Hits
from dcmh.search.results import Query as SearchQuery
from dcmh.service import schemas, uploads
from dcmh.service.problems import Problem, document, no_item, not_encodable
from dcmh.service.state import OpenIndex, Service

MAX_HITS, MAX_OFFSET, MAX_QUERY = 1000, 10_000, 1000  # the last in characters
MAX_TEXTS, MAX_ENCODE_BYTES = 100, 1_000_000

router = APIRouter()

ItemId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The id that a hit has")]
_PICTURE_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "string", "format": "binary"}},
}


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

    def wanted(self, index: SearchIndex) -> dict[str, Any]:
        """Arguments for `SearchIndex.search`: one hit more than shown tells whether there is a next page.

        Not with at_least, where a page may hold fewer hits.
        """
        if self.at_least is not None and not index.calibration.is_measured:
            raise Problem(
                422,
                "The precision of hits was not measured for the model of this index.",
                "Leave out at_least, or train a model on items of this collection: dcmh train measures it.",
                kind="precision-not-measured",
            )
        k = self.k + (self.at_least is None)
        return {"k": k, "offset": self.offset, "radius": self.radius, "modality": self.in_, "at_least": self.at_least}

    def is_full(self, hits: Hits) -> bool:
        """Whether there may be a next page."""
        return len(hits) + hits.below >= self.k + (self.at_least is None)

    def next_page(self, path: str, **query: str) -> str | None:
        """The address of the next page; None beyond the last offset."""
        if self.offset + self.k > MAX_OFFSET:
            return None
        given: dict[str, Any] = {**query, "k": self.k, "radius": self.radius, "in": self.in_, "at_least": self.at_least}
        parameters = {key: value for key, value in given.items() if value is not None}
        return f"{path}?{urlencode(parameters | {'offset': self.offset + self.k})}"


Paged = Annotated[Page, Depends()]


@router.get("/api/search", response_model=schemas.Search, responses=document(), summary="Hits for words or for a code")
async def search(
    request: Request,
    page: Paged,
    text: Annotated[str | None, Query(max_length=MAX_QUERY, description="Words")] = None,
    code: Annotated[
        str | None, Query(pattern="^[0-9a-f]{2,768}$", description="Code or key of an earlier response")
    ] = None,
    modality: Annotated[str | None, Query(max_length=100, description="Modality of the code")] = None,
) -> Response:
    service: Service = request.app.state.service
    if (text is None) == (code is None):
        raise Problem(422, "Give either text or code to search for.", "For example: GET /api/search?text=dog")

    def find(opened: OpenIndex) -> Response:
        index = opened.index
        if text is not None:
            hits = index.search(text=text, **page.wanted(index))
            following = page.next_page("/api/search", text=text)
            return search_response(index.bits, hits, index.encoders.text or "text", page, following, text=text)
        query_modality = modality or index.encoders.picture or ""
        hits = index.near(_packed(code or ""), query_modality, **page.wanted(index))
        following = page.next_page("/api/search", code=code or "", modality=query_modality)
        return search_response(index.bits, hits, query_modality, page, following)

    return await service.with_index(find)


@router.post(
    "/api/search",
    response_model=schemas.Search,
    responses=document(408, 413, 415),
    summary="Hits for a picture",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _PICTURE_FORM}}}},
)
async def search_picture(request: Request, page: Paged) -> Response:
    service: Service = request.app.state.service

    def find(opened: OpenIndex, query: SearchQuery, modality: str) -> Response:
        index = opened.index
        hits = index.near(query.key, modality, **page.wanted(index))
        following = page.next_page("/api/search", code=query.key.hex(), modality=modality)
        return search_response(index.bits, hits, modality, page, following)

    form = await uploads.read_form(request, service)
    with service.pictures.slot():
        return await service.with_picture(form.image or b"", find)


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
        except (QueryError, DataError) as error:  # removed since, or not yet loaded
            raise no_item(id) from error
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
            code=query.code.hex(),
            key=query.key.hex(),
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
    query, request = index.ask(text=text)
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
