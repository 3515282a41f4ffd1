"""What callers send: a form is read no further than its limits, a picture is looked at before anything decodes it."""

from __future__ import annotations

import asyncio
import io
import warnings
from dataclasses import dataclass

from PIL import Image
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from dcmh.inputs.images import FORMATS
from dcmh.service.problems import Problem
from dcmh.service.settings import Settings

FIELDS = 70  # of a form, besides its picture
FIELD_BYTES = 64_000
TAKEN = "JPEG, PNG, WebP, GIF, BMP and TIFF files are taken."


@dataclass(frozen=True)
class Form:
    """A form that was read: the bytes of its picture, and its other fields in order."""

    image: bytes | None
    fields: tuple[tuple[str, str], ...] = ()

    def one(self, name: str) -> str | None:
        """The last value of a field."""
        return next((value for key, value in reversed(self.fields) if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]


async def read_form(request: Request, settings: Settings, *, needs_image: bool = True) -> Form:
    """The multipart form of a request."""
    if _media_type(request) != "multipart/form-data":
        raise Problem(
            415, "A form is needed.", "Send multipart/form-data with a file in the field image.", kind="not-a-form"
        )
    try:
        async with asyncio.timeout(settings.upload_seconds):
            form = await request.form(max_files=1, max_fields=FIELDS, max_part_size=FIELD_BYTES)
    except TimeoutError:
        raise Problem(408, "The upload took too long.", f"It may take {settings.upload_seconds:.0f} s.") from None
    except ClientDisconnect:
        raise Problem(400, "The upload was broken off.", "Send it again.") from None
    except (HTTPException, UnicodeError, ValueError, LookupError) as error:
        said = str(getattr(error, "detail", "") or "The form cannot be read.")
        raise Problem(400, said, "Send multipart/form-data with a file in the field image.") from error
    try:
        return await _taken(form.multi_items(), settings, needs_image)
    finally:
        await form.close()


async def _taken(items: list[tuple[str, str | UploadFile]], settings: Settings, needs_image: bool) -> Form:
    files = [(name, value) for name, value in items if isinstance(value, UploadFile)]
    texts = tuple((name, value) for name, value in items if isinstance(value, str))
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


def look_at(data: bytes, settings: Settings) -> tuple[str, int]:
    """The format of a picture and its number of pixels, from its header; refused where either is not taken."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                kind, pixels = str(picture.format), picture.width * picture.height
    except Image.DecompressionBombError:
        kind, pixels = "", 10**18
    except Exception as error:  # Pillow raises almost anything on damaged files
        what = "The file is empty." if not data else "The file is not a picture."
        raise Problem(415, what, TAKEN) from error
    if pixels > settings.megapixels * 10**6:
        hint = f"At most {settings.megapixels} megapixels are taken. Send a smaller one."
        raise Problem(413, "The picture has too many pixels.", hint)
    return kind, pixels


def too_large(settings: Settings) -> Problem:
    limit = f"{settings.upload_bytes / 1e6:g} MB"
    return Problem(413, f"The upload is larger than {limit}.", f"At most {limit} are taken. Send a smaller one.")


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
