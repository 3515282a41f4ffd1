"""From a query to its code: words, with what became of them, a picture, or a vector; in any modality of its kind."""

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
from dcmh.util.formats import read_npy, reason
from dcmh.util.text import STOP_WORDS, BagOfWords, index_words

# Comparing a word with the whole vocabulary takes milliseconds, so it is done for a few words only.
OFFERED, LONGEST = 8, 40
LONGEST_QUERY = 10_000  # characters
WORD = 2  # words up to which a query is a word, not a sentence

Asked = tuple[Query, Request]


def ask(encoders: Encoders, text: str | None, image: Any, vector: Any, query_modality: str | None) -> Asked:
    """The query with its code, and the request; in the given modality, or in the default one of its kind."""
    if sum(given is not None for given in (text, image, vector)) != 1:
        raise ParameterError("Give one of text, image and vector to search for.")
    if text is not None:
        return ask_words(encoders, text, _checked(encoders, query_modality, "text"))
    if image is not None:
        return ask_picture(encoders, image, _checked(encoders, query_modality, "image"))
    return ask_vector(encoders, vector, _checked(encoders, query_modality, "vector"))


def ask_words(encoders: Encoders, text: str, modality: str | None = None) -> Asked:
    """A query of words, with known words suggested for unknown ones."""
    modality = modality or encoders.text
    if modality is None:
        raise QueryError("The model of this index knows no words.", hint="Ask with a picture.")
    if not isinstance(text, str):
        raise QueryError(f"The words to search for must be a text, not {type(text).__name__}.")
    if len(text) > LONGEST_QUERY:
        raise QueryError(f"The query has {len(text):,} characters; the limit is {LONGEST_QUERY:,}.", hint="Shorten it.")
    words = encoders.words_of(modality)
    indexed = index_words(text)
    meaning = words.encoder or (encoders.fine.encoder if encoders.fine is not None else None)
    used, ignored = words.bag.used_and_ignored(text)
    read = meaning is not None and meaning.knows(text)  # a script that the encoder lacks may still be in the vocabulary
    known = bool(used) or read
    if read:
        used, ignored = [*used, *ignored], []
    if not known and not indexed:
        raise _unknown(text, words, {}, encoders.folder / f"{modality}.vocabulary.txt", texts_searched=False)
    nearest = {} if known and not ignored else _nearest(words.bag, ignored)
    code = words.encode([text])[0].tobytes()
    fine = None
    if encoders.fine is not None and read:
        fine = encoders.fine.of_texts([text])[0]
    kind = "word" if len(indexed) <= WORD else "sentence"
    query = Query(text, None, tuple(used), tuple(ignored), nearest, code, encoders.key(code, fine), kind)
    return query, Request(code, modality, True, encoders.as_query(fine), tuple(indexed), known)


def no_answer(encoders: Encoders, query: Query, request: Request, *, texts_searched: bool) -> QueryError:
    """The error for a query with no word that the model knows, or that an item's text contains if those are searched."""
    file = encoders.folder / f"{request.modality}.vocabulary.txt"
    words = encoders.words_of(request.modality)
    return _unknown(query.text or "", words, query.nearest, file, texts_searched=texts_searched)


def ask_picture(encoders: Encoders, image: Any, modality: str | None = None) -> Asked:
    """A query of a picture: a path, the bytes of a file, or a uint8 array."""
    modality = modality or encoders.picture
    if modality is None:
        raise QueryError("The model of this index takes no pictures.", hint="Ask with words.")
    if not isinstance(image, str | Path | bytes | bytearray | memoryview | np.ndarray):
        raise QueryError(
            f"The picture to search for is of type {type(image).__name__}.",
            hint="Give a path, the bytes of a file, or a uint8 array (height, width, 3).",
        )
    if isinstance(image, bytearray | memoryview):
        image = bytes(image)
    named = str(image) if isinstance(image, str | Path) else None
    try:
        outputs, fine = encoders.pictures(modality).encode(image)
    except ImageError as error:
        raise QueryError(f"Cannot read {named or 'the picture'}: {error}.", hint="Give another picture.") from error
    code = codes.pack(codes.sign(outputs[None]))[0].tobytes()
    query = Query(image=named, code=code, key=encoders.key(code, fine))
    return query, Request(code, modality, False, encoders.as_query(fine))


def ask_vector(encoders: Encoders, vector: Any, modality: str | None = None) -> Asked:
    """A query of a vector: the path of a .npy file, or numbers."""
    names = [name for name in encoders.modalities if encoders.kind(name) == "vector"]
    if modality is None and not names:
        raise QueryError("The model of this index takes no vectors.", hint="Ask with words or a picture.")
    if modality is None and len(names) > 1:
        raise QueryError(
            "The model of this index has several kinds of vectors.", hint=f"Say which: {', '.join(names)}."
        )
    modality = modality or names[0]
    try:
        values = read_npy(vector) if isinstance(vector, str | Path) else np.asarray(vector)
    except (OSError, ValueError) as error:
        raise QueryError(
            f"Cannot read the vector {vector}: {reason(error)}.", hint="Give a .npy file, or numbers."
        ) from error
    if values.dtype.kind not in "fiub" or not values.size:
        raise QueryError("The vector to search for does not hold numbers.", hint="Give a .npy file, or numbers.")
    outputs, vectors = encoders.vectors(modality, as_column(values.reshape(1, -1), "vector", modality))
    code, fine = codes.pack(codes.sign(outputs))[0].tobytes(), None if vectors is None else vectors[0]
    return Query(code=code, key=encoders.key(code, fine)), Request(code, modality, False, encoders.as_query(fine))


def ask_code(encoders: Encoders, key: bytes, modality: str, indexed: Sequence[str]) -> Asked:
    """A query of a packed code, or of a `Query.key`, in a modality of the model or of the index."""
    if not isinstance(key, bytes):
        raise ParameterError(f"A code is bytes, not {type(key).__name__}.")
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


def _checked(encoders: Encoders, modality: str | None, kind: str) -> str | None:
    """The modality of a query: it must be one of the model's, and of the query's kind."""
    if modality is None:
        return None
    if modality not in encoders.modalities:
        raise QueryError(
            f"The model of this index has no {modality!r}.", hint=f"It has: {', '.join(encoders.modalities)}."
        )
    if encoders.kind(modality) != kind:
        raise QueryError(
            f"The model's {modality} holds {encoders.kind(modality)}s, the query is a {kind}.",
            hint=f"Ask with a modality that holds {kind}s.",
        )
    return modality


def _nearest(bag: BagOfWords, ignored: list[str]) -> dict[str, tuple[str, ...]]:
    """Known words that are spelt like the first unknown ones; common words such as 'the' need none."""
    words = [word for word in ignored if 2 < len(word) <= LONGEST and word not in STOP_WORDS][:OFFERED]
    nearest = {word: tuple(bag.nearest(word)) for word in words}
    return {word: known for word, known in nearest.items() if known}


def _unknown(
    text: str, words: TextEncoder, nearest: dict[str, tuple[str, ...]], vocabulary: Path, *, texts_searched: bool
) -> QueryError:
    if not text.strip():
        return QueryError("The query is empty.", hint="Give some words, or a picture.")
    shown = text if len(text) <= 60 else f"{text[:59]}…"
    if words.encoder is not None:
        name = os.path.basename(words.encoder.name)
        return UnknownWords(
            f"The text encoder {name} cannot read any part of '{shown}'"
            + (", and no item's text contains it." if texts_searched else "."),
            hint="Ask in words of a language that it knows.",
        )
    close = tuple(dict.fromkeys(word for known in nearest.values() for word in known))[:5]
    message = f"No word of '{shown}' is in the model's vocabulary ({len(words.bag):,} words)"
    message += ", nor in any item's text." if texts_searched else "."
    hint = f"Closest known: {', '.join(close)}. " if close else ""
    return UnknownWords(message, which=vocabulary, hint=f"{hint}{vocabulary} lists them all.", nearest=close)
