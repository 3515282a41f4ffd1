"""How it looks and reads: narrow, wide, light, dark, for eyes and for screen readers."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from picture import take
from PIL import Image
from playwright.sync_api import expect

TILES = "#grid li:not([hidden]) .tile"
PLACES = {
    "home": ("", "#home .row img.loaded"),
    "results": ("?text=fruit&radius=12", f"{TILES} img.loaded"),
    "item": ("?text=fruit&item=3", "#item .about"),
    "copies": ("?view=duplicates", ".group img.loaded"),
    "similar": ("?similar=3", f"{TILES} img.loaded"),
    "nothing": ("?text=face&radius=0", "#message .plain"),
    "precise": ("?text=something+sweet+to+eat+for+breakfast&at_least=0.8", f"{TILES} img.loaded"),
    "nothing precise": ("?text=something+sweet+to+eat+for+breakfast&at_least=1", "#message .plain"),
    "unreadable": ("?text=\u1230\u120b\u121d", "#message .hint"),
}
LIMITED = {"unknown": ("?text=froot", "#message .chip"), "ignored": ("?text=food+fruitt", "#query .instead")}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(server, vocabulary_server, open_page, scheme):
    """axe-core in every state of the page: all of its rules, and in the dark that of contrast, the only one to differ."""
    options = {"resultTypes": ["violations"]} | ({"runOnly": ["color-contrast"]} if scheme == "dark" else {})
    wrong = {}
    for asked, places in ((vocabulary_server, LIMITED), (server, PLACES)):
        page = open_page(asked.url, expected=("status of 422",), color_scheme=scheme, reduced_motion="reduce")
        for name, (address, ready) in places.items():
            page.goto(asked.url + address)
            expect(page.locator(ready).first).to_be_visible()
            if name == "results":
                page.locator("#filters summary").click()
                page.locator(TILES).first.press("Space")
                expect(page.locator("#selection")).to_be_visible()
            if name == "item":
                page.locator("#item summary").click()
            found = Axe().run(page, options=options)
            if found.violations_count:
                wrong[name] = found.generate_report()
    page.goto(server.url)
    page.locator("#words").press_sequentially("f")
    expect(page.locator("#suggestions")).to_be_visible()
    found = Axe().run(page, options=options)
    if found.violations_count:
        wrong["suggestions"] = found.generate_report()
    assert wrong == {}


def test_dark_is_dark_and_light_is_light(server, open_page):
    def brightness(page):
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3

    assert brightness(open_page(server.url, color_scheme="light")) > 230
    assert brightness(open_page(server.url, color_scheme="dark")) < 40


@pytest.mark.parametrize("width", [320, 768, 1920])
def test_nothing_sticks_out(server, open_page, width):
    page = open_page(server.url, expected=("status of 422",), width=width, height=640)
    for name, (address, ready) in PLACES.items() if width == 320 else list(PLACES.items())[:3]:
        page.goto(server.url + address)
        expect(page.locator(ready).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        dialog = page.evaluate("[item.scrollWidth, item.clientWidth]")
        assert dialog[0] <= dialog[1], name
    page.goto(f"{server.url}?text=fruit")
    tile = page.locator(TILES).first.bounding_box()
    assert 120 < tile["width"] < 320
    for button in page.locator(".choose:visible, .icon:visible, .plain:visible, .mark:visible").all():
        assert button.bounding_box()["height"] >= 20


def test_movement_can_be_switched_off(server, open_page):
    page = open_page(f"{server.url}?text=fruit", reduced_motion="reduce")
    expect(page.locator(TILES).first).to_be_visible()
    moving = page.evaluate("document.getAnimations().length")
    assert moving == 0
    assert page.locator(f"{TILES} img").first.evaluate("image => getComputedStyle(image).transitionDuration") == "0s"


def test_the_picture_of_the_readme_can_be_made(server, browser, tmp_path):
    take(browser, server.url, "fruit", tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as picture:
        assert picture.size == (1375 + 30 + 488, 1175)
        assert len(picture.convert("RGBA").getcolors(1 << 24)) > 200, "an empty page"
