"""What training needs on a GPU: decoded pictures kept there or streamed to it, and steps recorded as CUDA graphs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from dcmh.data.columns import PICTURE_SIZE, Images
from dcmh.inputs.decoding import decoded_batches
from dcmh.inputs.features import run, takes_encoder
from dcmh.networks.efficientnet import Encoder
from dcmh.networks.hashing import PixelNetwork

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 16 << 30  # bytes
# Bytes of decoded training pictures kept by the processes of this machine; beyond that each batch is decoded again.
PIXELS_IN_MEMORY = MEMORY // 4 // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
PIXELS_ON_GPU = 8 << 30
PREFETCH = 3  # batches on their way to the GPU

Step = Callable[[Tensor, Tensor], None]  # of a mini-batch: inputs, points


class Pixels:
    """Decoded training pictures as bytes: on the GPU if they fit, else in memory, else decoded again for each batch.

    In memory they take up to PIXELS_IN_MEMORY bytes, on a GPU up to PIXELS_ON_GPU. While the network learns from one batch, the
    next ones are loaded.
    """

    def __init__(self, column: Images, device: torch.device, size: int = PICTURE_SIZE) -> None:
        self.column = column
        self.device = device
        self.size = size
        self.decoded: Tensor | None = None
        shape = (len(column), size, size, 3)
        in_bytes = math.prod(shape)
        if in_bytes <= PIXELS_IN_MEMORY:
            decoded = np.zeros(shape, np.uint8)
            for rows, pixels in decoded_batches(column, np.flatnonzero(column.observed).tolist(), size=size):
                decoded[rows] = pixels
            self.decoded = torch.from_numpy(decoded)
            if device.type == "cuda" and in_bytes <= min(PIXELS_ON_GPU, torch.cuda.mem_get_info(device)[0] // 2):
                self.decoded = self.decoded.to(device)

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Pixels (n, 3, size, size), bytes, channels last, of some rows, on the device."""
        return self._bytes(rows).to(self.device, non_blocking=True).permute(0, 3, 1, 2)

    @torch.no_grad()
    def features(self, network: PixelNetwork) -> Tensor:
        """The image network's features of all pictures, (n, width); zeros where there is no picture."""
        network.eval()
        rows = torch.from_numpy(np.flatnonzero(self.column.observed)).to(self.device)
        blocks = rows.split(256)
        if takes_encoder(network, self.device):
            encoder = Encoder(network.backbone)  # type: ignore[arg-type]
            parts = [torch.from_numpy(run(encoder, self._bytes(block).numpy(), self.device)) for block in blocks]
        else:
            parts = [network.features(self[block]) for block in blocks]
        features = torch.cat(parts)
        return features.new_zeros(len(self), features.shape[1]).index_copy_(0, rows, features)

    def stream(self, batches: Sequence[Tensor]) -> Iterator[Tensor]:
        """The bytes of each batch, (n, size, size, 3), on the device."""
        if self.decoded is not None and self.decoded.device.type == self.device.type:
            yield from (self._bytes(batch) for batch in batches)
            return
        on_cpu = torch.cat(list(batches)).cpu().split([len(batch) for batch in batches])
        buffers = self._buffers
        with ThreadPoolExecutor(PREFETCH) as pool:
            loading = [pool.submit(buffers[i].send, batch, self._bytes) for i, batch in enumerate(on_cpu[:PREFETCH])]
            for i in range(len(on_cpu)):
                pixels, arrived = loading.pop(0).result()
                if i + PREFETCH < len(on_cpu):
                    loading.append(pool.submit(buffers[i % PREFETCH].send, on_cpu[i + PREFETCH], self._bytes))
                if arrived is not None:
                    torch.cuda.current_stream(self.device).wait_event(arrived)
                    pixels.record_stream(torch.cuda.current_stream(self.device))
                yield pixels

    def _bytes(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, size, size, 3), uint8, from wherever the pixels are."""
        if self.decoded is None:
            (_, pixels), *_ = decoded_batches(self.column, rows.tolist(), batch=len(rows), size=self.size)
            return torch.from_numpy(pixels) if out is None else out.copy_(torch.from_numpy(pixels))
        if self.decoded.is_cuda:
            return self.decoded[rows]
        # By NumPy: PyTorch splits each picture among all cores, which takes longer than copying it.
        memory = None if out is None else out.numpy()
        taken = np.take(self.decoded.numpy(), rows.cpu().numpy(), axis=0, out=memory, mode="clip")
        return torch.from_numpy(taken) if out is None else out

    @cached_property
    def _buffers(self) -> list[PinnedBuffer]:
        return [PinnedBuffer(self.device, self.size) for _ in range(PREFETCH)]


class PinnedBuffer:
    """Sends batches to the device: to a GPU through pinned memory, on a stream of its own."""

    def __init__(self, device: torch.device, size: int = PICTURE_SIZE) -> None:
        self.device = device
        self.size = size
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.memory: Tensor | None = None
        self.sent: torch.cuda.Event | None = None  # set once the last batch has left the memory

    def send(
        self, rows: Tensor, load: Callable[[Tensor, Tensor | None], Tensor]
    ) -> tuple[Tensor, torch.cuda.Event | None]:
        """A batch on its way to the device, and the event of its arrival."""
        if self.stream is None:
            return load(rows, None).to(self.device), None
        if self.sent is not None:
            self.sent.synchronize()
        if self.memory is None or len(self.memory) != len(rows):
            self.memory = torch.empty((len(rows), self.size, self.size, 3), dtype=torch.uint8, pin_memory=True)
        load(rows, self.memory)
        with torch.cuda.stream(self.stream):
            pixels = self.memory.to(self.device, non_blocking=True)
            self.sent = torch.cuda.Event()
            self.sent.record()
        return pixels, self.sent


class StepRecorder:
    """Records a gradient step once as a CUDA graph and replays it as a whole: its hundreds of small kernels need not be launched
    one by one."""

    WARM_UP = 3  # steps before the recording, in which libraries choose their kernels

    def __init__(self, *, record: bool = False) -> None:
        self.record = record
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def recorded(self, step: Step) -> Step:
        """The step itself, or on a GPU a function that replays its recording."""
        return partial(self._replay, step) if self.record else step

    def _replay(self, step: Step, inputs: Tensor, batch: Tensor) -> None:
        if self.taken < self.WARM_UP:
            self._on_side_stream(step, inputs, batch)
        else:
            if self.graph is None:
                self.inputs, self.batch = inputs.clone(), batch.clone()
                self.graph = torch.cuda.CUDAGraph()
                # Other threads, such as those that send the next batches, must not disturb the recording.
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    step(self.inputs, self.batch)
            else:
                self.inputs.copy_(inputs)
                self.batch.copy_(batch)
            self.graph.replay()
        self.taken += 1

    def reset(self) -> None:
        """Drop the recorded graph; the step has changed."""
        self.graph, self.taken = None, 0

    def _on_side_stream(self, step: Step, inputs: Tensor, batch: Tensor) -> None:
        """The steps before a recording must run on a stream other than the default one."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(inputs, batch)
        torch.cuda.current_stream().wait_stream(side)


def rate_on_gpu(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Keep the learning rate on the GPU if the parameters are there, so that a recorded step reads its current value."""
    for group in optimiser.param_groups:
        if group["params"][0].is_cuda:
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate; a group with a `share` takes that share of it."""
    for group in optimiser.param_groups:
        value = rate * group.get("share", 1.0)
        if isinstance(group["lr"], Tensor):  # on a GPU, where a recorded step reads it
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def channels_last(network: nn.Module) -> nn.Module:
    """The network with its convolution weights in the memory order in which pixels come."""
    return network.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]
