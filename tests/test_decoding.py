"""Pictures in batches: in order, the bad ones told; by threads and by processes alike."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from dcmh import decoding, images
from dcmh.data import Images
from dcmh.errors import DataError


@pytest.fixture
def files(tmp_path):
    """Eleven pictures of different sizes, and in the middle a file that is none."""
    random = np.random.default_rng(0)
    paths = []
    for i in range(11):
        paths.append(tmp_path / f"{i} ä.png")
        Image.fromarray(random.integers(0, 256, (20 + i, 31, 3), np.uint8)).save(paths[-1])
    (tmp_path / "bad.jpg").write_text("no picture")
    return [*paths[:6], tmp_path / "bad.jpg", *paths[6:]]


@pytest.fixture(params=["threads", "processes"])
def way(request, monkeypatch):
    if request.param == "processes":
        if not hasattr(os, "memfd_create"):
            pytest.skip("processes share memory on Linux only")
        for name in ("FILES", "CORES"):
            monkeypatch.setattr(decoding, name, 1)
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    return request.param


def test_batches_are_in_order_and_bad_ones_left_out(way, files):
    bad = []
    column = Images(files)
    assert decoding.processes_pay(column, range(12)) == (way == "processes")
    parts = list(decoding.decoded_batches(column, range(12), batch=2, size=32, on_error=lambda *said: bad.append(said)))
    assert [rows for rows, _ in parts] == [[0, 1], [2, 3], [4, 5], [7], [8, 9], [10, 11]]
    assert bad == [(6, "not an image")]
    for rows, pixels in parts:
        assert np.array_equal(pixels, [images.decode(files[row], 32) for row in rows])


def test_a_bad_picture_is_an_error_with_its_name(way, files):
    with pytest.raises(DataError, match=r"Cannot read .*bad.jpg: not an image. Remove it"):
        list(decoding.decoded_batches(Images(files), range(12), batch=2, size=32))


def test_pictures_that_are_no_files_are_left_to_threads(way, files):
    arrays = Images([images.decode(path, 40) for path in files[:3]])
    assert not decoding.processes_pay(arrays, range(3))
    ((rows, pixels),) = decoding.decoded_batches(arrays, range(3), size=40)
    assert rows == [0, 1, 2]
    assert np.array_equal(pixels, arrays.values)


@pytest.mark.parametrize("way", ["processes"], indirect=True)
def test_a_process_that_ends_is_not_missed(way, files, monkeypatch):
    started = []
    begin = decoding.Worker.__init__
    monkeypatch.setattr(
        decoding.Worker, "__init__", lambda self, *given: (begin(self, *given), started.append(self))[0]
    )
    column = Images(files[:6])
    batches = decoding.decoded_batches(column, range(6), batch=1, size=32)
    found = [next(batches)]
    started[1].process.kill()
    started[1].process.wait()
    found += batches
    assert [rows for rows, _ in found] == [[row] for row in range(6)]
    assert all(np.array_equal(pixels[0], images.decode(files[rows[0]], 32)) for rows, pixels in found)
    assert all(worker.process.returncode is not None for worker in started)


@pytest.mark.parametrize("way", ["processes"], indirect=True)
def test_processes_end_with_the_loop(way, files, monkeypatch):
    started = []
    begin = decoding.Worker.__init__
    monkeypatch.setattr(
        decoding.Worker, "__init__", lambda self, *given: (begin(self, *given), started.append(self))[0]
    )
    batches = decoding.decoded_batches(Images(files[:6]), range(6), batch=1, size=32)
    next(batches)
    batches.close()
    assert len(started) == 2
    assert all(worker.process.returncode is not None for worker in started)


@pytest.mark.parametrize("way", ["processes"], indirect=True)
def test_a_script_needs_no_guard_and_shadows_nothing(way, files, tmp_path):
    """Python's own pools run the main module once more in each process, and one started by -c looks into the current folder."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    script = tmp_path / "scripts" / "all.py"
    script.parent.mkdir()
    script.write_text(
        "from dcmh import decoding\n"
        "from dcmh.data import Images\n"
        "decoding.FILES = decoding.CORES = 1\n"
        f"column = Images({[str(path) for path in files[:6]]})\n"
        "assert decoding.processes_pay(column, range(6))\n"
        "begin = decoding.Worker.receive\n"
        "decoding.Worker.receive = lambda self: begin(self) or 1 / 0\n"  # a process that could not start would answer nothing
        "print(sum(len(pixels) for _, pixels in decoding.decoded_batches(column, range(6), batch=2, size=32)))\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("6\n", "")
