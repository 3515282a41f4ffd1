"""Whole files or nothing."""

import pytest

from dcmh.files import whole_file, whole_folder, write_text


def test_a_file_is_replaced_whole(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "first")
    write_text(tmp_path / "deep" / "a.txt", "second")
    assert (tmp_path / "deep" / "a.txt").read_text() == "second"
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(OSError, match="full"), whole_file(tmp_path / "a.txt") as draft:
        draft.write_text("half")
        raise OSError("full")
    assert (tmp_path / "a.txt").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_replaced_whole(tmp_path):
    for text in ("first", "second"):
        with whole_folder(tmp_path / "model") as draft:
            (draft / "a.txt").write_text(text)
    assert (tmp_path / "model" / "a.txt").read_text() == "second"
    with pytest.raises(OSError, match="full"), whole_folder(tmp_path / "model") as draft:
        (draft / "a.txt").write_text("half")
        raise OSError("full")
    assert (tmp_path / "model" / "a.txt").read_text() == "second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
