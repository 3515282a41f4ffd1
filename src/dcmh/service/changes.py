"""Changes by callers: an item is added or removed, and safe on the disk, before the answer says so."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dcmh.errors import BusyError, ImageError, UnknownWords
from dcmh.inputs import images
from dcmh.search import SearchIndex
from dcmh.service.problems import Problem, no_item, not_encodable
from dcmh.service.state import damaged
from dcmh.stores.base import UPLOADED, UPLOADS
from dcmh.util.atomic import whole_file
from dcmh.util.locks import locked

PATIENCE = 10.0  # seconds to wait for another worker's change
SUFFIXES = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tiff"}


def check_token(authorization: str | None, digest: bytes | None) -> None:
    """Refuse a change unless the token is right. Comparing takes the same time whatever is sent."""
    if digest is None:
        raise Problem(403, "This server takes no changes.", "Start it with --token-file FILE to allow them.")
    scheme, _, token = (authorization or "").partition(" ")
    given = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
    if not hmac.compare_digest(given, digest) or scheme.lower() != "bearer":
        hint = "Send the header Authorization: Bearer TOKEN, with what is in the server's token file."
        raise Problem(401, "A change needs the token.", hint, headers={"WWW-Authenticate": "Bearer"})


def add(index: SearchIndex, data: bytes | None, kind: str, text: str | None, labels: list[str]) -> tuple[int, bool]:
    """Add an item: its id, and whether it is new. The same picture, or the same words without one, is the same item."""
    _check(index, data, text)
    digest = hashlib.blake2b(data if data is not None else (text or "").encode(), digest_size=16).hexdigest()
    file = index.folder / UPLOADS / f"{digest}.{SUFFIXES[kind]}" if data is not None else None
    name = f"{UPLOADED}{file.name if file else digest}"
    with _alone(index.folder):
        before = index.store.find(name)
        stored = file is not None and data is not None and not file.is_file()
        if stored:
            _store(file, data)  # type: ignore[arg-type] # both are there
        try:
            (number,) = index.add(
                None if file is None else [file],
                text=None if text is None else [text],
                labels=np.ones((1, len(labels)), np.uint8) if labels else None,
                label_names=labels or None,
                ids=[name],
            )
        except BaseException:
            if file is not None and stored:
                file.unlink(missing_ok=True)
            raise
    return number, before is None


def remove(index: SearchIndex, number: int) -> None:
    """Remove an item; an uploaded picture goes with it, other files stay where they are."""
    with _alone(index.folder):
        item = index.store.get([number]).get(number)
        if item is None or not index.remove([number]):
            raise no_item(number)
        path = index.path_of(item)
        if path is not None and item.name.startswith(UPLOADED):
            path.unlink(missing_ok=True)


def _check(index: SearchIndex, data: bytes | None, text: str | None) -> None:
    """Refuse what could not be indexed, before anything is written."""
    if data is not None:
        if index.encoders.picture is None:
            raise Problem(422, "The model of this index takes no pictures.", "Send words.", kind="query-not-encodable")
        try:
            images.decode(data, 32)
        except ImageError as error:
            raise damaged(error) from error
    if text is not None and (data is None or index.encoders.text is None):
        try:
            known = index.ask(text=text)[1].known
        except UnknownWords:
            known = False
        if not known:
            raise not_encodable("Send a picture with it.")


def _store(file: Path, data: bytes) -> None:
    """Write a whole file that survives a loss of power."""
    with whole_file(file) as draft:
        draft.write_bytes(data)
    with contextlib.suppress(OSError, AttributeError):  # Windows cannot open a folder
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Within the block no other worker changes the index."""
    (folder / UPLOADS).mkdir(parents=True, exist_ok=True)
    with locked(folder / UPLOADS / ".lock", wait=PATIENCE) as alone:
        if not alone:
            raise BusyError(f"Another process is writing {folder}. Try again.")
        yield
