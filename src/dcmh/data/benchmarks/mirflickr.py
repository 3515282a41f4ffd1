"""MIRFLICKR-25K from its official release: photos, tags and annotations, as zips or unpacked.

    mirflickr25k.zip                    mirflickr/im1.jpg …, mirflickr/meta/tags/tags1.txt …, mirflickr/doc/common_tags.txt
    mirflickr25k_annotations_v080.zip   animals.txt, baby.txt, baby_r1.txt, …: one photo number per line

The paper keeps "points which have at least 20 textual tags" and gets 20,015. The public file of its tags and labels
differs: a point there has 4.6 words on average, and at least one. The rule that reproduces it, and that `load` applies:
the words are the 1,386 tags of common_tags.txt, which occur in at least 20 photos; the points are the photos with at
least one of these words and at least one of the 24 labels (annotation files without _r1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dcmh.data.benchmarks import sources
from dcmh.data.benchmarks.release import Release
from dcmh.data.columns import Images, Texts, Vectors
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ParameterError

NAME = "mirflickr25k"
PHOTOS, WORDS, ITEMS = 25_000, 1_386, 20_015
# The labels in the order of the public .mat files, each with the number of the 20,015 points that have it.
_LABELS = """
    animals 2647 baby 179 bird 644 car 986 clouds 3230 dog 581 female 4614 flower 1554 food 813 indoor 6320 lake 704
    male 4743 night 2243 people 7848 plant_life 7413 portrait 2740 river 811 sea 1133 sky 6818 structures 8463 sunset 1840
    transport 2450 tree 3981 water 2885
    """
LABELS = {label: int(count) for label, count in zip(_LABELS.split()[::2], _LABELS.split()[1::2], strict=True)}
_ZIPS = re.compile(r"mirflickr25k.*\.zip", re.IGNORECASE)
_OTHER_ENCODING = 0.01  # largest share of tag files that may be in another encoding than UTF-8


@dataclass(frozen=True)
class Files:
    """The files that were found: paths in the release, by photo number or by label."""

    release: Release
    photos: Mapping[int, str]
    tags: Mapping[int, str]
    annotations: Mapping[str, str]
    words: str | None

    def missing(self) -> list[str]:
        """The kinds of files that are missing, by name."""
        missing = [] if self.photos else ["photos (mirflickr/im1.jpg …)"]
        missing += [] if self.tags else ["tags (mirflickr/meta/tags/tags1.txt …)"]
        missing += [] if self.words else ["the list of words (mirflickr/doc/common_tags.txt)"]
        absent = [label for label in LABELS if label not in self.annotations]
        if len(absent) == len(LABELS):
            missing.append("annotations (animals.txt … water.txt)")
        elif absent:
            missing.append(f"annotations {', '.join(f'{label}.txt' for label in absent)}")
        return missing


def find(folder: Path) -> Files:
    """The files of the release in a folder and its subfolders."""
    release = Release(folder, _ZIPS)
    photos: dict[int, str] = {}
    for match, path in release.matching(r"(?:.*/)?im(\d{1,7})\.jpg"):
        photos.setdefault(int(match[1]), path)
    tags: dict[int, str] = {}
    for match, path in release.matching(r"(?:.*/)?tags/tags(\d{1,7})\.txt"):
        tags.setdefault(int(match[1]), path)
    named = {label: release.named(f"{label}.txt") for label in LABELS}
    annotations = {label: path for label, path in named.items() if path is not None}
    return Files(release, photos, tags, annotations, release.named("common_tags.txt"))


def load(folder: Path | None = None, *, text: str = "bag") -> Dataset:
    """The points of the paper; a note says if their number differs.

    Parameters
    ----------
    folder
        The folder of the release. Default: mirflickr25k in the dcmh home folder.
    text
        "bag": 0/1 vectors over the 1,386 words, as in the paper. "words": the tags themselves, for models that take text.
    """
    if text not in ("bag", "words"):
        raise ParameterError(f"The text of {NAME} is 'bag' or 'words', not {text!r}.")
    folder = sources.find_folder(NAME, folder)
    files = find(folder)
    missing = files.missing()
    if missing:
        raise sources.incomplete(NAME, folder, missing)
    numbers = _numbers(files, folder)
    labels = annotated(files, numbers)
    words = word_list(files)
    tagged, notes = tags_of(files, numbers)
    bags = bag(tagged, words)
    keep = np.flatnonzero(bags.any(axis=1) & labels.any(axis=1))
    if len(keep) == 0:
        raise DataError(
            f"No photo in {folder} has both one of the words of {files.release.describe(str(files.words))} and a label. "
            f"Are they of the same release? See: dcmh data check {NAME}"
        )
    points = [numbers[row] for row in keep]
    return Dataset(
        {
            "image": Images([files.release.picture(files.photos[number]) for number in points], root=folder),
            "text": Vectors(bags[keep]) if text == "bag" else Texts([" ".join(tagged[row]) for row in keep]),
        },
        labels=labels[keep],
        label_names=list(LABELS),
        ids=[f"im{number}" for number in points],
        name=NAME,
        notes=[*_notes(len(numbers), len(points), len(words)), *notes],
    )


def _numbers(files: Files, folder: Path) -> list[int]:
    """The numbers of the photos, ascending. A number that has a photo but no tags, or the reverse, is an error."""
    numbers = sorted(set(files.photos) | set(files.tags))
    for paths, name, what in ((files.photos, "im{}.jpg", "images"), (files.tags, "tags{}.txt", "tag files")):
        missing = [name.format(number) for number in numbers if number not in paths]
        if missing:
            raise DataError(
                f"{NAME} is incomplete in {folder}: {len(paths):,} of {len(numbers):,} {what}. "
                f"Missing: {sources.shortened(missing)}. Run: dcmh data check {sources.name_with_folder(NAME, folder)}"
            )
    return numbers


def annotated(files: Files, numbers: Sequence[int]) -> NDArray[np.uint8]:
    """The labels of the photos, 0/1, shape (photos, labels)."""
    row_of = {number: row for row, number in enumerate(numbers)}
    labels = np.zeros((len(numbers), len(LABELS)), np.uint8)
    for column, label in enumerate(LABELS):
        path = files.annotations[label]
        for line in files.release.lines(path):
            if not line.isdecimal() or int(line) not in row_of:
                raise DataError(
                    f"{files.release.describe(path)} names photo {line[:40]!r}, which does not exist. "
                    "Expected one photo number per line: get mirflickr25k_annotations_v080.zip again."
                )
            labels[row_of[int(line)], column] = 1
    return labels


def word_list(files: Files) -> list[str]:
    """The words in the order of common_tags.txt, where a count follows each."""
    assert files.words is not None
    words = list(dict.fromkeys(line.split()[0] for line in files.release.lines(files.words)))
    if not words:
        raise DataError(f"{files.release.describe(files.words)} is empty. Get mirflickr25k.zip again.")
    return words


def tags_of(files: Files, numbers: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The tags of each photo; and a note if a few files are not UTF-8."""
    tagged, latin = [], []
    for number in numbers:
        path = files.tags[number]
        content = files.release.read(path)
        try:
            if b"\0" in content:
                raise UnicodeError
            text = content.decode("utf-8-sig")
        except UnicodeError:
            latin.append(path)
            text = content.decode("latin-1").replace("\0", "")
        tagged.append([line for line in map(str.strip, text.splitlines()) if line])
    if not latin:
        return tagged, []
    first = files.release.describe(latin[0])
    if len(latin) > max(3, _OTHER_ENCODING * len(numbers)):
        raise DataError(
            f"{len(latin):,} tag files, the first is {first}, are not UTF-8. The release is: unpack mirflickr25k.zip again."
        )
    return tagged, [
        f"Tag files that are not UTF-8, read as Latin-1: {len(latin)} of {len(numbers):,}; the first is {first}."
    ]


def bag(tagged: Sequence[Sequence[str]], words: Sequence[str]) -> NDArray[np.uint8]:
    """Bags of words, 0/1, shape (photos, words)."""
    column_of = {word: column for column, word in enumerate(words)}
    bags = np.zeros((len(tagged), len(words)), np.uint8)
    for row, tags in enumerate(tagged):
        bags[row, [column_of[tag] for tag in tags if tag in column_of]] = 1
    return bags


def _notes(photos: int, items: int, words: int) -> list[str]:
    rule = f"{items:,} of {photos:,} photos have one of the {words:,} words and one of the {len(LABELS)} labels"
    differs = [
        f"{what} {count:,}, not {expected:,}"
        for what, count, expected in (("photos", photos, PHOTOS), ("words", words, WORDS), ("points", items, ITEMS))
        if count != expected
    ]
    if not differs:
        return [f"{rule}, as in the paper."]
    return [f"{rule}; this differs from the paper's data: {', '.join(differs)}."]
