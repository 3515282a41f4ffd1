"""Which device trains and encodes, and how precisely: `auto` takes a GPU when there is one."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

import torch

from dcmh.errors import DeviceError

PRECISIONS = ("auto", "bfloat16", "tf32", "float32", "float64")


def resolve(name: str = "auto") -> torch.device:
    """The torch device for auto, cpu, cuda, cuda:1 or mps; the environment variable DCMH_DEVICE stands for auto."""
    if name == "auto":
        name = os.environ.get("DCMH_DEVICE", "auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"There is no device {name!r}. Use --device auto, cpu, or cuda.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = f"sees {torch.cuda.device_count()}" if torch.cuda.is_available() else "sees no CUDA device"
        raise DeviceError(
            f"--device {name}: PyTorch {seen} (torch {torch.__version__}). Use --device cpu, or install a CUDA build."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("--device mps: this machine has no Apple GPU that PyTorch can use. Use --device cpu.")
    return device


def precision(name: str, device: torch.device) -> str:
    """What `auto` means: bfloat16 in image networks and tf32 in products on a GPU, float32 on a CPU."""
    return name if name != "auto" else "bfloat16" if device.type == "cuda" else "float32"


@functools.cache
def has_triton() -> bool:
    """Whether Triton is there and can be loaded. PyTorch for CPUs, and for some systems, comes without it."""
    try:
        import triton  # noqa: F401
    except Exception:  # one that does not fit the machine fails in many ways
        return False
    return True


def current(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Within the block this GPU is the one that kernels are started on; nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def arithmetic(name: str, device: torch.device, *, tried: bool = True) -> Iterator[None]:
    """Set how a GPU multiplies float32 numbers, and whether cuDNN chooses its kernels by trying them; undone at the end.

    Trying pays for a few large convolutions. For EfficientNet's 49 small ones it takes half a minute and gains nothing.
    """
    if device.type != "cuda":
        yield
        return
    fast = precision(name, device) in ("bfloat16", "tf32")
    product, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    before = product.allow_tf32, convolution.allow_tf32, convolution.benchmark
    product.allow_tf32, convolution.allow_tf32, convolution.benchmark = fast, fast, tried
    try:
        yield
    finally:
        product.allow_tf32, convolution.allow_tf32, convolution.benchmark = before
