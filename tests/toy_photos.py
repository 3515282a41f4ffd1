"""Folders of photos that are the first toy items, and image features that cost nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dcmh


def cheap_features(backbone, pixels, target):
    """In place of the image network: means of 16 x 16 patches, and zeros."""
    side = pixels.shape[1] // 16
    small = pixels.reshape(len(pixels), side, 16, side, 16, 3).mean(axis=(2, 4)).reshape(len(pixels), -1) / 255
    return np.pad(small, ((0, 0), (0, 1280 - small.shape[1]))).astype(np.float32)


@contextlib.contextmanager
def cheap(home: Path) -> Iterator[None]:
    """Features cost nothing within, and do not get into the cache that other tests share.

    For fixtures of a module: one of the session would leave other tests without real features.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(home))
        patch.setattr("dcmh.inputs.features.run", cheap_features)
        patch.setattr("dcmh.inputs.features.frozen", lambda *arguments: None)
        yield


def write_photos(folder: Path, count: int = 40, *, header: str = "file,text,labels") -> Path:
    """Photos with captions.csv."""
    lines = [header]
    for name, text, labels in _items(folder, count):
        lines.append(f"{name}.png,{text},{';'.join(labels)}" if "labels" in header else f"{name}.png,{text}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_pairs(folder: Path, count: int = 40, *, without_picture: Sequence[int] = ()) -> Path:
    """Photos with pairs.jsonl; of some items there are only words."""
    lines = []
    for row, (name, text, labels) in enumerate(_items(folder, count)):
        record = {"id": name, "text": text, "labels": labels}
        if row in without_picture:
            (folder / f"{name}.png").unlink()
        else:
            record["image"] = f"{name}.png"
        lines.append(json.dumps(record))
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def _items(folder: Path, count: int) -> Iterator[tuple[str, str, list[str]]]:
    """Name, text and labels of each item; its picture is in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    toy = dcmh.load_dataset("toy")
    for row in range(count):
        Image.fromarray(toy.image.values[row]).save(folder / f"{row:03}.png")
        labels = [name for name, there in zip(toy.label_names, toy.labels[row], strict=True) if there]
        yield f"{row:03}", toy.text.values[row], labels


def load(folder: Path) -> dcmh.Dataset:
    """All of them, also those that lack a picture or words."""
    return dcmh.load_dataset(folder, keep_partial=True)
