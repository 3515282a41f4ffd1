"""A training that is killed or interrupted, at any moment, and goes on."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest
from commands import finish, left_behind, spawn

# A state is written after every iteration, and iterations take a while: there is something to interrupt.
PROGRAM = """
import sys, time
import dcmh.methods.dcmh.state
import dcmh.methods.dcmh as method
dcmh.methods.dcmh.state.CHECKPOINT_SECONDS = 0
record = method.DCMH._record
def slowly(self, *arguments):
    time.sleep(0.05)
    record(self, *arguments)
method.DCMH._record = slowly
from dcmh.cli import main
sys.exit(main())
"""
TRAIN = ("train", "toy", "--epochs", "40", "--hidden", "64", "--bits", "16", "--device", "cpu", "--out", "model")


def start(folder, *more):
    return spawn(*TRAIN, *more, cwd=folder, program=("-c", PROGRAM))


def weights(folder):
    return (folder / "model" / "weights.safetensors").read_bytes()


def state_of(folder):
    """What changes when the state is saved; None before the first time."""
    state = folder / "model.checkpoint" / "state.safetensors"
    try:
        return state.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def wait_for_state(process, folder, before=None):
    """Until the training has saved a state, other than the one before."""
    while process.poll() is None and state_of(folder) == before:
        time.sleep(0.01)


def goes_on_to_the_end(folder, unbroken):
    """Resumed, it gives the model of an unbroken run, and leaves nothing else."""
    answer = finish(start(folder, "--resume"))
    assert answer.code == 0
    assert "Resuming from model.checkpoint." in answer.err
    assert weights(folder) == unbroken
    assert left_behind(folder) == ["model"]
    run = json.loads((folder / "model" / "run.json").read_text())
    assert run["seconds"]["training"] > 40 * 0.05  # that before the interruption counts


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    assert finish(start(folder)).code == 0
    return weights(folder)


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed_it_gives_the_same_model(tmp_path, unbroken):
    seed = random.randrange(10**6)
    print(f"moments of the seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    moments = random.Random(seed)
    for _ in range(3):
        before = state_of(tmp_path)
        process = start(tmp_path, "--resume")
        wait_for_state(process, tmp_path, before)
        time.sleep(moments.uniform(0, 0.3))  # in an iteration, or while the state is written
        process.kill()
        assert finish(process).code == -signal.SIGKILL
        assert state_of(tmp_path) not in (None, before)
        assert not (tmp_path / "model").exists()
    goes_on_to_the_end(tmp_path, unbroken)


@pytest.mark.slow
def test_ctrl_c_finishes_the_iteration_saves_and_goes_on_later(tmp_path, unbroken):
    process = start(tmp_path)
    wait_for_state(process, tmp_path)
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 130
    assert answer.out == ""
    assert "Finishing this iteration, then saving. Ctrl-C again stops at once." in answer.err
    assert answer.last.startswith("Stopped after iteration ")
    assert answer.last.endswith(f"saved in model.checkpoint. Continue: dcmh {' '.join(TRAIN)} --resume")
    assert left_behind(tmp_path) == ["model.checkpoint"]
    goes_on_to_the_end(tmp_path, unbroken)


def test_the_second_ctrl_c_stops_at_once(tmp_path, cli):
    process = spawn(
        *TRAIN, cwd=tmp_path, program=("-c", PROGRAM.replace("0.05", "0.05 if self.history_ == [] else 30"))
    )
    wait_for_state(process, tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 130
    assert answer.last.startswith(
        "Stopped at once. The last saved state is in model.checkpoint. Continue: dcmh train toy"
    )
    shown = cli("info", "model.checkpoint")
    assert shown.code == 0
    assert "unfinished training" in shown.out
    answer = cli("train", "toy", "--epochs", "31", "--hidden", "64", "--bits", "16", "--out", "model", "--resume")
    assert answer.code == 1
    assert "is of another run (epochs 40, here 31). Repeat the command that was interrupted" in answer.err
    assert left_behind(tmp_path) == ["model.checkpoint"]


# An import that never ends: Ctrl-C must end it.
IMPORTING = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "dcmh.cli.train":
            sys.stderr.write("importing\\n")
            sys.stderr.flush()
            time.sleep(60)
sys.meta_path.insert(0, Slow())
from dcmh.cli import main
sys.exit(main())
"""


def test_interrupted_while_it_imports_it_ends_at_once(tmp_path):
    process = spawn(*TRAIN, cwd=tmp_path, program=("-c", IMPORTING))
    assert process.stderr.readline() == "importing\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert (answer.code, answer.err) == (130, "Interrupted.\n")
    assert time.monotonic() - began < 30
    assert left_behind(tmp_path) == []
