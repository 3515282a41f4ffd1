"""The Triton kernels, which need a GPU, run by Triton's interpreter on a CPU: forwards and backwards against PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is there for Linux only")


def test_each_kernel_computes_what_pytorch_does():
    """In a process of its own: whether kernels are interpreted is settled when Triton is imported."""
    cases = str(Path(__file__).with_name("kernel_cases.py"))
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, cases], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
