"""The view of one item: its code is drawn as it is, the bits that differ are those that differ."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import expect
from serving import HOSTILE, to_the_end

from dcmh import codes

TILES = "#grid li:not([hidden]) .tile"


def unpacked(code, bits):
    return codes.unpack(np.frombuffer(code, np.uint8)[None], bits)[0] > 0


def drawn(page):
    """For each drawing: which squares are full, and which are marked."""
    return page.eval_on_selector_all(
        "#item .bits",
        """drawings => drawings.map(drawing => [
            [...drawing.children].map(square => square.classList.contains("one")),
            [...drawing.children].map(square => square.classList.contains("differs"))])""",
    )


@pytest.mark.parametrize("rank", [0, 7, 59])
def test_the_code_is_drawn_bit_by_bit(server, open_page, search_index, rank):
    page = open_page(f"{server.url}?text=fruit")
    page.locator(TILES).nth(rank).click()
    expect(page.locator("#item-title")).to_be_focused()
    hits = search_index.search("fruit", k=60)
    hit, bits = hits[rank], search_index.bits
    query = unpacked(hits.query.code, bits)
    item = unpacked(search_index.codes_of(hit.id)[hit.modality], bits)
    assert (query != item).sum() == hit.distance
    expect(page.locator("#item .bits").first).to_be_hidden()  # the photo comes first
    page.locator("#item summary").click()
    expect(page.locator("#item summary")).to_have_text(f"Its code: {hit.distance} of {bits} bits differ from the query")
    assert drawn(page) == [[query.tolist(), (query != item).tolist()], [item.tolist(), (query != item).tolist()]]
    places = ", ".join(str(place + 1) for place in np.flatnonzero(query != item))
    expect(page.locator("#item .differ")).to_have_text([f"Different: {places}."] if places else [])
    digits = "".join("1" if bit else "0" for bit in item)
    expect(page.get_by_role("img", name=f"Code of its picture: {digits}")).to_be_visible()
    assert page.locator("#item .share").text_content() == page.locator(".why").nth(rank).text_content()
    meaning = page.locator("#item .meaning", has_text="Precision: the share of relevant items among such hits")
    expect(meaning).to_have_count(0 if hit.precision is None else 1)
    expect(page.locator("#item .place")).to_contain_text(f"{rank + 1} of ")


def test_the_photo_comes_first(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face")
    page.locator(TILES).first.click()
    (hit,) = search_index.search("face", k=1)
    expect(page.locator("#item-title")).to_have_text(hit.text)
    expect(page.locator("#item .large")).to_have_js_property("naturalWidth", 224)
    expect(page.get_by_role("list", name="Labels").locator("li")).to_have_text(list(hit.labels))
    expect(page.locator("#item .about")).to_contain_text(
        f"224 × 224 pixels · {round(hit.path.stat().st_size / 1000)} kB"
    )
    expect(page.locator("#item .about")).to_contain_text(hit.name)
    expect(page.get_by_role("link", name=hit.path.parent.name, exact=True)).to_have_attribute(
        "href", f"?text=face&folder={hit.path.parent.name}"
    )
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == hit.path.name
    assert download.value.path().read_bytes() == hit.path.read_bytes()
    word = page.get_by_role("list", name="Found by").locator("a").first
    words = word.text_content()
    word.click()
    expect(page.locator("#query .used")).to_have_text([words])
    assert hit.id in [one.id for one in search_index.search(words, k=60)]


def test_more_like_this_and_back(server, open_page, search_index):
    page = open_page(f"{server.url}?text=fruit")
    hit = search_index.search("fruit", k=1)[0]
    page.locator(TILES).first.click()
    page.get_by_role("link", name="More like this").click()
    expect(page).to_have_url(f"{server.url}?similar={hit.id}")
    expect(page.locator("#item")).to_be_hidden()
    expect(page.locator("#query b")).to_have_text(hit.text)
    like = search_index.similar(hit.id, k=60)
    found = page.eval_on_selector_all(TILES, "tiles => tiles.map(tile => Number(tile.dataset.id))")
    assert found == [one.id for one in like]
    page.locator(TILES).nth(3).click()
    expect(page.locator("#item summary")).to_contain_text(f"{like[3].distance} of 64 bits differ from the query")
    page.go_back()
    expect(page.locator("#item")).to_be_hidden()
    page.go_back()  # the item from which it came
    expect(page.locator("#item-title")).to_have_text(hit.text)
    page.go_back()
    expect(page.locator("#item")).to_be_hidden()
    expect(page).to_have_url(f"{server.url}?text=fruit")


def test_a_link_to_an_item_needs_no_query(server, open_page, search_index):
    page = open_page(f"{server.url}?item=3", expected=("status of 404",))
    expect(page.locator("#item-title")).to_have_text(search_index.item(3).text)
    assert [marked for _, marked in drawn(page)] == [[False] * 64] * 2
    page.keyboard.press("Escape")
    expect(page.locator("#item")).to_be_hidden()
    expect(page).to_have_url(server.url)
    page.goto(f"{server.url}?text=fruit&item=99999")
    expect(page.locator("#item-title")).to_contain_text("99999")


def test_text_of_the_collection_is_never_html(server, open_page, search_index):
    page = open_page(f"{server.url}?text=fruit&radius=1000", expected=("status of 422",))
    expect(page.locator(TILES).first).to_be_visible()
    to_the_end(page)
    hostile = max(hit.id for hit in search_index.search("fruit", k=1000))
    tile = page.locator(f'{TILES}[data-id="{hostile}"]')
    expect(tile.locator(".caption")).to_have_text(HOSTILE)
    tile.click()
    expect(page.locator("#item-title")).to_have_text(HOSTILE)
    expect(page.locator("#item .name")).to_have_text("<b>hostile")
    expect(page.get_by_role("list", name="Labels").locator("li")).to_have_text(["<i>label</i>"])
    page.get_by_role("link", name="More like this").click()
    expect(page.locator("#query b")).to_have_text(HOSTILE)
    page.goto(f"{server.url}?code=<img src=x onerror=hurt>&name=<script>hurt=1</script>")
    expect(page.locator("#message")).to_be_visible()
    assert page.evaluate("window.hurt") is None
    assert page.locator("main script, main b img, #item script").count() == 0


def test_the_item_after_the_last_that_is_loaded(server, open_page, search_index):
    hits = search_index.search("food", k=61)
    page = open_page(f"{server.url}?text=food&item={hits[59].id}")
    expect(page.locator("#item-title")).to_have_text(hits[59].text)
    page.get_by_role("button", name="Next result").click()
    expect(page.locator("#item-title")).to_have_text(hits[60].text)
    page.get_by_role("button", name="Previous result").click()
    expect(page).to_have_url(f"{server.url}?text=food&item={hits[59].id}")
