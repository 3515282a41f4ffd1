"""Photos, a model of them, and an index in a folder that the same index on a server must agree with."""

from __future__ import annotations

import itertools
import json

import pytest

import dcmh
from dcmh.search import SearchIndex
from toy_photos import cheap, load, write_pairs

numbers = itertools.count()


SLOW = {  # Milvus waits in them for 10 s or longer; they also run with PostgreSQL, or another one does the same with Milvus
    "test_fine_vectors_are_fetched_once[milvus]",
    "test_approximate_searches_say_what_they_miss[milvus]",
    "test_an_older_collection[milvus-add]",
    "test_an_older_collection[milvus-index]",
    "test_a_second_folder_is_refused[milvus]",
    "test_another_model_is_refused[milvus]",
    "test_copies_are_found_collections_merged_and_upgrades_refused[milvus]",
}


def pytest_collection_modifyitems(items):
    for item in items:
        if "/engines/" in str(item.path):
            item.add_marker(pytest.mark.engines)
        if item.name in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", autouse=True)
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


@pytest.fixture(scope="session")
def models(cheap_home, tmp_path_factory):
    """Two models of the toy data that differ in their seed."""
    folder = tmp_path_factory.mktemp("models")
    toy = dcmh.load_dataset("toy")
    with cheap(cheap_home):  # session fixtures are made before `cheap_here`
        for seed in (0, 1):
            split = toy.split(12, seed=0)
            fitted = dcmh.DCMH(bits=32, hidden=32, epochs=4, device="cpu", seed=seed).fit(split.train)
            report = json.dumps(dcmh.evaluate(fitted, split).to_json())
            fitted.save(folder / str(seed), extra={"report.json": report})
    return folder / "0", folder / "1"


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "photos", without_picture=(3, 17))


@pytest.fixture(scope="session")
def folder_index(cheap_home, models, photos, tmp_path_factory):
    place = tmp_path_factory.mktemp("index") / "photos.dcmh"
    with cheap(cheap_home):
        index = SearchIndex.build(models[0], load(photos), place)
    yield index
    index.close()


@pytest.fixture(params=["postgres", "milvus"])
def engine(request):
    """A running server; `engine.address(collection=...)`."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def address(engine):
    """An address that nothing has used yet."""
    return engine.address(collection=f"photos{next(numbers)}")
