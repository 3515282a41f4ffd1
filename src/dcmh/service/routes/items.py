"""Item endpoints: one item, its picture and thumbnail; adding and removing."""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from dcmh.errors import ImageError, QueryError
from dcmh.inputs.images import content_hash
from dcmh.search.duplicates import Group
from dcmh.service import schemas, thumbnails, uploads
from dcmh.service.problems import Problem, document, no_item
from dcmh.service.routes.search import ItemId, public_name
from dcmh.service.state import OpenIndex, Service
from dcmh.service.thumbnails import Picture
from dcmh.stores.base import Item
from dcmh.util.text import sanitized

MAX_GROUPS = 200  # of copies, on a page
MAX_TEXT, MAX_LABELS, MAX_LABEL = 10_000, 64, 200  # characters, labels, characters
# Browsers revalidate each time: after a rebuild an id may be another item's.
CACHE_CONTROL = "private, no-cache"

router = APIRouter()

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_IMAGES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture", "content": {"image/*": _BINARY}},
    304: {"description": "Not modified"},
}
_NEW_ITEM = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "format": "binary"},
        "text": {"type": "string", "maxLength": MAX_TEXT},
        "labels": {"type": "array", "maxItems": MAX_LABELS, "items": {"type": "string", "maxLength": MAX_LABEL}},
    },
}
_TOKEN: dict[str, Any] = {"security": [{"token": []}]}


@router.get("/api/items/{id}", response_model=schemas.Item, responses=document(404), summary="One item with its codes")
async def item(request: Request, id: ItemId) -> Response:  # noqa: A002 - the parameter's name
    service: Service = request.app.state.service
    return (await service.with_index(lambda opened: item_json(opened, get_item(opened, id)))).response()


@router.get(
    "/api/duplicates", response_model=schemas.Duplicates, responses=document(), summary="Copies, and the ones to keep"
)
async def duplicates(
    request: Request,
    kind: Annotated[Literal["exact", "near"] | None, Query(description="Default: both")] = None,
    k: Annotated[int, Query(ge=1, le=MAX_GROUPS, description="Maximum number of groups")] = 20,
    offset: Annotated[int, Query(ge=0, le=10_000_000, description="Number of groups to skip")] = 0,
) -> Response:
    service: Service = request.app.state.service

    def find(opened: OpenIndex) -> schemas.Duplicates:
        found = opened.duplicates()
        groups = [group for group in found.groups if kind in (None, group.kind)]
        given = urlencode({"k": k, "offset": offset + k} | ({} if kind is None else {"kind": kind}))
        return schemas.Duplicates(
            total=len(groups),
            compared=found.pictures,
            missing=len(found.missing),
            offset=offset,
            groups=[group_json(group) for group in groups[offset : offset + k]],
            next=f"/api/duplicates?{given}" if offset + k < len(groups) else None,
        )

    return (await service.with_index(find, service.previews)).response()  # it may take seconds


@router.get(
    "/api/items/{id}/image",
    response_class=Response,
    responses=document(404) | _IMAGES,
    summary="An item's picture, as it was indexed",
)
async def image(request: Request, id: ItemId) -> Response:  # noqa: A002
    service: Service = request.app.state.service
    picture = await service.with_index(lambda opened: thumbnails.find(opened.index, get_item(opened, id)))
    tag = f'"{picture.tag}"'
    if is_cached(request, tag):
        return Response(status_code=304, headers=cache_headers(tag))
    request.scope["headers"] = [pair for pair in request.scope["headers"] if pair[0] != b"range"]  # whole pictures only
    headers = cache_headers(tag) | {"Accept-Ranges": "none"}
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
    picture = await service.with_index(lambda opened: thumbnails.find(opened.index, get_item(opened, id)))
    key = f"{picture.tag}-{size}"
    tag = f'"{key}"'
    if is_cached(request, tag):
        return Response(status_code=304, headers=cache_headers(tag))
    body = service.thumbnails.get(key)
    if body is None:
        body = await service.previews.run(lambda: make_thumbnail(service, picture, size, id))
        service.thumbnails.put(key, body)
    return Response(body, headers=cache_headers(tag), media_type="image/jpeg")


@router.post(
    "/api/items",
    status_code=201,
    response_model=schemas.Item,
    responses=document(401, 403, 408, 413, 415, 507)
    | {200: {"model": schemas.Item, "description": "The item existed and was updated"}},
    summary="Add an item, with the token",
    openapi_extra={
        **_TOKEN,
        "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _NEW_ITEM}}},
    },
)
async def add(request: Request) -> Response:
    service: Service = request.app.state.service
    uploads.check_token(request.headers.get("authorization"), service.token)
    form = await uploads.read_form(request, service, needs_image=False)
    text, labels = _text_and_labels(form)
    with service.pictures.slot():

        def write() -> tuple[schemas.Item, bool]:
            kind = ""
            if form.image is not None:
                with service.sandbox.open(form.image) as picture:
                    kind, count = uploads.inspect_image(picture, service.settings)
                    with service.holder.use() as opened:
                        uploads.check_pictures_taken(opened.index)
                        framing = opened.index.encoders.framing
                    pixels = service.decode(picture, count, framing)
            with service.holder.writing, service.holder.use() as opened:
                if form.image is not None:
                    service.load_image_network(opened)
                    encoders = opened.index.encoders
                    encoders.pictures(encoders.picture or "").remember(content_hash(form.image), pixels)
                number, is_new = uploads.add_item(opened.index, form.image, kind, text, labels)
                return item_json(opened, get_item(opened, number)), is_new

        added, is_new = await service.pictures.run(write, has_slot=True)
    service.metrics.writes.inc()
    service.save_soon()
    return added.response(201 if is_new else 200)


@router.delete(
    "/api/items/{id}",
    status_code=204,
    response_class=Response,
    responses=document(401, 403, 404, 507),
    summary="Remove an item, with the token",
    openapi_extra=_TOKEN,
)
async def remove(request: Request, id: ItemId) -> Response:  # noqa: A002
    service: Service = request.app.state.service
    uploads.check_token(request.headers.get("authorization"), service.token)

    def write() -> None:
        with service.holder.writing, service.holder.use() as opened:
            uploads.remove_item(opened.index, id)

    await service.pictures.run(write)
    service.metrics.writes.inc()
    service.save_soon()
    return Response(status_code=204)


def get_item(opened: OpenIndex, number: int) -> Item:
    """An item by its id; a problem where there is none."""
    try:
        return opened.index.item(number)
    except QueryError:
        raise no_item(number) from None


def item_json(opened: OpenIndex, item: Item) -> schemas.Item:
    """An item as the API shows it."""
    address = f"/api/items/{item.id}"
    inside = item.path is not None and not item.uploaded and not posixpath.isabs(item.path)
    folder, file = posixpath.split(schemas.printable(item.path or ""))
    overview = opened.overview
    return schemas.Item(
        id=item.id,
        name=public_name(item.name),
        folder=folder if inside else "",
        file=file if item.path is not None else None,
        text=item.text,
        labels=item.labels,
        bytes=item.size,
        found_by=() if overview is None else tuple(overview.words_for(opened.index, item.id)),
        taken=None if item.taken is None else item.taken.isoformat(timespec="seconds"),
        extra=dict(item.extra),
        bits=opened.index.bits,
        codes={name: code.hex() for name, code in opened.index.codes_of(item.id).items()},
        image=f"{address}/image" if item.path is not None else None,
        thumbnail=f"{address}/thumbnail" if item.path is not None else None,
        similar=f"{address}/similar",
    )


def group_json(group: Group) -> schemas.CopyGroup:
    """A group of copies as the API shows it."""
    copies = [
        schemas.Copy(
            id=copy.item.id,
            name=public_name(copy.item.name),
            text=copy.item.text,
            labels=copy.item.labels,
            thumbnail=f"/api/items/{copy.item.id}/thumbnail" if copy.item.path is not None else None,
            image=f"/api/items/{copy.item.id}/image" if copy.item.path is not None else None,
            width=copy.width,
            height=copy.height,
            size=copy.item.size,
            distance=copy.distance,
        )
        for copy in group.copies
    ]
    return schemas.CopyGroup(kind=group.kind, keep=group.keep, reason=group.reason, items=copies)


def make_thumbnail(service: Service, picture: Picture, size: int, number: int) -> bytes:
    """A small JPEG of an item's picture."""
    try:
        with service.preview_sandbox.open(picture.path) as sandboxed:
            return sandboxed.thumbnail(size)
    except ImageError as error:
        hint = "Index the folder again."
        raise Problem(404, f"The picture of item {number}: {error}.", hint, kind="no-picture") from error


def is_cached(request: Request, tag: str) -> bool:
    """Whether the client has the picture with this ETag."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or tag in (known.strip().removeprefix("W/") for known in given.split(","))


def cache_headers(tag: str) -> dict[str, str]:
    """Headers that let a browser keep a picture and revalidate it."""
    return {"ETag": tag, "Cache-Control": CACHE_CONTROL}


def _text_and_labels(form: uploads.Form) -> tuple[str | None, list[str]]:
    """Text and labels of a form, checked."""
    text = sanitized(form.last("text") or "").strip() or None
    labels = list(dict.fromkeys(sanitized(label).strip() for label in form.all("labels") if label.strip()))
    if form.image is None and text is None:
        raise Problem(422, "There is neither a picture nor a text.", "Send the field image, or text, or both.")
    if text is not None and len(text) > MAX_TEXT:
        raise Problem(422, "The text is too long.", f"The limit is {MAX_TEXT:,} characters.")
    if len(labels) > MAX_LABELS or any(len(label) > MAX_LABEL for label in labels):
        raise Problem(
            422,
            "There are too many labels, or one is too long.",
            f"The limit is {MAX_LABELS} labels of {MAX_LABEL} characters.",
        )
    return text, labels
