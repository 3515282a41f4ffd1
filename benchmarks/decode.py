"""Pictures per second from files to pixels, in threads and in processes: the options of `dcmh.inputs.decoding`.

python benchmarks/decode.py coco12k
"""

from __future__ import annotations

import argparse
import time

import dcmh
from dcmh.inputs import decoding


def rate(column: dcmh.Images, repeat: int) -> str:
    """The best of some runs over all pictures, starting processes included."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        for _rows, _pixels in decoding.decoded_batches(column, range(len(column))):
            pass
        best = min(best, time.perf_counter() - began)
    return f"{len(column) / best:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--pictures", type=int, default=5000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeat", type=int, default=2)
    chosen = parser.parse_args()
    column = dcmh.load_dataset(chosen.data).image
    column = column.take(range(min(chosen.pictures, len(column))))
    print(
        f"{len(column):,} pictures, {decoding.cores()} processors\n\n| workers | threads | processes |\n|---|---|---|"
    )
    for workers in chosen.workers:
        decoding.MAX_THREADS = decoding.MAX_PROCESSES = workers
        cells = []
        for files in (len(column) + 1, 0):  # too few for processes, enough for them
            decoding.MIN_FILES, decoding.MIN_CORES = files, 1
            cells.append(rate(column, chosen.repeat))
        print(f"| {workers} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
