"""Whole files or nothing, under names that can be written down."""

import os

import pytest

from dcmh.errors import DataError
from dcmh.util.atomic import check_spelling, whole_file, whole_folder, write_text


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


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch, failing):
    with whole_folder(tmp_path / "model") as draft:
        (draft / "a.txt").write_text("old")
    replace, calls = os.replace, []

    def fail(source, target):
        calls.append(source)
        if len(calls) == failing:
            raise OSError("busy")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="busy"), whole_folder(tmp_path / "model") as draft:
        (draft / "a.txt").write_text("new")
    assert (tmp_path / "model" / "a.txt").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_paths_that_are_not_unicode_are_refused(tmp_path, monkeypatch):
    check_spelling(tmp_path / "caf\u00e9")
    with pytest.raises(DataError, match=r"caf\?/photos is not UTF-8"):
        check_spelling(tmp_path / "caf\udce9" / "photos")
