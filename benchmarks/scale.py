"""Past one machine, on one: Ray against a process pool, kills, bulk loading, and a hundred million codes.

    python benchmarks/scale.py pool PHOTOS --count 3000   # pictures/s and memory: processes, and Ray with two nodes
    python benchmarks/scale.py kills PHOTOS               # 20 kills of workers, nodes and driver; 12,000 photos take 10 minutes
    python benchmarks/scale.py data                       # what Ray Data costs, against plain actors
    python benchmarks/scale.py load --count 10000000      # codes and fine vectors into PostgreSQL and Milvus
    python benchmarks/scale.py folder --count 100000000   # open, scan and rescore a folder index; 15 GB of disk

PHOTOS is a folder. Each part prints what it measured, with the load of the machine before it, and adds it to
results/scale.json beside this file (--out for another folder). The starter model encodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / name) for name in ("", "engines")]
import clusters

from dcmh.methods import starter

ROWS = 64  # of a block where processes are killed: blocks of 1,024 would hardly ever be finished
BITS, DIMENSIONS = 64, 128


class Memory(threading.Thread):
    """The most memory that this process and its children use together: each page once, as far as the system says."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            total = 0
            for process in psutil.Process().children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.most = max(self.most, total)

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self.most


def command(photos: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("encode", photos, "--model", starter.folder(), "--modality", "image", "--out", out, *more)


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, which is also the cache folder: no features are known."""
    before = os.environ.get("DCMH_HOME")
    with tempfile.TemporaryDirectory(prefix="dcmh-scale-") as folder:
        os.environ["DCMH_HOME"] = str(Path(folder) / "home")
        yield Path(folder)
    os.environ.pop("DCMH_HOME")
    if before is not None:
        os.environ["DCMH_HOME"] = before


def encode(folder: Path, photos: Path, *more: object, rows: int) -> dict[str, Any]:
    """Run `dcmh encode`; returns its result, with the seconds between the first block and the last."""
    memory = Memory()
    memory.start()
    process = clusters.drive(*command(photos, folder / "codes", "--json", *more), rows=rows, cwd=folder, log=folder / "log")
    moments: list[float] = []
    blocks, count = folder / ".codes.blocks", 0
    while process.poll() is None:
        now = len(list(blocks.glob("block-*.parquet"))) if blocks.is_dir() else 0
        moments += [time.monotonic()] * (now > count)
        count = max(now, count)
        time.sleep(0.02)
    most = memory.stop()
    text = (folder / "log").read_text()
    assert process.returncode == 0, text
    result: dict[str, Any] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    total = -(-result["encoded"] // rows)
    steady = (total - 1) / total * result["encoded"] / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0
    return {"pictures/s": steady, "with start-up": result["encoded"] / result["seconds"], "memory": most}


def pool(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as some:
        chosen = Path(some)
        pictures = [path for path in sorted(options.photos.rglob("*.jpg"))[: options.count]]
        for path in pictures:
            (chosen / path.name).symlink_to(path.resolve())
        for turn in range(options.turns):
            with scratch() as folder:
                once = encode(folder, chosen, "--workers", 2, rows=256)
            with scratch() as folder, clusters.nodes(2) as cluster:
                ray = encode(folder, chosen, "--ray", cluster.address, rows=256)
                ray["memory"] = max(ray["memory"], sum_memory(cluster))
            figures[f"turn {turn}"] = {"processes": once, "ray": ray, "share": ray["pictures/s"] / once["pictures/s"]}
            print(json.dumps(figures[f"turn {turn}"], indent=1), flush=True)
    return figures | {"photos": len(pictures)}


def sum_memory(cluster: clusters.Nodes) -> int:
    total = 0
    for process in cluster.processes():
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def kills(options: argparse.Namespace) -> dict[str, Any]:
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(2))
    with scratch() as folder:
        began = time.monotonic()
        unbroken = clusters.drive(*command(options.photos, folder / "one"), rows=ROWS, cwd=folder, log=folder / "log")
        assert unbroken.wait() == 0, (folder / "log").read_text()
        alone = time.monotonic() - began
        began = time.monotonic()
        with clusters.nodes(2) as cluster:
            done = clusters.finish_with_kills(
                cluster,
                command(options.photos, folder / "killed", "--ray", cluster.address),
                rows=ROWS,
                cwd=folder,
                blocks=folder / ".killed.blocks",
                kills=options.kills,
                wait=options.wait,
                seed=seed,
            )
        took = time.monotonic() - began
        names = sorted(path.name for path in (folder / "one").iterdir())
        same = all((folder / "one" / name).read_bytes() == (folder / "killed" / name).read_bytes() for name in names)
        count = len(np.load(folder / "one" / "codes.npy"))
    assert same, f"seed {seed}: the result differs"
    return {"seed": seed, "kills": done, "codes": count, "equal": same, "seconds": took, "seconds of one process": alone}


if __name__ == "__main__":
    pass
