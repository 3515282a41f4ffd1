"""No test touches the user's cache folder; torch takes one thread, as small networks want it."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
# Before Milvus' client is: its handlers of fork can abort a child before it runs a program. Tests never fork otherwise.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "engines"))  # servers.py


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items):
    """With several processes (-n 3), a file stays in one; so do all tests that share a server, or the browser.

    These begin, as they take longest, each in a fresh process.
    """
    first = {"milvus": 0, "browser": 1, "postgres": 2}
    groups = {}
    for item in items:
        group = str(item.path)
        if "/engines/" in group or item.path.name == "test_contract.py":
            parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
            group = "milvus" if "milvus" in (*parameters, *item.fixturenames) else "postgres"
        elif "/page/" in group:
            group = "browser"
        item.add_marker(pytest.mark.xdist_group(group))
        groups[item] = group
    items.sort(key=lambda item: first.get(groups[item], len(first)))


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory):
    """DCMH_HOME is a folder of this session: features are computed once a session."""
    folder = tmp_path_factory.mktemp("home")
    _share_encoders(folder, tmp_path_factory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(folder))
        patch.delenv("DCMH_DEVICE", raising=False)
        yield folder


@pytest.fixture(scope="session")
def cheap_home(tmp_path_factory):
    """The cache of features that cost nothing: see toy_photos.cheap."""
    folder = tmp_path_factory.mktemp("cheap")
    _share_encoders(folder, tmp_path_factory)
    return folder


def _share_encoders(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let all caches of a test run, also of other processes, share the unpacked text encoders: unpacking takes seconds."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "encoders"
    shared.mkdir(exist_ok=True)
    (home / "encoders").symlink_to(shared, target_is_directory=True)


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
