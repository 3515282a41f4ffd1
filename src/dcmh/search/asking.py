"""From what a user asks to a code: words with what became of them, a picture, or a vector; in any modality of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.codes import bytes_of
from dcmh.errors import ImageError, ParameterError, QueryError, UnknownWords
from dcmh.search.encoders import Encoders
from dcmh.search.hits import Query
from dcmh.text import STOP_WORDS, BagOfWords
from dcmh.views import as_column

# Comparing a word with the whole vocabulary takes milliseconds, so a long text must not ask for many.
OFFERED, LONGEST = 8, 40


def ask(encoders: Encoders, text: str | None, image: Any, vector: Any, as_: str | None) -> tuple[Query, str]:
    """The query that is given, with its code, and its modality: `as_`, or the usual one of its kind."""
    if sum(given is not None for given in (text, image, vector)) != 1:
        raise ParameterError("Give one of text, image and vector to search for.")
    if text is not None:
        return ask_words(encoders, text, in_modality(encoders, as_, "text"))
    if image is not None:
        return ask_picture(encoders, image, in_modality(encoders, as_, "image"))
    return ask_vector(encoders, vector, in_modality(encoders, as_, "vector"))


def ask_words(encoders: Encoders, text: str, modality: str | None = None) -> tuple[Query, str]:
    """The query, with known words offered for unknown ones, and its modality."""
    modality = modality or encoders.text
    if modality is None:
        raise QueryError("The model of this index knows no words. Ask with a picture.")
    words = encoders.words_of(modality)
    used, ignored = words.bag.used_and_ignored(text)
    nearest = _nearest(words.bag, ignored)
    if not used:
        raise _unknown(text, words.bag, nearest, encoders.folder / f"{modality}.vocabulary.txt")
    code = words.encode([text])[0].tobytes()
    return Query(text, None, tuple(used), tuple(ignored), nearest, code), modality


def ask_picture(encoders: Encoders, image: Any, modality: str | None = None) -> tuple[Query, str]:
    """The query and its modality. A picture is a path, the bytes of a file, or a uint8 array."""
    modality = modality or encoders.picture
    if modality is None:
        raise QueryError("The model of this index takes no pictures. Ask with words.")
    named = str(image) if isinstance(image, str | Path) else None
    try:
        code = encoders.pictures(modality).one(image)[0].tobytes()
    except ImageError as error:
        raise QueryError(f"Cannot read {named or 'the picture'}: {error}. Give another picture.") from error
    return Query(image=named, code=code), modality


def ask_vector(encoders: Encoders, vector: Any, modality: str | None = None) -> tuple[Query, str]:
    """The query and its modality. A vector is a path of a .npy file, or numbers."""
    found = [name for name in encoders.modalities if encoders.kind(name) == "vector"]
    if modality is None and len(found) != 1:
        raise QueryError(
            f"The model of this index has several kinds of vectors. Say which: {', '.join(found)}."
            if found
            else "The model of this index takes no vectors. Ask with words or a picture."
        )
    modality = modality or found[0]
    try:
        values = np.load(vector, allow_pickle=False) if isinstance(vector, str | Path) else np.asarray(vector)
    except (OSError, ValueError) as error:
        raise QueryError(f"Cannot read the vector {vector}: {error}. Give a .npy file.") from error
    code = encoders.vectors(modality, as_column(values.reshape(1, -1), "vector", modality))[0].tobytes()
    return Query(code=code), modality


def ask_code(encoders: Encoders, code: bytes, modality: str, indexed: Sequence[str]) -> Query:
    """The query of a packed code in a modality of the model, or of the index."""
    if modality not in (*encoders.modalities, *indexed):
        raise ParameterError(f"The model has no {modality!r}. It has: {', '.join(encoders.modalities)}.")
    if len(code) != bytes_of(encoders.bits):
        raise ParameterError(
            f"The code has {len(code)} bytes; codes of {encoders.bits} bits have {bytes_of(encoders.bits)}."
        )
    return Query(code=code)


def in_modality(encoders: Encoders, modality: str | None, kind: str) -> str | None:
    """The modality a query is asked in, checked: it must be the model's, and of the query's kind."""
    if modality is None:
        return None
    if modality not in encoders.modalities:
        raise QueryError(f"The model of this index has no {modality!r}. It has: {', '.join(encoders.modalities)}.")
    if encoders.kind(modality) != kind:
        raise QueryError(
            f"The model's {modality} holds {encoders.kind(modality)}s, the query is a {kind}. Ask otherwise."
        )
    return modality


def _nearest(bag: BagOfWords, ignored: list[str]) -> dict[str, tuple[str, ...]]:
    """Known words that are spelt like the first unknown ones; common words such as 'the' need none."""
    asked = [word for word in ignored if 2 < len(word) <= LONGEST and word not in STOP_WORDS][:OFFERED]
    found = {word: tuple(bag.nearest(word)) for word in asked}
    return {word: known for word, known in found.items() if known}


def _unknown(text: str, bag: BagOfWords, nearest: dict[str, tuple[str, ...]], vocabulary: Path) -> QueryError:
    if not text.strip():
        return QueryError("The query is empty. Give some words, or a picture.")
    close = tuple(dict.fromkeys(word for known in nearest.values() for word in known))[:5]
    said = f"No word of '{text}' is in the model's vocabulary ({len(bag):,} words)."
    hint = f"Closest known: {', '.join(close)}. " if close else ""
    return UnknownWords(said, f"{hint}{vocabulary} lists them all.", close)
