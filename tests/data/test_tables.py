"""Tables of pictures and words: every spelling that is read, every mistake that is named."""

import json
from pathlib import Path

import numpy as np
import pytest

from dcmh.data import load_dataset, split_given
from dcmh.data.tables import read
from dcmh.errors import DataError

COCO = Path(__file__).parents[2] / "../shared/data/coco12k"


@pytest.fixture
def folder(tmp_path):
    """Four pictures; nothing opens them here."""
    for name in ("a.jpg", "b.jpg", "c d.jpg", "é.jpg"):
        (tmp_path / name).write_bytes(b"x")
    return tmp_path


def write(folder: Path, name: str, *lines: str) -> Path:
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_json_lines(folder):
    rows = [
        {"image": "a.jpg", "text": "two dogs", "labels": ["dog", None, "sea"], "id": 7, "split": "query"},
        {"image": "b.jpg", "text": ["boat", None, "harbour"], "labels": "sea;boat", "id": "x", "split": "train"},
        {"image": "c d.jpg", "text": "nothing", "labels": [], "id": "y"},
    ]
    data = load_dataset(write(folder, "pairs.jsonl", *[json.dumps(row) for row in rows], ""))
    assert data.ids == ["7", "x", "y"]
    assert data.text.values == ["two dogs", "boat harbour", "nothing"]
    assert data.label_names == ["boat", "dog", "sea"]
    np.testing.assert_array_equal(data.labels, [[0, 1, 1], [1, 0, 1], [0, 0, 0]])
    assert data.image.path(2) == folder / "c d.jpg"
    assert data.parts == ["query", "train", "database"]
    assert split_given(data).train.ids == ["x"]
    assert data.notes == (
        "Text from pairs.jsonl for 3 of 3 items.",
        "Not listed in pairs.jsonl: 1 picture (é.jpg), left out.",
    )
    assert data.name == folder.name


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("pairs.csv", ["image,text,labels", 'a.jpg,"dogs, two",dog; sea', "é.jpg,boat,"]),
        ("pairs.csv", ["\ufeffimage, text,labels", 'a.jpg,"dogs, two",dog;sea', "é.jpg,boat,"]),
        ("pairs.csv", ["image;text;labels", 'a.jpg;dogs, two;"dog;sea"', "é.jpg;boat;"]),
        ("pairs.tsv", ["image\ttext\tlabels", "a.jpg\tdogs, two\tdog;sea", "é.jpg\tboat\t"]),
        ("captions.csv", ["file,text,labels", 'a.jpg,"dogs, two",dog;sea', "é.jpg,boat"]),
        ("captions.tsv", ["text\tlabels\tfile", "dogs, two\tdog;sea\ta.jpg", "boat\t\té.jpg"]),
    ],
)
def test_tables(folder, name, lines):
    data = load_dataset(write(folder, name, *lines))
    assert data.ids == ["a.jpg", "é.jpg"]
    assert data.text.values == ["dogs, two", "boat"]
    assert data.label_names == ["dog", "sea"]
    np.testing.assert_array_equal(data.labels, [[1, 1], [0, 0]])
    assert name in data.notes[0]


def test_no_labels_no_split(folder):
    data = load_dataset(write(folder, "pairs.csv", "image,text", "a.jpg,dog", "b.jpg,cat"))
    assert data.labels is None
    assert data.label_names is None
    assert data.parts is None


def test_several_captions_of_one_picture_are_one_item(folder):
    lines = ["image,text,labels", "a.jpg,two dogs,dog", "b.jpg,boat,", "a.jpg,a beach,sea", "a.jpg,,"]
    data = load_dataset(write(folder, "pairs.csv", *lines))
    assert data.ids == ["a.jpg", "b.jpg"]
    assert data.text.values[0] == "two dogs\na beach"
    assert data.labels.tolist() == [[1, 1], [0, 0]]


def test_missing_pictures_are_skipped_and_blank_texts_left_out(folder):
    write(folder, "pairs.csv", "image,text", "a.jpg,dog", "gone.jpg,cat", "b.jpg,  ", ",only words")
    data = load_dataset(folder)
    assert data.ids == ["a.jpg"]
    assert data.skipped == [("gone.jpg", "does not exist")]
    assert data.notes == (
        "Text from pairs.csv for 2 of 4 items; 2 without text or picture left out.",
        "Skipped 1 of 4 because the picture does not exist: gone.jpg.",
        "Not listed in pairs.csv: 2 pictures (c d.jpg, é.jpg), left out.",
    )
    partial = load_dataset(folder, keep_partial=True, only_listed=True)
    assert partial.ids == ["a.jpg", "b.jpg", "line 5"]
    assert partial.observed("text").tolist() == [True, False, True]
    assert partial.observed("image").tolist() == [True, True, False]


def test_items_without_a_name_are_called_by_their_line(folder):
    """So that an item keeps its id when a line before it becomes usable."""
    lines = ['{"title": "a", "tags": null}', "", '{"title": "b", "tags": "boat"}', '{"title": "c", "tags": "sea"}']
    file = write(folder, "pairs.jsonl", *lines) / "pairs.jsonl"
    assert load_dataset(file, modalities="title,tags").ids == ["line 3", "line 4"]
    assert load_dataset(file, modalities="title,tags", keep_partial=True).ids == ["line 1", "line 3", "line 4"]
    file = write(folder, "pairs.csv", "title,tags", "a,", "b,boat", "", "c,sea") / "pairs.csv"
    assert load_dataset(file, modalities="title,tags").ids == ["line 3", "line 5"]


def test_blank_cells_behind_the_last_column_do_not_matter(folder):
    assert len(load_dataset(write(folder, "pairs.csv", "image,text", "a.jpg,dog,,", "b.jpg,cat, "))) == 2


def test_half_an_emoji_anywhere_can_be_written(folder):
    record = '{"id": "i\\ud83d", "image": "a.jpg", "text": "boat \\ud83d", "labels": ["x\\ud83d"]}'
    gone = '{"id": "j", "image": "caf\\udce9.jpg", "text": "sea"}'
    data = load_dataset(write(folder, "pairs.jsonl", record, gone))
    assert (data.ids, data.text.values, data.label_names) == (["i\ufffd"], ["boat \ufffd"], ["x\ufffd"])
    assert data.skipped == [("caf\ufffd.jpg", "does not exist, or is not UTF-8")]


def test_paths_may_leave_the_folder(folder):
    (folder / "deep").mkdir()
    data = load_dataset(write(folder / "deep", "pairs.csv", "image,text", "../a.jpg,dog"))
    assert data.image.path(0).is_file()


def test_a_table_can_be_named(folder):
    write(folder, "my.csv", "filename,caption", "a.jpg,dog")
    assert load_dataset(folder, text="my.csv:filename,caption").text.values == ["dog"]
    write(folder, "other.tsv", "file\ttext", "a.jpg\tcat")
    assert load_dataset(folder, text="other.tsv").text.values == ["cat"]
    assert load_dataset(folder / "other.tsv").text.values == ["cat"]
    with pytest.raises(DataError, match="there is no 'words' among them"):
        load_dataset(folder, text="my.csv:filename,words")
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(folder, text="none.csv")


@pytest.mark.parametrize(
    ("name", "lines", "says"),
    [
        (
            "captions.csv",
            ["filename,caption", "a.jpg,dog"],
            "captions.csv has columns 'filename, caption'; expected 'image, text'. Rename them, "
            "or: --text captions.csv:filename,caption",
        ),
        ("pairs.csv", ["x,y", "a.jpg,dog"], "pairs.csv has columns 'x, y'; expected 'image, text'. Rename them"),
        ("pairs.jsonl", ['{"photo": "a.jpg", "tags": "dog"}'], "or: --text pairs.jsonl:photo,tags"),
        ("pairs.jsonl", ['{"image": "a.jpg", "text": "dog"}', "{oops"], "pairs.jsonl line 2 is not JSON"),
        ("pairs.jsonl", ["[1]"], "pairs.jsonl line 1 is not a JSON object"),
        ("pairs.jsonl", ['{"image": "a.jpg", "text": "x", "labels": 3}'], "line 1: labels must be a list"),
        ("pairs.jsonl", [""], "pairs.jsonl has no rows"),
        ("pairs.csv", ["image,text"], "pairs.csv has no rows"),
        ("pairs.csv", ["image,text", "a.jpg,", "b.jpg, "], "All 2 texts in pairs.csv are empty"),
        ("pairs.csv", ["image,text", "x" * 300 + ",dog"], "None of the 1 rows"),
        ("pairs.csv", ["image,text", "gone.jpg,dog"], "None of the 1 rows .* the first missing picture: gone.jpg"),
        ("pairs.csv", ["image,text,split", "a.jpg,dog,test"], "pairs.csv line 2: split is 'test'"),
        ("pairs.csv", ["image,text,id", "a.jpg,dog,1", "b.jpg,cat,1"], "The id '1' occurs more than once"),
        (
            "pairs.csv",
            ["image,text", "a.jpg,dog", "b.jpg,cat, mouse"],
            "line 3 has more cells than the header. Put a text",
        ),
        ("pairs.csv", ["image,text", "a.jpg," + "x" * 200_000], "pairs.csv line 2 cannot be read: field larger"),
    ],
)
def test_mistakes_are_named(folder, name, lines, says):
    with pytest.raises(DataError, match=says):
        load_dataset(write(folder, name, *lines))


def test_other_encodings_are_named(folder):
    (folder / "pairs.csv").write_bytes("image,text\na.jpg,café\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"pairs.csv is not UTF-8 .*Save it as UTF-8"):
        read(folder / "pairs.csv")


@pytest.mark.skipif(not COCO.exists(), reason="coco12k is not here")
def test_real_captions():
    data = load_dataset(COCO)
    assert len(data) == 12_000
    assert data.labels.shape == (12_000, 80)
    assert data.complete().all()
    assert data.labels.any(axis=1).all()
    assert not data.skipped
