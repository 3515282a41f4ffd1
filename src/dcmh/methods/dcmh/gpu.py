"""Decoded training pictures: kept on the GPU, in memory, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dcmh.data.columns import Images
from dcmh.inputs.decoding import SIZE, decoded_batches
from dcmh.inputs.features import run, takes_encoder
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
        roads = self._roads
        with ThreadPoolExecutor(AHEAD) as pool:
            ahead = [pool.submit(roads[i].send, batch, self._bytes) for i, batch in enumerate(here[:AHEAD])]
            for i in range(len(here)):
                pixels, arrived = ahead.pop(0).result()
                if i + AHEAD < len(here):
                    ahead.append(pool.submit(roads[i % AHEAD].send, here[i + AHEAD], self._bytes))
                if arrived is not None:
                    torch.cuda.current_stream(self.device).wait_event(arrived)
                    pixels.record_stream(torch.cuda.current_stream(self.device))
                yield pixels

    def _bytes(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, 224, 224, 3), uint8, from wherever the pixels are."""
        if self.kept is None:
            (_, pixels), *_ = decoded_batches(self.column, rows.tolist(), batch=len(rows))
            return torch.from_numpy(pixels) if out is None else out.copy_(torch.from_numpy(pixels))
        if self.kept.is_cuda:
            return self.kept[rows]
        # By NumPy: PyTorch shares each picture out among all cores, which takes longer than to copy it.
        memory = None if out is None else out.numpy()
        taken = np.take(self.kept.numpy(), rows.cpu().numpy(), axis=0, out=memory, mode="clip")
        return torch.from_numpy(taken) if out is None else out

    @cached_property
    def _roads(self) -> list[Road]:
        return [Road(self.device) for _ in range(AHEAD)]


class Road:
    """One of several on which batches come to the device: to a GPU through pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory: Tensor | None = None
        self.left: torch.cuda.Event | None = None  # when the last batch had left the memory

    def send(
        self, rows: Tensor, load: Callable[[Tensor, Tensor | None], Tensor]
    ) -> tuple[Tensor, torch.cuda.Event | None]:
        """A batch on its way, and the event of its arrival."""
        if self.stream is None:
            return load(rows, None).to(self.device), None
        if self.left is not None:
            self.left.synchronize()
        if self.memory is None or len(self.memory) != len(rows):
            self.memory = torch.empty((len(rows), SIZE, SIZE, 3), dtype=torch.uint8, pin_memory=True)
        load(rows, self.memory)
        with torch.cuda.stream(self.stream):
            sent = self.memory.to(self.device, non_blocking=True)
            self.left = torch.cuda.Event()
            self.left.record()
        return sent, self.left
