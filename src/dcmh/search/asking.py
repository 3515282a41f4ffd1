"""From what a user asks to a code: words with what became of them, or a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dcmh.errors import ImageError, QueryError
from dcmh.search.encoders import Encoders
from dcmh.search.hits import Query
from dcmh.text import STOP_WORDS, BagOfWords


def ask_words(encoders: Encoders, text: str) -> tuple[Query, str]:
    """The query, with known words offered for unknown ones, and its modality."""
    words, modality = encoders.words, encoders.text
    if words is None or modality is None:
        raise QueryError("The model of this index knows no words. Ask with a picture.")
    used, ignored = words.bag.used_and_ignored(text)
    nearest = _nearest(words.bag, ignored)
    if not used:
        raise QueryError(_unknown(text, words.bag, nearest, encoders.folder / f"{modality}.vocabulary.txt"))
    code = words.encode([text])[0].tobytes()
    return Query(text, None, tuple(used), tuple(ignored), nearest, code), modality


def ask_picture(encoders: Encoders, image: Any) -> tuple[Query, str]:
    """The query and its modality. A picture is a path, the bytes of a file, or a uint8 array."""
    modality = encoders.picture
    if modality is None:
        raise QueryError("The model of this index takes no pictures. Ask with words.")
    named = str(image) if isinstance(image, str | Path) else None
    try:
        code = encoders.pictures(modality).one(image)[0].tobytes()
    except ImageError as error:
        raise QueryError(f"Cannot read {named or 'the picture'}: {error}. Give another picture.") from error
    return Query(image=named, code=code), modality


def _nearest(bag: BagOfWords, ignored: list[str]) -> dict[str, tuple[str, ...]]:
    """Known words that are spelt like the unknown ones; common words such as 'the' need none."""
    found = {word: tuple(bag.nearest(word)) for word in ignored if len(word) > 2 and word not in STOP_WORDS}
    return {word: known for word, known in found.items() if known}


def _unknown(text: str, bag: BagOfWords, nearest: dict[str, tuple[str, ...]], vocabulary: Path) -> str:
    if not text.strip():
        return "The query is empty. Give some words, or a picture."
    close = list(dict.fromkeys(word for known in nearest.values() for word in known))[:5]
    hint = f" Closest known: {', '.join(close)}." if close else ""
    return f"No word of '{text}' is in the model's vocabulary ({len(bag):,} words).{hint} {vocabulary} lists them all."
