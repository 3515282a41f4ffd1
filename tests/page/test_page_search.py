"""The page finds by words what Python finds, completes words, and filters by the radius."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from playwright.sync_api import expect
from serving import to_the_end

import dcmh

TILES = "#grid li:not([hidden]) .tile"
BREAKFAST = "something+sweet+to+eat+for+breakfast"  # for sentences precision was measured


def shown(page):
    """(id, distance) of the tiles that can be seen."""
    return page.eval_on_selector_all(
        TILES, "tiles => tiles.map(t => [Number(t.dataset.id), parseInt(t.querySelector('.distance').textContent)])"
    )


def found(hits):
    return [[hit.id, hit.distance] for hit in hits]


def search(page, words):
    page.fill("#words", words)
    page.press("#words", "Enter")
    expect(page.locator("#live")).to_contain_text("results")


def test_the_first_visit_shows_what_is_there(server, open_page, search_index):
    page = open_page(server.url)
    expect(page.locator("h1").first).to_have_text(f"Search {len(search_index)} items by words or by a picture")
    expect(page.locator(".lead")).to_contain_text("Any words work in 16 languages, even whole sentences.")
    expect(page.locator(".lead")).not_to_contain_text("knows")
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
    expect(page.locator("#query")).to_have_text("results forfruit and quibble")
    expect(page.locator("#count")).to_have_text(re.compile(rf"^{hits.searched} searched in [\d.]+ ms$"))
    expect(page.locator("#live")).to_have_text("60 and more results.")
    expect(page).to_have_url(f"{server.url}?text=fruit+and+quibble")
    expect(page).to_have_title("fruit and quibble · dcmh")
    expect(page.locator(f"{TILES} img.loaded").first).to_be_visible()


@pytest.mark.slow  # timed: other tests must not run at the same time
def test_the_first_results_come_within_a_second(server, open_page):
    """From Enter to a picture on screen, and from the address bar to one, in the browser's own clock."""
    page = open_page(server.url)
    expect(page.locator(".row")).to_have_count(4)
    since_enter, since_address = [], []
    for words in ("food", "animal", "sport"):  # the best of three
        since_enter.append(
            page.evaluate(
                """async (words) => {
                    const began = performance.now();
                    const box = document.getElementById("words");
                    document.querySelectorAll("#grid img").forEach((image) => image.classList.remove("loaded"));
                    box.value = words;
                    box.form.requestSubmit();
                    while (!document.querySelector("#grid img.loaded")) await new Promise(requestAnimationFrame);
                    return performance.now() - began;
                }""",
                words,
            )
        )
        page.goto(f"{server.url}?text={words}+face")
        page.wait_for_selector("#grid img.loaded")
        since_address.append(page.evaluate("performance.now()"))
    assert min(since_enter) < 1000
    assert min(since_address) < 1000


def test_suggestions_complete_the_last_word(server, open_page, search_index):
    page = open_page(server.url)
    box, options = page.locator("#words"), page.locator("#suggestions [role=option]")
    box.press_sequentially("food fr")
    known = search_index.encoders.words.bag.words_
    expect(options).to_have_count(sum(word.startswith("fr") for word in known))
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
    expect(page.locator("#query .used")).to_have_text(["food fruit"])
    expect(page.locator("#suggestions")).to_be_hidden()


def test_each_hit_says_why_it_is_there(server, open_page, search_index):
    page = open_page(f"{server.url}?text={BREAKFAST}")
    expect(page.locator(TILES)).to_have_count(60)
    hits = search_index.search(BREAKFAST.replace("+", " "), k=60)
    lines = page.locator(".why").all_text_contents()
    for line, hit in zip(lines, hits, strict=True):  # numbers come with four digits
        parts = [f"contains: {', '.join(hit.words)}"] if hit.words else []
        parts += [f"fine score {round(hit.fine, 4):.2f}", f"{hit.distance} {'bit' if hit.distance == 1 else 'bits'}"]
        parts += [f"precision {round(hit.precision, 4):.2f}"] if hit.precision is not None else []
        assert line == " · ".join(parts)
    assert any(line.startswith("contains: breakfast · ") for line in lines)
    precision = page.locator(".why span", has_text="precision").first
    meaning = "the share of relevant items among such hits, measured on items that the model did not learn from"
    expect(precision).to_have_attribute("title", re.compile(f"Precision: {meaning}\\. For a picture"))


def test_any_words_find_something(server, open_page, search_index):
    """No vocabulary limits a model with a sentence encoder, and the page does not speak of one."""
    page = open_page(f"{server.url}?text=froot+manzana")
    expect(page.locator(TILES)).to_have_count(60)
    assert shown(page) == found(search_index.search("froot manzana", k=60))
    expect(page.locator("#query .used")).to_have_text(["froot manzana"])
    expect(page.locator("#query .ignored")).to_have_count(0)


def test_what_the_sentence_encoder_cannot_read_is_told(server, open_page):
    page = open_page(f"{server.url}?text=\u1230\u120b\u121d", expected=("status of 422",))
    expect(page.locator("#message .sentence")).to_contain_text("use-multilingual cannot read any part of")
    expect(page.locator("#message .hint")).to_have_text("Use words of a language that it knows.")
    expect(page.locator("main")).not_to_contain_text("vocabulary")


def test_a_model_without_vocabulary(server, open_page, search_index):
    """The starter model has none: there is nothing to suggest, and any words work."""

    def without(route):
        record = route.fetch().json()
        words = {"total": 0, "words": []} if "/api/words" in route.request.url else {}
        route.fulfill(json={**record, "vocabulary": 0, **words})

    def before(page):
        page.route("**/api/info", without)
        page.route("**/api/words*", without)

    page = open_page(server.url, before=before)
    expect(page.locator(".lead")).to_contain_text("Any words work in 16 languages")
    expect(page.locator(".chips a").first).to_be_visible()  # its labels
    with page.expect_response("**/api/words*"):
        page.locator("#words").press_sequentially("fruit")
    expect(page.locator("#suggestions")).to_be_hidden()
    page.press("#words", "Enter")
    expect(page.locator(TILES)).to_have_count(60)
    assert shown(page) == found(search_index.search("fruit", k=60))


def test_an_index_of_vectors_says_how_it_is_searched(server, open_page):
    def before(page):
        page.route(
            "**/api/info",
            lambda route: route.fulfill(json=route.fetch().json() | {"asks": {"text": None, "image": None}}),
        )

    page = open_page(server.url, before=before)
    expect(page.locator(".lead")).to_contain_text("Search with a vector: dcmh search ")
    expect(page.locator("#words")).to_be_disabled()
    expect(page.locator("#choose")).to_be_hidden()


def test_a_vocabulary_that_limits_queries_is_told(vocabulary_server, vocabulary_index, open_page):
    page = open_page(vocabulary_server.url)
    with dcmh.SearchIndex.open(vocabulary_index) as opened:
        expect(page.locator(".lead")).to_contain_text(f"knows {len(opened.encoders.words.bag)} words")
        search(page, "fruit and quibble")
        hits = opened.search("fruit and quibble", k=60)
    assert shown(page) == found(hits)
    assert page.locator("#query .used").all_text_contents() == list(hits.query.used) == ["fruit"]
    assert page.locator("#query .ignored").all_text_contents() == list(hits.query.ignored) == ["and", "quibble"]
    assert "score" not in "".join(page.locator(".why").all_text_contents())


def test_a_word_outside_the_vocabulary_is_found_in_texts(vocabulary_server, vocabulary_index, open_page):
    with dcmh.SearchIndex.open(vocabulary_index) as opened:
        bag = opened.encoders.words.bag
        texts = [hit.text for hit in opened.search("food", k=181)]
        word = next(word for text in texts for word in text.split() if word.isalpha() and bag.used_and_ignored(word)[1])
        hits = opened.search(word, k=60)
    page = open_page(f"{vocabulary_server.url}?text={word}")
    expect(page.locator(TILES)).to_have_count(len(hits))
    assert shown(page) == found(hits)
    expect(page.locator(".contains").first).to_have_text(f"contains: {hits[0].words[0]}")
    expect(page.locator("#query .term")).to_have_text("found in texts and labels only")
    expect(page.locator("#query .used")).to_have_text([word])


def test_a_query_of_unknown_words_offers_known_ones(vocabulary_server, open_page):
    server = vocabulary_server
    page = open_page(f"{server.url}?text=froot", expected=("status of 422",))
    said = page.locator("#message")
    expect(said).to_contain_text("No word of this query is in the vocabulary; similar words:")
    expect(page.locator("#live")).to_contain_text("No word of this query")
    expect(page.locator("#radius")).to_be_hidden()
    said.get_by_role("link", name="fruit").click()
    expect(page).to_have_url(f"{server.url}?text=fruit")
    expect(page.locator(TILES).first).to_be_visible()
    expect(said).to_be_hidden()


def test_an_ignored_word_can_be_replaced(vocabulary_server, open_page):
    server = vocabulary_server
    page = open_page(f"{server.url}?text=food+fruitt")
    page.get_by_role("link", name="fruit?").click()
    expect(page).to_have_url(f"{server.url}?text=food+fruit")
    expect(page.locator("#query .used")).to_have_text(["food fruit"])


def measured(search_index, radius):
    """Of all held-out items within the radius, the share that is relevant: from the report, by hand."""
    report = json.loads((search_index.folder / "model" / "report.json").read_text())
    rows = [row for row in report["text_to_image"]["by_distance"] if row["distance"] <= radius]
    points = sum(row["points"] for row in rows)
    share = sum(row["relevant"] for row in rows) / max(points, 1)
    return f"measured precision {round(share, 4):.2f}" if points else "precision not measured"


def test_the_radius_limits_the_hits(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face")
    expect(page.locator(TILES)).to_have_count(60)
    expect(page.locator("#radius-value")).to_have_text("any distance")
    assert page.locator("#slider").get_attribute("max") == str(search_index.bits // 2)
    distances = sorted({hit.distance for hit in search_index.search("face", k=181)})
    for radius in (distances[5], distances[3], distances[1], distances[0], distances[0] - 1):
        page.locator("#slider").fill(str(radius))
        within = search_index.search("face", radius=radius)
        assert len(within) < 60
        expect(page.locator("#count")).to_contain_text(f"{len(within)} within {radius}")
        assert shown(page) == found(within)
        expect(page).to_have_url(f"{server.url}?text=face&radius={radius}")
        if radius >= distances[0]:
            expect(page.locator("#precision")).to_have_text(measured(search_index, radius))
            expect(page.locator("#end")).to_have_text(f"That is all within {radius}.")
    expect(page.locator("#message")).to_have_text(f"No result within {radius}; the nearest is at {distances[0]} show")
    page.get_by_role("button", name="show").click()
    expect(page.locator(TILES).first).to_be_visible()
    expect(page).to_have_url(f"{server.url}?text=face&radius={distances[0]}")
    expect(page.locator("#slider")).to_be_focused()
    page.get_by_role("button", name="any distance").click()
    expect(page.locator(TILES)).to_have_count(60)
    expect(page).to_have_url(f"{server.url}?text=face")


def test_the_slider_hides_what_is_further_while_it_moves(server, open_page, search_index):
    page = open_page(f"{server.url}?text=face")
    expect(page.locator(TILES)).to_have_count(60)
    hits = search_index.search("face", k=60)
    radius = sorted({hit.distance for hit in hits})[2]
    page.evaluate("([value]) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", [radius])
    assert shown(page) == found(hit for hit in hits if hit.distance <= radius)
    expect(page).to_have_url(f"{server.url}?text=face")  # nothing is asked until it rests


def test_the_slider_leaves_what_is_being_typed(server, open_page):
    page = open_page(f"{server.url}?text=face")
    expect(page.locator(TILES)).to_have_count(60)
    page.fill("#words", "grinning fa")
    page.locator("#slider").fill("12")
    expect(page.locator("#count")).to_contain_text("within 12")
    expect(page.locator("#words")).to_have_value("grinning fa")


class TestPrecision:
    """Only hits whose precision is high enough."""

    LABEL = "Only hits with a precision of at least"

    def test_it_is_off_until_somebody_chooses(self, server, open_page, search_index):
        page = open_page(f"{server.url}?text={BREAKFAST}")
        expect(page.locator(TILES)).to_have_count(60)
        choice = page.get_by_label(self.LABEL)
        expect(choice).to_have_value("")
        for least in ("0.8", "0.9"):
            good = search_index.search(BREAKFAST.replace("+", " "), k=60, at_least=float(least))
            assert 0 < len(good) < 60
            choice.select_option(least)
            expect(page.locator("#count")).to_contain_text(f"{len(good)} with a precision of at least {least} · ")
            assert shown(page) == found(good)
            expect(page).to_have_url(f"{server.url}?text={BREAKFAST}&at_least={least}")
            expect(page.locator("#end")).to_have_text(f"That is all with a precision of at least {least}.")
        page.reload()
        expect(page.locator(TILES)).to_have_count(len(good))
        expect(choice).to_have_value("0.9")
        choice.select_option("off")
        expect(page.locator(TILES)).to_have_count(60)
        expect(page).to_have_url(f"{server.url}?text={BREAKFAST}")

    def test_what_is_said_when_nothing_reaches_it(self, server, open_page, search_index):
        best = search_index.search(BREAKFAST.replace("+", " "), k=1)[0].precision
        assert best < 1
        page = open_page(f"{server.url}?text={BREAKFAST}&at_least=1")
        expect(page.locator("#message .sentence")).to_have_text(
            f"Nothing reaches a precision of 1. The best hit has {best:.2f}. show all"
        )
        expect(page.locator("#live")).to_contain_text("Nothing reaches a precision of 1.")
        expect(page.get_by_label(self.LABEL)).to_have_value("1")
        page.get_by_role("button", name="show all").click()
        expect(page.locator(TILES)).to_have_count(60)
        expect(page.get_by_label(self.LABEL)).to_be_focused()

    @pytest.mark.parametrize(
        ("precision", "told"),
        [
            (0.16, "Probably nothing matches: the best hit has a precision of only 0.16."),
            (None, "Probably nothing matches: such low scores are seldom right."),
        ],
    )
    def test_that_nothing_matches_is_said_if_the_service_judges_so(self, server, open_page, precision, told):
        def judged(is_unlikely, route):
            record = route.fetch().json()
            hits = [hit | {"precision": precision} for hit in record["hits"]]
            route.fulfill(json=record | {"hits": hits, "unlikely": is_unlikely})

        def judged_so(is_unlikely):
            before = lambda page: page.route("**/api/search*", partial(judged, is_unlikely))  # noqa: E731
            page = open_page(f"{server.url}?text={BREAKFAST}", before=before)
            expect(page.locator(TILES)).to_have_count(60)
            return page

        page = judged_so(True)
        expect(page.locator("#unlikely")).to_have_text(told)
        expect(page.locator("#live")).to_contain_text(told)
        page = judged_so(False)
        expect(page.locator("#unlikely")).to_be_hidden()
        expect(page.locator("#live")).not_to_contain_text("nothing")

    def test_what_is_said_when_the_best_was_not_measured(self, server, open_page):
        def unmeasured(route):
            record = route.fetch().json()
            route.fulfill(json={**record, "nearest": {**record["nearest"], "precision": None}})

        before = lambda page: page.route("**/api/search*", unmeasured)  # noqa: E731
        page = open_page(f"{server.url}?text={BREAKFAST}&at_least=1", before=before)
        expect(page.locator("#message .sentence")).to_have_text(
            "Nothing reaches a precision of 1. The precision of the best hit was not measured. show all"
        )

    def test_without_measured_precision_there_is_no_choice(self, vocabulary_server, open_page):
        page = open_page(f"{vocabulary_server.url}?text=fruit&at_least=0.9")  # of somebody else's index
        expect(page.locator(TILES)).to_have_count(60)
        expect(page.get_by_label(self.LABEL)).to_be_hidden()
        assert "precision" not in "".join(page.locator(".why").all_text_contents())


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


def test_a_corrected_word_is_told_and_can_be_searched_for_as_it_is(server, open_page):
    def corrected(route):
        record = route.fetch().json()
        meant = {} if '"' in record["query"]["text"] else {"fruitt": "fruit"}
        route.fulfill(json={**record, "query": {**record["query"], "corrected": meant}})

    page = open_page(f"{server.url}?text=food+fruitt", before=lambda page: page.route("**/api/search*", corrected))
    expect(page.locator("#query .used")).to_have_text(["food fruit"])
    page.get_by_role("link", name="Search for fruitt as it is written").click()
    expect(page).to_have_url(f"{server.url}?text=food+%22fruitt%22")
    expect(page.locator("#query .used")).to_have_text(['food "fruitt"'])
    expect(page.locator("#query .instead")).to_have_count(0)
