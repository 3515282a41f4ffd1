"""Runs cases in a worker process with limits, and counts their outcomes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SECONDS = 5.0  # for a case
PREPARING = 120.0  # seconds for imports and for making the valid files, once per worker and reader
ALLOWED = ("error", "loaded", "same", "checked")


@dataclass(frozen=True)
class Outcome:
    """How a case ended: an error of dcmh, a load, or what must not be (bug, died, slow, changed).

    Where the answers can be compared with those before the mutation, a load is "same" or "changed"; "checked" if they
    changed, but `dcmh check` notices the damage.
    """

    reader: str
    seed: int
    kind: str
    detail: str = ""
    seconds: float = 0.0
    file: str = ""

    @property
    def failed(self) -> bool:
        """Whether this must not be."""
        return self.kind not in ALLOWED

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.file}: {self.detail}\n"
            f"  again: python -m tests.fuzz --seed {self.seed} --only {self.reader}"
        )


@dataclass
class Tally:
    """Outcomes, counted by reader and kind; those that must not be are kept."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    slowest: dict[str, float] = field(default_factory=dict)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.counts[outcome.reader, outcome.kind] += 1
        self.slowest[outcome.reader] = max(self.slowest.get(outcome.reader, 0), outcome.seconds)
        if outcome.failed:
            self.failures.append(outcome)

    def table(self) -> str:
        """One line per reader."""
        kinds = [*ALLOWED, *sorted({kind for _, kind in self.counts if kind not in ALLOWED})]
        lines = [f"{'reader':16}" + "".join(f"{kind:>9}" for kind in kinds) + f"{'slowest':>9}"]
        for reader in sorted({name for name, _ in self.counts}):
            cells = "".join(f"{self.counts[reader, kind]:>9}" for kind in kinds)
            lines.append(f"{reader:16}{cells}{self.slowest[reader]:>8.2f}s")
        totals = [sum(count for (_, each), count in self.counts.items() if each == kind) for kind in kinds]
        lines.append(f"{'all':16}" + "".join(f"{total:>9}" for total in totals))
        return "\n".join(lines)


class Worker:
    """A process that runs cases. Closed and started again when it dies or is too slow."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="dcmh-fuzz-", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def run(self, reader: str, seed: int) -> Outcome:
        """Run a case. One that is too slow is tried again: the machine may have been busy."""
        outcome = self._once(reader, seed)
        return self._once(reader, seed) if outcome.kind == "slow" else outcome

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _once(self, reader: str, seed: int) -> Outcome:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([reader, seed]).encode() + b"\n")
            process.stdin.flush()
            answer = None if self._line(PREPARING) is None else self._line(SECONDS)
        except (BrokenPipeError, EOFError):
            status = process.wait()
            self.stop()
            return Outcome(reader, seed, "died", f"the process ended with status {status}")
        if answer is None:
            self.stop()
            return Outcome(reader, seed, "slow", f"more than {SECONDS:g} s", SECONDS)
        return Outcome(reader, seed, **answer)

    def _start(self) -> subprocess.Popen[bytes]:
        tests = Path(__file__).parents[1]
        paths = [str(tests), *(path for path in sys.path if path)]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", "from fuzz.worker import main; main()", self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if "DCMH_FUZZ_STDERR" in os.environ else subprocess.DEVNULL,
            env=os.environ | environment,
            bufsize=0,
        )

    def _line(self, seconds: float) -> dict[str, Any] | None:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            return None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return dict(json.loads(line))


def run(cases: Iterable[tuple[str, int]], report: Callable[[Outcome], None] = lambda outcome: None) -> Tally:
    """Run cases one after the other."""
    tally = Tally()
    with Worker() as worker, contextlib.suppress(KeyboardInterrupt):  # what is done so far is reported
        for reader, seed in cases:
            outcome = worker.run(reader, seed)
            tally.add(outcome)
            report(outcome)
    return tally
