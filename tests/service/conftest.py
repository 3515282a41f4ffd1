"""An index of toy pictures whose features cost nothing, and clients of its service."""

from __future__ import annotations

import contextlib
import shutil

import numpy as np
import pytest
from served import TOKEN, load, train, write_photos
from starlette.testclient import TestClient

from dcmh.search import SearchIndex
from dcmh.service import Settings, create_app


def cheap_features(backbone, pixels, target):
    """In place of the image network: 16 x 16 patches' means, and zeros."""
    small = pixels.reshape(len(pixels), 14, 16, 14, 16, 3).mean(axis=(2, 4)).reshape(len(pixels), -1) / 255
    return np.pad(small, ((0, 0), (0, 1280 - small.shape[1]))).astype(np.float32)


@pytest.fixture(scope="session")
def cheap_home(tmp_path_factory):
    return tmp_path_factory.mktemp("cheap")


@contextlib.contextmanager
def no_image_network(home):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(home))
        patch.setattr("dcmh.features.run", cheap_features)
        patch.setattr("dcmh.features.frozen", lambda *arguments: None)
        yield


@pytest.fixture(scope="module", autouse=True)  # no longer than these tests: others look at real features
def none_here(cheap_home):
    with no_image_network(cheap_home):
        yield


@pytest.fixture(scope="session")
def model(cheap_home, tmp_path_factory):
    with no_image_network(cheap_home):
        return train(tmp_path_factory.mktemp("trained") / "model")


@pytest.fixture(scope="session")
def ready(cheap_home, model, tmp_path_factory):
    """Photos and their index, for tests that change neither."""
    folder = tmp_path_factory.mktemp("ready")
    with no_image_network(cheap_home):
        SearchIndex.build(model, load(write_photos(folder / "photos")), folder / "photos.dcmh").close()
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
