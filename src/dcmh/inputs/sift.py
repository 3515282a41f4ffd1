"""Pictures as bags of visual words: SIFT (Lowe, IJCV 2004) at key points, quantised by k-means (Csurka et al., 2004).

The words are learned from the descriptors of the training pictures. A bag holds the square root of each word's share of
the picture's key points, so that bags have length 1 and a few frequent words do not dominate Euclidean distances
(Arandjelović & Zisserman, CVPR 2012). A picture without key points is a row of zeros.

Words and bags are cached under hashes of what they were computed from.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Images
from dcmh.errors import DataError, ImageError, NotFittedError, ParameterError, needs
from dcmh.inputs import images
from dcmh.inputs.decoding import unreadable
from dcmh.inputs.features import content_hashes
from dcmh.util.atomic import whole_file
from dcmh.util.cache import VectorStore, home
from dcmh.util.formats import read_npy

SIZE = 256  # pixels, square
KEY_POINTS = 500  # the strongest of each picture
SAMPLE = 200_000  # descriptors from which the words are learned
BATCH, BATCHES = 4096, 150  # of k-means
VERSION = 1  # part of the hashes: increase it if the same pictures give other bags

Progress = Callable[[int, int], None]  # pictures done, pictures in total
Floats = NDArray[np.float32]


def bag_of_visual_words(
    column: Images,
    train: Sequence[int] | NDArray[np.intp],
    *,
    words: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Floats:
    """Bags of all pictures, shape (pictures, words), over words learned from the training rows."""
    learned = VisualWords(words, seed=seed).fit(column.take(np.asarray(train, np.intp)), progress=progress)
    return learned.transform(column, progress=progress)


class VisualWords:
    """A code book of SIFT descriptors. `centres_`, (words, 128), has fewer rows if there are fewer descriptors."""

    def __init__(self, words: int = 500, *, seed: int = 0) -> None:
        if isinstance(words, bool) or not isinstance(words, int) or not 2 <= words <= 65_536:
            raise ParameterError(f"words must be a whole number from 2 to 65536, not {words!r}.")
        self.words = words
        self.seed = seed

    def fit(self, column: Images, *, progress: Progress | None = None) -> Self:
        """Learn the words from these pictures; their order does not matter."""
        rows = {key: row for row, key in enumerate(content_hashes(column)) if key is not None}
        keys = sorted(rows)
        digest = hashlib.blake2b(repr((VERSION, SIZE, self.words, self.seed)).encode(), digest_size=8)
        digest.update(b"".join(keys))
        self.digest_ = digest.hexdigest()
        cached = home() / "features" / f"sift-{self.digest_}.npy"
        try:
            self.centres_: Floats = read_npy(cached)
        except (OSError, ValueError):
            self.centres_ = self._learn(column, keys, [rows[key] for key in keys], progress)
            with whole_file(cached) as draft, draft.open("wb") as file:
                np.save(file, self.centres_)
        return self

    def transform(self, column: Images, *, progress: Progress | None = None) -> Floats:
        """Bags of pictures, shape (pictures, words); zeros for a picture that is missing or has no key points."""
        if not hasattr(self, "centres_"):
            raise NotFittedError("These visual words have not been learned yet. Call fit(pictures).")
        store = VectorStore("features", f"sift-{self.digest_}")
        keys = content_hashes(column)
        known = store.get([key for key in keys if key is not None])
        missing = {key: row for row, key in enumerate(keys) if key is not None and key not in known}
        entries: list[tuple[bytes, Floats]] = []
        for key, descriptors in zip(missing, _descriptors(column, list(missing.values()), progress), strict=True):
            entries.append((key, self._bag(descriptors)))
            if len(entries) % 500 == 0:
                store.put(entries[-500:])
        store.put(entries[len(entries) // 500 * 500 :])
        known |= dict(entries)
        bags = np.zeros((len(column), len(self.centres_)), np.float32)
        for row, key_of_row in enumerate(keys):
            if key_of_row is not None:
                bags[row] = known[key_of_row]
        return bags

    def _bag(self, descriptors: Floats) -> Floats:
        if not len(descriptors):
            return np.zeros(len(self.centres_), np.float32)
        counts = np.bincount(_nearest(descriptors, self.centres_), minlength=len(self.centres_))
        return np.sqrt(counts / len(descriptors)).astype(np.float32)

    def _learn(self, column: Images, keys: list[bytes], rows: list[int], progress: Progress | None) -> Floats:
        quota = max(1, SAMPLE // max(1, len(rows)))
        sample = []
        for key, values in zip(keys, _descriptors(column, rows, progress), strict=True):
            generator = np.random.default_rng([self.seed, int.from_bytes(key[:8], "big")])
            sample.append(values[np.sort(generator.permutation(len(values))[:quota])])
        descriptors = np.concatenate(sample) if sample else np.zeros((0, 128), np.float32)
        if len(descriptors) < 2:
            raise DataError(
                f"SIFT finds no key points in the {len(rows):,} training pictures: they are too uniform or too small. "
                'Take other features, such as "cnn".'
            )
        return k_means(descriptors, min(self.words, len(descriptors)), np.random.default_rng(self.seed))


def k_means(points: Floats, centres: int, generator: np.random.Generator) -> Floats:
    """Centres (centres, d) by mini-batches (Sculley, WWW 2010); a centre that gets no points is moved to one."""
    means = points[np.sort(generator.choice(len(points), centres, replace=False))].copy()
    counts = np.zeros(centres)
    for batch in range(BATCHES):
        sample = points[generator.integers(len(points), size=BATCH)]
        nearest = _nearest(sample, means)
        new = np.bincount(nearest, minlength=centres)
        sums = np.zeros_like(means)
        np.add.at(sums, nearest, sample)
        counts += new
        hit = new > 0
        # The mean of all points that a centre ever got, as if each moved it by 1 / count.
        means[hit] += (sums[hit] - new[hit, None] * means[hit]) / counts[hit, None]
        if batch == BATCHES // 3:
            empty = np.flatnonzero(counts == 0)
            means[empty] = points[generator.integers(len(points), size=len(empty))]
    return means


def _nearest(points: Floats, centres: Floats) -> NDArray[np.intp]:
    """The nearest centre of each point: |p - c|^2 without the term that is the same for all centres."""
    return np.asarray(np.argmin((centres**2).sum(axis=1) - 2 * points @ centres.T, axis=1))


def _descriptors(column: Images, rows: list[int], progress: Progress | None) -> Iterator[Floats]:
    """SIFT descriptors (key points, 128) of pictures, in order; computed in threads."""
    if not rows:
        return
    with needs("SIFT features need OpenCV", "dcmh[bench]"):
        import cv2

    def describe(row: int) -> Floats:
        try:
            source = column.source(row)
            assert source is not None
            pixels = images.decode(source, SIZE)
        except ImageError as error:
            raise unreadable(column, row, error) from error
        # One detector per picture: they are cheap, and not thread-safe.
        detector: Any = cv2.SIFT_create(nfeatures=KEY_POINTS)  # type: ignore[attr-defined]
        _, values = detector.detectAndCompute(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), None)
        return np.zeros((0, 128), np.float32) if values is None else np.asarray(values, np.float32)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(rows), 256):  # so that no more than these are in memory
            for done, descriptors in enumerate(pool.map(describe, rows[start : start + 256]), start + 1):
                yield descriptors
                if progress is not None:
                    progress(done, len(rows))
