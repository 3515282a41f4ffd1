"""Uploads: forms are read within their limits, pictures are checked before they are decoded, items are stored safely."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dcmh.errors import BusyError, ImageError
from dcmh.inputs.images import FORMATS
from dcmh.inputs.sandbox import LimitExceeded, SandboxedPicture
from dcmh.search import SearchIndex
from dcmh.search.encode import encode_texts
from dcmh.service import logs
from dcmh.service.problems import Problem, no_item, not_encodable
from dcmh.service.settings import Settings
from dcmh.stores.base import UPLOADED, UPLOADED_FILE, UPLOADS, Item
from dcmh.util.atomic import sync_folder, whole_file
from dcmh.util.locks import locked

if TYPE_CHECKING:
    from dcmh.service.state import Service

MAX_FIELDS = 70  # of a form, besides its picture
FIELD_BYTES = 64_000
LOCK_SECONDS = 10.0  # to wait for another worker's change
ACCEPTED = (
    f"JPEG, PNG, WebP, GIF, BMP, TIFF{', AVIF and HEIC' if 'HEIF' in FORMATS else ' and AVIF'} files are accepted."
)
REMOVED = ".removed-"  # prefix of a picture while its item is being removed
ORPHANS = "orphans"  # folder in uploads for pictures that belong to no item
SUFFIXES = {
    "JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tiff", "AVIF": "avif", "HEIF": "heic"
}  # fmt: skip


# -- forms and pictures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A form: the bytes of its picture, and its other fields in order."""

    image: bytes | None
    fields: tuple[tuple[str, str], ...] = ()

    def last(self, name: str) -> str | None:
        """The last value of a field."""
        return next((value for key, value in reversed(self.fields) if key == name), None)

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value for key, value in self.fields if key == name]


async def read_form(request: Request, service: Service, *, needs_image: bool = True) -> Form:
    """The multipart form of a request."""
    settings = service.settings
    if media_type(request) != "multipart/form-data":
        raise Problem(
            415, "A form is needed.", "Send multipart/form-data with a file in the field image.", kind="not-a-form"
        )
    try:
        async with service.bodies.receive(client_of(request)):
            form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=FIELD_BYTES)
    except ClientDisconnect:
        raise Problem(400, "The upload was interrupted.", "Send it again.") from None
    except (HTTPException, UnicodeError, ValueError, LookupError) as error:
        title = str(getattr(error, "detail", "") or "The form cannot be read.")
        raise Problem(400, title, "Send multipart/form-data with a file in the field image.") from error
    try:
        return await _checked(form.multi_items(), settings, needs_image)
    finally:
        await form.close()


async def _checked(fields: list[tuple[str, str | UploadFile]], settings: Settings, needs_image: bool) -> Form:
    files = [(name, value) for name, value in fields if isinstance(value, UploadFile)]
    texts = tuple((name, value) for name, value in fields if isinstance(value, str))
    if files and files[0][0] != "image":
        raise Problem(422, "The picture must be in the field image.", "Name the file's field image.")
    if not files and (needs_image or any(name == "image" for name, _ in texts)):
        raise Problem(422, "There is no picture in the form.", "Send it as a file in the field image.")
    image = None
    if files:
        if (files[0][1].size or 0) > settings.upload_bytes:
            raise too_large(settings)
        image = await files[0][1].read()
    return Form(image, texts)


def inspect_image(picture: SandboxedPicture, settings: Settings) -> tuple[str, int]:
    """The format of a picture and its number of pixels, from its header; a problem where either is not accepted."""
    if picture.source == b"":
        raise Problem(415, "The file is empty.", ACCEPTED)
    try:
        kind, pixels = picture.inspect()
    except LimitExceeded as error:
        raise damaged(error) from error
    except ImageError as error:
        raise Problem(415, "The file is not a picture.", ACCEPTED) from error
    if pixels > settings.megapixels * 10**6:
        hint = f"The limit is {settings.megapixels} megapixels. Send a smaller one."
        raise Problem(413, "The picture has too many pixels.", hint)
    return kind, pixels


def client_of(request: Request) -> str:
    """The address of the client, by which its uploads are limited."""
    return request.client.host if request.client else "-"


def media_type(request: Request) -> str:
    """The content type of a request, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def too_large(settings: Settings) -> Problem:
    """The problem for an upload with too many bytes."""
    limit = f"{settings.upload_bytes / 1e6:g} MB"
    return Problem(413, f"The upload is larger than {limit}.", f"The limit is {limit}. Send a smaller one.")


def damaged(error: ImageError) -> Problem:
    """The problem for a picture that cannot be decoded."""
    return Problem(422, f"The picture cannot be read: {error}.", "Send another picture.", kind="damaged-picture")


# -- items that clients add and remove --------------------------------------------------------------------------------


def check_token(authorization: str | None, digest: bytes | None) -> None:
    """Raise a problem unless the token is right. The comparison takes the same time whatever is sent."""
    if digest is None:
        raise Problem(403, "This server is read-only.", "Start it with --token-file FILE to allow changes.")
    scheme, _, token = (authorization or "").partition(" ")
    given = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
    if not hmac.compare_digest(given, digest) or scheme.lower() != "bearer":
        hint = "Send the header Authorization: Bearer TOKEN, with the token of the server's token file."
        raise Problem(401, "Changes need the token.", hint, headers={"WWW-Authenticate": "Bearer"})


def add_item(
    index: SearchIndex, data: bytes | None, kind: str, text: str | None, labels: list[str]
) -> tuple[int, bool]:
    """Add an item, on the disk when this returns: its id, and whether it is new.

    The same picture, or the same text without a picture, is the same item. The picture was decoded within limits before.
    """
    _check_text(index, data, text)
    digest = hashlib.blake2b(data if data is not None else (text or "").encode(), digest_size=16).hexdigest()
    file = index.folder / UPLOADS / f"{digest}.{SUFFIXES[kind]}" if data is not None else None
    name = f"{UPLOADED}{file.name if file else digest}"
    with _exclusive(index.folder):
        before = index.store.find(name)
        stored = file is not None and data is not None and not file.is_file()
        if stored:
            _store(file, data)  # type: ignore[arg-type] # neither is None
        try:
            (number,) = index.add(
                None if file is None else [file],
                text=None if text is None else [text],
                labels=np.ones((1, len(labels)), np.uint8) if labels else None,
                label_names=labels or None,
                ids=[name],
                uploaded=True,
            )
        except BaseException:
            if file is not None and stored:
                file.unlink(missing_ok=True)
            raise
    return number, before is None


def remove_item(index: SearchIndex, number: int) -> None:
    """Remove an item and its uploaded picture; other picture files stay."""
    with _exclusive(index.folder):
        item = index.store.get([number]).get(number)
        if item is None:
            raise no_item(number)
        file = _uploaded_file(index, item)
        with contextlib.nullcontext() if file is None else _removed(file):
            if not index.remove([number]):
                raise no_item(number)


def sweep(index: SearchIndex) -> None:
    """Finish what a kill has interrupted.

    A photo whose deletion was not committed is restored, one whose item is gone is deleted, an item whose photo is gone is
    removed. A picture that belongs to no item, such as one of a rebuilt index, is moved to uploads/orphans.
    """
    folder = index.folder / UPLOADS
    if not folder.is_dir():
        return
    with _exclusive(index.folder):
        for path in sorted(folder.iterdir()):
            name = path.name.removeprefix(REMOVED)
            if path.name.startswith(".") and path.suffix == ".part":  # a draft
                path.unlink(missing_ok=True)
            elif not UPLOADED_FILE.fullmatch(name):
                continue
            elif index.store.find(f"{UPLOADED}{name}") is not None:
                if name != path.name:
                    path.replace(folder / name)
            elif name != path.name:
                path.unlink(missing_ok=True)
            else:
                (folder / ORPHANS).mkdir(exist_ok=True)
                path.replace(folder / ORPHANS / name)
                logs.events.info("moved %s to %s/%s: no item has it", name, UPLOADS, ORPHANS)
        uploads = [item for item in index.store.uploads() if item.path is not None]
        gone = [item.id for item in uploads if (file := _uploaded_file(index, item)) is None or not file.is_file()]
        if gone:
            index.remove(gone)
            logs.events.info("removed %d uploaded items without their pictures", len(gone))


def _uploaded_file(index: SearchIndex, item: Item) -> Path | None:
    """The uploaded picture of an item; None for an item that is not an upload, or whose file is not among the uploads."""
    path = index.path_of(item) if item.uploaded else None
    inside = path is not None and path.resolve().parent == (index.folder / UPLOADS).resolve()
    return path if inside else None


@contextlib.contextmanager
def _removed(file: Path) -> Iterator[None]:
    """Hide a file within the block; it is deleted at the end, and comes back if the block raises."""
    hidden = file.with_name(f"{REMOVED}{file.name}")
    with contextlib.suppress(FileNotFoundError):
        file.replace(hidden)
        sync_folder(file.parent)
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            hidden.replace(file)
        raise
    hidden.unlink(missing_ok=True)


def check_pictures_taken(index: SearchIndex) -> None:
    """Raise a problem unless the model takes pictures."""
    if index.encoders.picture is None:
        raise Problem(422, "The model of this index takes no pictures.", "Send text.", kind="query-not-encodable")


def _check_text(index: SearchIndex, data: bytes | None, text: str | None) -> None:
    """Raise a problem for a text that cannot be indexed, before anything is written."""
    if text is not None and (data is None or index.encoders.text is None):
        words = index.encoders.words
        if words is None or encode_texts(words, [text]) == [None]:
            raise not_encodable("Send a picture with it.")


def _store(file: Path, data: bytes) -> None:
    """Write a file atomically and durably."""
    with whole_file(file) as draft:
        draft.write_bytes(data)


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Within the block no other worker changes the index."""
    (folder / UPLOADS).mkdir(parents=True, exist_ok=True)
    with locked(folder / UPLOADS / ".lock", wait=LOCK_SECONDS) as alone:
        if not alone:
            raise BusyError(f"Another process is writing {folder}.", hint="Try again.")
        yield
