"""Small copies of the official layouts, written by the tests: a few toy pictures with the release's file names."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dcmh
from dcmh.data.benchmarks import mirflickr as module
from dcmh.data.benchmarks.mirflickr import LABELS
from dcmh.data.benchmarks.nuswide import ALL_CONCEPTS


def zip_folder(folder: Path, archive: Path, *, root: Path | None = None) -> Path:
    """A zip of all files in a folder, by their paths from the root."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, path.relative_to(root or folder).as_posix())
    return archive


def mirflickr(folder: Path, count: int = 40) -> dcmh.Dataset:
    """The release in miniature, unpacked; returns the toy items behind it.

    Photo 1 has only a rare tag, photo 2 has no label: both are left out by the paper's rule.
    """
    data = dcmh.load_dataset("toy", n=count)
    photos, tags, notes = folder / "mirflickr", folder / "mirflickr/meta/tags", folder / "mirflickr25k_annotations_v080"
    for place in (tags, photos / "doc", photos / "meta/tags_raw", notes):
        place.mkdir(parents=True)
    words = sorted({word for text in data.text.values for word in text.split()})
    (photos / "doc/common_tags.txt").write_text("".join(f"{word} {len(word)}\n" for word in words))
    for row, (pixels, text) in enumerate(zip(data.image.values, data.text.values, strict=True)):
        Image.fromarray(pixels).save(photos / f"im{row + 1}.jpg", quality=95)
        said = "ätag\r\n" if row == 0 else "\r\n".join([*text.split(), "rare"]) + "\r\n"
        (tags / f"tags{row + 1}.txt").write_text(said, encoding="utf-8", newline="")
        (photos / f"meta/tags_raw/tags{row + 1}.txt").write_text("Raw Tag\n")
    (notes / "README.txt").write_text("hello\n")
    for column, label in enumerate(LABELS):
        rows = [row for row in np.flatnonzero(data.labels[:, column % 8]) if row != 1 and column < 16]
        (notes / f"{label}.txt").write_text("".join(f"{row + 1}\r\n" for row in rows), newline="")
        (notes / f"{label}_r1.txt").write_text("1\n")
    return data


def mirflickr_zips(folder: Path, count: int = 40) -> dcmh.Dataset:
    """The same as the two zips of the release."""
    folder.mkdir(parents=True)
    data = mirflickr(folder / "unpacked", count)
    unpacked = folder / "unpacked"
    zip_folder(unpacked / "mirflickr", folder / "mirflickr25k.zip", root=unpacked)
    zip_folder(unpacked / "mirflickr25k_annotations_v080", folder / "mirflickr25k_annotations_v080.zip")
    remove(unpacked)
    return data


def nuswide(folder: Path, count: int = 60, *, photos: bool = False, parts: bool = False) -> dict[str, np.ndarray]:
    """The official files in miniature; returns labels, tags and visual words of all photos.

    `parts`: tags and visual words in training and test files, as in the older archives.
    """
    generator = np.random.default_rng(1)
    labels = (generator.random((count, 81)) < np.linspace(0.002, 0.12, 81)[generator.permutation(81)]).astype(np.uint8)
    tags = (generator.random((count, 1000)) < 0.01).astype(np.uint8)
    words = generator.integers(0, 30, (count, 500))
    names = [f"{ALL_CONCEPTS[row % 7]}\\{row:04}_{9_000_000 + row}.jpg" for row in range(count)]
    truth, lists, tagged = folder / "Groundtruth/AllLabels", folder / "ImageList", folder / "NUS_WID_Tags"
    for place in (truth, lists, tagged, folder / "Low_Level_Features"):
        place.mkdir(parents=True)
    for column, concept in enumerate(ALL_CONCEPTS):
        (truth / f"Labels_{concept}.txt").write_text("".join(f"{value}\n" for value in labels[:, column]))
    (lists / "Imagelist.txt").write_text("".join(f"{name}\r\n" for name in names), newline="")
    (tagged / "TagList1k.txt").write_text("".join(f"tag{column:04}\n" for column in range(1000)))
    order = generator.permutation(count)
    files = {"AllTags1k.txt": range(count)}
    if parts:
        files = {"Train_Tags1k.dat": order[: count // 2], "Test_Tags1k.dat": order[count // 2 :]}
        for part, rows in zip(("Train", "Test"), files.values(), strict=True):
            (lists / f"{part}Imagelist.txt").write_text("".join(f"{names[row]}\n" for row in rows))
    for name, rows in files.items():
        (tagged / name).write_text("".join("\t".join(map(str, tags[row])) + "\t\n" for row in rows))
    (folder / "Low_Level_Features/BoW_int.dat").write_text(
        "".join(" ".join(map(str, row)) + " \n" for row in words.tolist())
    )
    if photos:
        for row, name in enumerate(names):
            path = folder / "Flickr" / name.replace("\\", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((30, 40, 3), row * 4, np.uint8)).save(path)
    return {"labels": labels, "tags": tags, "words": words}


def remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    folder.rmdir()


def expect_mirflickr(monkeypatch: pytest.MonkeyPatch, count: int = 40) -> None:
    """The counts of the miniature in place of the release's."""
    data = dcmh.load_dataset("toy", n=count)
    words = {word for text in data.text.values for word in text.split()}
    labels = data.labels[2:].sum(axis=0, dtype=int).tolist()
    monkeypatch.setattr(module, "PHOTOS", count)
    monkeypatch.setattr(module, "ITEMS", count - 2)
    monkeypatch.setattr(module, "WORDS", len(words))
    monkeypatch.setattr(
        module, "LABELS", {label: labels[i % 8] if i < 16 else 0 for i, label in enumerate(module.LABELS)}
    )
