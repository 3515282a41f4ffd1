"""Requests that no honest client sends: damaged and hostile files, broken forms, nonsense in every place."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

BOUNDARY = "----------------boundary"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY}"


@dataclass(frozen=True)
class Sent:
    """A request."""

    method: str
    target: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def raw(self, host: str) -> bytes:
        """As it goes over the wire."""
        lines = [f"{self.method} {self.target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1", "replace") + self.body


def form(data: bytes, *, name: str = "image", filename: str | None = "a.jpg", kind: str = "image/jpeg") -> bytes:
    """A multipart form with one part."""
    said = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{said}\r\nContent-Type: {kind}\r\n\r\n'
    return head.encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()


def picture(form: str, size: tuple[int, int] = (64, 48), seed: int = 0, **options: object) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def png_of(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG that says how large it is, whatever its data hold."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def many_scans(count: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """A JPEG file that draws the same picture again and again."""
    jpeg = picture("JPEG", size)
    start, end = jpeg.index(b"\xff\xda"), jpeg.rindex(b"\xff\xd9")
    return jpeg[:start] + count * jpeg[start:end] + jpeg[end:]


def grey_16_bits(width: int, height: int) -> bytes:
    """A small PNG file of many pixels of 16 bits."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((height, width), np.uint16)).save(file, "PNG")
    return file.getvalue()


def hostile_files() -> dict[str, bytes]:
    """Files that are no pictures, or pictures made to hurt."""
    gif = picture("GIF")
    jpeg = picture("JPEG")
    return {
        "empty": b"",
        "text": b"hello",
        "random": random.Random(0).randbytes(5000),
        "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
        "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\ntrailer\n<<>>\n%%EOF",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(x) run\n",
        "html": b"<!doctype html><script>alert(1)</script>",
        "zip": b"PK\x03\x04" + bytes(100),
        "icon": b"\0\0\1\0\1\0" + bytes(200),
        "portable": b"P6 9999 9999 255\n" + bytes(100),
        "bomb of bytes": png_of(20000, 20000, bytes(20000 * 100)),
        "bomb of a header": png_of(2**31 - 1, 2**31 - 1),
        "no pixels": png_of(0, 0),
        "fewer rows than said": png_of(5000, 5000, bytes(5001 * 10)),
        "tiff of nowhere": b"II*\0" + struct.pack("<I", 2**31) + bytes(50),
        "tiff that loops": b"II*\0\x08\0\0\0" + struct.pack("<H", 0xFFFF) + bytes(20) + struct.pack("<I", 8),
        "cut JPEG": jpeg[: len(jpeg) // 2],
        "cut PNG": picture("PNG")[:200],
        "JPEG of markers": b"\xff\xd8\xff" + b"\xff\xe1\xff\xff" * 500,
        "GIF of a script, cut": gif[:20] + b"/*" + b"A" * 500 + b"*/alert(1)//",
        "WebP of a header": b"RIFF\xff\xff\xff\x7fWEBPVP8X" + bytes(30),
    }


def requests(count: int, seed: int = 0) -> Iterator[Sent]:
    """So many requests, none of them right."""
    chance = random.Random(seed)
    kinds = [picture(name, seed=3) for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")]
    files = list(hostile_files().values())
    makers = (_damaged(chance, kinds), _hostile(chance, files), _forms(chance), _targets(chance), _bodies(chance))
    for number in range(count):
        yield next(makers[number % len(makers)])


def _damaged(chance: random.Random, kinds: list[bytes]) -> Iterator[Sent]:
    """Pictures with some bytes changed or missing."""
    while True:
        data = bytearray(chance.choice(kinds))
        for _ in range(chance.choice((1, 5, 50))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        cut = data[: chance.randrange(1, len(data))] if chance.random() < 0.7 else data[8:]
        target = chance.choice(("/api/search?k=3", "/api/encode"))
        yield Sent("POST", target, form(bytes(cut)), {"Content-Type": MULTIPART})


def _hostile(chance: random.Random, files: list[bytes]) -> Iterator[Sent]:
    while True:
        name = chance.choice(("a.jpg", "../../etc/passwd", "a.svg", "a\x00.png", "", "x" * 500))
        body = form(
            chance.choice(files), filename=name, kind=chance.choice(("image/jpeg", "image/svg+xml", "text/html"))
        )
        yield Sent("POST", "/api/search", body, {"Content-Type": MULTIPART})


def _forms(chance: random.Random) -> Iterator[Sent]:
    """Forms that are none."""
    whole = form(picture("PNG"))
    many = b"".join(form(b"x", name=f"f{n}", filename=None)[: -len(BOUNDARY) - 8] for n in range(200))
    while True:
        body, kind = chance.choice(
            [
                (whole[: chance.randrange(len(whole))], MULTIPART),
                (whole, "multipart/form-data"),
                (whole, "multipart/form-data; boundary=other"),
                (whole, 'multipart/form-data; boundary="'),
                (whole, "multipart/form-data; boundary=" + "b" * 300),
                (whole, "image/png"),
                (whole, ""),
                (form(b"x", name="picture"), MULTIPART),
                (form(b"x", filename=None), MULTIPART),
                (form(b"x" * 200_000, filename=None), MULTIPART),
                (many, MULTIPART),
                (b"a=b&image=c", "application/x-www-form-urlencoded"),
                (chance.randbytes(300), MULTIPART),
                (b"--" + BOUNDARY.encode() + b"\r\nContent-Disposition: form-data\r\n\r\n", MULTIPART),
            ]
        )
        yield Sent("POST", chance.choice(("/api/search", "/api/encode", "/api/items")), body, {"Content-Type": kind})


def _targets(chance: random.Random) -> Iterator[Sent]:
    """Addresses that are not there, and parameters that cannot be."""
    odd = (
        "-1",
        "0",
        "1e9",
        "99999999999999999999999",
        "abc",
        "%00",
        "%ff%fe",
        "",
        "null",
        "1;drop",
        "%f0%9f%98%80",
        "٣",
    )
    while True:
        value = chance.choice(odd)
        yield Sent(
            chance.choice(("GET", "GET", "GET", "PUT", "DELETE", "OPTIONS", "TRACE", "HEAD")),
            chance.choice(
                [
                    f"/api/search?text=a&k={value}",
                    f"/api/search?text={value}&offset={value}",
                    f"/api/search?text={'x' * 2000}",
                    f"/api/search?text=dog&radius={value}",
                    f"/api/search?text=dog&in={value}",
                    f"/api/search?text=dog&at_least={value}",
                    f"/api/search?code={value}&modality=image",
                    f"/api/items/{value}",
                    f"/api/items/{value}/image",
                    f"/api/items/1/thumbnail?size={value}",
                    "/api/items/../../etc/passwd",
                    "/page/../app.py",
                    "/page/%2e%2e/app.py",
                    "/page//etc/passwd",
                    f"/api/words?prefix={value}&limit={value}",
                    f"/{value}",
                    "//",
                    "/api/search?" + "a=b&" * 500,
                ]
            )
            .encode("utf-8")
            .decode("latin-1"),
        )


def _bodies(chance: random.Random) -> Iterator[Sent]:
    """JSON that is none, or is not what is wanted."""
    while True:
        body = chance.choice(
            [
                b"",
                b"{",
                b"[" * 100_000,
                b"null",
                b"[]",
                b'{"text": 1}',
                b'{"text": []}',
                b'{"text": ["\\ud800"]}',
                b'{"text": [null]}',
                b'{"text": ["' + b"x" * 5000 + b'"]}',
                b'{"text": "dog"}',
                b'{"text": [' + b'"a",' * 500 + b'"a"]}',
                b"\xff\xfe{}",
                b'{"text": ["\\u0000"]}',
                b"1" * 10_000,
            ]
        )
        yield Sent("POST", "/api/encode", body, {"Content-Type": "application/json"})
