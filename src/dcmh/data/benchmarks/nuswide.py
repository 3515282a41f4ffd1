"""NUS-WIDE from its official files: 10 most frequent concepts (nuswide), or 21 (nuswide21).

    Groundtruth/AllLabels/Labels_CONCEPT.txt     one 0 or 1 per line, 81 concepts
    ImageList/Imagelist.txt                      one photo per line, as CONCEPT\\NUMBER.jpg; the order of all other files
    NUS_WID_Tags/AllTags1k.txt                   1,000 0s and 1s per line; or Train_Tags1k.dat and Test_Tags1k.dat
    NUS_WID_Tags/TagList1k.txt                   the 1,000 words
    BoW_int.dat                                  500 counts per line; or BoW_Train_int.dat and BoW_Test_int.dat
    Flickr/CONCEPT/NUMBER.jpg                    the photos

Labels and tags are required; photos and visual words are used if they exist. The points are the photos with at least one
of the concepts, including those without a tag: this is the rule that gives the paper's 186,577.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from dcmh.data.benchmarks import sources
from dcmh.data.benchmarks.numbers import read_table
from dcmh.data.benchmarks.release import Release
from dcmh.data.columns import Column, Images, Texts, Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ParameterError

PHOTOS, WORDS, VISUAL_WORDS = 269_648, 1_000, 500
ITEMS = {"nuswide": 186_577, "nuswide21": 195_834}
CONCEPTS = {"nuswide": 10, "nuswide21": 21}
_CONCEPTS = """
    airport animal beach bear birds boats book bridge buildings cars castle cat cityscape clouds computer coral cow
    dancing dog earthquake elk fire fish flags flowers food fox frost garden glacier grass harbor horses house lake leaf
    map military moon mountain nighttime ocean person plane plants police protest railroad rainbow reflection road rocks
    running sand sign sky snow soccer sports statue street sun sunset surf swimmers tattoo temple tiger tower town toy
    train tree valley vehicle water waterfall wedding whales window zebra
    """
ALL_CONCEPTS = tuple(_CONCEPTS.split())
_ZIPS = re.compile(r"(Groundtruth|NUS_WID_Tags|ImageList|ConceptsList|NUS-WIDE)\.zip", re.IGNORECASE)


Table = tuple[str, ...]  # the files of a table of all photos: one, or those of the training and of the test photos


@dataclass(frozen=True)
class Files:
    """The files that were found: paths in the release."""

    release: Release
    labels: dict[str, str]
    images: str | None
    train: str | None
    test: str | None
    tags: Table | None
    words: str | None
    bags: Table | None

    def missing(self) -> list[str]:
        """The kinds of file that loading needs and that are missing, by name."""
        absent = [concept for concept in ALL_CONCEPTS if concept not in self.labels]
        missing = []
        if len(absent) == len(ALL_CONCEPTS):
            missing.append("labels (Groundtruth/AllLabels/Labels_airport.txt … Labels_zebra.txt)")
        elif absent:
            missing.append(f"labels {', '.join(f'Labels_{concept}.txt' for concept in absent)}")
        if self.tags is None:
            missing.append("tags (NUS_WID_Tags/AllTags1k.txt)")
        if self.images is None:
            missing.append("the list of photos (ImageList/Imagelist.txt)")
        for table in (self.tags, self.bags):
            if table is not None and len(table) == 2 and not (self.train and self.test):
                missing.append(f"TrainImagelist.txt and TestImagelist.txt, which {Path(table[0]).name} needs")
        return list(dict.fromkeys(missing))


def find(folder: Path) -> Files:
    """The files of the release in a folder and its subfolders."""
    release = Release(folder, _ZIPS, leave=(".jpg",))
    named = release.named

    def whole_or_parts(whole: str, train: str, test: str) -> Table | None:
        if (path := named(whole)) is not None:
            return (path,)
        parts = named(train), named(test)
        return (parts[0], parts[1]) if parts[0] is not None and parts[1] is not None else None

    labels = {concept: path for concept in ALL_CONCEPTS if (path := named(f"Labels_{concept}.txt")) is not None}
    return Files(
        release=release,
        labels=labels,
        images=named("Imagelist.txt"),
        train=named("TrainImagelist.txt"),
        test=named("TestImagelist.txt"),
        tags=whole_or_parts("AllTags1k.txt", "Train_Tags1k.dat", "Test_Tags1k.dat"),
        words=named("TagList1k.txt"),
        bags=whole_or_parts("BoW_int.dat", "BoW_Train_int.dat", "BoW_Test_int.dat"),
    )


def load(folder: Path | None = None, *, text: str = "bag") -> Dataset:
    """The points of the paper: the 10 most frequent concepts. See `_load`."""
    return _load("nuswide", folder, text)


def load_21(folder: Path | None = None, *, text: str = "bag") -> Dataset:
    """A later variant, from the same files: the 21 most frequent concepts. See `_load`."""
    return _load("nuswide21", folder, text)


def _load(name: str, folder: Path | None, text: str) -> Dataset:
    """The points of nuswide or nuswide21, in the order of Imagelist.txt; a note says if their number differs.

    Parameters
    ----------
    folder
        The folder of the release. Default: nuswide in the dcmh home folder.
    text
        "bag": 0/1 vectors over the 1,000 tags, as in the paper. "words": the tags themselves, for models that take text.
    """
    if text not in ("bag", "words"):
        raise ParameterError(f"The text of {name} is 'bag' or 'words', not {text!r}.")
    folder = sources.find_folder(name, folder)
    files = find(folder)
    missing = files.missing()
    if text == "words" and files.words is None:
        missing.append("the list of tags (NUS_WID_Tags/TagList1k.txt)")
    if missing:
        raise sources.incomplete(name, folder, missing)
    listed = photo_names(files)
    labels, concepts = most_frequent(files, len(listed), CONCEPTS[name])
    keep = np.asarray(labels.any(axis=1))
    points = [listed[row] for row in np.flatnonzero(keep)]
    bags = table(files, files.tags, WORDS, listed, keep)
    columns: dict[str, Column] = {}
    images, notes = _images(files, points, folder, listed, keep)
    if images is not None:
        columns["image"] = images
    columns["text"] = Vectors(bags) if text == "bag" else Texts(_as_words(bags, files))
    return Dataset(
        columns,
        labels=labels[keep],
        label_names=concepts,
        ids=_ids(points),
        name=name,
        notes=[*_notes(name, len(listed), bags, concepts), *notes],
    )


def photo_names(files: Files, path: str | None = None) -> list[str]:
    """The photos as CONCEPT/NUMBER.jpg, in the order of the list."""
    path = path or files.images
    assert path is not None
    return ["/".join(PureWindowsPath(line).parts[-2:]) for line in files.release.lines(path)]


def most_frequent(files: Files, rows: int, count: int) -> tuple[NDArray[np.uint8], list[str]]:
    """Labels of the most frequent concepts, 0/1, shape (photos, count); and their names in alphabetical order."""
    columns = {}
    for concept, path in files.labels.items():
        column = _read(files.release, path, 1, rows=rows).ravel()
        if column.max(initial=0) > 1:
            where = files.release.describe(path)
            raise DataError(f"{where} holds {column.max()}; expected 0 or 1 per line. Get it again.")
        columns[concept] = column.astype(np.uint8)
    ranked = sorted(columns, key=lambda concept: (-int(columns[concept].sum()), concept))
    chosen = sorted(ranked[:count])
    return np.stack([columns[concept] for concept in chosen], axis=1), chosen


def table(
    files: Files, where: Table | None, width: int, listed: Sequence[str], keep: NDArray[np.bool_]
) -> NDArray[np.uint8] | NDArray[np.int32]:
    """The kept rows of a table, in the order of Imagelist.txt, shape (kept, width)."""
    assert where is not None
    if len(where) == 1:
        return _read(files.release, where[0], width, keep=keep)
    row_of = {photo: row for row, photo in enumerate(listed)}
    position_of = np.cumsum(keep) - 1
    values: NDArray[np.uint8] | NDArray[np.int32] | None = None
    filled = np.zeros(int(keep.sum()), bool)
    for path, names in zip(where, (files.train, files.test), strict=True):
        photos = photo_names(files, names)
        rows = np.array([row_of.get(photo, -1) for photo in photos])
        if (rows < 0).any():
            unknown = photos[int(np.argmin(rows))]
            raise DataError(f"{files.release.describe(str(names))} names {unknown}, which Imagelist.txt does not.")
        block = _read(files.release, path, width, keep=keep[rows])
        values = np.zeros((len(filled), width), block.dtype) if values is None else values
        values = values.astype(np.int32) if block.dtype == np.int32 else values
        positions = position_of[rows[keep[rows]]]
        values[positions], filled[positions] = block, True
    assert values is not None
    if not filled.all():
        raise DataError(
            f"{' and '.join(where)} have no row for {int((~filled).sum()):,} photos. Get NUS_WID_Tags.zip and "
            "ImageList.zip again: they must be of the same release."
        )
    return values


def _read(
    release: Release, path: str, width: int, *, keep: NDArray[np.bool_] | None = None, rows: int | None = None
) -> NDArray[np.uint8] | NDArray[np.int32]:
    with release.open(path) as file:
        return read_table(file, release.describe(path), width, keep=keep, rows=rows)


def _images(
    files: Files, points: Sequence[str], folder: Path, listed: Sequence[str], keep: NDArray[np.bool_]
) -> tuple[Images | Vectors | None, list[str]]:
    """The photos, with their visual words if there are any; without photos, the visual words; otherwise None."""
    bags = None if files.bags is None else Vectors(table(files, files.bags, VISUAL_WORDS, listed, keep))
    root = find_photos(folder, points)
    if root is None:
        if bags is None:
            return None, ["There are neither photos nor BoW_int.dat, so there is no image modality."]
        return bags, [f"No photos: the images are bags of {VISUAL_WORDS} visual words (BoW_int.dat)."]
    paths = existing(root, points)
    missing = [photo for photo, path in zip(points, paths, strict=True) if path is None]
    notes = [f"With bags of {VISUAL_WORDS} visual words (BoW_int.dat)."] if bags is not None else []
    if missing:
        notes.append(f"{len(missing):,} of {len(points):,} photos are missing, the first is {missing[0]}.")
    return Images(paths, root=root, bags=bags), notes


def find_photos(folder: Path, photos: Sequence[str]) -> Path | None:
    """The folder that holds CONCEPT/NUMBER.jpg, or all photos side by side, up to two levels deep; None if there is none."""
    tried = [folder, *(path for level in ("*", "*/*") for path in sorted(folder.glob(level)) if path.is_dir())]
    for root in tried:
        for photo in photos[:: max(1, len(photos) // 50)]:
            if (root / photo).is_file() or (root / photo.rpartition("/")[2]).is_file():
                return root
    return None


def existing(root: Path, photos: Sequence[str]) -> list[str | None]:
    """The path of each photo relative to the root, None if missing; each folder is listed once."""
    flat = {entry.name for entry in os.scandir(root) if entry.is_file()}
    folders: dict[str, set[str]] = {}
    paths: list[str | None] = []
    for photo in photos:
        folder, _, name = photo.rpartition("/")
        if folder not in folders:
            inside = root / folder
            folders[folder] = {entry.name for entry in os.scandir(inside)} if folder and inside.is_dir() else set()
        paths.append(photo if name in folders[folder] else name if name in flat else None)
    return paths


def _as_words(bags: NDArray[np.uint8] | NDArray[np.int32], files: Files) -> list[str | None]:
    assert files.words is not None
    words = files.release.lines(files.words)
    if len(words) != bags.shape[1]:
        raise DataError(
            f"{files.release.describe(files.words)} has {len(words):,} words for {bags.shape[1]:,} columns. Get it again."
        )
    return [" ".join(words[column] for column in np.flatnonzero(row)) or None for row in bags]


def _ids(photos: Sequence[str]) -> list[str]:
    """The numbers of the photos, as in 0001_2124494179.jpg; their paths if numbers repeat."""
    names = [photo.rpartition("/")[2].removesuffix(".jpg") for photo in photos]
    return names if len(set(names)) == len(names) else list(photos)


def _notes(name: str, photos: int, bags: NDArray[np.uint8] | NDArray[np.int32], concepts: Sequence[str]) -> list[str]:
    without = int((~bags.any(axis=1)).sum())
    rule = f"{len(bags):,} of {photos:,} photos have one of the {len(concepts)} most frequent concepts"
    same = (photos, len(bags)) == (PHOTOS, ITEMS[name])
    as_in_paper = ", as in the paper" if same and name == "nuswide" else ""
    notes = [f"{rule}{as_in_paper}; {without:,} of them have none of the tags."]
    if not same:
        notes.append(f"This differs from the complete data set: {ITEMS[name]:,} of {PHOTOS:,} photos.")
    return notes
