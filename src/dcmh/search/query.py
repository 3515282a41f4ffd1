"""From a query to its code: words, with what became of them, a picture, a vector, examples, or several of them together.

A query of several parts has the weighted mean of their fine vectors, less what it excludes:

    q = (words + PICTURE picture + PICTURE examples) / (sum of the weights) - EXCLUDED excluded words - UNLIKE counterexamples

with the mean of several examples. Its code is the signs of the same sum over the codes of the parts. The weights were chosen
on photos that are not queries (docs/measurements/search-quality.md).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes
from dcmh.codes import bytes_of
from dcmh.data.columns import is_pil_image
from dcmh.data.dataset import JOINT
from dcmh.data.values import plain
from dcmh.errors import ImageError, ParameterError, QueryError, UnknownWords
from dcmh.inputs.views import as_column
from dcmh.search import spelling
from dcmh.search.encode import Encoders
from dcmh.search.rank import Request
from dcmh.search.results import UNMEASURED, Query
from dcmh.search.words import TextEncoder
from dcmh.util.formats import read_npy, reason
from dcmh.util.text import STOP_WORDS, BagOfWords

# Comparing a word with the whole vocabulary takes milliseconds, so it is done for a few words only.
OFFERED, LONGEST = 8, 40
LONGEST_QUERY = 10_000  # characters
WORD = 2  # words up to which a query is a word, not a sentence
CHARACTER = 0.5  # words for each Chinese or Japanese character, which is a word of its own in `index_words`
PICTURE, EXCLUDED, UNLIKE = 0.5, 1.0, 0.5

_NEGATIONS = "no not without ohne kein keine keinen nicht sans sin senza sem zonder geen"
_ARTICLES = "a an any the ein eine einen einem einer un une uno una"
_JOINING = "and or nor und oder noch et ou ni y"
_LEADING = "with and but mit und aber avec et mais con y pero"  # to a negation, as in "a street with no cars"
_ENDING = """
    about above after against along among around at before behind below beneath beside between beyond but by during for
    from in inside into near next on onto outside over through to toward towards under underneath upon while with within
    auf bei im mit neben unter vor avec dans sur con en sobre
    """
NEGATIONS, ARTICLES, JOINING, LEADING, ENDING = (
    frozenset(words.split()) for words in (_NEGATIONS, _ARTICLES, _JOINING, _LEADING, _ENDING)
)
_TOKEN = re.compile(r'(?P<minus>(?<!\S)-(?=[^\W\d]|"))?(?:"(?P<quoted>[^"]+)"|(?P<word>[^\s"]+))')
_PUNCTUATION = ".,;:!?()"
_QUOTED = re.compile(r'\s*"([^"]*)"\s*')
_QUOTATION_MARKS = dict.fromkeys(map(ord, "“”„‟«»＂"), '"')  # which telephones and word processors make of plain ones

Asked = tuple[Query, Request]


@dataclass(frozen=True)
class Example:
    """An item of the index as part of a query: its id, and its code and fine vector (see `Query.key`) in a modality."""

    id: int
    key: bytes
    modality: str


def parse(text: str) -> tuple[str, tuple[str, ...]]:
    """The words to search for, and those to exclude.

    Excluded are a word or "several words" after a minus that follows a space; and the words after no, not or without, as
    in "dog without a leash on the beach", up to a preposition or a punctuation mark. NEGATIONS lists these words in other
    languages.
    """
    wanted: list[str] = []
    without: list[str] = []
    phrase: list[str] | None = None  # that is being read, after its negation

    def close() -> None:
        nonlocal phrase
        if phrase is not None and (len(phrase) < 2 or phrase[-1].lower() in ("sign", "signs")):
            wanted.extend(phrase)  # nothing follows the negation, or it is a "no parking sign"
        elif phrase is not None:
            excluded = " ".join(phrase[1:])
            if wanted and wanted[-1].lower() in LEADING:
                wanted.pop()
            without.append("people" if excluded.lower() == "one" else excluded)
        phrase = None

    for match in _TOKEN.finditer(text):
        token = match["quoted"] or match["word"]
        bare = token.strip(_PUNCTUATION)
        word = "" if match["quoted"] else bare.lower()
        if match["minus"]:
            close()
            without.append(bare.removeprefix("-"))
        elif word in ("nobody", "noone", "no-one"):
            close()
            without.append("people")
        elif word in NEGATIONS and token[-1] != ".":
            close()
            phrase = [token]
        elif phrase is None:
            wanted.append(match[0])
        elif len(phrase) == 1 and (word in ARTICLES or word in ENDING):
            phrase[0] = phrase[0] and f"{phrase[0]} {token}"  # "not on the grass" excludes the grass
        elif word in JOINING and len(phrase) > 1:
            close()
            phrase = [""]  # if no word follows, none is wanted either
        elif word in ENDING and len(phrase) > 1:
            close()
            wanted.append(token)
        else:
            phrase.append(bare)
            if token[-1] in _PUNCTUATION:
                close()
    close()
    return " ".join(filter(None, wanted)), tuple(dict.fromkeys(excluded for excluded in without if excluded))


def ask(
    encoders: Encoders,
    text: str | None,
    image: Any = None,
    vector: Any = None,
    query_modality: str | None = None,
    *,
    coded: Asked | None = None,
    like: Sequence[Example] = (),
    unlike: Sequence[Example] = (),
    indexed: Sequence[str] = (),
    counts: spelling.Counts | None = None,
) -> Asked:
    """The query with its code, and the request; in the given modality, or in the default one of its kind.

    `coded` is a part that has its code already, `indexed` the modalities of the index that has the examples. `counts` says
    how many items contain some words; with it, misspelt words are corrected.
    """
    text = plain(text)
    pictures = [given is not None for given in (image, vector, coded)]
    if text is None and not any(pictures) and not like and not unlike:
        raise ParameterError("Give text, an image or a vector to search for, or examples.")
    if sum(pictures) > 1:
        raise ParameterError("Give one of image and vector to search for.")
    modality = dict.fromkeys(("text", "image", "vector"), query_modality)
    if text is not None and any(pictures) and query_modality in encoders.modalities:
        kind = encoders.kind(query_modality)
        modality = {name: query_modality if name == kind else None for name in modality}
    words, without = _read(text) if text is not None else ("", ())
    parts: list[tuple[float, Asked]] = []
    meant: dict[str, str] = {}
    if text is not None and (not without or words):
        spoken = _checked(encoders, modality["text"], "text")
        if counts is not None and isinstance(words, str) and (name := spoken or encoders.text) is not None:
            meant = spelling.corrections(words, _meaning(encoders, encoders.words_of(name)), counts)
            words = spelling.corrected(words, meant)
        parts.append((1.0, ask_words(encoders, words, spoken)))
    if image is not None:
        parts.append((PICTURE, ask_picture(encoders, image, _checked(encoders, modality["image"], "image"))))
    if vector is not None:
        parts.append((PICTURE, ask_vector(encoders, vector, _checked(encoders, modality["vector"], "vector"))))
    if coded is not None:
        parts.append((PICTURE, coded))
    for example in like:
        parts.append((PICTURE / len(like), ask_code(encoders, example.key, example.modality, indexed)))
    spoken = _checked(encoders, modality["text"], "text") if without else None
    excluded = [(EXCLUDED, ask_words(encoders, phrase, spoken, suggest=False)) for phrase in without]
    for example in unlike:
        excluded.append((UNLIKE / len(unlike), ask_code(encoders, example.key, example.modality, indexed)))
    query, request = parts[0][1] if len(parts) == 1 and not excluded else _combined(encoders, parts, excluded)
    named, apart = tuple(one.id for one in like), tuple(one.id for one in unlike)
    return replace(query, text=text, corrected=meant, without=without, like=named, unlike=apart), request


def _meaning(encoders: Encoders, words: TextEncoder) -> Any:
    """The sentence encoder that reads queries; None if there is none."""
    return words.encoder or (encoders.fine.encoder if encoders.fine is not None else None)


def read_ahead(encoders: Encoders, texts: Sequence[str]) -> None:
    """Encode the words of several queries in one pass over the weights. `ask` finds their codes and vectors remembered."""
    if encoders.text is not None and (meaning := _meaning(encoders, encoders.words_of(encoders.text))):
        phrases = [phrase for wanted, without in map(_read, texts) for phrase in (wanted, *without) if phrase]
        usual = [spelling.in_usual_case(spelling.named(phrase), meaning) for phrase in phrases]
        encoders.of_words(encoders.text, usual)


def _read(text: str) -> tuple[str, tuple[str, ...]]:
    """The words to search for and those to exclude; a text that is no query is left to `ask_words`."""
    if not isinstance(text, str) or len(text) > LONGEST_QUERY:
        return text, ()
    text = text.translate(_QUOTATION_MARKS)
    whole = _QUOTED.fullmatch(text)
    words, without = parse(whole[1] if whole else text)  # "no people" in quotation marks excludes people, too
    return (f'"{words}"' if whole and not without else words), without


def _combined(encoders: Encoders, parts: list[tuple[float, Asked]], excluded: list[tuple[float, Asked]]) -> Asked:
    """One query of several parts, less what is excluded. Words that the model does not know have no code of their own."""
    total = sum(weight for weight, asked in parts if asked[1].known) or 1.0
    weighted = [(weight / total, asked) for weight, asked in parts if asked[1].known]
    weighted += [(-weight, asked) for weight, asked in excluded if asked[1].known]
    fine: NDArray[np.float32] | None = None
    wanted_bits, excluded_bits = np.zeros((2, encoders.bits), np.float64)
    for weight, (_, request) in weighted:
        bits = wanted_bits if weight > 0 else excluded_bits
        bits += weight * codes.unpack(np.frombuffer(request.code, np.uint8)[None], encoders.bits)[0]
        if request.fine is not None:
            term = np.asarray(weight * request.fine, np.float32)
            fine = term if fine is None else fine + term
    code, wanted_code = (
        codes.pack(codes.sign(sums[None]))[0].tobytes() for sums in (wanted_bits + excluded_bits, wanted_bits)
    )
    spoken = next((asked for _, asked in parts if asked[1].is_text), None)
    shown = next((asked for _, asked in parts if not asked[1].is_text), None)
    first = shown or spoken or excluded[0][1]
    query = Query(code=code, key=first[0].key if shown else code, image=first[0].image, kind=UNMEASURED)
    request = Request(code, first[1].modality, first[1].is_text, fine)
    if spoken is not None:
        used, ignored, nearest = spoken[0].used, spoken[0].ignored, spoken[0].nearest
        query = replace(query, used=used, ignored=ignored, nearest=nearest)
        request = replace(request, words=spoken[1].words, known=spoken[1].known or shown is not None)
    return query, replace(
        request,
        without=tuple(one.words for _, (_, one) in excluded if one.words),
        wanted_code=wanted_code if wanted_bits.any() else None,
        excluded_codes=tuple(one.code for _, (_, one) in excluded if one.is_text and one.known),
    )


def ask_words(encoders: Encoders, text: str, modality: str | None = None, *, suggest: bool = True) -> Asked:
    """A query of words, with known words suggested for unknown ones, unless `suggest` is not set."""
    modality = modality or encoders.text
    if modality is None:
        raise QueryError("The model of this index knows no words.", hint="Search with a picture.")
    if not isinstance(text, str):
        raise QueryError(f"The words to search for must be a text, not {type(text).__name__}.")
    if len(text) > LONGEST_QUERY:
        raise QueryError(f"The query has {len(text):,} characters; the limit is {LONGEST_QUERY:,}.", hint="Shorten it.")
    words = encoders.words_of(modality)
    named = spelling.named(text)
    indexed = spelling.words_of(named)
    if not indexed:
        raise _no_words(text)
    meaning = _meaning(encoders, words)
    used, ignored = words.bag.used_and_ignored(named)
    # A script that the encoder cannot read may still be in the vocabulary.
    read = meaning is not None and meaning.knows(named)
    known = bool(used) or read
    if read:
        used, ignored = [*used, *ignored], []
    nearest = _nearest(words.bag, ignored) if suggest else {}
    usual = spelling.in_usual_case(named, meaning)
    ((code, fine),) = encoders.of_words(modality, [usual])
    fine = fine if read else None
    length = sum(CHARACTER if len(word) == 1 else 1 for word in indexed)
    kind = "word" if length <= WORD else "sentence"
    query = Query(text, None, tuple(used), tuple(ignored), nearest, code, encoders.key(code, fine), kind)
    return query, Request(code, modality, True, encoders.as_query(fine), indexed, known)


def no_answer(encoders: Encoders, query: Query, request: Request, *, texts_searched: bool) -> QueryError:
    """The error for a query with no word that the model knows, or that an item's text contains if those are searched."""
    file = encoders.folder / f"{request.modality}.vocabulary.txt"
    words = encoders.words_of(request.modality)
    return _unknown(query.text or "", words, query.nearest, file, texts_searched=texts_searched)


def ask_picture(encoders: Encoders, image: Any, modality: str | None = None) -> Asked:
    """A query of a picture: a path, the bytes of a file, a PIL image, or a uint8 array."""
    modality = modality or encoders.picture
    if modality is None:
        raise QueryError("The model of this index takes no pictures.", hint="Search with words.")
    if not isinstance(image, str | Path | bytes | bytearray | memoryview | np.ndarray) and not is_pil_image(image):
        raise QueryError(
            f"The picture to search for is of type {type(image).__name__}.",
            hint="Give a path, the bytes of a file, a PIL image, or a uint8 array (height, width, 3).",
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
        raise QueryError("The model of this index takes no vectors.", hint="Search with words or a picture.")
    if modality is None and len(names) > 1:
        raise QueryError(
            "The model of this index has several kinds of vectors.", hint=f"Say which: {', '.join(names)}."
        )
    modality = modality or names[0]
    try:
        values = read_npy(vector) if isinstance(vector, str | Path) else np.asarray(plain(vector))
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
            hint=f"Search with a modality that holds {kind}s.",
        )
    return modality


def _nearest(bag: BagOfWords, ignored: list[str]) -> dict[str, tuple[str, ...]]:
    """Known words that are spelt like the first unknown ones; common words such as 'the' need none."""
    words = [word for word in ignored if 2 < len(word) <= LONGEST and word not in STOP_WORDS][:OFFERED]
    nearest = {word: tuple(bag.nearest(word)) for word in words}
    return {word: known for word, known in nearest.items() if known}


def _no_words(text: str) -> QueryError:
    what = f"There is no word in the query '{_shortened(text)}'." if text.strip() else "The query is empty."
    return QueryError(what, hint="Give some words, or a picture.")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _unknown(
    text: str, words: TextEncoder, nearest: dict[str, tuple[str, ...]], vocabulary: Path, *, texts_searched: bool
) -> QueryError:
    shown = _shortened(text)
    if words.encoder is not None:
        name = os.path.basename(words.encoder.name)
        return UnknownWords(
            f"The text encoder {name} cannot read any part of '{shown}'"
            + (", and no item's text contains it." if texts_searched else "."),
            hint="Use words of a language that it knows.",
        )
    close = tuple(dict.fromkeys(word for known in nearest.values() for word in known))[:5]
    message = f"No word of '{shown}' is in the model's vocabulary ({len(words.bag):,} words)"
    message += ", nor in any item's text." if texts_searched else "."
    hint = f"Closest known: {', '.join(close)}. " if close else ""
    return UnknownWords(message, which=vocabulary, hint=f"{hint}{vocabulary} lists them all.", nearest=close)
