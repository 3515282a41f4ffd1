"""The names that users import: all there, documented, and loaded only when asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import dcmh


@pytest.mark.parametrize("name", dcmh.__all__)
def test_each_public_name_is_there_and_says_what_it_is(name):
    assert getattr(dcmh, name).__doc__


def test_dir_shows_the_public_names():
    assert dir(dcmh) == sorted([*dcmh.__all__, "__version__"])
    assert dcmh.__all__ == sorted(dcmh.__all__)


def test_an_unknown_name_is_explained():
    with pytest.raises(AttributeError, match="Public names: DCMH, Dataset"):
        _ = dcmh.Datasets


def test_importing_costs_nothing_that_is_not_asked_for():
    program = (
        "import sys, dcmh; print([name for name in ('torch', 'numpy', 'numba', 'scipy', 'PIL') if name in sys.modules])"
    )
    source = str(Path(dcmh.__file__).parents[1])
    said = subprocess.check_output([sys.executable, "-c", program], env={"PYTHONPATH": source}, text=True)
    assert said == "[]\n"
