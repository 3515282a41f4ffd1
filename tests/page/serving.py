"""What the page's tests serve: a folder of drawings, and `dcmh serve` as a process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np

import dcmh
from dcmh.data.benchmarks import openmoji

GROUPS = ("smileys & emotion", "food & drink", "travel & places", "animals & nature")
OF_EACH = 45
HOSTILE = '<img src="nowhere" onerror="window.hurt = 1"><script>window.hurt = 2</script> fruit'


def some_drawings(folder: Path) -> Path:
    """A folder with some of OpenMoji, and one item whose words would like to be HTML."""
    data = dcmh.load_dataset("openmoji")
    rows = [np.flatnonzero(data.labels[:, data.label_names.index(group)])[::2][:OF_EACH] for group in GROUPS]
    folder.mkdir()
    lines = []
    for row in np.sort(np.concatenate(rows)):
        source = data.image.root / data.image.values[row]
        shutil.copyfile(source, folder / source.name)
        labels = [name for name, there in zip(data.label_names, data.labels[row], strict=True) if there]
        lines.append({"id": data.ids[row], "image": source.name, "text": data.text.values[row], "labels": labels})
    shutil.copyfile(source, folder / "hostile.png")
    lines.append({"id": "<b>hostile", "image": "hostile.png", "text": HOSTILE, "labels": ["<i>label</i>"]})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "ATTRIBUTION.txt").write_text(openmoji.ATTRIBUTION + "\n")
    return folder


class Server:
    """`dcmh serve` in its own process, on a port of its own; it can go and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "dcmh", "serve", str(self.folder), "--port", str(self.port), "--lazy"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            assert self.process.poll() is None, "the server has ended"
            try:
                with urllib.request.urlopen(f"{self.url}api/health", timeout=5):
                    return
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                time.sleep(0.05)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None


def to_the_end(page) -> None:
    """Scroll until all hits are there."""
    for _ in range(100):
        if not page.locator("#more").is_visible():
            return
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(30)
    raise AssertionError("There are always more hits to come.")
