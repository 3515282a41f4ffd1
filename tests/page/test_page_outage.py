"""A server that is gone, slow or busy: the page says so and goes on by itself."""

from __future__ import annotations

from playwright.sync_api import expect

TILES = "#grid li:not([hidden]) .tile"
GONE = ("ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE", "ERR_SOCKET_NOT_CONNECTED")


def test_the_server_goes_and_comes_back(own_server, open_page, search_index):
    page = open_page(f"{own_server.url}?text=fruit", expected=GONE)
    expect(page.locator(TILES)).to_have_count(60)
    own_server.stop()
    page.fill("#words", "face")
    page.press("#words", "Enter")
    expect(page.locator("#connection")).to_have_text("Server not reachable, retrying")
    expect(page.locator("#connection")).to_have_role("status")
    expect(page.locator("#grid .waiting").first).to_be_visible()
    own_server.start()
    expect(page.locator(TILES)).to_have_count(60, timeout=10_000)
    assert page.locator("#query .used").all_text_contents() == ["face"]
    expect(page.locator("#connection")).to_have_text("")
    expect(page.locator(f"{TILES} img.loaded").first).to_be_visible()


def test_a_page_that_is_opened_while_the_api_is_gone(server, open_page):
    page = open_page(
        f"{server.url}?text=fruit&item=2",
        expected=("ERR_FAILED",),
        before=lambda page: page.route("**/api/**", lambda route: route.abort("failed")),
    )
    expect(page.locator("#connection")).to_have_text("Server not reachable, retrying")
    page.unroute("**/api/**")
    expect(page.locator("#item-title")).to_be_visible()
    expect(page.locator(TILES)).to_have_count(60)


def test_a_slow_answer_is_waited_for_in_sight(server, open_page):
    page = open_page(f"{server.url}?text=fruit")
    expect(page.locator(TILES)).to_have_count(60)
    held = []
    page.route("**/api/search?text=face*", lambda route: held.append(route))
    page.fill("#words", "face")
    page.press("#words", "Enter")
    expect(page.locator("#answer")).to_have_class("answer busy")
    expect(page.locator("#live")).to_have_text("Searching")
    page.fill("#words", "food")  # who does not want to wait asks something else
    page.press("#words", "Enter")
    expect(page.locator("#query .used")).to_have_text(["food"])
    expect(page.locator("#answer")).to_have_class("answer")
    held[0].abort()


def test_a_busy_server_is_asked_again(server, open_page):
    page = open_page(server.url, expected=("status of 429", "status of 503"))
    expect(page.locator(".row")).to_have_count(4)
    refusals = [429, 503]

    def refuse(route):
        if refusals:
            route.fulfill(status=refusals.pop(), headers={"Retry-After": "0"}, json={"title": "Too many requests."})
        else:
            route.continue_()

    page.route("**/api/search?text=fruit*", refuse)
    page.fill("#words", "fruit")
    page.press("#words", "Enter")
    expect(page.locator("#connection")).to_have_text("Server busy, retrying")
    expect(page.locator(TILES)).to_have_count(60)


def test_a_bug_of_the_server_is_told(server, open_page):
    problem = {"type": "bug", "title": "Something went wrong here.", "hint": "The log has it under 9f3a."}
    page = open_page(
        f"{server.url}?text=fruit",
        expected=("status of 500",),
        before=lambda page: page.route("**/api/search?*", lambda route: route.fulfill(status=500, json=problem)),
    )
    expect(page.locator("#message .sentence")).to_have_text(problem["title"])
    expect(page.locator("#message .hint")).to_have_text(problem["hint"])
