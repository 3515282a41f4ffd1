"""The device that trains and encodes, and its precision: `auto` takes a GPU if there is one."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

import torch

from dcmh.errors import DeviceError

PRECISIONS = ("auto", "bfloat16", "tf32", "float32", "float64")


def resolve(name: str = "auto") -> torch.device:
    """The torch device for auto, cpu, cuda, cuda:1 or mps; for auto, DCMH_DEVICE is used if it is set."""
    if name == "auto":
        name = os.environ.get("DCMH_DEVICE", "auto")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceError(f"There is no device {name!r}. Use --device auto, cpu, or cuda.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        devices = f"sees {torch.cuda.device_count()}" if torch.cuda.is_available() else "sees no CUDA device"
        raise DeviceError(
            f"--device {name}: PyTorch {devices} (torch {torch.__version__}). Use --device cpu, or install a CUDA build."
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("--device mps: this machine has no Apple GPU that PyTorch can use. Use --device cpu.")
    return device


def precision(name: str, device: torch.device) -> str:
    """The precision that a name stands for; auto is bfloat16 on a GPU (tf32 outside of image networks), float32 on a CPU."""
    return name if name != "auto" else "bfloat16" if device.type == "cuda" else "float32"


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed and can be imported. PyTorch for CPUs and for some systems comes without it."""
    try:
        import triton  # noqa: F401
    except Exception:  # an incompatible installation fails in many ways
        return False
    return True


def current(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """A context in which kernels are launched on this GPU; does nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def arithmetic(name: str, device: torch.device, *, tried: bool = True) -> Iterator[None]:
    """A context that sets how a GPU multiplies float32 numbers, and whether cuDNN chooses its kernels by benchmarking.

    Benchmarking pays for a few large convolutions. For EfficientNet's 49 small ones it takes half a minute and gains
    nothing.
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


def take_one_thread() -> None:
    """Let torch compute in the calling thread alone from now on, whatever other threads set.

    In a new thread, torch's first look at the setting replaces it by the process's: so that comes first.
    """
    torch.get_num_threads()
    torch.set_num_threads(1)
