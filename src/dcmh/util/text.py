"""Texts to words and to bags of words, without scikit-learn."""

from __future__ import annotations

import difflib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import DataError, NotFittedError, ParameterError
from dcmh.util.checksums import read_checked_text
from dcmh.util.formats import parse_json, readable

FORMAT = 1
_HEADER = "# dcmh vocabulary "

# Runs of word characters. Those of one character are never in a vocabulary, so the words that count are exactly
# those of scikit-learn's default pattern (?u)\b\w\w+\b.
_RUN = re.compile(r"\w+")
_WORD = re.compile(r"\b\w\w+\b")
_ACCENT = re.compile("[\u0300-\u036f]")
_STOPS = dict.fromkeys(
    [0x964, 0x965, 0xE2F, 0xE3F, 0xE5A, 0xE5B], " "
)  # of Indian scripts and Thai, among their letters
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")
_DECIMAL = re.compile(r"[+-]?([0-9]{1,15}\.[0-9]*|\.[0-9]+|[0-9]{1,15})([eE][+-]?[0-9]{1,3})?")
_IDEOGRAPH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_PART = re.compile(rf"[{_IDEOGRAPH}]|(?:(?![{_IDEOGRAPH}])[\w\u0900-\u0dff\u0e00-\u0eff])+")

_STOP_WORDS = """
    about above across after again against all almost alone along already also although always am among an and another
    any anybody anyone anything are aren around as at be became because been before behind being below between both but
    by can cannot could couldn did didn do does doesn doing don done down during each either else ever every everyone
    everything few for from further get gets getting go goes going got had hadn has hasn have haven having he hence her
    here hers herself him himself his how however if in into is isn it its itself just least less let like ll made make
    makes many may maybe me might mine more most much must my myself near neither never no nobody none nor not nothing
    now of off often on once one only onto or other others our ours ourselves out over own per perhaps quite rather re
    really same shall she should shouldn since so some somebody someone something sometimes somewhere still such than
    that the their theirs them themselves then there these they this those though through thus to together too toward
    towards two under until up upon us ve very via was wasn we well were weren what when where whether which while who
    whom whose why will with within without won would wouldn yet you your yours yourself yourselves
    """
STOP_WORDS = frozenset(_STOP_WORDS.split())


def common_words() -> list[str]:
    """Words of captions of photos and of the names of ImageNet's classes, the most frequent first."""
    return list(dict.fromkeys((files("dcmh.util") / "common_words.txt").read_text(encoding="utf-8").split()))


def words_of(text: str) -> list[str]:
    """The words of a text in order, lower-case, without words of one letter."""
    return _WORD.findall(text.lower())


def sanitized(text: str) -> str:
    """The text as every store takes it: surrogates, as in JSON's "\\ud83d", are joined with their other half or become
    U+FFFD, and so does U+0000, which PostgreSQL does not store.
    """
    text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def as_scalar(cell: object) -> str | int | float | None:
    """A cell of a table as a number if it is written like one, else as a stripped text; None if it is blank."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return None
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, list | tuple):
        cell = " ".join(str(part) for part in cell if part is not None)
    text = sanitized(str(cell)).strip()
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text or None


def index_words(text: str) -> list[str]:
    """The words under which a text is indexed, each once, in order: lower-case, without accents, English plurals as singular.

    Chinese and Japanese, which have no spaces, are indexed by character. Stop words are left out unless there is nothing else.
    """
    plain = _ACCENT.sub("", unicodedata.normalize("NFKD", sanitized(text).casefold()).translate(_STOPS))
    words = list(dict.fromkeys(_stem(word) for word in _PART.findall(unicodedata.normalize("NFC", plain))))
    return [word for word in words if word not in STOP_WORDS and (len(word) > 1 or word > "z")] or words


_WORD_WITH_MARKS = re.compile("(?:[^\\W\\d_]|[\u0300-\u036f\u0900-\u0dff\u0e00-\u0eff])+")  # letters, without digits
_CAMERA_FOLDER = re.compile(r"\d{3}[A-Z0-9_]{5}")  # 100CANON, 101_PANA, 102APPLE: the DCF standard
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?=[A-Z])")
_NAMES_OF_PROGRAMS = """
    album albums backup backups bild bilder camera dcim dsc export exports file files folder folders foto fotos gallery
    image images img imgs import imports jpeg jpg media misc originals photo photos pic pics picture pictures png raw roll
    tmp unsorted untitled upload uploads
    """
_NO_MEANING = frozenset(_NAMES_OF_PROGRAMS.split())


def folder_words(path: str) -> str:
    """The words in the names of a file's folders: holiday/beach-2019/DCIM/100CANON/1.jpg has holiday and beach.

    Numbers, dates, and names that cameras and programs give carry no meaning. Of an absolute path, which leads outside of
    the collection, nothing counts.
    """
    if path.startswith(("/", "..")) or path[1:2] == ":":
        return ""
    names = [name for name in path.split("/")[:-1] if not _CAMERA_FOLDER.fullmatch(name)]
    words = _WORD_WITH_MARKS.findall(_CAMEL_CASE.sub(" ", " ".join(names)))
    return " ".join(word for word in words if word.lower() not in _NO_MEANING)


_IRREGULAR = {
    "buses": "bus",
    "children": "child",
    "feet": "foot",
    "geese": "goose",
    "knives": "knife",
    "leaves": "leaf",
    "loaves": "loaf",
    "men": "man",
    "mice": "mouse",
    "people": "person",
    "shelves": "shelf",
    "teeth": "tooth",
    "wolves": "wolf",
    "women": "woman",
}


def _stem(word: str) -> str:
    """Like `singular`, but better with plurals in -es; existing vocabularies depend on `singular` as it is."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes", "zes")):
        return word[:-2]
    return singular(word)


HALVES = {"calf": "calve", "elf": "elve", "half": "halve", "hoof": "hoove", "scarf": "scarve", "wife": "wive"}
_OF_HALVES = {plural: word for word, plural in HALVES.items()}


def plural_form(word: str) -> str | None:
    """The form that `_stem` gives the plural of a word if it differs from the word, or vice versa: cookies becomes cooky.

    Indexes hold such words, so a query looks for both.
    """
    if word in HALVES or word in _OF_HALVES:
        return HALVES.get(word) or _OF_HALVES[word]
    if len(word) < 4 or not word.isascii():
        return None
    for ending, other in (("ie", "y"), ("y", "ie"), ("oe", "o"), ("o", "oe"), ("use", "us"), ("us", "use")):
        if word.endswith(ending):
            return word.removesuffix(ending) + other
    return None


@lru_cache(maxsize=1 << 16)
def singular(word: str) -> str:
    """The singular of an English plural, judged by its ending: dogs is dog, berries is berry, but grass stays grass."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


class BagOfWords:
    """A vocabulary, and bag-of-words vectors over it.

    Parameters
    ----------
    min_count
        Leave out words that occur in fewer texts.
    max_words
        Keep only the most frequent words; None keeps all.
    stop_words
        Leave out common English words (`STOP_WORDS`).
    binary
        1 for a word that occurs, however often; otherwise its number of occurrences.
    plurals
        Keep English plurals distinct; otherwise "dogs" counts as "dog" (see `singular`).

    After `fit`: `words_` (most frequent first, equal counts alphabetically), `counts_` (texts that contain each word),
    `documents_` (number of texts).
    """

    def __init__(
        self,
        *,
        min_count: int = 2,
        max_words: int | None = None,
        stop_words: bool = True,
        binary: bool = True,
        plurals: bool = False,
    ) -> None:
        if min_count < 1:
            raise ParameterError(f"min_count must be at least 1, not {min_count}. 1 keeps every word.")
        if max_words is not None and max_words < 1:
            raise ParameterError(f"max_words must be at least 1, not {max_words}. None keeps every word.")
        self.min_count = min_count
        self.max_words = max_words
        self.stop_words = stop_words
        self.binary = binary
        self.plurals = plurals

    @classmethod
    def of(cls, words: Sequence[str]) -> BagOfWords:
        """A vocabulary of given words, in the form that `words_` has, with counts of 0."""
        bag = cls(min_count=1)
        bag._set([(word, 0) for word in words], 0)
        return bag

    def fit(self, texts: Iterable[str | None]) -> Self:
        """Learn the vocabulary; missing texts (None) are ignored."""
        occurrences: Counter[str] = Counter()
        documents = 0
        for text in _checked(texts):
            if text is not None:
                occurrences.update(set(self._words(text)))
                documents += 1
        pairs = [(word, count) for word, count in occurrences.items() if count >= self.min_count]
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
        if not pairs:
            raise DataError(_why_empty(occurrences, documents, self.min_count))
        self._set(pairs[: self.max_words], documents)
        return self

    def transform(self, texts: Iterable[str | None]) -> NDArray[np.float32]:
        """Vectors of the texts, shape (texts, words). A missing text, or one without known words, is all zeros."""
        index = self._known()
        rows: list[int] = []
        columns: list[int] = []
        row = -1
        for row, text in enumerate(_checked(texts)):
            for word in self._words(text or ""):
                column = index.get(word)
                if column is not None:
                    rows.append(row)
                    columns.append(column)
        vectors = np.zeros((row + 1, len(index)), np.float32)
        if self.binary:
            vectors[rows, columns] = 1
        else:
            np.add.at(vectors, (rows, columns), 1)
        return vectors

    def used_and_ignored(self, text: str) -> tuple[list[str], list[str]]:
        """The words of a text that are in the vocabulary, and those that are not; each once, in order."""
        index = self._known()
        words = list(dict.fromkeys(_RUN.findall(text.lower())))
        used = [word for word in words if self._form(word) in index and word not in self._stopped]
        return used, [word for word in words if word not in used]

    def nearest(self, word: str, n: int = 3) -> list[str]:
        """At most n words of the vocabulary that are spelt similarly, most similar first."""
        return difflib.get_close_matches(word.lower(), self._known(), n)

    def __len__(self) -> int:
        return len(self._known())

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._form(word) in self._known()

    @property
    def _stopped(self) -> frozenset[str]:
        return STOP_WORDS if self.stop_words else frozenset()

    def _form(self, word: str) -> str:
        return word if self.plurals else singular(word)

    def _words(self, text: str) -> list[str]:
        """The words of a text that may be in the vocabulary, in the form that they have there."""
        stopped = self._stopped
        return [self._form(word) for word in words_of(text) if word not in stopped]

    def save(self, path: Path | str) -> None:
        """Write a text file: a line of settings, then one word per line with its count."""
        self._known()
        settings = {
            "format": FORMAT,
            "min_count": self.min_count,
            "max_words": self.max_words,
            "stop_words": self.stop_words,
            "binary": self.binary,
            "plurals": self.plurals,
            "documents": self.documents_,
        }
        lines = [_HEADER + json.dumps(settings)]
        lines += [f"{word}\t{count}" for word, count in zip(self.words_, self.counts_, strict=True)]
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path | str) -> BagOfWords:
        """Read what `save` wrote."""
        path = Path(path)
        if not path.exists():
            raise DataError(f"Vocabulary {path} does not exist.")
        what = "{path} is not a vocabulary of dcmh: {reason}."
        with readable(path, what=what, hint="Save it again with the model."):
            header, *lines = read_checked_text(path).removesuffix("\n").split("\n")
            if not header.startswith(_HEADER):
                raise ValueError("its first line is not a vocabulary header")
            settings = parse_json(header.removeprefix(_HEADER))
            version = settings.pop("format")
            if type(version) is not int or version != FORMAT:
                raise ValueError(f"its format is {version!r}; this version reads {FORMAT}")
            documents = settings.pop("documents")
            bag = cls(**settings)
            pairs = [line.split("\t") for line in lines]
            bag._set([(word, int(count)) for word, count in pairs], int(documents))
            if len(bag._index) < len(pairs):
                raise ValueError("a word occurs twice")
        return bag

    def _set(self, pairs: list[tuple[str, int]], documents: int) -> None:
        self.words_ = tuple(word for word, _ in pairs)
        self.counts_ = np.array([count for _, count in pairs], np.int64)
        self.documents_ = documents
        self._index = {word: column for column, word in enumerate(self.words_)}

    def _known(self) -> dict[str, int]:
        if not hasattr(self, "_index"):
            raise NotFittedError("This vocabulary is empty. Call fit(texts) or BagOfWords.load(path) first.")
        return self._index


def _checked(texts: Iterable[str | None]) -> Iterable[str | None]:
    if isinstance(texts, str):
        raise DataError("Expected a list of texts, got one string. Write [text].")
    return texts


def _why_empty(occurrences: Counter[str], documents: int, min_count: int) -> str:
    if not occurrences:
        return f"The {documents:,} texts contain no words to learn from. Check that the text column is the right one."
    word, count = min(occurrences.items(), key=lambda pair: (-pair[1], pair[0]))
    return (
        f"No word occurs in {min_count} or more of the {documents:,} texts; the most frequent, '{word}', in {count}. "
        f"Lower min_count, or give more texts."
    )
