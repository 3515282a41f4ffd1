"""A Ray cluster of several nodes on this machine, on loopback, whose workers and nodes can be killed."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import dcmh

SRC = Path(dcmh.__file__).parents[1]
STORE_BYTES = 100 << 20  # of the object store of a node
# A command with small blocks.
DRIVER = """
import sys
from dcmh.cli import main
from dcmh.search import blocks
blocks.ROWS = int(sys.argv.pop(1))
sys.exit(main())
"""


class Nodes:
    """A head without cores, and nodes of one core each."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes = [self._add() for _ in range(count)]
        self.address: str = self._cluster.address

    def _add(self):
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, wait=False)

    def processes(self) -> list[psutil.Process]:
        """All processes of the cluster."""
        return psutil.Process().children(recursive=True)

    def actors(self) -> list[psutil.Process]:
        """The processes that encode."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[0].startswith("ray::_Actor"):
                    found.append(process)
        return found

    def kill_worker(self, chance: random.Random) -> bool:
        """kill -9 of an actor; False if there is none."""
        actors = self.actors()
        if actors:
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(actors).kill()
        return bool(actors)

    def kill_node(self, chance: random.Random) -> bool:
        """kill -9 of everything of a node; another one joins the cluster."""
        node = self._nodes.pop(chance.randrange(len(self._nodes)))
        self._cluster.remove_node(node, allow_graceful=False)
        self._nodes.append(self._add())
        return True

    def stop(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def nodes(count: int = 2) -> Iterator[Nodes]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(SRC)  # for the workers
    cluster = Nodes(count)
    try:
        yield cluster
    finally:
        cluster.stop()
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def drive(*arguments: object, rows: int, cwd: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a command in its own process, with blocks of so many rows."""
    with open(log, "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(rows), *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(SRC)},
            cwd=cwd,
            stdout=said,
            stderr=said,
        )


class Written:
    """The finished blocks of a run; none may be written a second time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, int] = {}

    def check(self) -> int:
        """How many there are."""
        with contextlib.suppress(FileNotFoundError):  # the end of the run
            for path in self._folder.glob("block-*.parquet"):
                moment = path.stat().st_mtime_ns
                assert self._seen.setdefault(path.name, moment) == moment, f"{path.name} was encoded twice"
        return len(self._seen)


def finish_with_kills(
    cluster: Nodes,
    command: tuple[object, ...],
    *,
    rows: int,
    cwd: Path,
    blocks: Path,
    kills: int,
    wait: float,
    seed: int,
) -> dict[str, int]:
    """Run a command to its end, with so many kills of workers, nodes and the driver at random moments; returns how many."""
    chance = random.Random(seed)
    written = Written(blocks)
    done = {"worker": 0, "node": 0, "driver": 0}
    driver = drive(*command, rows=rows, cwd=cwd, log=cwd / "driver.log")
    try:
        while sum(done.values()) < kills and driver.poll() is None:
            time.sleep(chance.uniform(0.2, 2 * wait))
            written.check()
            victim = chance.choice(list(done))
            if victim == "driver":
                driver.kill()
                driver.wait()
                driver = drive(*command, rows=rows, cwd=cwd, log=cwd / "driver.log")
                done[victim] += 1
            else:
                done[victim] += cluster.kill_worker(chance) if victim == "worker" else cluster.kill_node(chance)
        while driver.poll() is None:
            written.check()
            time.sleep(0.1)
    finally:
        driver.kill()
        driver.wait()
    assert driver.returncode == 0, (cwd / "driver.log").read_text()[-3000:]
    return done
