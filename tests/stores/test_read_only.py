"""An index on a read-only disk: searchable if it was written cleanly; otherwise the error says what to do."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

import dcmh
from dcmh.errors import StorageError
from dcmh.search import SearchIndex
from dcmh.stores.local.catalogue import Catalogue

FIXTURE = Path(__file__).parents[1] / "fixtures" / "format-1" / "index.dcmh"
SEARCH = """
import json, os, sys
from dcmh.errors import DCMHError
from dcmh.search import SearchIndex
def names(folder):
    with SearchIndex.open(folder) as index:
        return [hit.name for hit in index.search(text="sunny yellow", k=5)]
answers = [names(sys.argv[1])]  # loads every module that is needed
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # root may write everywhere
assert not os.access(sys.argv[2], os.W_OK)
try:
    answers.append(names(sys.argv[2]))
except DCMHError as error:
    answers.append([type(error).__name__, str(error)])
print(json.dumps(answers))
"""


@pytest.fixture
def place():
    """A folder that other users can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    shutil.rmtree(folder)


@pytest.fixture
def interrupted(tmp_path):
    """A copy of an index in the middle of a change, with its journal."""
    SearchIndex.open(shutil.copytree(FIXTURE, tmp_path / "live.dcmh")).close()
    with closing(sqlite3.connect(tmp_path / "live.dcmh" / "catalogue.sqlite", isolation_level=None)) as database:
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO skipped VALUES (?, ?, 1, 1)", [(f"{n}", "x" * 500) for n in range(500)])
        database.execute("DELETE FROM items")
        shutil.copytree(tmp_path / "live.dcmh", tmp_path / "hot.dcmh")
        database.execute("ROLLBACK")
    assert (tmp_path / "hot.dcmh" / "catalogue.sqlite-journal").stat().st_size
    return tmp_path / "hot.dcmh"


def searched(index, copy):
    """The hits of an index, and of another that may not be written, or its error."""
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    environment = os.environ | {"PYTHONPATH": str(Path(dcmh.__file__).parents[1])}
    command = [sys.executable, "-c", SEARCH, str(index), str(copy)]
    return json.loads(subprocess.check_output(command, env=environment, text=True))


def test_a_cleanly_written_index_is_searched_on_a_read_only_disk(place, tmp_path):
    index = shutil.copytree(FIXTURE, tmp_path / "photos.dcmh")
    with SearchIndex.open(index) as opened:  # migrates
        opened.add(text=["sunny yellow sea"], ids=["new"])
    first, second = searched(index, shutil.copytree(index, place / "photos.dcmh"))
    assert first == second
    assert "new" in first


def test_an_interrupted_change_is_rolled_back_where_it_can_be_written(interrupted):
    with SearchIndex.open(interrupted) as index:
        assert len(index) == 24
        assert not index.store.skipped()
    assert not (interrupted / "catalogue.sqlite-journal").exists()


def test_an_interrupted_change_on_a_read_only_disk_is_explained(interrupted, place, tmp_path):
    _, (kind, message) = searched(tmp_path / "live.dcmh", shutil.copytree(interrupted, place / "hot.dcmh"))
    assert kind == "StorageError"
    assert "was being changed when its process or machine stopped" in message
    assert "Copy the whole folder" in message


def test_every_connection_waits_until_a_commit_is_on_the_disk(tmp_path):
    with closing(Catalogue.create(tmp_path / "catalogue.sqlite", {})) as catalogue:
        assert catalogue._run("PRAGMA synchronous") == [(3,)]  # EXTRA
        assert catalogue._run("PRAGMA journal_mode") == [("delete",)]


def test_a_full_disk_is_said_and_nothing_changes(tmp_path):
    with closing(Catalogue.create(tmp_path / "catalogue.sqlite", {})) as catalogue:
        pages = catalogue._run("PRAGMA page_count")[0][0]
        catalogue._run(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageError, match=r"The disk is full: .* Free some space") as caught, catalogue.writing():
            catalogue.note("long", "x" * 100_000)
        assert caught.value.state == "full"
        catalogue._run("PRAGMA max_page_count = 1000000")
        assert catalogue.about("long") is None
        with catalogue.writing():
            catalogue.note("long", "x" * 100_000)
