"""Endpoints that find: by words, by a picture, by a code, by an item; and those that give the codes themselves."""

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
from dcmh.search.results import Query as Asked
from dcmh.service import answers, uploads
from dcmh.service.problems import Problem, document, no_item, not_encodable
from dcmh.service.reload import Opened
from dcmh.service.state import Service

MOST, FARTHEST, LONGEST = 1000, 10_000, 1000  # hits at once, offset, characters of a query
MOST_TEXTS = 100
ENCODE_BYTES = 1_000_000

router = APIRouter()

ItemId = Annotated[int, Path(ge=1, le=2**63 - 1, description="The id that a hit has")]
_PICTURE_FORM = {
    "type": "object",
    "required": ["image"],
    "properties": {"image": {"type": "string", "format": "binary"}},
}


@dataclass(frozen=True)
class Page:
    """Which hits are wanted."""

    k: Annotated[int, Query(ge=1, le=MOST, description="Maximum number of hits")] = 20
    offset: Annotated[int, Query(ge=0, le=FARTHEST, description="Number of hits to skip")] = 0
    radius: Annotated[int | None, Query(ge=0, le=1024, description="Maximum distance of hits, in bits")] = None
    in_: Annotated[
        str | None, Query(alias="in", max_length=100, description="Modality to search, such as image or text")
    ] = None
    at_least: Annotated[float | None, Query(ge=0, le=1, description="Minimum precision of hits")] = None

    def wanted(self, index: SearchIndex) -> dict[str, Any]:
        """One more than is shown, which tells whether there is a next page; not where hits are left out of a page."""
        if self.at_least is not None and not index.calibration.is_measured:
            raise Problem(
                422,
                "The precision of hits was not measured for the model of this index.",
                "Ask without at_least, or train a model on items of this collection: dcmh train measures it.",
                kind="precision-not-measured",
            )
        k = self.k + (self.at_least is None)
        return {"k": k, "offset": self.offset, "radius": self.radius, "modality": self.in_, "at_least": self.at_least}

    def is_full(self, hits: Hits) -> bool:
        """Whether there may be a next page."""
        return len(hits) + hits.below >= self.k + (self.at_least is None)

    def following(self, path: str, **asked: str) -> str | None:
        """The address of the next page."""
        if self.offset + self.k > FARTHEST:
            return None
        given: dict[str, Any] = {**asked, "k": self.k, "radius": self.radius, "in": self.in_, "at_least": self.at_least}
        there = {key: value for key, value in given.items() if value is not None}
        return f"{path}?{urlencode(there | {'offset': self.offset + self.k})}"


Paged = Annotated[Page, Depends()]


@router.get("/api/search", response_model=answers.Search, responses=document(), summary="Hits for words or for a code")
async def search(
    request: Request,
    page: Paged,
    text: Annotated[str | None, Query(max_length=LONGEST, description="Words")] = None,
    code: Annotated[
        str | None, Query(pattern="^[0-9a-f]{2,768}$", description="Code or key of an earlier answer")
    ] = None,
    modality: Annotated[str | None, Query(max_length=100, description="Modality of the code")] = None,
) -> Response:
    service: Service = request.app.state.service
    if (text is None) == (code is None):
        raise Problem(422, "Give either text or code to search for.", "For example: GET /api/search?text=dog")

    def find(opened: Opened) -> bytes:
        index = opened.index
        if text is not None:
            asked = index.encoders.text or "text"
            following = page.following("/api/search", text=text)
            return told(index, index.search(text=text, **page.wanted(index)), asked, page, following, text=text)
        asked = modality or index.encoders.picture or ""
        hits = index.near(_packed(code or ""), asked, **page.wanted(index))
        return told(index, hits, asked, page, page.following("/api/search", code=code or "", modality=asked))

    return reply(await service.look(find))


@router.post(
    "/api/search",
    response_model=answers.Search,
    responses=document(408, 413, 415),
    summary="Hits for a picture",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _PICTURE_FORM}}}},
)
async def search_picture(request: Request, page: Paged) -> Response:
    service: Service = request.app.state.service

    def find(opened: Opened, query: Asked, asked: str) -> bytes:
        index = opened.index
        following = page.following("/api/search", code=query.key.hex(), modality=asked)
        return told(index, index.near(query.key, asked, **page.wanted(index)), asked, page, following)

    with service.pictures.place():
        form = await uploads.read_form(request, service.settings)
        return reply(await service.with_picture(form.image or b"", find))


@router.get(
    "/api/items/{id}/similar", response_model=answers.Search, responses=document(404), summary="Hits for an item"
)
async def similar(request: Request, id: ItemId, page: Paged) -> Response:  # noqa: A002 - the parameter's name
    service: Service = request.app.state.service

    def find(opened: Opened) -> bytes:
        index = opened.index
        codes = index.codes_of(id)
        if not codes:
            raise no_item(id)
        asked = next((name for name in codes if name != index.encoders.text), next(iter(codes)))
        wanted = page.wanted(index)
        try:
            hits = index.similar(id, **wanted)
        except (QueryError, DataError) as error:  # removed since, or not yet taken in
            raise no_item(id) from error
        return told(index, hits, asked, page, page.following(f"/api/items/{id}/similar"), item=id)

    return reply(await service.look(find))


@router.post(
    "/api/encode",
    response_model=answers.Codes,
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
                                "maxItems": MOST_TEXTS,
                                "items": {"type": "string", "maxLength": LONGEST},
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
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        with service.pictures.place():
            form = await uploads.read_form(request, service.settings)
            codes = await service.with_picture(form.image or b"", lambda opened, query, asked: [query.code.hex()])
    elif kind == "application/json":
        texts = _texts(await _body(request))
        codes = await service.look(lambda opened: [_code(opened.index, text) for text in texts])
    else:
        hint = 'Send application/json such as {"text": ["dog beach"]}, or multipart/form-data with the field image.'
        raise Problem(415, "This kind of content is not taken.", hint, kind="not-a-form")
    bits = await service.look(lambda opened: opened.index.bits)
    return reply(json.dumps({"codes": codes, "bits": bits}).encode())


def reply(body: bytes) -> Response:
    """JSON that was made in a thread."""
    return Response(body, media_type="application/json")


def told(index: SearchIndex, hits: Hits, asked: str, page: Page, following: str | None, **query: Any) -> bytes:
    """An answer as JSON."""
    shown = hits.hits[: page.k]
    words = hits.query.text is not None and "item" not in query
    record = {
        "query": {
            "text": query.get("text"),
            "item": query.get("item"),
            "modality": asked,
            "used": hits.query.used if words else (),
            "ignored": hits.query.ignored if words else (),
            "nearest": hits.query.nearest if words else {},
            "code": hits.query.code.hex(),
            "key": hits.query.key.hex(),
        },
        "searched": hits.searched,
        "took_ms": round(hits.took_ms, 2),
        "bits": index.bits,
        "k": page.k,
        "offset": page.offset,
        "radius": page.radius,
        "candidates": hits.candidates,
        "at_least": page.at_least,
        "below": hits.below,
        "hits": [one(hit) for hit in shown],
        "nearest": one(hits.nearest) if hits.nearest and not hits.hits else None,
        "next": following if page.is_full(hits) else None,
    }
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


def one(hit: Hit) -> dict[str, Any]:
    address = f"/api/items/{hit.id}"
    pictured = hit.path is not None
    return {
        "id": hit.id,
        "distance": hit.distance,
        "bits": hit.bits,
        "precision": rounded(hit.precision),
        "score": rounded(hit.score),
        "fine": rounded(hit.fine),
        "words": hit.words,
        "name": public_name(hit.name),
        "text": hit.text,
        "labels": hit.labels,
        "modality": hit.modality,
        "thumbnail": f"{address}/thumbnail" if pictured else None,
        "image": f"{address}/image" if pictured else None,
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def public_name(name: str) -> str:
    """An item's name; of one that lies outside of the data's folder, not where."""
    return os.path.basename(name) if os.path.isabs(name) else name


def _code(index: SearchIndex, text: str) -> str:
    query, request = index.ask(text=text)
    if not request.known:
        raise not_encodable("Send other words.")
    return query.code.hex()


def _packed(code: str) -> bytes:
    try:
        return bytes.fromhex(code)
    except ValueError:
        raise ParameterError("code must have an even number of hexadecimal digits. Give that of an answer.") from None


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > ENCODE_BYTES:
            raise Problem(413, "The body is too large.", f"At most {ENCODE_BYTES:,} bytes are taken.")
    return body


def _texts(body: bytes) -> list[str]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        raise Problem(400, "The body is not JSON.", 'Send such as {"text": ["dog beach"]}.') from None
    texts = record.get("text") if isinstance(record, dict) else None
    good = isinstance(texts, list) and 1 <= len(texts) <= MOST_TEXTS
    if not good or not all(isinstance(text, str) and len(text) <= LONGEST for text in texts or ()):
        hint = f'Send such as {{"text": ["dog beach"]}}, with at most {MOST_TEXTS} texts of {LONGEST} characters.'
        raise Problem(422, "text must be a list of texts.", hint)
    return list(texts or ())
