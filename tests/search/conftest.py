"""Photos, a small model, and an index of them in a folder."""

from __future__ import annotations

import json
import shutil

import pytest
from folders import COUNT, train

import dcmh
from dcmh.search import SearchIndex
from toy_photos import cheap, load, write_photos


@pytest.fixture(scope="module", autouse=True)
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


@pytest.fixture(scope="session")
def model(cheap_home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    with cheap(cheap_home):
        fitted, report = train(dcmh.load_dataset("toy"))
        fitted.save(folder, extra={"report.json": json.dumps(report.to_json())})
    return folder


@pytest.fixture(scope="session")
def ready(cheap_home, model, tmp_path_factory):
    """Photos and their index, for tests that change neither."""
    folder = tmp_path_factory.mktemp("ready")
    with cheap(cheap_home):
        SearchIndex.build(model, load(write_photos(folder / "photos", COUNT)), folder / "photos.dcmh").close()
    return folder


@pytest.fixture
def own(ready, tmp_path):
    """The same, for tests that change them."""
    shutil.copytree(ready, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def index(ready):
    with SearchIndex.open(ready / "photos.dcmh") as opened:
        yield opened
