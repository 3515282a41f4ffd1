"""No test touches the user's cache folder; torch takes one thread, as small networks want it."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "engines"))  # servers.py


def pytest_collection_modifyitems(items):
    """With several processes (-n 2), a file stays in one; so do all tests that share the servers, or the browser."""
    for item in items:
        group = str(item.path)
        if "/engines/" in group or item.path.name == "test_contract.py":
            group = "servers"
        elif "/page/" in group:
            group = "browser"
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory):
    """DCMH_HOME is a folder of this session: features are computed once a session."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(folder))
        patch.delenv("DCMH_DEVICE", raising=False)
        yield folder


@pytest.fixture(scope="session")
def cheap_home(tmp_path_factory):
    """The cache of features that cost nothing: see toy_photos.cheap."""
    return tmp_path_factory.mktemp("cheap")


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server on loopback for this session."""
    import servers

    with servers.run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def milvus(tmp_path_factory):
    """A Milvus server on loopback for this session."""
    import servers

    server = servers.Milvus(tmp_path_factory.mktemp("milvus"), ticks=50)
    server.start()
    yield server
    server.stop()
