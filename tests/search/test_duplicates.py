"""Copies in a collection: which belong together, and which one to keep."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from dcmh.cli import main
from dcmh.errors import ParameterError
from dcmh.inputs.signatures import SignatureStore
from dcmh.search import SearchIndex
from toy_photos import load


def picture(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), np.uint8)
    return Image.fromarray(noise).resize((320, 320), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def copied(cheap_home, model, tmp_path_factory):
    """Ten different photos; one three times, one resized, cropped and mirrored; one picture without structure twice."""
    folder = tmp_path_factory.mktemp("copied")
    photos = folder / "photos"
    (photos / "sub").mkdir(parents=True)
    for seed in range(10):
        picture(seed).save(photos / f"{seed}.jpg", quality=90)
    for name in ("a.jpg", "b.jpg"):
        shutil.copyfile(photos / "0.jpg", photos / "sub" / name)
    os.utime(photos / "sub" / "b.jpg", (10**9, 10**9))
    picture(1).resize((640, 640)).save(photos / "large.jpg", quality=50)
    picture(1).crop((6, 6, 316, 316)).save(photos / "cropped.jpg")
    picture(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "mirrored.png")
    for name, colour in (("red.png", "red"), ("blue.png", "blue")):
        Image.new("RGB", (64, 64), colour).save(photos / name)
    SearchIndex.build(model, load(photos), folder / "photos.dcmh").close()
    return folder


def names(group):
    return [copy.item.name for copy in group.copies]


def test_exact_and_near_copies_with_the_one_to_keep(copied):
    with SearchIndex.open(copied / "photos.dcmh") as index:
        found = index.duplicates()
        assert [group.kind for group in found.groups] == ["exact", "near"]
        exact, near = found.groups
        assert names(exact)[0] == "sub/b.jpg"
        assert exact.reason == "oldest file"
        assert sorted(names(exact)) == ["0.jpg", "sub/a.jpg", "sub/b.jpg"]
        assert names(near)[0] == "large.jpg"
        assert near.reason == "largest resolution"
        assert sorted(names(near)) == ["1.jpg", "cropped.jpg", "large.jpg", "mirrored.png"]
        assert (near.copies[0].width, near.copies[0].distance) == (640, 0)
        assert (found.items, found.missing) == (17, [])
        assert [group.kind for group in index.duplicates("near").groups] == ["near"]
        assert [group.kind for group in index.duplicates("exact").groups] == ["exact"]
        assert len(index.duplicates("near", similarity=0.999).groups) <= 1
        with pytest.raises(ParameterError, match="similarity"):
            index.duplicates(similarity=2)


def test_copies_that_are_removed_meanwhile_are_left_out(copied, monkeypatch):
    with SearchIndex.open(copied / "photos.dcmh") as index:
        exact = index.duplicates("exact").groups[0]
        gone = {copy.item.id for copy in exact.copies[1:]}
        get = index.store.get
        monkeypatch.setattr(index.store, "get", lambda ids: {n: item for n, item in get(ids).items() if n not in gone})
        assert [group.kind for group in index.duplicates().groups] == ["near"]
        gone.add(exact.keep)
        assert [group.kind for group in index.duplicates().groups] == ["near"]


def test_the_kept_exact_copy_stands_for_all_in_a_near_group(copied, model, tmp_path):
    shutil.copytree(copied / "photos", tmp_path / "photos")
    picture(0).resize((100, 100)).save(tmp_path / "photos" / "small.jpg")
    with SearchIndex.build(model, load(tmp_path / "photos"), tmp_path / "photos.dcmh") as index:
        exact = next(group for group in index.duplicates().groups if group.kind == "exact")
        near = next(group for group in index.duplicates().groups if "small.jpg" in names(group))
        assert names(near) == [names(exact)[0], "small.jpg"]


def test_signatures_are_computed_where_they_are_missing_unless_the_file_has_changed(copied, tmp_path):
    shutil.copytree(copied, tmp_path / "own")
    store = SignatureStore()
    with SearchIndex.open(tmp_path / "own" / "photos.dcmh") as index:
        contents = [item.content for item in index.store.items()]
        before = store.get(contents)
        store.drop(contents)
        assert len(index.duplicates(compute=False).missing) == 15
        (tmp_path / "own" / "photos" / "9.jpg").write_bytes(b"something else")
        found = index.duplicates()
        assert len(found.groups) == 2
        assert found.missing == [("9.jpg", "the file has changed since it was indexed")]
        again = store.get(contents)
        assert all(np.array_equal(before[content], value) for content, value in again.items())
        assert len(again) == len(before) - 1
        store.put(list(before.items()))


def test_the_command(copied, capsys):
    index = str(copied / "photos.dcmh")
    assert main(["duplicates", index]) == 0
    shown = capsys.readouterr()
    assert "keep  large.jpg" in shown.out
    assert "1 groups of exact copies and 1 of near copies in 17 items" in shown.err
    assert main(["duplicates", index, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["groups"][1]["items"][0]["name"] == "large.jpg"
    assert main(["duplicates", index, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows if row["keep"] == "1"] == ["sub/b.jpg", "large.jpg"]
    assert main(["duplicates", index, "--paths"]) == 0
    others = capsys.readouterr().out.splitlines()
    assert len(others) == 5
    assert str(copied / "photos" / "large.jpg") not in others
    assert main(["duplicates", index, "--json", "--csv"]) == 1
