"""Milliseconds to gather a batch of 128 pictures, 19 MB, from many in memory, which streaming to a GPU waits for.

python benchmarks/gather.py --threads 16        PyTorch's threads, as on a machine with that many cores
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from dcmh.data.columns import PICTURE_SIZE, Images
from dcmh.methods.dcmh import gpu

BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeat", type=int, default=60)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    kept = torch.randint(0, 256, (chosen.pictures, PICTURE_SIZE, PICTURE_SIZE, 3), dtype=torch.uint8)
    column = gpu.Pixels(Images([]), torch.device("cpu"))
    column.decoded = kept
    memory = [torch.zeros(BATCH, PICTURE_SIZE, PICTURE_SIZE, 3, dtype=torch.uint8) for _ in range(gpu.PREFETCH)]
    batches = torch.randint(0, chosen.pictures, (chosen.repeat, BATCH))
    ways: dict[str, Callable[[int], object]] = {
        "indexed": lambda i: kept[batches[i]],
        "index_select into memory": lambda i: torch.index_select(kept, 0, batches[i], out=memory[i % gpu.PREFETCH]),
        "dcmh.methods.dcmh.gpu": lambda i: column._bytes(batches[i], memory[i % gpu.PREFETCH]),
    }
    for name, gather in ways.items():
        for workers in (1, gpu.PREFETCH):
            with ThreadPoolExecutor(workers) as pool:
                began = time.perf_counter()
                list(pool.map(gather, range(chosen.repeat)))
                took = (time.perf_counter() - began) / chosen.repeat
            print(f"{name}, {workers} at a time: {1e3 * took:.2f} ms a batch", flush=True)


if __name__ == "__main__":
    main()
