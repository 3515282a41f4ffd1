"""Faults by the number: `python -m tests.faults --cases 500`, from the root of the repository.

Injected faults: one system call of an operation fails (ENOSPC, EIO, EROFS; once, or from then on), or no file may grow beyond
a size, which makes writes short. Afterwards the old state is intact or the new one complete, the error is a `StorageError`,
and the operation succeeds when it is repeated. Power cuts: see `power_cut`. System calls are intercepted with strace; without
it only the limits on sizes are tried.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # children are forked
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import children  # noqa: E402 - beside this file
import operations  # noqa: E402
import power_cut  # noqa: E402

ERRORS = {"ENOSPC": "write pwrite64 fsync fdatasync rename renameat2 mkdir", "EROFS": "rename unlink mkdir"}
ERRORS["EIO"] = "write pwrite64 fsync fdatasync rename renameat2 unlink ftruncate"


class Harness:
    """Folders to work in, and what each operation does when nothing goes wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.random = random.Random(seed)
        self.prepared = folder / "prepared"
        operations.prepare(self.prepared)
        self.before = {name: operations.state(self.prepared, name) for name in operations.OPERATIONS}
        self.after = {}
        self.logs = {}
        for name, operation in operations.OPERATIONS.items():
            root, self.logs[name] = children.copied(self.prepared, folder / "root"), folder / f"{name}.log"
            trace = power_cut.options(self.logs[name]) if children.can_trace() else ()
            outcome = children.run(partial(_marked, operation, root), *trace)
            assert outcome == children.SUCCESS, (name, outcome)
            self.after[name] = operations.state(root, name)
            assert self.after[name] != self.before[name], name

    # -- injected faults --------------------------------------------------------------------------------------------

    def faults(self, cases: int) -> list[tuple]:
        """(operation, call, number of the call, error, whether it stays) or (operation, size)."""
        limits = [(name, self.random.choice([0, 100, 5000, 40000])) for name in self.before for _ in range(2)]
        possible = []
        for name, log in self.logs.items() if children.can_trace() else ():
            counts = collections.Counter(call[0] for call in power_cut.calls(log))
            for error, calls in ERRORS.items():
                for call in calls.split():
                    possible += [
                        (name, call, number, error, stays)
                        for number in range(1, counts[call] + 1)
                        for stays in (False, True)
                    ]
        self.random.shuffle(possible)
        return (limits[: max(1, cases // 4)] + possible)[:cases]

    def inject(self, fault: tuple) -> str | None:
        """What is wrong after a fault; None where nothing is."""
        name = fault[0]
        operation, root = operations.OPERATIONS[name], children.copied(self.prepared, self.folder / "root")
        if len(fault) == 2:
            outcome = children.run(lambda: operation(root), file_limit=fault[1])
        else:
            _, call, number, error, stays = fault
            inject = f"inject={call}:error={error}:when={number}{'+' if stays else ''}"
            outcome = children.run(lambda: operation(root), "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
        if outcome != children.SUCCESS and not outcome.startswith("storage: "):
            return outcome
        try:
            if wrong := self._wrong(name, operations.state(root, name), done=outcome == children.SUCCESS):
                return f"{outcome}; {wrong}"
        except Exception as error:
            return f"{outcome}; then {type(error).__name__}: {error}"
        again = children.run(lambda: operation(root))
        if again != children.SUCCESS or self._wrong(name, operations.state(root, name), done=True):
            return f"{outcome}; repeated: {again}"
        return None

    def _wrong(self, name: str, state: str, *, done: bool) -> str | None:
        if state == self.after[name] or (not done and state == self.before[name]):
            return None
        if not done and name == "index" and operations.is_prefix(state, self.after[name]):
            return None
        return "lost" if state == self.before[name] else f"neither the old state nor the new one: {state[:200]}"

    # -- power cuts -------------------------------------------------------------------------------------------------

    def power_cuts(self, name: str, cases: int) -> list[str]:
        """What is wrong after power cuts at some moments of an operation."""
        replayed = list(power_cut.calls(self.logs[name]))
        children.copied(self.prepared, self.folder / "root")
        disk, marks = power_cut.Disk(self.folder / "root"), []
        for number, call in enumerate(replayed):
            if disk.call(*call):
                marks.append(number)
        chosen = set(self.random.sample(marks, min(len(marks), cases - 1)))
        wrong, done, state = [], False, self.folder / "state"
        disk = power_cut.Disk(self.folder / "root")
        for number, call in enumerate(replayed):
            disk.call(*call)
            done = done or (call[0] == "write" and call[1][1].startswith(power_cut.MARK.decode()))
            if number not in chosen and number != len(replayed) - 1:
                continue
            kept = self.random.choice([0.0, 0.5, 1.0]) if number in chosen else 0.0
            disk.write(state, lambda change, kept=kept: self.random.random() < kept)
            try:
                message = self._wrong(name, operations.state(state, name), done=done)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
            if message:
                wrong.append(f"{name}, call {number} of {len(replayed)}, {kept:.0%} of the rest kept: {message}")
        return wrong


def _marked(operation: Callable[[Path], None], root: Path) -> None:
    operation(root)
    os.write(os.open(os.devnull, os.O_WRONLY), power_cut.MARK)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--cases", type=int, default=200, help="injected faults")
    parser.add_argument("--power-cuts", type=int, default=None, help="moments per operation; default: cases / 6")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    seed = int.from_bytes(os.urandom(3)) if given.seed is None else given.seed
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DCMH_HOME"] = f"{folder}/home"
        harness = Harness(Path(folder), seed)
        faults = harness.faults(given.cases)
        wrong = []
        for number, fault in enumerate(faults, 1):
            if message := harness.inject(fault):
                wrong.append(f"{fault}: {message}")
                sys.stderr.write(f"{wrong[-1]}\n")
            if number % 100 == 0:
                sys.stderr.write(f"{number} of {len(faults)} faults, {len(wrong)} wrong\n")
        cuts = max(2, given.cases // 6) if given.power_cuts is None else given.power_cuts
        for name in operations.OPERATIONS if children.can_trace() else ():
            wrong += harness.power_cuts(name, cuts)
    traced = children.can_trace()
    record = {"seed": seed, "faults": len(faults), "power_cuts": cuts * len(operations.OPERATIONS) * traced}
    report = {**record, "seconds": round(time.monotonic() - began, 1), "wrong": wrong}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
