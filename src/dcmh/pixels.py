"""Decoded training pictures: kept on the GPU, in memory, or nowhere."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dcmh.data.columns import Images
from dcmh.decoding import SIZE, decoded_batches
from dcmh.features import run, takes_encoder
from dcmh.networks.efficientnet import Encoder
from dcmh.networks.hashing import PixelNetwork

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 16 << 30  # bytes
# Bytes of decoded training pictures kept by the processes of this machine; beyond that each batch is decoded anew.
PIXELS_IN_MEMORY = MEMORY // 4 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
PIXELS_ON_GPU = 8 << 30
AHEAD = 3  # batches on their way to the GPU


class Pixels:
    """Decoded training pictures as bytes: on the GPU if they fit, else in memory, else decoded anew for each batch.

    In memory they take at most PIXELS_IN_MEMORY bytes, on a GPU at most PIXELS_ON_GPU. While one batch is learned from, the
    next ones are on their way.
    """

    def __init__(self, column: Images, device: torch.device) -> None:
        self.column = column
        self.device = device
        self.kept: Tensor | None = None
        size = len(column) * SIZE * SIZE * 3
        if size <= PIXELS_IN_MEMORY:
            kept = np.zeros((len(column), SIZE, SIZE, 3), np.uint8)
            for rows, pixels in decoded_batches(column, np.flatnonzero(column.observed).tolist()):
                kept[rows] = pixels
            self.kept = torch.from_numpy(kept)
            if device.type == "cuda" and size <= min(PIXELS_ON_GPU, torch.cuda.mem_get_info(device)[0] // 2):
                self.kept = self.kept.to(device)

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Pixels (n, 3, 224, 224), bytes, channels last, of some rows, on the device."""
        return self._bytes(rows).to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    @torch.no_grad()
    def features(self, network: PixelNetwork) -> Tensor:
        """What the image network makes of all pictures, (n, width); zeros where there is none."""
        network.eval()
        rows = torch.from_numpy(np.flatnonzero(self.column.observed)).to(self.device)
        parts = rows.split(256)
        if takes_encoder(network, self.device):
            encoder = Encoder(network.backbone)  # type: ignore[arg-type]
            found = torch.cat([torch.from_numpy(run(encoder, self._bytes(p).numpy(), self.device)) for p in parts])
        else:
            found = torch.cat([network.features(self[part]) for part in parts])
        return found.new_zeros(len(self), found.shape[1]).index_copy_(0, rows, found)

    def stream(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The bytes of each batch, (n, 224, 224, 3), on the device."""
        if self.kept is not None and self.kept.device.type == self.device.type:
            yield from (self._bytes(batch) for batch in batches)
            return
        here = torch.cat(list(batches)).cpu().split([len(batch) for batch in batches])
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(self._sent, batch) for batch in here[:AHEAD]]
            for i in range(len(here)):
                pixels, arrived = ahead.pop(0).result()
                if i + AHEAD < len(here):
                    ahead.append(pool.submit(self._sent, here[i + AHEAD]))
                if arrived is not None:
                    torch.cuda.current_stream().wait_event(arrived)
                    pixels.record_stream(torch.cuda.current_stream())
                yield pixels

    def _bytes(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, 224, 224, 3), uint8, from wherever the pixels are."""
        if self.kept is None:
            (_, pixels), *_ = decoded_batches(self.column, rows.tolist(), batch=len(rows))
            return torch.from_numpy(pixels) if out is None else out.copy_(torch.from_numpy(pixels))
        if self.kept.is_cuda:
            return self.kept[rows]
        return torch.index_select(self.kept, 0, rows.cpu(), out=out)  # ten times as fast as indexing, on a CPU

    def _sent(self, rows: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """A batch, whose rows are numbers in memory, on its way to the device; and the event of its arrival there."""
        if self.device.type != "cuda":
            return self._bytes(rows), None
        return self._road.send(rows, self._bytes)

    @cached_property
    def _road(self) -> Road:
        return Road(self.device)


class Road:
    """To the GPU: a stream of its own, and pinned memory that batches go through in turn."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.waiting: deque[tuple[Tensor, torch.cuda.Event]] = deque()  # memory, and when what it held had left it

    def send(self, rows: Tensor, load: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, torch.cuda.Event]:
        shape = (len(rows), SIZE, SIZE, 3)
        if len(self.waiting) < AHEAD:
            memory = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        else:
            memory, left = self.waiting.popleft()
            left.synchronize()
            if memory.shape != shape:  # a run's batches are of one size
                memory = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        load(rows, memory)
        with torch.cuda.stream(self.stream):
            sent = memory.to(self.device, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self.waiting.append((memory, arrived))
        return sent, arrived
