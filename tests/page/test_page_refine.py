"""Filters, excluded words, and hits that are ticked to find more like them, or not."""

from __future__ import annotations

from playwright.sync_api import expect

from dcmh.search import Filter

TILES = "#grid li:not([hidden]) .tile"


def expect_hits(page, hits):
    """Wait until the page shows these hits, in this order."""
    page.wait_for_function(
        "([tiles, ids]) => [...document.querySelectorAll(tiles)].map(tile => tile.dataset.id).join() === ids",
        arg=[TILES, ",".join(str(hit.id) for hit in hits)],
    )


def test_filters(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face")
    expect(page.locator(TILES)).to_have_count(60)
    page.get_by_text("Filters", exact=True).click()
    expect(page.locator("#known-labels option").first).to_be_attached()
    page.get_by_role("combobox", name="Label").fill("animals & nature")
    page.get_by_role("combobox", name="Label").press("Enter")
    animals = search_index.search("face", k=60, filter=Filter(labels=["animals & nature"]))
    expect(page.locator(TILES)).to_have_count(len(animals))
    expect_hits(page, animals)
    expect(page).to_have_url(f"{server.url}?text=face&label=animals+%26+nature")
    page.get_by_role("combobox", name="Label").fill("food & drink")  # one more: any of them
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("link", name="Remove: label")).to_have_count(2)
    page.get_by_role("combobox", name="Folder").fill("food")
    page.get_by_role("combobox", name="Folder").press("Enter")
    both = Filter(labels=["animals & nature", "food & drink"], folder="food")
    expect(page.locator(TILES)).to_have_count(len(search_index.search("face", k=60, filter=both)))
    page.reload()  # the address holds them
    expect(page.get_by_role("link", name="Remove: in food")).to_be_visible()
    expect_hits(page, search_index.search("face", k=60, filter=both))
    page.get_by_role("link", name="Remove: label food & drink").click()
    expect(page.locator("#message .sentence")).to_have_text("No item passes these filters. clear the filters")
    page.get_by_role("button", name="clear the filters").first.click()
    expect(page.locator(TILES)).to_have_count(60)
    expect(page).to_have_url(f"{server.url}?text=face")


def test_a_filter_that_cannot_be_read_is_explained(server, open_page):
    page = open_page(f"{server.url}?text=face&since=yesterday", expected=("status of 422",))
    expect(page.locator("#message .sentence")).to_have_text("Not a date: 'yesterday'.")
    page.get_by_text("Filters", exact=True).click()
    page.get_by_role("button", name="clear the filters").click()
    expect(page.locator(TILES)).to_have_count(60)


def test_excluded_words(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face+-grinning")
    hits = search_index.search("face -grinning", k=60)
    expect(page.locator(TILES).first).to_be_visible()
    expect_hits(page, hits)
    expect(page.locator("#query .ignored")).to_have_text(list(hits.query.without))


def test_more_like_these_and_not_these(server, open_page, search_index):
    page = open_page(f"{server.url}?text=fruit")
    expect(page.locator(TILES)).to_have_count(60)
    hits = search_index.search("fruit", k=60)
    bar = page.locator("#selection")
    expect(bar).to_be_hidden()
    page.locator(TILES).first.focus()
    page.keyboard.press("Space")
    page.get_by_role("checkbox", name=f"Select {hits[2].text}").check()
    expect(page.locator("#selected")).to_have_text("2 selected")
    page.get_by_role("button", name="More like these").click()
    like = [hits[0].id, hits[2].id]
    expect(page).to_have_url(f"{server.url}?text=fruit&like={like[0]}&like={like[1]}")
    expect(page.locator("#results")).to_be_focused()
    expect(bar).to_be_hidden()
    liked = search_index.search("fruit", k=60, like=like)
    expect(page.locator("#query img")).to_have_count(2)
    expect_hits(page, liked)
    page.get_by_role("checkbox", name=f"Select {liked[5].text}").check()
    page.get_by_role("button", name="Not these").click()
    expect(page.get_by_role("link", name=f"Remove: not like item {liked[5].id}")).to_be_visible()
    expect_hits(page, search_index.search("fruit", k=60, like=like, unlike=[liked[5].id]))
    for part in like:
        page.get_by_role("link", name=f"Remove: like item {part}").click()
    expect(page).to_have_url(f"{server.url}?text=fruit&unlike={liked[5].id}")
    page.go_back()
    expect(page.get_by_role("link", name=f"Remove: like item {like[1]}")).to_be_visible()


def test_examples_alone_and_a_selection_that_is_cleared(server, open_page, search_index):
    page = open_page(f"{server.url}?similar=5")
    expect(page.locator(TILES)).to_have_count(60)
    hit = search_index.similar(5, k=1)[0]
    page.locator(TILES).first.press("Space")
    page.locator("#selection").get_by_role("button", name="clear").click()
    expect(page.locator("#selection")).to_be_hidden()
    expect(page.locator(TILES).first).to_be_focused()
    page.locator(TILES).first.press("Space")
    page.get_by_role("button", name="More like these").click()
    expect(page).to_have_url(f"{server.url}?like=5&like={hit.id}")
    expect(page.locator(TILES).first).to_be_visible()
    expect_hits(page, search_index.search(like=[5, hit.id], k=60))


def test_copies(server, open_page, search_index):
    """The hostile item has the drawing of another one."""
    (group,) = (group for group in search_index.duplicates(kind="exact").groups)
    page = open_page(server.url)
    page.get_by_role("link", name="Copies").click()
    expect(page).to_have_url(f"{server.url}?view=duplicates")
    expect(page.locator("#duplicates .lead")).to_contain_text("of copies among")
    tiles = page.locator(".group").first.locator(".tile")
    expect(tiles).to_have_count(len(group.copies))
    expect(tiles.first).to_contain_text("keep")
    expect(page.locator(".group .hint").first).to_have_text(f"Keep the first: {group.reason}")
    tiles.first.click()
    expect(page.locator("#item-title")).to_have_text(search_index.item(group.keep).text)
    page.go_back()
    expect(page.locator("#item")).to_be_hidden()
    expect(tiles.first).to_be_visible()
