"""Mutations of files: of bytes, of numbers in headers, and of JSON values."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

DEEP = 3_000
NUMBERS = (0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)
WORDS = (
    b"-1",
    b"0",
    b"1e308",
    b"99999999999999999999",
    b"NaN",
    b"true",
    b"null",
    b"1.5",
    b"\xff\xfe",
    b"\0",
    b"",
    b'"',
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    1.5,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1",
    "x" * 1000,
    "\0",
    "\ud800",
    "../../etc/passwd",
    [],
    {},
    [[]],
    [None],
    {"": None},
)


def mutate(content: bytes, chance: random.Random, *, name: str) -> bytes:
    """The content with one to three mutations of kinds that suit the file's name."""
    kinds: list[Callable[[bytes, random.Random], bytes]] = [*BYTES]
    if name.endswith((".json", ".jsonl")):
        kinds += [change_json] * len(BYTES)
    if name.endswith((".json", ".jsonl", ".toml", ".csv", ".tsv", ".txt", ".npy")):
        kinds += [change_number, change_number, change_word]
    if name.endswith((".toml", ".json", ".jsonl")):
        kinds += [nest]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(kinds)(content, chance)
    return content


def flip_bits(content: bytes, chance: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 3, 16)) if data else 0):
        data[_position(data, chance)] ^= 1 << chance.randrange(8)
    return bytes(data)


def cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def insert(content: bytes, chance: random.Random) -> bytes:
    at = _position(content, chance)
    return content[:at] + chance.randbytes(chance.choice((1, 4, 100))) + content[at:]


def remove(content: bytes, chance: random.Random) -> bytes:
    at = _position(content, chance)
    return content[:at] + content[at + chance.choice((1, 4, 100)) :]


def zero(content: bytes, chance: random.Random) -> bytes:
    at, length = _position(content, chance), chance.choice((4, 64, 512))
    return content[:at] + bytes(min(length, len(content) - at)) + content[at + length :]


def swap_blocks(content: bytes, chance: random.Random) -> bytes:
    size = chance.choice((4, 16, 128, 512))
    a, b = sorted(chance.randrange(0, len(content) // size + 1) * size for _ in range(2))
    if a == b:
        return content
    return content[:a] + content[b : b + size] + content[a + size : b] + content[a : a + size] + content[b + size :]


def repeat_block(content: bytes, chance: random.Random) -> bytes:
    at = _position(content, chance)
    return content[:at] + content[at : at + chance.choice((4, 64, 512))] * chance.choice((2, 3, 50)) + content[at:]


def put_number(content: bytes, chance: random.Random) -> bytes:
    size = chance.choice((1, 2, 4, 8))
    number = chance.choice(NUMBERS) & (2 ** (8 * size) - 1)
    at = _position(content, chance)
    return content[:at] + number.to_bytes(size, chance.choice(("little", "big"))) + content[at + size :]


BYTES = (flip_bits, cut, insert, remove, zero, swap_blocks, repeat_block, put_number, flip_bits, put_number)


def change_number(content: bytes, chance: random.Random) -> bytes:
    """Another number in place of one that is written in digits."""
    return _replace(rb"-?\d+", content, chance)


def change_word(content: bytes, chance: random.Random) -> bytes:
    """Something else in place of a word."""
    return _replace(rb"\w+", content, chance)


def nest(content: bytes, chance: random.Random) -> bytes:
    """Brackets within brackets in place of a value."""
    opened, closed = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}")))
    deep = opened * DEEP + (b"1" if closed == b"}" else b"") + closed * chance.choice((0, DEEP))
    places = [match.end() for match in re.finditer(rb"[=:] *", content)] or [0]
    at = chance.choice(places)
    return content[:at] + deep + re.sub(rb"\A[^,\n}]*", b"", content[at:])


def change_json(content: bytes, chance: random.Random) -> bytes:
    """Another value in place of one, at any depth; or an entry less; of one line, where there are several."""
    lines = content.split(b"\n") if b"\n{" in content and not content.startswith(b"{\n") else [content]
    row = chance.randrange(len(lines))
    try:
        record = json.loads(lines[row])
    except (ValueError, RecursionError):
        return flip_bits(content, chance)
    lines[row] = json.dumps(_changed(record, chance)).encode()
    return b"\n".join(lines)


def _changed(value: Any, chance: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or chance.random() < 0.1:
        return chance.choice(VALUES)
    key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
    changed = value.copy()
    if chance.random() < 0.15:
        del changed[key]
    elif isinstance(value, list) and chance.random() < 0.1:
        changed.append(value[key])
    else:
        changed[key] = _changed(value[key], chance)
    return changed


def _replace(pattern: bytes, content: bytes, chance: random.Random) -> bytes:
    matches = list(re.finditer(pattern, content[:20_000]))
    if not matches:
        return insert(content, chance)
    start, stop = chance.choice(matches).span()
    return content[:start] + chance.choice(WORDS) + content[stop:]


def _position(content: bytes | bytearray, chance: random.Random) -> int:
    """A position; every second time among the first 256, where headers are."""
    if not content:
        return 0
    return chance.randrange(min(256, len(content)) if chance.random() < 0.5 else len(content))
