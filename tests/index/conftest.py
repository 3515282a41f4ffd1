"""Both engines."""

from __future__ import annotations

import pytest
from oracle import use


@pytest.fixture(params=["numpy", "numba"])
def engine(request, monkeypatch):
    use(request.param, monkeypatch)
    return request.param


@pytest.fixture
def numba_engine(monkeypatch):
    use("numba", monkeypatch)
