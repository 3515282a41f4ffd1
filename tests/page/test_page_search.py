"""The page finds by words what Python finds, completes words, and filters by the radius."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect
from serving import to_the_end

TILES = "#grid li:not([hidden]) .tile"


def shown(page):
    """(id, distance) of the tiles that can be seen."""
    return page.eval_on_selector_all(
        TILES, "tiles => tiles.map(t => [Number(t.dataset.id), Number(t.querySelector('.distance').textContent)])"
    )


def found(hits):
    return [[hit.id, hit.distance] for hit in hits]


def search(page, words):
    page.fill("#words", words)
    page.press("#words", "Enter")
    expect(page.locator("#live")).to_contain_text("results")


def test_the_first_visit_shows_what_is_there(server, open_page, search_index):
    page = open_page(server.url)
    expect(page.locator("h1").first).to_have_text(f"{len(search_index)} items, found by words or by a picture")
    expect(page.locator(".lead")).to_contain_text(f"knows {len(search_index.encoders.words.bag)} words")
    expect(page.locator(".row")).to_have_count(4)
    expect(page.locator(".row img.loaded").first).to_be_visible()
    word = page.locator(".chips a").first.text_content()
    page.locator(".chips a").first.click()
    expect(page.locator(TILES).first).to_be_visible()
    assert shown(page) == found(search_index.search(word, k=60))


def test_words_find_what_python_finds(server, open_page, search_index):
    page = open_page(server.url)
    search(page, "fruit and quibble")
    hits = search_index.search("fruit and quibble", k=60)
    assert shown(page) == found(hits)
    assert page.locator(".caption").all_text_contents() == [hit.text for hit in hits]
    assert page.locator("#asked .used").all_text_contents() == list(hits.query.used) == ["fruit"]
    assert page.locator("#asked .ignored").all_text_contents() == list(hits.query.ignored)
    expect(page.locator("#count")).to_have_text(re.compile(rf"^{hits.searched} searched in [\d.]+ ms$"))
    expect(page.locator("#live")).to_have_text(f"60 and more results. Nearest is at {hits[0].distance}.")
    expect(page).to_have_url(f"{server.url}?text=fruit+and+quibble")
    expect(page).to_have_title("fruit and quibble · dcmh")
    expect(page.locator(f"{TILES} img.loaded").first).to_be_visible()


def test_the_first_results_come_within_a_second(server, open_page):
    """From Enter to a picture on screen, and from the address bar to one, in the browser's own clock."""
    page = open_page(server.url)
    expect(page.locator(".row")).to_have_count(4)
    since_enter = page.evaluate(
        """async () => {
            const began = performance.now();
            const box = document.getElementById("words");
            box.value = "food";
            box.form.requestSubmit();
            while (!document.querySelector("#grid img.loaded")) await new Promise(requestAnimationFrame);
            return performance.now() - began;
        }"""
    )
    page.goto(f"{server.url}?text=face")
    page.wait_for_selector("#grid img.loaded")
    since_address = page.evaluate("performance.now()")
    assert since_enter < 1000
    assert since_address < 1000


def test_suggestions_complete_the_last_word(server, open_page, search_index):
    page = open_page(server.url)
    box, options = page.locator("#words"), page.locator("#suggestions [role=option]")
    box.press_sequentially("food fr")
    expect(options.first).to_be_visible()
    known = search_index.encoders.words.bag.words_
    offered = [
        text.removesuffix(count)
        for text, count in zip(options.all_text_contents(), page.locator(".times").all_text_contents(), strict=True)
    ]
    assert sorted(offered) == sorted(word for word in known if word.startswith("fr"))
    expect(box).to_have_attribute("aria-expanded", "true")
    box.press("ArrowDown")
    expect(box).to_have_attribute("aria-activedescendant", "word-0")
    expect(options.first).to_have_attribute("aria-selected", "true")
    box.press("Escape")
    expect(page.locator("#suggestions")).to_be_hidden()
    expect(box).to_have_value("food fr")
    box.press_sequentially("u")
    expect(options).to_have_count(sum(word.startswith("fru") for word in known))
    box.press("ArrowUp")  # from the box to the last
    box.press("Enter")
    expect(page).to_have_url(f"{server.url}?text=food+fruit")
    expect(page.locator("#asked .used")).to_have_text(["food", "fruit"])
    expect(page.locator("#suggestions")).to_be_hidden()


def test_a_query_of_unknown_words_offers_known_ones(server, open_page):
    page = open_page(f"{server.url}?text=froot", expected=("status of 422",))
    said = page.locator("#said")
    expect(said).to_contain_text("No word of this query is in the vocabulary; nearest:")
    expect(page.locator("#live")).to_contain_text("No word of this query")
    expect(page.locator("#radius")).to_be_hidden()
    said.get_by_role("link", name="fruit").click()
    expect(page).to_have_url(f"{server.url}?text=fruit")
    expect(page.locator(TILES).first).to_be_visible()
    expect(said).to_be_hidden()


def test_an_ignored_word_can_be_replaced(server, open_page):
    page = open_page(f"{server.url}?text=food+froot")
    page.get_by_role("link", name="fruit?").click()
    expect(page).to_have_url(f"{server.url}?text=food+fruit")
    expect(page.locator("#asked .used")).to_have_text(["food", "fruit"])


def measured(search_index, radius):
    """Of all held-out items within the radius, the share that is relevant: from the report, by hand."""
    report = json.loads((search_index.folder / "model" / "report.json").read_text())
    rows = [row for row in report["text_to_image"]["by_distance"] if row["distance"] <= radius]
    points = sum(row["points"] for row in rows)
    return (
        f"measured precision {sum(row['relevant'] for row in rows) / points:.2f}"
        if points
        else "precision not measured"
    )


def test_the_radius_filters_what_is_there(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face")
    expect(page.locator(TILES)).to_have_count(60)
    expect(page.locator("#radius-value")).to_have_text("any distance")
    hits = search_index.search("face")
    assert page.locator("#slider").get_attribute("max") == str(search_index.bits // 2)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    distances = sorted({hit.distance for hit in search_index.search("face", k=60)})
    for radius in (distances[3], distances[1], distances[0], distances[0] - 1):
        page.locator("#slider").fill(str(radius))
        within = search_index.search("face", radius=radius)
        expect(page.locator(TILES)).to_have_count(len(within))
        assert shown(page) == found(within)
        expect(page.locator("#count")).to_contain_text(f"{len(within)} within {radius}")
        expect(page).to_have_url(f"{server.url}?text=face&radius={radius}")
        if radius >= distances[0]:
            expect(page.locator("#precision")).to_have_text(measured(search_index, radius))
            further = next(hit.distance for hit in search_index.search("face", k=180) if hit.distance > radius)
            expect(page.locator("#end")).to_contain_text(f"That is all within {radius}; the next is at {further}")
    expect(page.locator("#said")).to_have_text(f"Nothing within {radius}; nearest is at {hits[0].distance} show")
    page.get_by_role("button", name="show").click()
    expect(page.locator(TILES).first).to_be_visible()
    expect(page).to_have_url(f"{server.url}?text=face&radius={hits[0].distance}")
    page.get_by_role("button", name="any distance").click()
    expect(page.locator(TILES)).to_have_count(60)
    expect(page).to_have_url(f"{server.url}?text=face")
    assert not [url for url in asked if "/api/search" in url], "the slider needs no request"


@pytest.mark.parametrize("way", ["scroll", "button"])
def test_more_hits_come_until_all_are_there(server, open_page, search_index, way):
    page = open_page(f"{server.url}?text=food")
    expect(page.locator(TILES)).to_have_count(60)
    if way == "button":
        page.locator("#more").press("Enter")
    else:
        page.mouse.move(600, 600)
        page.mouse.wheel(0, 20_000)
    expect(page.locator(TILES)).not_to_have_count(60)
    to_the_end(page)
    assert shown(page) == found(search_index.search("food", k=1000))
    expect(page.locator("#end")).to_have_text("That is all.")


def test_an_end_that_stays_near_keeps_bringing_hits(server, open_page, search_index):
    """In a window so tall that more hits do not move the end out of sight, nothing changes that an observer would see."""
    page = open_page(f"{server.url}?text=food", height=20_000)
    expect(page.locator("#end")).to_be_visible()
    assert shown(page) == found(search_index.search("food", k=1000))
