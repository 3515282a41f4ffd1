"""Full and failing disks, short writes and power cuts, some of each; `python -m tests.faults --cases N` does any number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dcmh

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("cases", "power_cuts"), [(18, 5), pytest.param(72, 20, marks=pytest.mark.slow)])
def test_after_a_fault_or_a_power_cut_the_old_state_is_intact_or_the_new_one_complete(cases, power_cuts):
    command = [sys.executable, "-m", "tests.faults", "--cases", f"{cases}", "--power-cuts", f"{power_cuts}"]
    environment = os.environ | {"PYTHONPATH": str(Path(dcmh.__file__).parents[1])}
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.stdout, finished.stderr
    report = json.loads(finished.stdout)
    assert not report["wrong"], report
    assert report["faults"] >= 9  # without strace, only those that limit sizes
