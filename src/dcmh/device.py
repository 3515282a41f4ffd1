"""Which device trains and encodes: `auto` takes a GPU when there is one."""

from __future__ import annotations

import os

import torch

from dcmh.errors import DeviceError


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
