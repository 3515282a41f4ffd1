"""The GPU's kernels against PyTorch, forwards and backwards: on a GPU where there is one, else by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is there for Linux only")
KERNELS = [f"_{layer}_{way}" for layer in ("relu", "lrn", "pool") for way in ("forward", "backward")]


def test_each_kernel_computes_what_pytorch_does():
    """In a process of its own: whether kernels are interpreted is settled when Triton is imported."""
    cases = str(Path(__file__).with_name("kernel_cases.py"))
    environment = os.environ | {"TRITON_INTERPRET": "0" if torch.cuda.is_available() else "1"}
    done = subprocess.run([sys.executable, cases], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_each_kernel_compiles_for_a_gpu(tmp_path, monkeypatch):
    """For an H100 or H200, whose machine code Triton's own assembler writes without one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dcmh.networks.gpu import cnnf_kernels, likelihood_kernel

    maps, one, byte = "*bf16", "*fp32", "*u8"
    size = dict.fromkeys(("pixels", "h", "w", "height", "width"), "i32")
    real = dict.fromkeys(("k", "alpha", "factor", "half_scale", "shift", "low", "span"), "fp32")
    known = size | real | {"total": "i32", "rows": "i32", "points": "i32", "chosen": byte, "words": "*i32"}
    known |= dict.fromkeys(("x", "y", "dy", "dx", "out"), maps) | dict.fromkeys(("bias", "sums", "mean"), one)
    known |= {"batch_words": "*i32", "observed": "*i1", "outputs": one, "others": one, "gradients": one}
    tiles = {"CHANNELS": 64, "TILE": 16}
    bits = {"BITS": 64, "PADDED": 64, "WORDS": 1, "TILE": 64, "BLOCK": 64, "SOME": True, "PRECISION": "tf32"}
    kernels = [(getattr(cnnf_kernels, name), tiles) for name in KERNELS]
    kernels += [(cnnf_kernels._blocks, {"H": 224, "W": 224, "C": 3, "S": 4, "ELEMENTS": 1024})]
    kernels += [(likelihood_kernel._kernel, bits)]
    for kernel, constants in kernels:
        names = kernel.arg_names
        types = {name: "constexpr" if name in constants else known[name] for name in names}
        if kernel is cnnf_kernels._blocks:
            types["pixels"] = byte
        source = ASTSource(kernel, types, {(names.index(name),): value for name, value in constants.items()})
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert compiled.asm["cubin"]
