"""An index of toy pictures whose features cost nothing, and clients of its service."""

from __future__ import annotations

import shutil

import pytest
from served import COUNT, TOKEN, train
from starlette.testclient import TestClient

from dcmh.search import SearchIndex
from dcmh.service import Settings, create_app
from toy_photos import cheap, load, write_photos


@pytest.fixture(scope="module", autouse=True)  # no longer than these tests: others look at real features
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


@pytest.fixture(scope="session")
def model(cheap_home, tmp_path_factory):
    with cheap(cheap_home):  # session fixtures are made before `cheap_here`
        return train(tmp_path_factory.mktemp("trained") / "model")


@pytest.fixture(scope="session")
def ready(cheap_home, model, tmp_path_factory):
    """Photos and their index, for tests that change neither."""
    folder = tmp_path_factory.mktemp("ready")
    with cheap(cheap_home):
        SearchIndex.build(model, load(write_photos(folder / "photos", COUNT)), folder / "photos.dcmh").close()
    return folder


@pytest.fixture(scope="session")
def vocabulary_ready(cheap_home, tmp_path_factory):
    """The same with a model whose vocabulary limits queries, and whose distances order hits."""
    folder = tmp_path_factory.mktemp("vocabulary")
    with cheap(cheap_home):
        model = train(folder / "model", fine=0, text_encoder="none")
        SearchIndex.build(model, load(write_photos(folder / "photos", COUNT)), folder / "photos.dcmh").close()
    return folder


@pytest.fixture
def own(ready, tmp_path):
    """The same, for tests that change them."""
    shutil.copytree(ready, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture(scope="module")
def client(ready):
    with TestClient(create_app(ready / "photos.dcmh", Settings(rate=0, access_log=None))) as found:
        yield found


@pytest.fixture(scope="module")
def vocabulary_client(vocabulary_ready):
    with TestClient(create_app(vocabulary_ready / "photos.dcmh", Settings(rate=0, access_log=None))) as found:
        yield found


@pytest.fixture(scope="module")
def index(ready):
    with SearchIndex.open(ready / "photos.dcmh") as found:
        yield found


@pytest.fixture
def serve(own):
    """Start a service of one's own index, with settings."""
    started = []

    def start(**settings) -> TestClient:
        settings = {"rate": 0, "check_seconds": 0, **settings}
        found = TestClient(create_app(own / "photos.dcmh", Settings(**settings)))
        found.__enter__()
        started.append(found)
        return found

    yield start
    for one in started:
        one.__exit__(None, None, None)


@pytest.fixture
def writer(serve, tmp_path):
    """A client that may change the index."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    found = serve(token_file=str(tmp_path / "token"))
    found.headers["Authorization"] = f"Bearer {TOKEN}"
    return found
