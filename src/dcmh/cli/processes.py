"""Several processes at one command: started by torchrun, or by the command itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dcmh.cli import console

STARTED = time.time()


def is_fresh(path: Path) -> bool:
    """Whether a file was written since this process began."""
    try:
        return path.stat().st_mtime > STARTED
    except OSError:
        return False


def place() -> tuple[int, int]:
    """Which of how many this process is, as torchrun tells; the first of one otherwise."""
    return int(os.environ.get("RANK", "0")), max(1, int(os.environ.get("WORLD_SIZE", "1")))


def device_of(device: str) -> str:
    """A GPU for each process of a machine, where there are GPUs and none was named."""
    if device != "auto" or "LOCAL_RANK" not in os.environ:
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{int(os.environ['LOCAL_RANK']) % count}" if count else device


@contextlib.contextmanager
def helpers(workers: int) -> Iterator[None]:
    """Within the block this process is the first of so many that run the same command; the cores are shared out."""
    if workers == 1 or place()[1] > 1:
        yield
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read when torch is loaded
    before = os.environ.get("LOCAL_WORLD_SIZE")
    started: list[subprocess.Popen[bytes]] = []
    try:
        os.environ["LOCAL_WORLD_SIZE"] = str(workers)  # for whoever would take all cores
        own = os.environ | {"WORLD_SIZE": str(workers), "OMP_NUM_THREADS": str(threads)}
        for rank in range(1, workers):
            command = [sys.executable, "-m", "dcmh", *console.typed()]
            place_of = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            nowhere = subprocess.DEVNULL
            started.append(subprocess.Popen(command, env=own | place_of, stdin=nowhere, stdout=nowhere))
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_WORLD_SIZE"]
        else:
            os.environ["LOCAL_WORLD_SIZE"] = before
        for process in started:
            if process.poll() is None:
                process.terminate()
            process.wait()
