"""What the tests of commands share."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import dcmh

SRC = Path(dcmh.__file__).parents[1]
QUICK = ("--epochs", "2", "--hidden", "32", "--bits", "16", "--device", "cpu")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.strip().splitlines()[-1]


def spawn(*arguments: object, cwd: Path, program: tuple[str, ...] = ("-m", "dcmh")) -> subprocess.Popen[str]:
    """Start a command in its own process."""
    environment = os.environ | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


def write_photos(folder: Path, count: int = 40, *, header: str = "file,text,labels") -> Path:
    """A folder of photos with captions.csv: the first toy items."""
    folder.mkdir(parents=True, exist_ok=True)
    data = dcmh.load_dataset("toy").take(np.arange(count))
    lines = [header]
    for row, (pixels, text) in enumerate(zip(data.image.values, data.text.values, strict=True)):
        Image.fromarray(pixels).save(folder / f"{row:03}.png")
        labels = ";".join(name for name, there in zip(data.label_names, data.labels[row], strict=True) if there)
        lines.append(f"{row:03}.png,{text},{labels}" if "labels" in header else f"{row:03}.png,{text}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return folder


def left_behind(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
