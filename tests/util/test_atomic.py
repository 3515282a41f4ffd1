"""Whole files or nothing, under names that can be written down."""

import errno
import os
import subprocess
import sys
import threading

import pytest

from dcmh.errors import DataError, StorageError
from dcmh.util import atomic
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
    monkeypatch.setattr(atomic, "_exchange", lambda draft, path: False)  # as on a file system without it
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


def test_a_replaced_folder_is_never_missing(tmp_path):
    path, stop, missing = tmp_path / "model", threading.Event(), []

    def look():
        while not stop.is_set():
            if not (path / "a.txt").exists():
                missing.append(path)

    with whole_folder(path) as draft:
        (draft / "a.txt").write_text("0")
    reader = threading.Thread(target=look)
    reader.start()
    for number in range(100):
        with whole_folder(path) as draft:
            (draft / "a.txt").write_text(str(number))
    stop.set()
    reader.join()
    assert not missing


def test_what_killed_writers_left_is_swept_and_what_others_write_is_not(tmp_path):
    script = f"""
import os
from pathlib import Path
from dcmh.util.atomic import whole_file, whole_folder
with whole_file(Path({str(tmp_path)!r}) / "a.txt"), whole_folder(Path({str(tmp_path)!r}) / "model"):
    print("ready", flush=True)
    input()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        write_text(tmp_path / "b.txt", "while the other process writes")
        assert len([name for name in os.listdir(tmp_path) if name.endswith(".part")]) == 2
        writer.kill()
    (tmp_path / ".mine.part").write_text("not a draft of ours")
    atomic._swept.clear()  # as a new process
    write_text(tmp_path / "b.txt", "after it was killed")
    assert sorted(os.listdir(tmp_path)) == [".mine.part", "b.txt"]


def test_a_folder_that_a_killed_writer_had_moved_aside_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_GAP_SECONDS", 0.05)
    old = tmp_path / ".model.abcdefgh.old"
    (old / "was").mkdir(parents=True)
    (old / "was" / "a.txt").write_text("old")
    atomic._swept.clear()
    write_text(tmp_path / "b.txt", "sweeps, but not this")
    atomic.recover(tmp_path / "model")
    assert (tmp_path / "model" / "a.txt").read_text() == "old"
    atomic._swept.clear()
    write_text(tmp_path / "b.txt", "sweeps")
    assert sorted(os.listdir(tmp_path)) == ["b.txt", "model"]


@pytest.mark.parametrize(
    ("number", "state"),
    [(errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EROFS, "read-only"), (errno.EIO, "failing")],
)
def test_a_disk_that_cannot_take_it_has_an_error_of_its_own(tmp_path, number, state):
    with (
        pytest.raises(StorageError, match=r"cannot (read or )?write .*a\.txt") as caught,
        whole_file(tmp_path / "a.txt"),
    ):
        raise OSError(number, os.strerror(number))
    assert (caught.value.state, caught.value.which) == (state, tmp_path / "a.txt")
    assert isinstance(caught.value, OSError)
    assert os.listdir(tmp_path) == []


def test_what_safetensors_says_about_a_full_disk_is_understood(tmp_path):
    text = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(StorageError, match="The disk is full"), whole_file(tmp_path / "a"):
        raise RuntimeError(text)
