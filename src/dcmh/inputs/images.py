"""Pictures to pixels: decoding, orienting, resizing and cropping, with the reason if a picture cannot be read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from dcmh.errors import ImageError, ParameterError

if TYPE_CHECKING:
    from dcmh.data.columns import Images

# Pillow reads more formats, some of them by running other programs
FORMATS: tuple[str, ...] = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
with contextlib.suppress(ImportError):  # the extra `heic`
    from pillow_heif import register_heif_opener

    register_heif_opener()
    FORMATS += ("HEIF",)
HEIC_BRANDS = (b"hei", b"hev", b"mif", b"msf")  # heic, heix, hevc, mif1, …; other files with `ftyp` are videos
MAX_MEGAPIXELS = 100
MAX_SCANS = 64  # of a JPEG file; usual are 1 to 12, and each one is a pass over the whole picture
STRIP = 1 << 20  # pixels that are converted at a time, so that a large picture needs little more than its own memory

Source = str | Path | bytes | NDArray[np.uint8] | Image.Image

STRETCH = -1

_ORIENTATION_TAG = 0x0112
_EXIF_TAG, _TAKEN_TAGS, _DATE_TAG = 0x8769, (0x9003, 0x9004), 0x0132  # taken, digitised; the last change
_SEGMENT = re.compile(rb"\xff[\x02-\xcf\xda-\xfe]")  # markers of a JPEG file that a length follows
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Framing(NamedTuple):
    """How a picture of any shape becomes size x size pixels.

    By default the central square is resampled to that size. Encoders that others trained have rules of their own:
    `shorter` is the length to which the shorter side is resized, in whole pixels, before the centre is cropped, or STRETCH
    to resize both sides to `size`. Files are then decoded at their full size, as those encoders' own libraries do.
    """

    size: int
    shorter: int = 0
    resample: int = Image.Resampling.BICUBIC

    @classmethod
    def of(cls, size: int | Framing) -> Framing:
        """A framing, or the default one of a size."""
        return size if isinstance(size, Framing) else cls(size)


def decode(source: Source, size: int | Framing) -> NDArray[np.uint8]:
    """The pixels of one picture, shape (size, size, 3), RGB.

    The picture is oriented by its EXIF data, transparency becomes white, the shorter side is resized to `size` (bicubic,
    antialiased) and the centre is cropped; a `Framing` says otherwise. A picture of size x size pixels is returned unchanged.

    Parameters
    ----------
    source : path, bytes of a file, PIL image, or uint8 array (height, width), (height, width, 3) or (height, width, 4)
    """
    framing = Framing.of(size)
    if framing.size < 1:
        raise ParameterError(f"size must be at least 1 pixel, not {framing.size}.")
    if isinstance(source, np.ndarray):
        if source.shape == (framing.size, framing.size, 3) and source.dtype == np.uint8:
            return source.copy()
        return _framed(_to_rgb(_from_array(source)), framing)
    with _oriented(source, None if framing.shorter else framing.size) as picture:
        return _framed(_to_rgb(picture), framing)


def thumbnail(source: Source, size: int) -> bytes:
    """A JPEG file of the whole picture, at most size x size pixels; oriented and on white, as in `decode`.

    It contains no metadata, such as where a photo was taken.
    """
    if isinstance(source, np.ndarray):
        return _jpeg(_to_rgb(_from_array(source)), size)
    with _oriented(source, size) as picture:
        if picture.mode in ("RGB", "RGBA", "L"):  # values of other modes cannot be averaged
            picture.thumbnail((2 * size, 2 * size), Image.Resampling.BOX)
        return _jpeg(_to_rgb(picture), size)


def inspect(source: str | Path | bytes) -> tuple[str, int]:
    """The format of a picture and its number of pixels, from its header alone."""
    try:
        if _byte_count(source) == 0:
            raise ImageError("empty file")
        with _header(source) as picture:
            return str(picture.format), picture.width * picture.height
    except Image.DecompressionBombError as error:
        return "", _pixels_in(error)
    except ImageError:
        raise
    except Exception as error:  # Pillow raises almost anything on damaged files
        raise ImageError(_reason(error, source)) from error


def decode_in_one_thread() -> None:
    """Decode AVIF and HEIC in one thread instead of on all cores: for one of several processes, or one with little memory."""
    Image.init()
    from PIL import AvifImagePlugin

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    with contextlib.suppress(ImportError):
        from pillow_heif import options

        options.DECODE_THREADS = 1


def dimensions(source: str | Path) -> tuple[int, int]:
    """Width and height of the upright picture in a file, from its header alone."""
    try:
        with _header(source) as picture:
            sideways = picture.getexif().get(_ORIENTATION_TAG, 1) in (5, 6, 7, 8)
            return (picture.height, picture.width) if sideways else (picture.width, picture.height)
    except Exception as error:  # Pillow raises almost anything on damaged files
        raise ImageError(_reason(error, source)) from error


def content_hash(source: Source) -> bytes:
    """16 bytes that identify a picture by its content: the file's bytes, or the array's shape and values."""
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(source, np.ndarray):
        digest.update(f"{source.dtype.str}{source.shape}".encode())
        digest.update(np.ascontiguousarray(source).tobytes())
    elif isinstance(source, Image.Image):
        try:
            digest.update(f"{source.mode}{source.size}".encode())
            digest.update(source.tobytes())
        except Exception as error:  # it may be read from a damaged file only now
            raise ImageError(_reason(error, source)) from error
    elif isinstance(source, bytes):
        digest.update(source)
    else:
        try:
            with open(source, "rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise ImageError(_reason(error, source)) from error
    return digest.digest()


def date_taken(path: str | Path) -> datetime | None:
    """When the photo of a file was taken by its EXIF data, else when the file was written; in local time."""
    with contextlib.suppress(Exception):  # Pillow raises almost anything on damaged files
        with _header(path) as picture:
            exif = picture.getexif()
            details = exif.get_ifd(_EXIF_TAG)
        for value in (*(details.get(tag) for tag in _TAKEN_TAGS), exif.get(_DATE_TAG)):
            with contextlib.suppress(ValueError):
                return datetime.strptime(str(value)[:19].strip("\0 "), "%Y:%m:%d %H:%M:%S")
    try:
        return datetime.fromtimestamp(int(os.stat(path).st_mtime))
    except (OSError, OverflowError, ValueError):
        return None


def unreadable(
    images: Images, *, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> list[tuple[int, str]]:
    """Decode every picture once; returns the rows that fail, each with its reason. Missing pictures are not failures.

    Parameters
    ----------
    progress : called as progress(done, total) after each picture
    """

    def check(row: int) -> str | None:
        try:
            source = images.source(row)
            if source is not None:
                decode(source, 32)
        except ImageError as error:
            return str(error)
        return None

    failed = []
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        for row, reason in enumerate(pool.map(check, range(len(images)))):
            if reason is not None:
                failed.append((row, reason))
            if progress is not None:
                progress(row + 1, len(images))
    return failed


@contextlib.contextmanager
def _header(source: str | Path | bytes) -> Iterator[Image.Image]:
    """A picture of which only the header is read, whatever its size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as picture:
            yield picture


@contextlib.contextmanager
def _oriented(source: str | Path | bytes | Image.Image, size: int | None) -> Iterator[Image.Image]:
    """The picture of a file, or a copy of a PIL image, upright; errors within the block become an ImageError.

    A JPEG file may be decoded at a lower resolution, from which it can still be reduced to `size`.
    """
    try:
        with _open(source) as picture:
            # JPEG can be decoded at 1/2, 1/4 or 1/8: from twice the final size the result looks the same.
            if size is not None and picture.format in ("JPEG", "MPO"):
                picture.draft(None, (2 * size, 2 * size))
            picture.load()
            yield _orient(picture)
    except ImageError:
        raise
    except Exception as error:  # Pillow raises almost anything on damaged files
        raise ImageError(_reason(error, source)) from error


def _open(source: str | Path | bytes | Image.Image) -> Image.Image:
    if isinstance(source, Image.Image):
        if source.width * source.height > MAX_MEGAPIXELS * 10**6:
            raise ImageError(_too_large(source.width * source.height))
        return source.copy()  # the caller's picture stays unchanged, and open
    if _byte_count(source) == 0:
        raise ImageError("empty file")
    try:
        picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = _pixels_in(error)
        if pixels <= MAX_MEGAPIXELS * 10**6:  # only if warnings are errors
            raise
        raise ImageError(_too_large(pixels)) from error
    if picture.width * picture.height > MAX_MEGAPIXELS * 10**6:
        picture.close()
        raise ImageError(_too_large(picture.width * picture.height))
    if picture.format in ("JPEG", "MPO") and (scans := count_scans(source)) > MAX_SCANS:
        picture.close()
        raise ImageError(f"a JPEG file of at least {scans} scans, more than the limit of {MAX_SCANS}")
    return picture


def count_scans(source: str | Path | bytes) -> int:
    """An upper bound on the number of scans in a JPEG file; a lower bound if it exceeds MAX_SCANS."""
    data = source if isinstance(source, bytes) else Path(source).read_bytes()
    bound = data.count(b"\xff\xda")  # also counts what metadata and thumbnails contain
    if bound <= MAX_SCANS:
        return bound
    scans, position = 0, 2
    while scans <= MAX_SCANS and (segment := _SEGMENT.search(data, position)):
        scans += segment[0] == b"\xff\xda"
        position = segment.end() + int.from_bytes(data[segment.end() : segment.end() + 2], "big")
    return scans


def _pixels_in(error: Exception) -> int:
    """The number of pixels of a picture that Pillow itself refuses, which only its message states."""
    number = re.search(r"\d+", str(error))
    return int(number.group()) if number else 2 * MAX_MEGAPIXELS * 10**6


def _byte_count(source: str | Path | bytes) -> int:
    return len(source) if isinstance(source, bytes) else os.stat(source).st_size


def _too_large(pixels: int) -> str:
    return f"{pixels // 10**6:,} megapixels, more than the limit of {MAX_MEGAPIXELS}"


def _from_array(array: NDArray[Any]) -> Image.Image:
    usual = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not usual or array.size == 0:
        raise ImageError(f"array of {array.dtype} with shape {array.shape}, expected uint8 (height, width, 3)")
    if array.shape[0] * array.shape[1] > MAX_MEGAPIXELS * 10**6:
        raise ImageError(_too_large(array.shape[0] * array.shape[1]))
    return Image.fromarray(array)


def _orient(picture: Image.Image) -> Image.Image:
    try:
        orientation = picture.getexif().get(_ORIENTATION_TAG)
    except Exception:  # the pixels may be good although the EXIF data is damaged
        return picture
    return picture.transpose(_TURNS[orientation]) if orientation in _TURNS else picture


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I") or picture.mode == "F":
        picture = _deep_to_8_bits(picture)
    if picture.has_transparency_data:
        return _by_strips(picture, "RGB", _on_white)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _on_white(strip: Image.Image) -> Image.Image:
    strip = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", strip.size, "white"), strip).convert("RGB")


def _deep_to_8_bits(picture: Image.Image) -> Image.Image:
    """Grey values of 16 or 32 bits, or floats, as 8 bits."""
    scale = 1.0
    if picture.mode.startswith("I;16"):
        scale = 1 / 257  # 65535 becomes 255
    else:
        top = max((_values(strip).max(initial=0) for _, strip in _strips(picture)), default=0)
        scale = 1 / 257 if top > 255 else 255.0 if picture.mode == "F" and top <= 1 else 1.0

    def convert(strip: Image.Image) -> Image.Image:
        values = _values(strip) / 257 if scale < 1 else _values(strip) * scale
        return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8))

    return _by_strips(picture, "L", convert)


def _values(picture: Image.Image) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(picture).astype(np.float64))


def _by_strips(picture: Image.Image, mode: str, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Convert a picture to a mode strip by strip, without a second copy of it in between."""
    converted = Image.new(mode, picture.size)
    for top, strip in _strips(picture):
        converted.paste(convert(strip), (0, top))
    return converted


def _strips(picture: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """The picture in strips of about STRIP pixels, each with its first row."""
    rows = max(1, STRIP // max(1, picture.width))
    for top in range(0, picture.height, rows):
        yield top, picture.crop((0, top, picture.width, min(top + rows, picture.height)))


def _framed(picture: Image.Image, framing: Framing) -> NDArray[np.uint8]:
    size, shorter = framing.size, framing.shorter
    resample = Image.Resampling(framing.resample)
    side = min(picture.size)
    if shorter == STRETCH:
        return np.array(picture.resize((size, size), resample), np.uint8)
    if shorter:
        width, height = (shorter if length == side else int(shorter * length / side) for length in picture.size)
        x, y = (width - size) // 2, (height - size) // 2
        # What lies outside of the picture, where it is smaller than the crop, is black.
        return np.array(picture.resize((width, height), resample).crop((x, y, x + size, y + size)), np.uint8)
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    # Resampling only the central square equals resizing everything and then cropping, without the rounding.
    square = picture.resize((size, size), resample, box=(left, top, left + side, top + side))
    return np.array(square, np.uint8)


def _jpeg(picture: Image.Image, size: int) -> bytes:
    picture = picture.copy()
    picture.info.clear()  # otherwise a comment would be kept
    picture.thumbnail((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85, optimize=True)
    return file.getvalue()


def _reason(error: Exception, source: str | Path | bytes | Image.Image) -> str:
    match error:
        case FileNotFoundError():
            return "does not exist"
        case IsADirectoryError():
            return "is a folder"
        case PermissionError():
            return "permission denied"
        case UnidentifiedImageError():
            return _not_an_image(source)
    if "truncated" in str(error).lower() and not isinstance(source, Image.Image):
        count = _byte_count(source)
        return f"truncated after {f'{count} bytes' if count < 1000 else f'{count / 1000:,.0f} kB'}"
    return f"damaged ({str(error) or type(error).__name__})"


def _not_an_image(source: str | Path | bytes | Image.Image) -> str:
    if isinstance(source, str | Path) and Path(source).is_dir():
        return "is a folder"
    with contextlib.suppress(OSError):
        if "HEIF" not in FORMATS and isinstance(source, str | Path | bytes) and _is_heic(source):
            return 'a HEIC file, which needs: pip install "dcmh[heic]"'
    return "not an image"


def _is_heic(source: str | Path | bytes) -> bool:
    """By its first bytes."""
    if isinstance(source, bytes):
        head = source[:12]
    else:
        with open(source, "rb") as file:
            head = file.read(12)
    return head[4:8] == b"ftyp" and head[8:11] in HEIC_BRANDS
