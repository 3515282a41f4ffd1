"""Folders of photos: where the words are found, and folders that are not what one hopes."""

import os

import numpy as np
import pytest
from PIL import Image

from dcmh.data import folder as folders
from dcmh.data import load_dataset, tables
from dcmh.data.folder import scan
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
    assert data.notes == (
        "Text from name.txt beside name.jpg for 2 of 4 images; 2 without text left out.",
        f"Not read: 1 PDF file (notes.pdf). To list them: dcmh data {folder} --check",
        "Left out: 1 hidden or system folder (.hidden); 1 hidden or system file (._b.jpg).",
    )
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
    assert data.notes[0] == "Text from captions.csv for 1 of 1 items."
    assert len(load_dataset(folder, keep_partial=True)) == 4
    (folder / "pairs.tsv").write_text("image\ttext\nb.jpg\tfrom pairs\n")
    assert load_dataset(folder).notes[0] == "Text from pairs.tsv for 1 of 1 items."


@pytest.mark.parametrize("table", ["pairs.csv", "captions.csv"])
def test_photos_that_the_table_does_not_list(folder, table):
    (folder / table).write_text("id,image,text\nfirst,./b.jpg,two dogs\na.PNG,写真 é.webp,the id of another file\n")
    data = load_dataset(folder, keep_partial=True)
    assert data.ids == ["first", "a.PNG", "2019/italy/c d.jpeg"]
    assert data.text.values == ["two dogs", "the id of another file", None]
    note = f"Not listed in {table}: 1 picture (2019/italy/c d.jpeg), "
    assert note + "kept without text (--only-listed leaves them out)." in data.notes
    assert ("a.PNG", f"{table} has another item with this id") in data.skipped
    learned = load_dataset(folder)
    assert learned.ids == ["first", "a.PNG"]
    assert note + "left out." in learned.notes
    listed = load_dataset(folder, keep_partial=True, only_listed=True)
    assert listed.ids == load_dataset(folder / table, keep_partial=True).ids == ["first", "a.PNG"]
    assert listed.notes == (f"Text from {table} for 2 of 2 items.",)


def test_a_table_of_another_folder_stands_alone(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("tables")
    (other / "t.csv").write_text(f"image,text\n{folder}/b.jpg,dogs\n")
    assert load_dataset(folder, text=str(other / "t.csv"), keep_partial=True).text.values == ["dogs"]


def test_what_is_not_read_is_counted_by_kind(tmp_path):
    for name in ("a.jpg", "IMG_1.HEIC", "x/b.Avif"):
        photo(tmp_path / name)
    names = [
        "a.txt",
        "why.txt",
        "clip.MP4",
        "x/2.mov",
        "r.CR2",
        "p.pdf",
        "old.zip",
        "logo.svg",
        "l.PSD",
        "r.xmp",
        "noext",
    ]
    for name in [
        *names,
        "Thumbs.db",
        ".DS_Store",
        "x/.DS_Store",
        "@eaDir/a.jpg",
        "x/@eaDir/b.jpg",
        ".thumbnails/a.jpg",
    ]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = scan(tmp_path)
    assert found.images == ["IMG_1.HEIC", "a.jpg", "x/b.Avif"]
    assert found.unread == {
        "PDF file": ["p.pdf"],
        "archive": ["old.zip"],
        "camera raw file": ["r.CR2"],
        "other file": ["noext", "r.xmp"],
        "picture of another format": ["l.PSD", "logo.svg"],
        "text file": ["why.txt"],
        "video": ["clip.MP4", "x/2.mov"],
    }
    assert found.notes() == [
        "Not read: 1 PDF file (p.pdf), 1 archive (old.zip), 1 camera raw file (r.CR2), "
        f"2 pictures of another format (l.PSD, …), 2 videos (clip.MP4, …). To list them: dcmh data {tmp_path} --check",
        "Left out: 3 hidden or system folders (2 @eaDir, .thumbnails); "
        "3 hidden or system files (2 .DS_Store, Thumbs.db).",
    ]


def test_heic_files_without_the_extra(tmp_path, monkeypatch):
    """They are counted, and neither skipped nor remembered as unreadable: they are read once the extra is installed."""
    for module in (folders, tables):
        monkeypatch.setattr(module, "can_read_heic", lambda: False)
    photo(tmp_path / "b.heic")
    with pytest.raises(
        DataError, match=r'It holds: 1 HEIC picture \(b.heic\). To read HEIC: pip install "dcmh\[heic\]"'
    ):
        load_dataset(tmp_path, keep_partial=True)
    photo(tmp_path / "a.jpg")
    data = load_dataset(tmp_path, keep_partial=True)
    assert (data.ids, data.skipped) == (["a.jpg"], [])
    assert any("1 HEIC picture (b.heic)" in note and "dcmh[heic]" in note for note in data.notes)
    (tmp_path / "pairs.csv").write_text("image,text\na.jpg,dog\nb.heic,cat\n")
    assert load_dataset(tmp_path).skipped == [("b.heic", 'to read HEIC: pip install "dcmh[heic]"')]


def test_links_that_lead_back_are_followed_once(folder):
    (folder / "2019/back").symlink_to(folder)
    (folder / "again").symlink_to(folder / "2019/italy")
    (folder / "dangling.jpg").symlink_to(folder / "none")
    found = scan(folder).images
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
    found = scan(folder)
    assert "pipe.jpg" not in found.images
    assert ("pipe.jpg", "not a file") in found.skipped


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
        f"No images in {tmp_path}/photos/ (looked for jpg, png, webp, gif, bmp, tiff, avif, heic, also in subfolders). "
        "It is empty. Is it the right folder?"
    )
    (tmp_path / "photos/clip.mp4").touch()
    (tmp_path / "photos/.trash").mkdir()
    with pytest.raises(DataError, match=r"It holds: 1 video \(clip.mp4\); 1 hidden or system folder \(.trash\). Is it"):
        load_dataset(tmp_path / "photos")
    (tmp_path / "photos/captions.csv").write_text("file,text\nb.jpg,dog\n")
    with pytest.raises(DataError, match=r"the first missing picture: b.jpg"):
        load_dataset(tmp_path / "photos")


def test_no_text(tmp_path):
    photo(tmp_path / "a.jpg")
    with pytest.raises(DataError) as caught:
        load_dataset(tmp_path)
    assert str(caught.value) == (
        f"Found 1 picture in {tmp_path}/ but no texts to learn from. Put pairs.csv there (columns: image, text), or "
        f"name.txt beside name.jpg. To search without training: dcmh index {tmp_path}"
    )
