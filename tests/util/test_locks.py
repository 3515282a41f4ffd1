"""dcmh.util.locks: one holder at a time, across processes, and a killed holder lets go."""

import subprocess
import sys
import time

import pytest

from dcmh.util.locks import locked

HOLD = """
import sys, pathlib
from dcmh.util.locks import locked
with locked(pathlib.Path(sys.argv[1])) as alone:
    print(alone, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock file until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


def test_another_process_holds_it(holder, tmp_path):
    with locked(tmp_path / "lock") as alone:
        assert not alone
    began = time.monotonic()
    with locked(tmp_path / "lock", wait=0.2) as alone:
        assert not alone
    assert time.monotonic() - began >= 0.2


def test_a_killed_holder_lets_go(holder, tmp_path):
    holder.kill()
    with locked(tmp_path / "lock", wait=10) as alone:
        assert alone


def test_held_once_even_in_one_process_and_free_afterwards(tmp_path):
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
    with locked(tmp_path / "lock") as again:
        assert again
    assert (tmp_path / "lock").exists()


def test_an_error_in_the_block_releases_it(tmp_path):
    with pytest.raises(KeyError), locked(tmp_path / "lock"):
        raise KeyError
    with locked(tmp_path / "lock") as alone:
        assert alone


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="none"), locked(tmp_path / "none" / "lock"):
        pass
