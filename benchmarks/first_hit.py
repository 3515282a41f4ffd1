"""From a built wheel to the first hit: three commands in an empty environment, over 500 photos without captions.

    make dist
    python benchmarks/first_hit.py dist/dcmh-*.whl                     # made pictures
    python benchmarks/first_hit.py dist/dcmh-*.whl --photos coco12k    # 500 photos of a folder

The commands are pip install, dcmh index and dcmh search. pip takes packages from where it is configured to, in the versions of
constraints.txt; with the CPU build of torch where that is the one it finds. The goal is five minutes on two cores, with the
installation. Prints Markdown and writes results/first_hit.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
GOAL = 300  # seconds
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def make_photos(folder: Path, count: int) -> None:
    """Pictures with the size and about the detail of photos."""
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (48, 64, 3), np.uint8))
        coarse.resize((640, 480), Image.Resampling.BICUBIC).save(folder / f"{number:03}.jpg", quality=90)


def copy_photos(source: Path, folder: Path, count: int) -> None:
    """The first photos of a folder, without captions."""
    photos = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES)[:count]
    if len(photos) < count:
        sys.exit(f"{source} has only {len(photos)} photos; {count} are needed.")
    for path in photos:
        shutil.copy(path, folder)


def size_of(folder: Path) -> int:
    """Bytes on disk."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--photos", type=Path, help="a folder with photos")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="first-hit-") as temporary:
        work = Path(temporary)
        (work / "photos").mkdir()
        if options.photos:
            copy_photos(options.photos, work / "photos", options.count)
        else:
            make_photos(work / "photos", options.count)
        subprocess.run([sys.executable, "-m", "venv", work / "env"], check=True)
        programs = work / "env" / ("Scripts" if os.name == "nt" else "bin")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        clean |= {"DCMH_HOME": str(work / "cache")}
        wheel, constraints = options.wheel.resolve(), ROOT / "constraints.txt"
        commands = (
            (f"pip install {wheel.name}", ["python", "-m", "pip", "install", "-q", "-c", constraints, wheel]),
            ("dcmh index photos", ["dcmh", "index", "photos"]),
            (
                'dcmh search photos.dcmh "a dog on the beach" --paths',
                ["dcmh", "search", "photos.dcmh", "a dog on the beach", "--paths"],
            ),
        )
        rows = []
        for shown, (program, *arguments) in commands:
            began = time.perf_counter()
            done = subprocess.run(
                [programs / program, *arguments], cwd=work, env=clean, stdout=subprocess.PIPE, text=True
            )
            if done.returncode:
                sys.exit(f"{shown}: exit code {done.returncode}")
            rows.append((shown, time.perf_counter() - began))
        first = done.stdout.splitlines()[0]
        total = sum(seconds for _, seconds in rows)
        installed = size_of(work / "env")
        kind = "photos" if options.photos else "made pictures"
        lines = [
            "# From a wheel to the first hit",
            "",
            f"{options.count} {kind} without captions. Python {platform.python_version()}, {platform.machine()}, "
            f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end. The installation takes {installed / 1e9:.2f} GB.",
            "",
            "| command | seconds |",
            "|---|---:|",
            *(f"| `{shown}` | {seconds:.1f} |" for shown, seconds in rows),
            f"| together (goal: under {GOAL}) | {total:.1f} |",
        ]
        print("\n".join(lines))
        print(f"\nThe first hit: {Path(first).name}", file=sys.stderr)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "first_hit.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(total > GOAL)


if __name__ == "__main__":
    main()
