"""Everything without a mouse; the focus is where a reader expects it."""

from __future__ import annotations

from playwright.sync_api import expect

TILES = "#grid li:not([hidden]) .tile"


def focused(page):
    return page.evaluate("document.activeElement.dataset.id ?? document.activeElement.id")


def test_search_look_and_come_back(server, open_page, search_index):
    page = open_page(server.url)
    expect(page.locator(".row")).to_have_count(4)
    keys = page.keyboard
    keys.press("/")
    assert focused(page) == "words"
    keys.type("fruit")
    keys.press("Enter")
    expect(page.locator(TILES)).to_have_count(60)
    ids = [str(hit.id) for hit in search_index.search("fruit", k=60)]
    keys.press("ArrowDown")  # from the box into the grid
    assert focused(page) == ids[0]
    columns = page.evaluate("getComputedStyle(grid).gridTemplateColumns.split(' ').length")
    assert columns > 3
    for key, at in (("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowLeft", columns), ("End", 59), ("Home", 0)):
        keys.press(key)
        assert focused(page) == ids[at]
    keys.press("ArrowRight")
    keys.press("Enter")
    expect(page.locator("#item-title")).to_be_focused()
    keys.press("ArrowRight")
    expect(page).to_have_url(f"{server.url}?text=fruit&item={ids[2]}")
    expect(page.locator("#item .place")).to_contain_text("3 of ")
    keys.press("Escape")
    expect(page.locator("#item")).to_be_hidden()
    assert focused(page) == ids[2]
    expect(page).to_have_url(f"{server.url}?text=fruit")
    keys.press("Enter")
    page.get_by_role("link", name="More like this").focus()
    keys.press("Enter")
    expect(page).to_have_url(f"{server.url}?similar={ids[2]}")
    expect(page.locator("#results")).to_be_focused()
    keys.press("/")
    assert focused(page) == "words"
    keys.press("ArrowDown")
    keys.press("ArrowUp")  # and out again
    assert focused(page) == "words"


def test_the_order_of_the_focus(server, open_page):
    """Top to bottom, the grid is one stop, and the dialog keeps the focus until it is closed."""
    page = open_page(f"{server.url}?text=fruit&radius=12")
    expect(page.locator(TILES).first).to_be_visible()
    seen = []
    for _ in range(10):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
    stops = ["skip", "home-link", "words", "choose", "any", "slider", "at-least", "filters-summary", "tile"]
    assert seen[:9] == stops
    assert seen[9] != "tile"
    page.locator(TILES).first.press("Enter")
    expect(page.locator("#item-title")).to_be_focused()
    for _ in range(8):
        page.keyboard.press("Tab")
        inside = page.evaluate(
            "document.activeElement === document.body || document.activeElement.closest('#item') !== null"
        )
        assert inside


def test_the_slider_moves_by_keys_and_says_so(server, open_page):
    page = open_page(f"{server.url}?text=fruit&radius=12")
    slider = page.get_by_role("slider", name="Within")
    slider.press("ArrowLeft")
    expect(page).to_have_url(f"{server.url}?text=fruit&radius=11")
    expect(slider).to_have_attribute("aria-valuetext", "11 of 64 bits")
    slider.press("Home")
    expect(page).to_have_url(f"{server.url}?text=fruit&radius=0")
    slider.press("End")
    expect(page).to_have_url(f"{server.url}?text=fruit&radius=32")
    page.keyboard.press("/")  # also from the slider
    assert focused(page) == "words"


def test_skip_link(server, open_page):
    page = open_page(f"{server.url}?text=fruit")
    expect(page.locator(TILES).first).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page).to_have_url(f"{server.url}?text=fruit#results")
    expect(page.locator(TILES).first).to_be_visible()
