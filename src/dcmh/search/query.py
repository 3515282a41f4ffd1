"""From what a user asks to a code: words with what became of them, a picture, or a vector; in any modality of its kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcmh import codes
from dcmh.codes import bytes_of
from dcmh.data.dataset import JOINT
from dcmh.errors import ImageError, ParameterError, QueryError, UnknownWords
from dcmh.inputs.views import as_column
from dcmh.search.encode import Encoders
from dcmh.search.rank import Request
from dcmh.search.results import Query
from dcmh.search.words import TextEncoder
from dcmh.util.text import STOP_WORDS, BagOfWords, index_words

# Comparing a word with the whole vocabulary takes milliseconds, so a long text must not ask for many.
OFFERED, LONGEST = 8, 40
LONGEST_QUERY = 10_000  # characters
WORD = 2  # words up to which a query is a word, not a sentence

Asked = tuple[Query, Request]


def ask(encoders: Encoders, text: str | None, image: Any, vector: Any, as_: str | None) -> Asked:
    """The query that is given, with its code, and its modality: `as_`, or the usual one of its kind."""
    if sum(given is not None for given in (text, image, vector)) != 1:
        raise ParameterError("Give one of text, image and vector to search for.")
    if text is not None:
        return ask_words(encoders, text, in_modality(encoders, as_, "text"))
    if image is not None:
        return ask_picture(encoders, image, in_modality(encoders, as_, "image"))
    return ask_vector(encoders, vector, in_modality(encoders, as_, "vector"))


def ask_words(encoders: Encoders, text: str, modality: str | None = None) -> Asked:
    """The query, with known words offered for unknown ones, and its modality."""
    modality = modality or encoders.text
    if modality is None:
        raise QueryError("The model of this index knows no words.", hint="Ask with a picture.")
    if not isinstance(text, str):
        raise QueryError(f"The words to search for must be a text, not {type(text).__name__}.")
    if len(text) > LONGEST_QUERY:
        raise QueryError(f"The query has {len(text):,} characters; the limit is {LONGEST_QUERY:,}.", hint="Shorten it.")
    words = encoders.words_of(modality)
    found = index_words(text)
    meaning = words.encoder or (encoders.fine.encoder if encoders.fine is not None else None)
    used, ignored = words.bag.used_and_ignored(text)
    read = meaning is not None and meaning.knows(text)  # a script that the encoder lacks may still be in the vocabulary
    known = bool(used) or read
    if read:
        used, ignored = [*used, *ignored], []
    if not known and not found:
        raise _unknown(text, words, {}, encoders.folder / f"{modality}.vocabulary.txt")
    nearest = {} if known and not ignored else _nearest(words.bag, ignored)
    code = words.encode([text])[0].tobytes()
    fine = None
    if encoders.fine is not None and read:
        fine = encoders.fine.of_texts([text])[0]
    kind = "word" if len(found) <= WORD else "sentence"
    query = Query(text, None, tuple(used), tuple(ignored), nearest, code, encoders.key(code, fine), kind)
    return query, Request(code, modality, True, encoders.as_query(fine), tuple(found), known)


def no_answer(encoders: Encoders, query: Query, request: Request) -> QueryError:
    """The error of a query that neither the model nor any item's text knows."""
    file = encoders.folder / f"{request.modality}.vocabulary.txt"
    return _unknown(query.text or "", encoders.words_of(request.modality), query.nearest, file)


def ask_picture(encoders: Encoders, image: Any, modality: str | None = None) -> Asked:
    """The query and its modality. A picture is a path, the bytes of a file, or a uint8 array."""
    modality = modality or encoders.picture
    if modality is None:
        raise QueryError("The model of this index takes no pictures. Ask with words.")
    named = str(image) if isinstance(image, str | Path) else None
    try:
        outputs, fine = encoders.pictures(modality).one(image)
    except ImageError as error:
        raise QueryError(f"Cannot read {named or 'the picture'}: {error}. Give another picture.") from error
    code = codes.pack(codes.sign(outputs[None]))[0].tobytes()
    query = Query(image=named, code=code, key=encoders.key(code, fine))
    return query, Request(code, modality, False, encoders.as_query(fine))


def ask_vector(encoders: Encoders, vector: Any, modality: str | None = None) -> Asked:
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
    outputs, vectors = encoders.vectors(modality, as_column(values.reshape(1, -1), "vector", modality))
    code, fine = codes.pack(codes.sign(outputs))[0].tobytes(), None if vectors is None else vectors[0]
    return Query(code=code, key=encoders.key(code, fine)), Request(code, modality, False, encoders.as_query(fine))


def ask_code(encoders: Encoders, key: bytes, modality: str, indexed: Sequence[str]) -> Asked:
    """The query of a packed code, or of a `Query.key`, in a modality of the model, or of the index."""
    if modality not in (*encoders.modalities, *indexed):
        raise ParameterError(f"The model has no {modality!r}.", hint=f"It has: {', '.join(encoders.modalities)}.")
    size = bytes_of(encoders.bits)
    width = 0 if encoders.fine is None else encoders.fine.dimensions
    if len(key) not in (size, size + width):
        raise ParameterError(f"The code has {len(key)} bytes; codes of {encoders.bits} bits have {size}.")
    fine = None
    if len(key) > size and encoders.fine is not None:
        fine = encoders.fine.restore(np.frombuffer(key, np.int8, offset=size))
    kind = modality != JOINT and modality in encoders.modalities and encoders.kind(modality) == "text"
    request = Request(key[:size], modality, kind, encoders.as_query(fine))
    return Query(code=key[:size], key=key, kind="sentence" if kind else "picture"), request


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


def _unknown(text: str, words: TextEncoder, nearest: dict[str, tuple[str, ...]], vocabulary: Path) -> QueryError:
    if not text.strip():
        return QueryError("The query is empty.", hint="Give some words, or a picture.")
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    if words.encoder is not None:
        name = os.path.basename(words.encoder.name)
        return UnknownWords(
            f"The text encoder {name} cannot read any part of '{shown}', and no item's text holds it.",
            hint="Ask in words of a language that it knows.",
        )
    close = tuple(dict.fromkeys(word for known in nearest.values() for word in known))[:5]
    message = f"No word of '{shown}' is in the model's vocabulary ({len(words.bag):,} words), nor in any item's text."
    hint = f"Closest known: {', '.join(close)}. " if close else ""
    return UnknownWords(message, which=vocabulary, hint=f"{hint}{vocabulary} lists them all.", nearest=close)
