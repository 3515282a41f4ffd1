"""Folders of photos: where the words are found, and folders that are not what one hopes."""

import os

import numpy as np
import pytest
from PIL import Image

from dcmh.data import load_dataset
from dcmh.data.folder import image_files
from dcmh.errors import DataError
from dcmh.inputs.images import unreadable


def photo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, "PNG")


@pytest.fixture
def folder(tmp_path):
    for name in ("b.jpg", "a.PNG", "2019/italy/c d.jpeg", "写真 é.webp", ".hidden/x.jpg", "._b.jpg", "notes.pdf"):
        photo(tmp_path / name)
    (tmp_path / "b.txt").write_text("\ufefftwo dogs\n", encoding="utf-8")
    (tmp_path / "写真 é.txt").write_text("犬 dog", encoding="utf-8")
    (tmp_path / "2019/italy/c d.txt").write_text("  \n")
    return tmp_path


def test_text_files_beside_photos(folder):
    data = load_dataset(folder)
    assert data.ids == ["b.jpg", "写真 é.webp"]
    assert data.text.values == ["two dogs", "犬 dog"]
    assert data.labels is None
    assert data.notes == ("Text from name.txt beside name.jpg for 2 of 4 images; 2 without text left out.",)
    assert unreadable(data.image) == []


def test_photos_without_text_can_stay(folder):
    data = load_dataset(str(folder), keep_partial=True)
    assert data.ids == ["2019/italy/c d.jpeg", "a.PNG", "b.jpg", "写真 é.webp"]
    assert data.observed("text").tolist() == [False, False, True, True]


def test_tables_win_in_order(folder):
    (folder / "captions.csv").write_text("file,text\n./b.jpg,from captions\n")
    data = load_dataset(folder)
    assert data.text.values == ["from captions"]
    assert data.ids == ["b.jpg"]
    assert data.notes[0] == "Text from captions.csv for 1 of 4 items; 3 without text or picture left out."
    assert len(load_dataset(folder, keep_partial=True)) == 4
    (folder / "pairs.tsv").write_text("image\ttext\nb.jpg\tfrom pairs\n")
    assert load_dataset(folder).notes[0] == "Text from pairs.tsv for 1 of 1 items."


def test_links_that_lead_back_are_followed_once(folder):
    (folder / "2019/back").symlink_to(folder)
    (folder / "again").symlink_to(folder / "2019/italy")
    (folder / "dangling.jpg").symlink_to(folder / "none")
    found, _ = image_files(folder)
    assert len(found) == 5  # the four, and the dangling link, which fails when it is read
    assert unreadable(load_dataset(folder, keep_partial=True).image) == [
        (found.index("dangling.jpg"), "does not exist")
    ]


@pytest.mark.skipif(os.name == "nt", reason="names are always Unicode there")
def test_names_that_are_not_unicode_are_skipped(folder):
    try:
        photo_path = os.path.join(os.fsencode(folder), b"\xff.jpg")
        with open(photo_path, "wb") as file:
            file.write(b"x")
    except OSError:
        pytest.skip("this file system takes Unicode names only")
    data = load_dataset(folder)
    assert ("\ufffd.jpg", "name is not UTF-8") in data.skipped


def test_what_is_no_file_is_skipped(folder):
    os.mkfifo(folder / "pipe.jpg")
    found, skipped = image_files(folder)
    assert "pipe.jpg" not in found
    assert ("pipe.jpg", "not a file") in skipped


def test_texts_in_other_encodings_are_skipped(folder):
    (folder / "a.txt").write_bytes(b"caf\xe9")
    data = load_dataset(folder)
    assert ("a.txt", "text is not UTF-8") in data.skipped
    assert "a.PNG" not in data.ids


def test_no_images(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(DataError) as caught:
        load_dataset(tmp_path / "photos")
    assert str(caught.value) == (
        f"No images in {tmp_path}/photos/ (looked for jpg, png, webp, gif, bmp, tiff, also in subfolders). "
        "Is it the right folder?"
    )
    (tmp_path / "photos/captions.csv").write_text("file,text\nb.jpg,dog\n")
    with pytest.raises(DataError, match="No images in"):
        load_dataset(tmp_path / "photos")


def test_no_text(tmp_path):
    photo(tmp_path / "a.jpg")
    with pytest.raises(
        DataError, match=r"Found 1 images but no captions or tags. Put captions.csv \(columns: file, text"
    ):
        load_dataset(tmp_path)
