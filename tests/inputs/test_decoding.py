"""Pictures in batches: in order, the bad ones told; by threads and by processes alike."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from dcmh.data import Images
from dcmh.errors import DataError
from dcmh.inputs import decoding, decoding_workers, images


@pytest.fixture
def files(tmp_path):
    """Eleven pictures of different sizes, and in the middle a file that is none."""
    random = np.random.default_rng(0)
    paths = []
    for i in range(11):
        paths.append(tmp_path / f"{i} ä.{'heic' if i == 3 else 'avif' if i == 4 else 'png'}")
        Image.fromarray(random.integers(0, 256, (20 + i, 31, 3), np.uint8)).save(paths[-1])
    (tmp_path / "bad.jpg").write_text("no picture")
    return [*paths[:6], tmp_path / "bad.jpg", *paths[6:]]


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found = []
    begin = decoding_workers.Worker.__init__

    def noted(self, *given):
        begin(self, *given)
        found.append(self)

    monkeypatch.setattr(decoding_workers.Worker, "__init__", noted)
    monkeypatch.setattr(decoding, "cores", lambda: 2)
    return found


@pytest.fixture
def processes(started, monkeypatch):
    """The same, where they are started at once."""
    if not decoding_workers.can_work():
        pytest.skip("processes share memory on Linux only")
    for name in ("MIN_FILES", "MIN_CORES"):
        monkeypatch.setattr(decoding, name, 1)
    return started


@pytest.fixture(params=["threads", "processes"])
def way(request, started):
    if request.param == "processes":
        request.getfixturevalue("processes")
    return request.param


def test_batches_are_in_order_and_bad_ones_left_out(way, files, started):
    bad = []
    parts = list(
        decoding.decoded_batches(Images(files), range(12), batch=2, size=32, on_error=lambda *said: bad.append(said))
    )
    assert len(started) == (2 if way == "processes" else 0)
    assert [rows for rows, _ in parts] == [[0, 1], [2, 3], [4, 5], [7], [8, 9], [10, 11]]
    assert bad == [(6, "not an image")]
    for rows, pixels in parts:
        assert np.array_equal(pixels, [images.decode(files[row], 32) for row in rows])


def test_a_bad_picture_is_an_error_with_its_name(way, files):
    with pytest.raises(DataError, match=r"Cannot read .*bad.jpg: not an image. Remove it"):
        list(decoding.decoded_batches(Images(files), range(12), batch=2, size=32))


def test_pictures_that_are_no_files_are_left_to_threads(processes, files):
    arrays = Images([images.decode(path, 40) for path in files[:3]])
    ((rows, pixels),) = decoding.decoded_batches(arrays, range(3), size=40)
    assert rows == [0, 1, 2]
    assert np.array_equal(pixels, arrays.values)
    assert not processes


def test_processes_start_when_many_files_have_come_and_end_when_told(processes, files, monkeypatch):
    monkeypatch.setattr(decoding, "MIN_FILES", 4)
    column = Images(files[:6])
    with decoding.Decoder(32) as decoder:
        for ended in (0, 2):
            for group, count in (([0, 1, 2], ended), ([3, 4, 5], ended + 2)):
                pixels, wrong = decoder.submit(column, group).result()
                assert np.array_equal(pixels, [images.decode(files[row], 32) for row in group])
                assert wrong == [None] * 3
                assert len(processes) == count
            decoder.stop_workers()
        assert all(worker.process.returncode is not None for worker in processes)


def interrupted():
    raise KeyboardInterrupt


def test_an_interrupted_end_leaves_nobody_behind(processes, files, monkeypatch):
    column = Images(files[:6])
    with decoding.Decoder(32) as decoder:
        decoder.submit(column, [0, 1])
        monkeypatch.setattr(processes[1].process, "communicate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            decoder.stop_workers()
        assert all(worker.process.wait(5) is not None for worker in processes)
        pixels, _ = decoder.submit(column, [3]).result()
        assert np.array_equal(pixels[0], images.decode(files[3], 32))


def test_a_pool_is_as_large_as_its_share_of_the_cores(processes, files, monkeypatch):
    monkeypatch.setattr(decoding, "cores", lambda: 12)
    monkeypatch.setattr(decoding, "MIN_CORES", 4)
    for said, count in (("3", 4), ("4", 0), ("", 8)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        with decoding.Decoder(32) as decoder:
            decoder.submit(Images(files[:1]), [0]).result()
        assert len(processes) == count
        processes.clear()


def test_paths_mean_the_same_to_processes(processes, files, tmp_path, monkeypatch):
    """Where a name holds a link and .. behind it, and where the current folder changes later."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    shutil.copy(files[0], tmp_path / "far" / "one.png")
    shutil.copy(files[1], tmp_path / "one.png")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path)
    with decoding.Decoder(32) as decoder:
        for folder in (".", "far"):
            monkeypatch.chdir(folder)
            for name in ("../link/../one.png" if folder == "far" else "link/../one.png", "one.png"):
                ((found,), _) = decoder.submit(Images([name]), [0]).result()
                assert np.array_equal(found, images.decode(Path(name), 32))
    assert len(processes) == 2


def test_what_is_expected_is_counted_once(processes, files, monkeypatch):
    monkeypatch.setattr(decoding, "MIN_FILES", 7)
    assert len(list(decoding.decoded_batches(Images(files[:6]), range(6), batch=1, size=32))) == 6
    assert not processes


def test_what_was_begun_can_be_asked_for_in_any_order_and_after_the_end(processes, files, monkeypatch):
    monkeypatch.setattr(decoding, "CHUNK", 1)
    column = Images(files[:6])
    with decoding.Decoder(32) as decoder:
        begun = [decoder.submit(column, [i % 6, 0, 1, 2]) for i in range(12)]  # more than fits
        for i in (7, 3, 11):
            assert np.array_equal(begun[i].result()[0][0], images.decode(files[i % 6], 32))
        decoder.stop_workers()
        for i in (0, 10):
            assert np.array_equal(begun[i].result()[0][0], images.decode(files[i % 6], 32))
    assert len(processes) == 2


def numbers(batches):
    return [rows for rows, _ in batches]


def test_a_process_that_ends_is_not_missed(processes, files, caplog):
    column = Images(files[:6] * 20)
    batches = decoding.decoded_batches(column, range(120), batch=1, size=32)
    found = [next(batches)]
    processes[1].process.kill()
    processes[1].process.wait()
    found += batches
    assert numbers(found) == [[row] for row in range(120)]
    assert all(np.array_equal(pixels[0], images.decode(files[rows[0] % 6], 32)) for rows, pixels in found)
    assert all(worker.process.returncode is not None for worker in processes)
    assert "a worker process has ended" in caplog.text


def test_processes_end_with_the_loop(processes, files):
    batches = decoding.decoded_batches(Images(files[:6]), range(6), batch=1, size=32)
    next(batches)
    batches.close()
    assert len(processes) == 2
    assert all(worker.process.returncode is not None for worker in processes)


@pytest.mark.parametrize("program", ["/no/such/python", "/bin/true", "waits", ""])
def test_without_processes_there_are_threads(processes, files, tmp_path, monkeypatch, program, caplog):
    """No program, one that ends, one that is not ours and waits for ever, and none known."""
    if program == "waits":
        program = str(tmp_path / "waits")
        Path(program).write_text("#!/bin/sh\nexec sleep 100\n")
        Path(program).chmod(0o755)
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(decoding_workers, "START_TIMEOUT", 0.3)
    column = Images(files[:6])
    assert numbers(decoding.decoded_batches(column, range(6), batch=2, size=32)) == [[0, 1], [2, 3], [4, 5]]
    assert program == "" or "decoded in threads" in caplog.text


def test_what_pillow_was_told_holds(processes, tmp_path, monkeypatch):
    """A picture that a process refuses is tried again where the user's settings are."""
    whole = tmp_path / "whole.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(whole)
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:-400])
    column = Images([whole, tmp_path / "cut.jpg"])
    with pytest.raises(DataError, match=r"cut\.jpg: truncated"):
        list(decoding.decoded_batches(column, range(2), batch=1, size=32))
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert numbers(decoding.decoded_batches(column, range(2), batch=1, size=32)) == [[0], [1]]
    monkeypatch.setattr(images, "MAX_MEGAPIXELS", 0)
    with pytest.raises(DataError, match=r"whole\.jpg: .*megapixels, more than the limit of 0"):
        list(decoding.decoded_batches(column, range(1), batch=1, size=32))


def test_names_that_are_too_long_do_not_fill_the_pipes(processes, tmp_path):
    bad = []
    column = Images([tmp_path / (f"{i}" + "中" * 400) for i in range(256)])
    found = list(decoding.decoded_batches(column, range(256), size=32, on_error=lambda *said: bad.append(said)))
    assert [len(pixels) for _, pixels in found] == [0] * 8
    assert len(bad) == 256


SCRIPT = """
import pathlib, sys
from dcmh.inputs import decoding
from dcmh.data import Images
decoding.MIN_FILES = decoding.MIN_CORES = 1
sys.path.append(pathlib.Path("somewhere"))
column = Images(FILES)
decoding.ThreadPoolExecutor.submit = None
count = sum(len(pixels) for _, pixels in decoding.decoded_batches(column, range(6), batch=2, size=32))
sys.stderr.write(f"{count} decoded")
"""


@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "<&- >&-"])
def test_a_script_needs_no_guard_nor_open_files_and_shadows_nothing(processes, files, tmp_path, closed):
    """Python's own pools run the main module once more in each process; and what -c runs looks into the current folder."""
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    script = tmp_path / "scripts" / "all.py"
    script.parent.mkdir()
    script.write_text(SCRIPT.replace("FILES)", f"{[str(path) for path in files[:6]]})"))
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(script))} {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "6 decoded"
