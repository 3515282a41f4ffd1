"""Features of pictures from a frozen, pre-trained image network or encoder, cached on disk under the hash of the content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dcmh import networks
from dcmh.data.columns import Images
from dcmh.errors import DataError, ImageError, ParameterError
from dcmh.inputs import encoders, images
from dcmh.inputs.decoding import BATCH, OnError, decoded_batches, unreadable
from dcmh.inputs.encoders import ImageEncoder
from dcmh.inputs.images import Framing
from dcmh.networks import efficientnet
from dcmh.networks.hashing import PixelNetwork
from dcmh.util import device as devices
from dcmh.util.cache import VectorStore

Progress = Callable[[int, int], None]  # pictures done, pictures in total

BATCH_ON_GPU = 256  # with fewer, launching kernels takes longer than running them

_on_gpu = threading.Lock()  # a GPU's precision is set for the whole program: one thread at a time


def extract(
    column: Images,
    network: str = "efficientnet-lite0",
    *,
    weights: Path | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    on_error: OnError | None = None,
) -> NDArray[np.float32]:
    """Features of all pictures, shape (pictures, features); zeros for missing pictures.

    A picture that cannot be read is an error, unless `on_error` is given: then its features are zeros. On a CPU with oneDNN
    the features of a picture do not depend on batches or threads (see `efficientnet.Encoder`), so training, indexing and
    encoding share one cache. Those of a GPU, which go into the same cache, differ in the last digits.
    """
    store = FeatureStore(network, weights)
    keys = content_hashes(column, on_error)
    known = store.get([key for key in keys if key is not None])
    missing: dict[bytes, int] = {}  # one row per content: copies are computed once
    for row, key in enumerate(keys):
        if key is not None and key not in known:
            missing.setdefault(key, row)
    if missing:
        known |= _compute(column, missing, network, weights, device, store, progress, on_error)
    features = np.zeros((len(column), width_of(network)), np.float32)
    for row, key in enumerate(keys):
        if key is None:
            continue
        if key in known:
            features[row] = known[key]
        elif on_error is not None and missing[key] != row:  # a copy of a picture that could not be read
            on_error(row, "the same bytes as another unreadable file")
    return features


def _compute(
    column: Images,
    missing: dict[bytes, int],
    network: str,
    weights: Path | None,
    device: str,
    store: VectorStore,
    progress: Progress | None,
    on_error: OnError | None,
) -> dict[bytes, NDArray[np.float32]]:
    target = devices.resolve(device)
    backbone = frozen(network, weights, target)
    computed: dict[bytes, NDArray[np.float32]] = {}
    key_of = {row: key for key, row in missing.items()}
    done, batch, framing = 0, batch_on(target), framing_of(network)
    for rows, pixels in decoded_batches(column, list(missing.values()), batch=batch, size=framing, on_error=on_error):
        if len(pixels):
            values = run(backbone, pixels, target)
            entries = [(key_of[row], value) for row, value in zip(rows, values, strict=True)]
            store.put(entries)
            computed.update(entries)
        done = min(done + batch, len(missing))
        if progress:
            progress(done, len(missing))
    return computed


def batch_on(target: torch.device) -> int:
    """The number of pictures that go through a network at once."""
    return BATCH_ON_GPU if target.type == "cuda" else BATCH


def width_of(network: str) -> int:
    """The number of features of an image network or encoder."""
    return networks.features_of(network) if network in networks.BACKBONES else encoders.image_encoder(network).width


def framing_of(network: str) -> Framing:
    """How pictures become the pixels that enter an image network or encoder."""
    if network in networks.BACKBONES:
        return Framing(networks.size_of(network))
    return encoders.image_encoder(network).framing


def frozen(network: str, weights: Path | None, target: torch.device) -> nn.Module | ImageEncoder:
    """The image network for `run`: pre-trained, in evaluation mode, on the device."""
    if network not in networks.BACKBONES:
        encoder = encoders.image_encoder(network)
        if hasattr(encoder, "to"):
            encoder.to(target)
        return encoder
    backbone, _ = networks.backbone(network, weights=weights)
    if isinstance(backbone, efficientnet.EfficientNetLite):
        if has_encoder(network, target):
            return efficientnet.Encoder(backbone)
        backbone = efficientnet.fuse(backbone)
    return backbone.eval().to(target, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def has_encoder(network: str, target: torch.device) -> bool:
    """Whether `frozen` gives the fast encoder, whose features do not depend on batches or threads."""
    return network in networks.LITE and target.type == "cpu"


def run(backbone: nn.Module | ImageEncoder, pixels: NDArray[np.uint8], target: torch.device) -> NDArray[np.float32]:
    """Features of decoded pictures (n, height, width, 3), uint8.

    On a CPU each core takes a few of them at a time. Everything is float32: bfloat16 is faster on CPUs that support it, but
    codes would then depend on the CPU, and 0.6 % of their bits change (benchmarks/encode.py). Nor is tf32 used on a GPU.
    """

    if not isinstance(backbone, nn.Module):
        return backbone.encode_images(pixels)

    @torch.inference_mode()
    def outputs(block: NDArray[np.uint8]) -> NDArray[np.float32]:
        lock = _on_gpu if target.type == "cuda" else contextlib.nullcontext()
        with lock, devices.current(target), devices.arithmetic("float32", target, tried=False):
            return np.asarray(backbone(to_batch(block, target)).float().cpu().numpy(), np.float32)

    if not isinstance(backbone, efficientnet.Encoder) or len(pixels) < 2:
        return outputs(pixels)
    threads = torch.get_num_threads()
    size = min(backbone.BATCH, -(-len(pixels) // threads))
    blocks = [pixels[start : start + size] for start in range(0, len(pixels), size)]
    if threads == 1:
        return np.concatenate([outputs(block) for block in blocks])
    try:
        with ThreadPoolExecutor(threads, "dcmh-network", initializer=devices.take_one_thread) as pool:
            return np.concatenate(list(pool.map(outputs, blocks)))
    finally:
        torch.set_num_threads(threads)  # a thread's own setting also applies to threads started later


@torch.inference_mode()
def outputs_of(
    network: nn.Module, values: Images | NDArray[np.float32], bits: int, target: torch.device
) -> NDArray[np.float32]:
    """Outputs (n, bits) of a hash network in evaluation mode for pictures or vectors (n, width); zeros for missing pictures."""
    outputs = np.zeros((len(values), bits), np.float32)
    if isinstance(values, Images):
        assert isinstance(network, PixelNetwork)
        rows = np.flatnonzero(values.observed).tolist()
        for numbers, pixels in decoded_batches(values, rows, batch=batch_on(target), size=network.size):
            outputs[numbers] = _of_pixels(network, pixels, target).cpu().numpy()
    else:
        for start in range(0, len(values), 2048):
            vectors = torch.from_numpy(values[start : start + 2048]).to(target)
            outputs[start : start + 2048] = network(vectors).cpu().numpy()
    return outputs


def _of_pixels(network: PixelNetwork, pixels: NDArray[np.uint8], target: torch.device) -> Tensor:
    """Outputs (n, bits) of decoded pictures; on a CPU with the fast encoder, if the network supports it."""
    if not takes_encoder(network, target):
        return network(to_batch(pixels, target))  # type: ignore[no-any-return]
    if not network.encoder:
        network.encoder.append(efficientnet.Encoder(network.backbone))  # type: ignore[arg-type]
    return network.head(torch.from_numpy(run(network.encoder[0], pixels, target)))  # type: ignore[no-any-return]


def takes_encoder(network: PixelNetwork, target: torch.device) -> bool:
    """Whether the fast encoder can run its image network: an EfficientNet, in float32 on a CPU."""
    single = next(network.backbone.parameters()).dtype == torch.float32 and not network.reduced
    return single and target.type == "cpu" and isinstance(network.backbone, efficientnet.EfficientNetLite)


def to_batch(pixels: NDArray[np.uint8] | Tensor, target: torch.device) -> Tensor:
    """Pictures (n, height, width, 3), uint8, as the input of networks: float (n, 3, height, width), channels last."""
    batch = torch.as_tensor(pixels).to(target, non_blocking=True).permute(0, 3, 1, 2)
    return batch.to(torch.float32, memory_format=torch.channels_last)


def content_hashes(column: Images, on_error: OnError | None = None) -> list[bytes | None]:
    """The hash of each picture's content, None if missing.

    A picture that cannot be read is an error, unless `on_error` is given: then its hash is None.
    """

    def content_hash(row: int) -> bytes | None:
        try:
            source = column.source(row)
            if isinstance(source, Path):
                with contextlib.suppress(OSError):  # raised by `images.content_hash` below
                    status = source.stat()
                    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                    return _file_hash(source, state)
            return None if source is None else images.content_hash(source)
        except ImageError as error:
            if on_error is None:
                raise unreadable(column, row, error) from error
            on_error(row, str(error))
            return None

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(content_hash, range(len(column))))


@functools.lru_cache(maxsize=1 << 18)
def _file_hash(path: Path, state: tuple[int, ...]) -> bytes:
    """The hash of a file's content, computed once for an unchanged file: training and evaluation need it several times."""
    return images.content_hash(path)


class FeatureStore(VectorStore):
    """The cache from content hash to features, one file for each network and its weights."""

    def __init__(self, network: str, weights: Path | None = None) -> None:
        name = network.partition(":")[0] if network not in networks.BACKBONES else network
        super().__init__("features", f"{name}-{_digests(network, weights)[0]}")


def weights_digest(network: str, weights: Path | None) -> str:
    """A hash of the weights file, which tells a model whether a network is the one that it was trained with."""
    return _digests(network, weights)[1]


def _digests(network: str, weights: Path | None) -> tuple[str, str]:
    """A short hash of the weights file, for the name of the cache, and a long one."""
    if network not in networks.BACKBONES:
        sha256 = encoders.image_encoder(network).sha256
        return sha256[:16], sha256
    path = weights or networks.imagenet_weights(network)
    if path is None:
        raise ParameterError(f"{network} needs its ImageNet weights. Give their file with --weights.")
    try:
        status = os.stat(path)
        return _hash_file(Path(path), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise DataError(f"Cannot read the weights {path}: {error.strerror}. Give the path of the file.") from error


@functools.lru_cache(maxsize=8)
def _hash_file(path: Path, mtime: int, size: int) -> tuple[str, str]:
    short, long = hashlib.blake2b(digest_size=4), hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            short.update(block)
            long.update(block)
    return short.hexdigest(), long.hexdigest()
