"""What encoding a collection will take, from a measured sample of it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcmh import codes
from dcmh.search.blocks import Blocks, Pool
from dcmh.search.encode import Encoders

SAMPLE = 128  # items per worker and round; the first of two rounds loads the model and is not counted


@dataclass(frozen=True)
class Plan:
    """Blocks, workers, and the expected time and storage."""

    items: int
    left: int
    blocks: int
    blocks_left: int
    nodes: int
    workers: int
    cpus: int
    gpus: int
    worker_bytes: int  # resident memory of the process that used most
    sampled: int
    failed: int
    rate: float
    seconds: float
    block_bytes: int
    code_bytes: int  # with an id of 8 bytes for each
    fine_bytes: int

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def measure(blocks: Blocks, pool: Pool) -> Plan:
    """Encode random items of the collection, without keeping them."""
    missing = blocks.missing()
    left = sum(len(blocks.rows[number]) for number in missing)
    capacity = pool.capacity(blocks.work.device)
    rows = np.concatenate([blocks.rows[number] for number in missing or blocks.rows])
    size = min(len(rows), 2 * SAMPLE * capacity.actors)
    chosen = np.sort(
        np.random.default_rng().choice(rows, size, replace=False)
    )  # others each time: these are cached now
    parts = [chosen[start :: 2 * capacity.actors] for start in range(min(len(chosen), 2 * capacity.actors))]
    tasks = [blocks.task(number, part) for number, part in enumerate(parts)]
    began, moments, results = time.monotonic(), [], []
    for result in pool.run(blocks.work, tasks, len(tasks)):
        moments.append(time.monotonic())
        results.append(result)
    loaded = capacity.actors if capacity.actors < len(results) else 0  # results after which every worker has its model
    seconds = moments[-1] - (moments[loaded - 1] if loaded else began)
    rate = sum(result.items for result in results[loaded:]) / max(1e-3, seconds)
    sampled = sum(result.items for result in results)
    written = sum(len(result.file) for result in results) / sampled
    encoders = Encoders(blocks.work.model)
    fine = 0 if encoders.fine is None else encoders.fine.dimensions + 8
    modalities = 1 if blocks.work.joint else len(blocks.modalities)
    return Plan(
        items=blocks.total,
        left=left,
        blocks=len(blocks.rows),
        blocks_left=len(missing),
        nodes=capacity.nodes,
        workers=capacity.actors,
        cpus=capacity.cpus,
        gpus=capacity.gpus,
        worker_bytes=max(result.memory for result in results),
        sampled=sampled,
        failed=sum(result.failed for result in results),
        rate=rate,
        seconds=left / rate,
        block_bytes=round(written * blocks.total),
        code_bytes=blocks.total * modalities * (codes.bytes_of(encoders.bits) + 8),
        fine_bytes=blocks.total * modalities * fine,
    )
