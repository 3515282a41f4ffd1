"""dcmh.data.benchmarks.check: a whole miniature is whole, and everything that is taken from it is found, all at once."""

import json
import shutil
from pathlib import Path

import pytest

import miniatures
from dcmh.data.benchmarks import check as module
from dcmh.data.benchmarks import mirflickr, nuswide
from dcmh.data.benchmarks.check import check


def of(findings):
    return {finding.what: finding for finding in findings}


def bad(findings):
    return {finding.what: finding.detail for finding in findings if finding.is_bad}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mir") / "release"
    miniatures.mirflickr(folder)
    return folder


@pytest.fixture
def mir(release, tmp_path, monkeypatch):
    """A miniature, and its own numbers in place of the release's."""
    miniatures.expect_mirflickr(monkeypatch)
    return Path(shutil.copytree(release, tmp_path / "copy"))


def test_a_whole_release(mir):
    findings = of(check("mirflickr25k", mir))
    assert not any(finding.is_bad for finding in findings.values())
    assert findings["photos"].detail == "40"
    assert findings["annotations"].detail == "24 of 24"
    assert findings["points"].detail == "38 points, with the label counts of the public .mat"
    assert findings["mirflickr25k.zip"].state == "optional"


def test_everything_that_is_missing_is_named_at_once(mir):
    for name in ("im3", "im4", "im5", "im9"):
        (mir / f"mirflickr/{name}.jpg").unlink()
    (mir / "mirflickr/meta/tags/tags40.txt").unlink()
    (mir / "mirflickr/doc/common_tags.txt").unlink()
    for label in ("sky", "water"):
        (mir / f"mirflickr25k_annotations_v080/{label}.txt").unlink()
    (mir / "mirflickr/im7.jpg").write_bytes(b"GIF89a")
    findings = check("mirflickr25k", mir)
    assert bad(findings) == {
        "photos": "36 of 40; missing: im3.jpg … im5.jpg, im9.jpg",
        "tags": "39 of 40; missing: tags40.txt",
        "annotations": "22 of 24; missing: sky.txt, water.txt",
        "words": "mirflickr/doc/common_tags.txt",
        "pictures": "not JPEG: im7.jpg; unpack mirflickr25k.zip again",
    }
    assert of(findings)["points"].state == "unknown"


def test_labels_that_do_not_belong_to_the_photos(mir):
    notes = mir / "mirflickr25k_annotations_v080"
    (notes / "sky.txt").write_bytes((notes / "sea.txt").read_bytes() + b"\r\n7\r\n")
    assert "label counts differ from those of the public .mat: sky 1 not 0" in bad(check("mirflickr25k", mir))["points"]
    (notes / "sky.txt").write_text("99\n")
    assert "sky.txt names photo '99', which does not exist" in bad(check("mirflickr25k", mir))["points"]


def test_archives_are_verified(mir, tmp_path):
    archive = miniatures.zip_folder(mir / "mirflickr25k_annotations_v080", mir / "mirflickr25k_annotations_v080.zip")
    finding = of(check("mirflickr25k", mir))[archive.name]
    assert finding.state == "unknown"
    assert finding.detail.startswith("no checksum of it is published (SHA-256 ")
    record = {"sha256": finding.detail[-65:-1], "when": "2026-01-02T03:04:05+00:00"}
    (mir / "fetched.json").write_text(json.dumps({"archives": {archive.name: record}}))
    assert of(check("mirflickr25k", mir))[archive.name].detail.startswith("is what was fetched on 2026-01-02 (SHA-256 ")
    archive.write_bytes(archive.read_bytes()[:-30])
    found = bad(check("mirflickr25k", mir))
    assert "is not the file that was fetched on 2026-01-02. Delete it" in found[archive.name]
    assert "is damaged" in found["files"]
    (mir / "mirflickr25k.zip").write_bytes(b"x")
    assert "has 1 bytes, not 3,069,184,257" in bad(check("mirflickr25k", mir))["mirflickr25k.zip"]


def test_no_folder(tmp_path):
    (finding,) = check("mirflickr25k", tmp_path / "none")
    assert finding.is_bad
    assert finding.detail.startswith(
        f"{tmp_path}/none does not exist. Get it: dcmh data get mirflickr25k:{tmp_path}/none"
    )


@pytest.fixture
def nus(tmp_path, monkeypatch):
    miniatures.nuswide(tmp_path / "nus", 60, photos=True)
    monkeypatch.setattr(nuswide, "PHOTOS", 60)
    monkeypatch.setattr(nuswide, "ITEMS", {"nuswide": 43, "nuswide21": 54})
    return tmp_path / "nus"


@pytest.mark.parametrize("name", ["nuswide", "nuswide21"])
def test_whole_nuswide(nus, name):
    findings = of(check(name, nus))
    assert bad(findings.values()) == {}
    assert findings["photos"].detail == f"60 in {nus}/Flickr"
    assert findings["rows"].detail == "every table has 60 rows: tags 1,000 per photo, visual words 500, 81 labels"
    assert findings["points"].detail.startswith("43 points" if name == "nuswide" else "54 points")


def test_what_nuswide_may_lack_and_what_not(nus):
    miniatures.remove(nus / "Flickr")
    miniatures.remove(nus / "Low_Level_Features")
    findings = of(check("nuswide", nus))
    assert bad(findings.values()) == {}
    assert findings["photos"].state == findings["visual words"].state == "optional"
    for concept in ("sky", "sun"):
        (nus / f"Groundtruth/AllLabels/Labels_{concept}.txt").unlink()
    (nus / "NUS_WID_Tags/AllTags1k.txt").unlink()
    found = check("nuswide", nus)
    assert bad(found) == {
        "labels": "79 of 81; missing: Labels_sky.txt, Labels_sun.txt",
        "tags": "NUS_WID_Tags/AllTags1k.txt, or Train_Tags1k.dat and Test_Tags1k.dat",
    }
    assert of(found)["points"].state == "unknown"
    (nus / "ImageList/Imagelist.txt").unlink()
    assert bad(check("nuswide", nus))["list of photos"] == "ImageList/Imagelist.txt"


def test_nuswide_that_does_not_line_up(nus):
    path = nus / "NUS_WID_Tags/AllTags1k.txt"
    path.write_text(path.read_text() + "0 " * 999 + "1\n")
    sky = nus / "Groundtruth/AllLabels/Labels_sky.txt"
    sky.write_text(sky.read_text() + "1\n")
    next((nus / "Flickr").rglob("*.jpg")).unlink()
    found = bad(check("nuswide", nus))
    assert "AllTags1k.txt has more than 60 rows, the other files 60" in found["rows"]
    assert "Labels_sky.txt has more than 60 rows" in found["points"]
    assert found["photos"].startswith("59 of 60; missing: ")


def test_runs_of_numbers():
    assert module._ranges([1, 2, 3, 7, 9, 10], "im{}") == "im1 … im3, im7, im9 … im10"
    assert mirflickr.PHOTOS == 25_000
