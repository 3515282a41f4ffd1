"""NUS-WIDE from its own files: against the arrays they were written from, in both layouts; incomplete and damaged."""

import numpy as np
import pytest
from PIL import Image

import miniatures
from dcmh.data import load_dataset
from dcmh.data.benchmarks import nuswide
from dcmh.errors import DataError


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nus") / "release"
    return folder, miniatures.nuswide(folder)


@pytest.fixture
def broken(tmp_path):
    miniatures.nuswide(tmp_path / "nus", 30)
    return tmp_path / "nus"


def chosen(labels: np.ndarray, count: int) -> np.ndarray:
    """The most frequent columns in alphabetical order: those of ALL_CONCEPTS are."""
    return np.sort(np.lexsort((np.arange(81), -labels.sum(axis=0)))[:count])


@pytest.mark.parametrize(("name", "count"), [("nuswide", 10), ("nuswide21", 21)])
def test_the_most_frequent_concepts_and_their_photos(release, name, count):
    folder, made = release
    columns = chosen(made["labels"].astype(int), count)
    keep = made["labels"][:, columns].any(axis=1)
    data = load_dataset(f"{name}:{folder}")
    assert data.label_names == [nuswide.ALL_CONCEPTS[column] for column in columns]
    np.testing.assert_array_equal(data.labels, made["labels"][keep][:, columns])
    np.testing.assert_array_equal(data.text.values, made["tags"][keep])
    np.testing.assert_array_equal(data.image.values, made["words"][keep])
    assert data.ids == [f"{row:04}_{9_000_000 + row}" for row in np.flatnonzero(keep)]
    assert data.name == name
    assert data.notes[0].startswith(f"{keep.sum()} of 60 photos have one of the {count} most frequent concepts; ")
    assert data.notes[-1] == "No photos: the images are bags of 500 visual words (BoW_int.dat)."


def test_training_and_test_files_in_their_own_order(tmp_path, release):
    made = miniatures.nuswide(tmp_path / "nus", parts=True, photos=True)
    data = load_dataset(f"nuswide:{tmp_path}/nus")
    whole = load_dataset(f"nuswide:{release[0]}")
    assert data.ids == whole.ids
    np.testing.assert_array_equal(data.text.values, whole.text.values)
    rows = [int(name[:4]) for name in data.ids]
    np.testing.assert_array_equal(data.image.bags.values, made["words"][rows])
    for place in (0, 7):
        pixels = np.asarray(Image.open(data.image.source(place)))
        assert abs(int(pixels[0, 0, 0]) - rows[place] * 4) < 4
    np.testing.assert_array_equal(data.take([3, 1]).image.bags.values, made["words"][rows][[3, 1]])


def test_photos_some_missing_or_side_by_side(tmp_path):
    folder = tmp_path / "nus"
    miniatures.nuswide(folder, 40, photos=True)
    before = load_dataset(f"nuswide:{folder}")
    before.image.path(0).unlink()
    data = load_dataset(f"nuswide:{folder}")
    assert data.notes[-1].startswith(f"1 of {len(data)} photos are missing, the first is ")
    assert data.image.observed.tolist() == [False] + [True] * (len(data) - 1)
    (folder / "images").mkdir()
    for path in list((folder / "Flickr").rglob("*.jpg")):
        path.rename(folder / "images" / path.name)
    flat = load_dataset(f"nuswide:{folder}")
    assert flat.image.path(1) == folder / "images" / f"{data.ids[1]}.jpg"


def test_without_photos_and_visual_words(broken):
    (broken / "Low_Level_Features/BoW_int.dat").unlink()
    data = load_dataset(f"nuswide:{broken}")
    assert data.modalities == ("text",)
    assert data.notes[-1] == "There are neither photos nor BoW_int.dat, so there is no image modality."


def test_zips_give_the_same(tmp_path, release):
    for name in ("Groundtruth", "NUS_WID_Tags", "ImageList"):
        miniatures.zip_folder(release[0] / name, tmp_path / f"{name}.zip")
    data = load_dataset(f"nuswide:{tmp_path}", text="words")
    whole = load_dataset(f"nuswide:{release[0]}")
    assert data.ids == whole.ids
    tags = [" ".join(f"tag{column:04}" for column in np.flatnonzero(row)) or None for row in whole.text.values]
    assert data.text.values == tags


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        (
            "Groundtruth/AllLabels/*",
            r"missing are labels \(Groundtruth/AllLabels/Labels_airport.txt … Labels_zebra.txt\)",
        ),
        ("Groundtruth/AllLabels/Labels_sk*", r"missing are labels Labels_sky.txt\. Get it: dcmh data get nuswide:"),
        ("NUS_WID_Tags/AllTags1k.txt", r"missing are tags \(NUS_WID_Tags/AllTags1k.txt\)"),
        ("ImageList/Imagelist.txt", r"missing are the list of photos \(ImageList/Imagelist.txt\)"),
        ("*/[AI]*.txt", r"missing are tags \(.*\); the list of photos"),
    ],
)
def test_missing_files_are_named(broken, gone, says):
    for path in list(broken.glob(gone)):
        path.unlink()
    with pytest.raises(DataError, match=f"nuswide is incomplete in {broken}: {says}"):
        load_dataset(f"nuswide:{broken}")


def cut(path, lines):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def test_wrong_row_counts(broken):
    cut(broken / "NUS_WID_Tags/AllTags1k.txt", 29)
    with pytest.raises(
        DataError, match=r"AllTags1k.txt has 29 rows, the other files 30. Are they of the same release\? Get it"
    ):
        load_dataset(f"nuswide:{broken}")
    cut(broken / "Groundtruth/AllLabels/Labels_sky.txt", 12)
    with pytest.raises(DataError, match=r"Labels_sky.txt has 12 rows, the other files 30"):
        load_dataset(f"nuswide:{broken}")


def test_a_table_that_is_transposed(broken):
    path = broken / "NUS_WID_Tags/AllTags1k.txt"
    tags = np.loadtxt(path, dtype=int)
    np.savetxt(path, tags.T, fmt="%d")
    with pytest.raises(DataError, match=r"AllTags1k.txt has 30 numbers in row 1; expected 1,000. .* transposed"):
        load_dataset(f"nuswide:{broken}")


def test_labels_that_are_no_labels(broken):
    (broken / "Groundtruth/AllLabels/Labels_sky.txt").write_text("2\n" * 30)
    with pytest.raises(DataError, match=r"Labels_sky.txt holds 2; expected 0 or 1 per line"):
        load_dataset(f"nuswide:{broken}")
    (broken / "Groundtruth/AllLabels/Labels_sky.txt").write_text("yes\n" * 30)
    with pytest.raises(DataError, match=r"Labels_sky.txt cannot be read after row 0 .could not convert string 'yes'"):
        load_dataset(f"nuswide:{broken}")


def test_a_list_of_another_encoding(broken):
    path = broken / "ImageList/Imagelist.txt"
    path.write_bytes(path.read_text().replace("airport", "aéroport").encode("latin-1"))
    with pytest.raises(DataError, match=r"Imagelist.txt is not UTF-8 .* Get the file again, or save it as UTF-8"):
        load_dataset(f"nuswide:{broken}")


def test_part_files_need_their_lists(tmp_path):
    folder = tmp_path / "nus"
    miniatures.nuswide(folder, 30, parts=True)
    (folder / "ImageList/TestImagelist.txt").unlink()
    with pytest.raises(
        DataError, match=r"missing are TrainImagelist.txt and TestImagelist.txt, which Train_Tags1k.dat needs"
    ):
        load_dataset(f"nuswide:{folder}")
    names = (folder / "ImageList/TrainImagelist.txt").read_text()
    (folder / "ImageList/TestImagelist.txt").write_text(names)
    with pytest.raises(DataError, match=r"have no row for \d+ photos"):
        load_dataset(f"nuswide:{folder}")
