"""How long large data sets take to load, and how much memory: official text formats, and pictures in one HDF5 file.

    python benchmarks/data.py                  # full size: about 700 MB of files in a temporary folder
    python benchmarks/data.py --share 0.1      # a tenth of the rows
    python benchmarks/data.py --parquet        # a million rows of Parquet only: results/parquet.md

Random files are written in the layout of NUS-WIDE's release: 269,648 photos, 81 files of labels, 1,000 tags per photo, 500
visual words. Each measurement runs in its own process; memory is its peak (ru_maxrss). Prints Markdown and
writes results/data.md beside this file (--out for another folder).
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet

from dcmh.data.benchmarks.nuswide import ALL_CONCEPTS, PHOTOS, VISUAL_WORDS, WORDS

Row = tuple[str, str, str]  # what, measured, goal
KEPT = 186_577 / 269_648  # share of the photos that have one of the ten concepts
START = """
import resource, sys, time
import numpy as np
import dcmh
"""
BEGIN = """
began, used = time.perf_counter(), time.process_time()
"""
END = """
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print("MEASURED", len(data), round(seconds, 2), round(time.process_time() - used, 2), round(peak))
"""


def write_nuswide(folder: Path, photos: int) -> None:
    """Labels such that the ten most frequent concepts cover the paper's share of the photos; tags and visual words."""
    generator = np.random.default_rng(0)
    for name in ("Groundtruth/AllLabels", "ImageList", "NUS_WID_Tags"):
        (folder / name).mkdir(parents=True)
    frequent = 1 - (1 - KEPT) ** 0.1
    for place, concept in enumerate(ALL_CONCEPTS):
        labels = generator.random(photos) < (frequent if place < 10 else 0.01)
        text = np.full((photos, 2), ord("\n"), np.uint8)
        text[:, 0] = labels + ord("0")
        (folder / f"Groundtruth/AllLabels/Labels_{concept}.txt").write_bytes(text.tobytes())
    names = "".join(f"{ALL_CONCEPTS[row % 81]}\\{row:06}_{row}.jpg\r\n" for row in range(photos))
    (folder / "ImageList/Imagelist.txt").write_text(names, newline="")
    with (folder / "NUS_WID_Tags/AllTags1k.txt").open("wb") as file:
        for start in range(0, photos, 20_000):
            rows = min(20_000, photos - start)
            text = np.full((rows, 2 * WORDS + 1), ord(" "), np.uint8)
            text[:, : 2 * WORDS : 2] = (generator.random((rows, WORDS), np.float32) < 0.006) + ord("0")
            text[:, -1] = ord("\n")
            file.write(text.tobytes())


def write_bags(folder: Path, photos: int) -> None:
    """Visual words: mostly zeros, some counts of one or two digits."""
    generator = np.random.default_rng(1)
    with (folder / "BoW_int.dat").open("w") as file:
        for start in range(0, photos, 5_000):
            counts = generator.poisson(0.6, (min(5_000, photos - start), VISUAL_WORDS))
            counts[:, ::50] *= 12
            file.write("".join(" ".join(map(str, row)) + " \n" for row in counts.tolist()))


def write_pictures(path: Path, count: int) -> None:
    """FLICKR-25K.mat's layout: (N, 3, 224, 224), compressed; the pictures are smooth, so that they compress somewhat."""
    generator = np.random.default_rng(2)
    with h5py.File(path, "w") as file:
        made = file.create_dataset("images", (count, 3, 224, 224), np.uint8, chunks=(1, 3, 224, 224), compression="lzf")
        ramp = np.add.outer(np.arange(224), np.arange(224)) // 2
        for row in range(count):
            made[row] = (ramp + generator.integers(0, 32, (3, 1, 1))).astype(np.uint8)
        file["YAll"] = (generator.random((1386, count)) < 0.01).astype(np.float64)
        file["LAll"] = np.eye(24)[:, generator.integers(0, 24, count)]


def write_parquet(path: Path, rows: int, width: int) -> None:
    """Ids, captions of ten words, two of 80 labels, and vectors; in row groups of 50,000."""
    generator = np.random.default_rng(3)
    words = np.array(
        ["dog", "cat", "boat", "red", "green", "small", "large", "house", "tree", "car", "street", "beach"]
    )
    writer = None
    for start in range(0, rows, 50_000):
        count = min(50_000, rows - start)
        table = pyarrow.table(
            {
                "id": [f"item {row}" for row in range(start, start + count)],
                "image": pyarrow.FixedSizeListArray.from_arrays(generator.random(count * width, np.float32), width),
                "text": [" ".join(row) for row in words[generator.integers(0, len(words), (count, 10))]],
                "labels": [[f"label {a}", f"label {b}"] for a, b in generator.integers(0, 80, (count, 2))],
                "year": generator.integers(1990, 2025, count),
            }
        )
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def measure_parquet(share: float) -> list[Row]:
    """A million rows with vectors of two widths."""
    rows: list[Row] = []
    for width in (128, 512):
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "rows.parquet"
            write_parquet(file, round(1_000_000 * share), width)
            size = file.stat().st_size / 1e6
            items, seconds, peak = measured("data = dcmh.load_dataset(sys.argv[1])", file)
        what = f"load {items:,} rows of Parquet with vectors of {width} dimensions ({size:,.0f} MB)"
        rows.append((what, f"{seconds}, {peak:,} MiB", "under 4 GB (3,815 MiB)"))
    return rows


def measured(script: str, *arguments: object, prepare: str = "") -> tuple[int, str, int]:
    """Run a script in a process of its own; items, seconds, and the most memory it held, in MiB.

    `prepare` is not timed.
    """
    whole = START + prepare + BEGIN + script + END
    done = subprocess.run(
        [sys.executable, "-c", whole, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    items, seconds, used, peak = done.stdout.split("MEASURED")[1].split()
    return int(items), f"{float(seconds):.1f} s ({float(used):.1f} s of CPU)", int(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the rows and pictures")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--parquet", action="store_true", help="only a million rows of Parquet")
    given = parser.parse_args()
    if given.parquet:
        write_results("Loading Parquet", "--parquet", given, measure_parquet(given.share), given.out / "parquet.md")
        return
    photos, pictures = round(PHOTOS * given.share), round(12_000 * given.share)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_nuswide(folder / "nus", photos)
        size = sum(file.stat().st_size for file in (folder / "nus").rglob("*") if file.is_file())
        items, seconds, peak = measured('data = dcmh.load_dataset("nuswide:" + sys.argv[1])', folder / "nus")
        rows.append(
            (
                f"tags and labels of {items:,} points, out of {photos:,} rows ({size / 1e6:,.0f} MB of text)",
                f"{seconds}, {peak:,} MiB",
                "under 10 s, under 2,048 MiB",
            )
        )
        write_bags(folder / "nus", photos)
        items, seconds, peak = measured('data = dcmh.load_dataset("nuswide:" + sys.argv[1])', folder / "nus")
        rows.append((f"the same with {VISUAL_WORDS} visual words", f"{seconds}, {peak:,} MiB", ""))
        write_pictures(folder / "f.mat", pictures)
        raw = pictures * 3 * 224 * 224 >> 20
        rows.append(
            (
                f"load a file of {pictures:,} pictures 224 x 224 ({raw:,} MiB of pixels)",
                "{1}, {2:,} MiB".format(*measured("data = dcmh.load_dataset(sys.argv[1])", folder / "f.mat")),
                "",
            )
        )
        torch = "from dcmh.inputs.decoding import decoded_batches"
        walk = """
data = dcmh.load_dataset(sys.argv[1])
order = np.random.default_rng(0).permutation(len(data)).tolist()
for rows, pixels in decoded_batches(data.image, order, batch=128):
    pass
"""
        items, seconds, peak = measured(walk, folder / "f.mat", prepare=torch)
        rows.append(
            (
                "decode all of them in random order, in batches of 128",
                f"{seconds}, {peak:,} MiB",
                "memory that does not grow with the file",
            )
        )
        items, seconds, peak = measured(
            walk.replace("tolist()", "tolist()[: len(data) // 10]"), folder / "f.mat", prepare=torch
        )
        rows.append(("decode a tenth of them in the same way", f"{seconds}, {peak:,} MiB", ""))
    write_results("Loading large data sets", "", given, rows, given.out / "data.md")


def write_results(title: str, option: str, given: argparse.Namespace, rows: list[Row], file: Path) -> None:
    """Print a table and write it to a file."""
    table = "\n".join(["| what | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)])
    library = f"pyarrow {pyarrow.__version__}" if option else f"h5py {h5py.__version__}"
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, {library}, {platform.machine()}"
    command = f"python benchmarks/data.py {option}{'' if given.share == 1 else f' --share {given.share}'}".rstrip()
    text = f"# {title}\n\n    {command}\n\n{versions}\n\n{table}\n"
    print(text)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
