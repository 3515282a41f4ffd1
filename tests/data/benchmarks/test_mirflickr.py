"""MIRFLICKR-25K from its own layout: unpacked, zipped, incomplete and damaged; and the paper's rule against the real tags."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import miniatures
from dcmh.data import load_dataset
from dcmh.data.benchmarks import mirflickr
from dcmh.data.columns import Stored
from dcmh.errors import DataError, ParameterError
from dcmh.inputs.images import decode

REAL = Path(__file__).parents[3] / "../shared/data/mirflickr25k"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mir") / "release"
    return folder, miniatures.mirflickr(folder)


@pytest.fixture
def broken(made, tmp_path):
    """A copy to be damaged."""
    return Path(shutil.copytree(made[0], tmp_path / "copy"))


def test_photos_tags_and_labels_are_those_of_the_release(made):
    folder, toy = made
    data = load_dataset(f"mirflickr25k:{folder}")
    kept = [row for row in range(40) if row not in (0, 1)]  # see miniatures: no word, no label
    assert data.ids == [f"im{row + 1}" for row in kept]
    assert data.modalities == ("image", "text")
    assert data.label_names == list(mirflickr.LABELS)
    np.testing.assert_array_equal(data.labels[:, :8], toy.labels[kept])
    np.testing.assert_array_equal(data.labels[:, 8:16], toy.labels[kept])
    assert not data.labels[:, 16:].any()
    words = (folder / "mirflickr/doc/common_tags.txt").read_text().split()[::2]
    for row, bag in zip(kept, data.text.values, strict=True):
        assert {words[column] for column in np.flatnonzero(bag)} == set(toy.text.values[row].split())
    assert data.image.path(0) == folder / "mirflickr/im3.jpg"
    assert data.notes[0].startswith("38 of 40 photos have one of the 185 words and one of the 24 labels; this differs")
    assert "points 38, not 20,015" in data.notes[0]


def test_zips_give_the_same_without_being_unpacked(made, tmp_path):
    miniatures.mirflickr_zips(tmp_path / "zips")
    unpacked = load_dataset(f"mirflickr25k:{made[0]}")
    data = load_dataset("mirflickr25k", folder=tmp_path / "zips")
    assert data.fingerprint() == unpacked.fingerprint()
    np.testing.assert_array_equal(data.text.values, unpacked.text.values)
    assert isinstance(data.image.values[0], Stored)
    some = data.take([5, 2])
    for row, place in enumerate((5, 2)):
        np.testing.assert_array_equal(decode(some.image.source(row), 24), decode(unpacked.image.source(place), 24))
    assert sorted(path.name for path in (tmp_path / "zips").iterdir()) == [
        "mirflickr25k.zip",
        "mirflickr25k_annotations_v080.zip",
    ]


def test_words_for_a_model_that_takes_words(made):
    data = load_dataset(f"mirflickr25k:{made[0]}", text="words")
    assert data.text.kind == "text"
    assert data.text.values[0].split() == [*made[1].text.values[2].split(), "rare"]
    with pytest.raises(ParameterError, match="The text of mirflickr25k is 'bag' or 'words', not 'wörds'"):
        load_dataset(f"mirflickr25k:{made[0]}", text="wörds")


def test_nothing_there_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(tmp_path / "home"))
    with pytest.raises(DataError) as error:
        load_dataset("mirflickr25k")
    assert str(error.value) == (
        f"mirflickr25k is not in {tmp_path}/home/mirflickr25k. Get it: dcmh data get mirflickr25k, or put mirflickr25k.zip, "
        "mirflickr25k_annotations_v080.zip into that folder; dcmh data mirflickr25k says where they come from."
    )
    assert not (tmp_path / "home").exists()  # looking for it makes and fetches nothing


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("mirflickr/im*.jpg", r"missing are photos \(mirflickr/im1.jpg …\). Get it: dcmh data get mirflickr25k:"),
        ("mirflickr/meta/tags/*", r"missing are tags \(mirflickr/meta/tags/tags1.txt …\)"),
        ("mirflickr/doc/*", r"missing are the list of words \(mirflickr/doc/common_tags.txt\)"),
        ("mirflickr25k_annotations_v080/*", r"missing are annotations \(animals.txt … water.txt\)"),
        ("mirflickr25k_annotations_v080/s[ek]?.txt", r"missing are annotations sea.txt, sky.txt\. "),
        ("mirflickr/im7.jpg", r"39 of 40 images. Missing: im7.jpg. Run: dcmh data check mirflickr25k:"),
        ("mirflickr/meta/tags/tags1?.txt", r"30 of 40 tag files. Missing: tags10.txt, .*, tags14.txt, …\. Run"),
    ],
)
def test_missing_files_are_named(broken, gone, says):
    for path in list(broken.glob(gone)):
        path.unlink()
    with pytest.raises(DataError, match=f"mirflickr25k is incomplete in {broken}: {says}"):
        load_dataset(f"mirflickr25k:{broken}")


def test_annotations_of_other_photos(broken):
    with (broken / "mirflickr25k_annotations_v080/sky.txt").open("a") as file:
        file.write("41\n")
    with pytest.raises(
        DataError, match=r"sky.txt names photo '41', which does not exist. .* get mirflickr25k_annotations_v080"
    ):
        load_dataset(f"mirflickr25k:{broken}")
    (broken / "mirflickr25k_annotations_v080/sky.txt").write_text("<html>not found</html>")
    with pytest.raises(DataError, match=r"sky.txt names photo '<html>not found"):
        load_dataset(f"mirflickr25k:{broken}")


def test_tags_of_another_encoding(broken):
    tags = broken / "mirflickr/meta/tags"
    (tags / "tags5.txt").write_bytes("münchen\nsun\n".encode("latin-1"))
    data = load_dataset(f"mirflickr25k:{broken}")
    assert data.notes[-1] == (f"Tag files that are not UTF-8, read as Latin-1: 1 of 40; the first is {tags}/tags5.txt.")
    for number in range(5, 12):
        (tags / f"tags{number}.txt").write_bytes("sun\nsky\n".encode("utf-16"))
    with pytest.raises(
        DataError, match=r"7 tag files, the first is .*/tags5.txt, are not UTF-8. .* unpack mirflickr25k.zip"
    ):
        load_dataset(f"mirflickr25k:{broken}")


def test_a_truncated_zip(tmp_path):
    miniatures.mirflickr_zips(tmp_path / "zips")
    archive = tmp_path / "zips/mirflickr25k.zip"
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        DataError, match=r"mirflickr25k.zip is damaged \(File is not a zip file\). Delete it and get it"
    ):
        load_dataset(f"mirflickr25k:{tmp_path}/zips")


def test_a_damaged_file_in_a_zip(tmp_path):
    miniatures.mirflickr_zips(tmp_path / "zips", 12)
    archive = tmp_path / "zips/mirflickr25k.zip"
    damage(archive, "mirflickr/im7.jpg")
    data = load_dataset(f"mirflickr25k:{tmp_path}/zips")
    with pytest.raises(DataError, match=r"damaged in mirflickr25k.zip \("):
        data.image.source(data.ids.index("im7"))
    damage(archive, "mirflickr/doc/common_tags.txt")
    with pytest.raises(
        DataError, match=r"Cannot read mirflickr/doc/common_tags.txt in .*mirflickr25k.zip \(.*Get it again"
    ):
        load_dataset(f"mirflickr25k:{tmp_path}/zips")


def damage(archive: Path, name: str) -> None:
    """Turn the last packed byte of one file over."""
    with zipfile.ZipFile(archive) as opened:
        info = opened.getinfo(name)
        place = info.header_offset + 30 + len(info.filename) + info.compress_size // 2
    content = bytearray(archive.read_bytes())
    content[place] ^= 0xFF
    archive.write_bytes(content)


@pytest.mark.skipif(not REAL.exists(), reason="the tags of MIRFLICKR-25K are not here")
def test_the_papers_rule_fits_the_public_file():
    """Not "at least 20 tags": a point has at least one of the words, a word some 20 photos, and a point at least one label."""
    data = load_dataset(REAL)
    words = data.text.values.sum(axis=1, dtype=int)
    assert (len(data), words.min()) == (mirflickr.ITEMS, 1)
    assert words.mean() == pytest.approx(4.64, abs=0.01)
    assert data.text.values.shape[1] == mirflickr.WORDS
    photos = data.text.values.sum(axis=0, dtype=int)
    assert 15 <= photos.min() <= 20  # a few of a word's photos have no label
    assert data.labels.sum(axis=0, dtype=int).tolist() == list(mirflickr.LABELS.values())
    assert data.labels.any(axis=1).all()
