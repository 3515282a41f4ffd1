"""What is on screen is in the address: links, reloads, back and forward lead to the same."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

TILES = "#grid li:not([hidden]) .tile"


def ids(page):
    return page.eval_on_selector_all(TILES, "tiles => tiles.map(tile => Number(tile.dataset.id))")


def test_back_and_forward(server, open_page, search_index):
    page = open_page(server.url)
    for words in ("fruit", "face"):
        page.fill("#words", words)
        page.press("#words", "Enter")
        expect(page.locator("#query .used")).to_have_text([words])
    page.go_back()
    expect(page.locator("#words")).to_have_value("fruit")
    assert ids(page) == [hit.id for hit in search_index.search("fruit", k=60)]
    page.go_back()
    expect(page.locator("#home")).to_be_visible()
    expect(page.locator("#words")).to_have_value("")
    expect(page.locator("#answer")).to_be_hidden()
    page.go_forward()
    page.go_forward()
    expect(page.locator("#words")).to_have_value("face")
    assert ids(page) == [hit.id for hit in search_index.search("face", k=60)]


@pytest.mark.parametrize("radius", [None, 12])
def test_a_link_restores_everything(server, open_page, search_index, radius):
    hits = search_index.search("fruit", k=60, radius=radius)
    limit = "" if radius is None else f"&radius={radius}"
    page = open_page(f"{server.url}?text=fruit{limit}&item={hits[4].id}")
    expect(page.locator("#item-title")).to_have_text(hits[4].text)
    expect(page.locator("#words")).to_have_value("fruit")
    expect(page.locator("#radius-value")).to_have_text("any distance" if radius is None else str(radius))
    assert ids(page) == [hit.id for hit in hits]
    page.reload()
    expect(page.locator("#item-title")).to_have_text(hits[4].text)
    page.get_by_role("button", name="Close").click()
    expect(page).to_have_url(f"{server.url}?text=fruit{limit}")
    expect(page.locator(f'{TILES}[data-id="{hits[4].id}"]')).to_be_focused()


def test_the_back_button_closes_an_item_and_keeps_the_place(server, open_page):
    page = open_page(f"{server.url}?text=food")
    expect(page.locator(TILES)).to_have_count(60)
    tile = page.locator(TILES).nth(50)
    tile.scroll_into_view_if_needed()
    tile.click()
    expect(page.locator("#item-title")).to_be_visible()
    before = page.evaluate("scrollY")
    page.go_back()
    expect(page.locator("#item")).to_be_hidden()
    assert page.evaluate("scrollY") == before
    assert page.url == f"{server.url}?text=food"


def test_tiles_are_links(server, open_page, search_index):
    """They can be opened in another tab."""
    page = open_page(f"{server.url}?text=fruit&radius=12")
    first = search_index.search("fruit", k=1)[0]
    expect(page.locator(TILES).first).to_have_attribute("href", f"?text=fruit&radius=12&item={first.id}")


def test_a_strange_address_does_no_harm(server, open_page):
    page = open_page(f"{server.url}?text=fruit&radius=-3&item=", expected=("status of 4",))
    expect(page.locator(TILES)).to_have_count(60)
    page.goto(f"{server.url}?similar=nobody")
    expect(page.locator("#message .sentence")).to_be_visible()
    page.goto(f"{server.url}?text=%20%20")
    expect(page.locator("#home h1")).to_be_visible()
