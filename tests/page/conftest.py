"""The page in a real Chromium, against the real service, on an index of OpenMoji drawings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chromium import MISSING, find_chromium
from serving import Server, some_drawings

import dcmh

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if find_chromium() is None:
        for item in items:
            if _HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=MISSING))


def pytest_terminal_summary(terminalreporter):
    if find_chromium() is None:
        terminalreporter.write_line(MISSING)


@pytest.fixture(scope="session")
def drawings(home, tmp_path_factory):
    return dcmh.load_dataset(some_drawings(tmp_path_factory.mktemp("page") / "drawings"))


def trained(split, *, fine, **options):
    """Quickly."""
    model = dcmh.DCMH(bits=64, hidden=256, epochs=30, batch_size=32, learning_rate=0.003, device="cpu", **options)
    return model.fit(split.train, fine=fine)


@pytest.fixture(scope="session")
def index(drawings, tmp_path_factory):
    """The folder of an index of some drawings, with what was measured of its model."""
    folder = tmp_path_factory.mktemp("index")
    split = drawings.split(20, 120, seed=0)
    model = trained(split, fine=128)
    report = dcmh.evaluate(model, split)
    with dcmh.SearchIndex.build(model, drawings, folder / "drawings.dcmh", report=report, split=split) as made:
        return made.folder


@pytest.fixture(scope="session")
def vocabulary_index(drawings, tmp_path_factory):
    """One whose model knows the words of its vocabulary only, and of which nothing was measured."""
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


@pytest.fixture(scope="module")  # while Playwright runs, no other test of this process can have an event loop
def browser():
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox"] if root else [], timeout=60_000
        )
        yield chromium
        chromium.close()


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
