"""Endpoints of one item: what it is, its picture, its thumbnail; and those that add and remove one."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from dcmh.errors import ImageError, QueryError
from dcmh.inputs import images
from dcmh.service import answers, changes, thumbnails, uploads
from dcmh.service.problems import Problem, document, no_item
from dcmh.service.reload import Opened
from dcmh.service.search import ItemId, public_name, reply
from dcmh.service.state import Service
from dcmh.service.thumbnails import Picture
from dcmh.stores.base import Item
from dcmh.util.text import mended

LONGEST_TEXT, MOST_LABELS, LONGEST_LABEL = 10_000, 64, 200
# A browser asks each time whether the picture is still the same: after a rebuild an id may be another item's.
FRESH = "private, no-cache"

router = APIRouter()

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_IMAGES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture", "content": {"image/*": _BINARY}},
    304: {"description": "The picture that the caller has is the same"},
}
_NEW_ITEM = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "format": "binary"},
        "text": {"type": "string", "maxLength": LONGEST_TEXT},
        "labels": {"type": "array", "maxItems": MOST_LABELS, "items": {"type": "string", "maxLength": LONGEST_LABEL}},
    },
}
_TOKEN: dict[str, Any] = {"security": [{"token": []}]}


@router.get("/api/items/{id}", response_model=answers.Item, responses=document(404), summary="One item with its codes")
async def item(request: Request, id: ItemId) -> Response:  # noqa: A002 - the parameter's name
    service: Service = request.app.state.service
    return reply(await service.look(lambda opened: told(opened, known(opened, id))))


@router.get(
    "/api/items/{id}/image",
    response_class=Response,
    responses=document(404) | _IMAGES,
    summary="An item's picture, as it was indexed",
)
async def image(request: Request, id: ItemId) -> Response:  # noqa: A002
    service: Service = request.app.state.service
    picture = await service.look(lambda opened: thumbnails.find(opened.index, known(opened, id)))
    tag = f'"{picture.tag}"'
    if same(request, tag):
        return Response(status_code=304, headers=about_picture(tag))
    request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]  # whole pictures only
    headers = about_picture(tag) | {"Accept-Ranges": "none"}
    return FileResponse(picture.path, headers=headers, media_type=picture.media_type, stat_result=picture.status)


@router.get(
    "/api/items/{id}/thumbnail",
    response_class=Response,
    responses=document(404) | _IMAGES,
    summary="An item's picture as a small JPEG",
)
async def thumbnail(
    request: Request,
    id: ItemId,  # noqa: A002
    size: Annotated[int, Query(ge=16, le=1024, description="Pixels of the longer side")] = 256,
) -> Response:
    service: Service = request.app.state.service
    picture = await service.look(lambda opened: thumbnails.find(opened.index, known(opened, id)))
    key = f"{picture.tag}-{size}"
    tag = f'"{key}"'
    if same(request, tag):
        return Response(status_code=304, headers=about_picture(tag))
    body = service.thumbnails.get(key)
    if body is None:
        body = await service.previews.run(lambda: small(picture, size, id))
        service.thumbnails.put(key, body)
    return Response(body, headers=about_picture(tag), media_type="image/jpeg")


@router.post(
    "/api/items",
    status_code=201,
    response_model=answers.Item,
    responses=document(401, 403, 408, 413, 415)
    | {200: {"model": answers.Item, "description": "It was there; updated"}},
    summary="Add an item, with the token",
    openapi_extra={
        **_TOKEN,
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _NEW_ITEM}}},
    },
)
async def add(request: Request) -> Response:
    service: Service = request.app.state.service
    changes.check_token(request.headers.get("authorization"), service.token)
    with service.pictures.place():
        form = await uploads.read_form(request, service.settings, needs_image=False)
        text, labels = _said(form)

        def write() -> tuple[bytes, bool]:
            kind = uploads.look_at(form.image, service.settings)[0] if form.image is not None else ""
            with service.served.writing, service.served.use() as opened:
                if form.image is not None:
                    service.load_pictures(opened)
                number, new = changes.add(opened.index, form.image, kind, text, labels)
                return told(opened, known(opened, number)), new

        body, new = await service.pictures.run(write, placed=True)
    service.metrics.add("dcmh_writes_total")
    service.save_soon()
    return Response(body, 201 if new else 200, media_type="application/json")


@router.delete(
    "/api/items/{id}",
    status_code=204,
    response_class=Response,
    responses=document(401, 403, 404),
    summary="Remove an item, with the token",
    openapi_extra=_TOKEN,
)
async def remove(request: Request, id: ItemId) -> Response:  # noqa: A002
    service: Service = request.app.state.service
    changes.check_token(request.headers.get("authorization"), service.token)

    def write() -> None:
        with service.served.writing, service.served.use() as opened:
            changes.remove(opened.index, id)

    await service.pictures.run(write)
    service.metrics.add("dcmh_writes_total")
    service.save_soon()
    return Response(status_code=204)


def known(opened: Opened, number: int) -> Item:
    try:
        return opened.index.item(number)
    except QueryError:
        raise no_item(number) from None


def told(opened: Opened, found: Item) -> bytes:
    address = f"/api/items/{found.id}"
    record = {
        "id": found.id,
        "name": public_name(found.name),
        "text": found.text,
        "labels": found.labels,
        "bits": opened.index.bits,
        "codes": {name: code.hex() for name, code in opened.index.codes_of(found.id).items()},
        "image": f"{address}/image" if found.path is not None else None,
        "thumbnail": f"{address}/thumbnail" if found.path is not None else None,
        "similar": f"{address}/similar",
    }
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")


def small(picture: Picture, size: int, number: int) -> bytes:
    try:
        return images.thumbnail(picture.path, size)
    except ImageError as error:
        hint = "Index the folder again."
        raise Problem(404, f"The picture of item {number}: {error}.", hint, kind="no-picture") from error


def same(request: Request, tag: str) -> bool:
    """Whether the caller has this picture already."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in given.split(","))


def about_picture(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": FRESH}


def _said(form: uploads.Form) -> tuple[str | None, list[str]]:
    """Text and labels of a form, checked."""
    text = mended(form.one("text") or "").strip() or None
    labels = list(dict.fromkeys(mended(label).strip() for label in form.all("labels") if label.strip()))
    if form.image is None and text is None:
        raise Problem(422, "There is neither a picture nor text.", "Send the field image, or text, or both.")
    if text is not None and len(text) > LONGEST_TEXT:
        raise Problem(422, "The text is too long.", f"At most {LONGEST_TEXT:,} characters are taken.")
    if len(labels) > MOST_LABELS or any(len(label) > LONGEST_LABEL for label in labels):
        raise Problem(422, "There are too many labels, or one is too long.", f"At most {MOST_LABELS} are taken.")
    return text, labels
