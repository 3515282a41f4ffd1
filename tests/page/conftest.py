"""The page in a real Chromium, against the real service, on an index of OpenMoji drawings."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from chromium import MISSING, find_chromium
from serving import Server, some_drawings

import dcmh
from toy_photos import cheap

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if find_chromium() is None:
        for item in items:
            if _HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=MISSING))


def pytest_terminal_summary(terminalreporter):
    if find_chromium() is None:
        terminalreporter.write_line(MISSING)


@pytest.fixture(scope="module", autouse=True)  # no longer than these tests: others look at real features
def cheap_here(cheap_home):
    with cheap(cheap_home):
        yield


@pytest.fixture(scope="session")
def drawings(tmp_path_factory):
    return dcmh.load_dataset(some_drawings(tmp_path_factory.mktemp("page") / "drawings"))


def trained(split, *, fine, **options):
    """Quickly, and without the ranking: codes differ by more bits, so that a radius can hold nothing."""
    options = {
        "bits": 64,
        "hidden": 256,
        "epochs": 60,
        "batch_size": 32,
        "learning_rate": 0.003,
        "ranking": 0,
    } | options
    model = dcmh.DCMH(device="cpu", **options)
    return model.fit(split.train, fine=fine)


@pytest.fixture(scope="session")
def index(cheap_home, drawings, tmp_path_factory):
    """The folder of an index of some drawings, with what was measured of its model."""
    folder = tmp_path_factory.mktemp("index")
    with cheap(cheap_home):  # session fixtures are made before `cheap_here`
        split = drawings.split(20, 120, seed=0)
        model = trained(split, fine=128)
        report = dcmh.evaluate(model, split)
        with dcmh.SearchIndex.build(model, drawings, folder / "drawings.dcmh", report=report, split=split) as made:
            return made.folder


@pytest.fixture(scope="session")
def vocabulary_index(cheap_home, drawings, tmp_path_factory):
    """One whose model knows the words of its vocabulary only, and of which nothing was measured."""
    with cheap(cheap_home):
        model = trained(drawings.split(20, seed=0), fine=0, text_encoder="none")
        with dcmh.SearchIndex.build(model, drawings, tmp_path_factory.mktemp("vocabulary") / "drawings.dcmh") as made:
            return made.folder


@pytest.fixture(scope="session")
def server(index):
    running = Server(index)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def vocabulary_server(vocabulary_index):
    running = Server(vocabulary_index)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def own_server(index):
    """One that a test may stop and start."""
    running = Server(index)
    running.start()
    yield running
    running.stop()


class _Chromium:
    """One browser for all tests of the page."""

    def __init__(self) -> None:
        self._stack: contextlib.ExitStack | None = None

    def get(self):
        from playwright.sync_api import expect, sync_playwright

        if self._stack is None:
            expect.set_options(timeout=30_000)
            self._stack = contextlib.ExitStack()
            playwright = self._stack.enter_context(sync_playwright())
            root = hasattr(os, "geteuid") and os.geteuid() == 0
            arguments = ["--no-sandbox"] if root else []
            self._browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments, timeout=60_000)
            self._stack.callback(self._browser.close)
        return self._browser

    def close(self) -> None:
        if self._stack is not None:
            self._stack.close()
            self._stack = None


_CHROMIUM = _Chromium()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Playwright keeps an event loop, beside which other tests of this process could not have theirs."""
    if nextitem is None or _HERE not in nextitem.path.parents:
        _CHROMIUM.close()


@pytest.fixture
def browser():
    return _CHROMIUM.get()


@pytest.fixture
def open_page(browser):
    """A page at an address. At the end of the test it has had no error and asked no one but its server.

    `expected` are parts of console messages that the test provokes, such as "status of 422"; `before(page)` is called
    when the page is made, and not yet at the address.
    """
    pages, wrong = [], []

    def open_it(
        url: str, *, expected: tuple[str, ...] = (), before=None, width: int = 1280, height: int = 900, **options
    ):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        context.set_default_timeout(30_000)
        page = context.new_page()
        server = url.split("/?")[0].rstrip("/")

        def on_console(message):
            if message.type in ("error", "warning") and not any(part in message.text for part in expected):
                wrong.append(f"console: {message.text}")

        def on_request(request):
            if not request.url.startswith((f"{server}/", "blob:")):
                wrong.append(f"asked elsewhere: {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on("request", on_request)
        pages.append(context)
        if before is not None:
            before(page)
        page.goto(url)
        return page

    yield open_it
    for context in pages:
        context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def search_index(index):
    """The index as Python sees it: the oracle."""
    with dcmh.SearchIndex.open(index) as opened:
        yield opened
