"""A picture finds: chosen, dropped or pasted; its code is in the address, so that a reload keeps what it found."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import expect
from serving import to_the_end

TILES = "#grid li:not([hidden]) .tile"


@pytest.fixture
def drawing(search_index, tmp_path):
    """A picture like one that is indexed, under another name."""
    item = search_index.item(5)
    copy = tmp_path / "my drawing.png"
    copy.write_bytes(search_index.path_of(item).read_bytes())
    return copy


def shown(page):
    return page.eval_on_selector_all(TILES, "tiles => tiles.map(tile => Number(tile.dataset.id))")


def give(page, file, event):
    """Drop the file on the page, or paste it: what a browser does with a real one."""
    page.evaluate(
        """([name, content, event]) => {
            const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
            const given = new DataTransfer();
            given.items.add(new File([bytes], name, { type: name.endsWith(".png") ? "image/png" : "text/plain" }));
            const send = (kind, Event, key) => document.body.dispatchEvent(
                new Event(kind, { [key]: given, bubbles: true, cancelable: true }));
            if (event === "paste") return send("paste", ClipboardEvent, "clipboardData");
            send("dragenter", DragEvent, "dataTransfer");
            if (!document.getElementById("drop").classList.contains("over")) throw new Error("no sign that it may drop");
            send("dragover", DragEvent, "dataTransfer");
            send("drop", DragEvent, "dataTransfer");
        }""",
        [file.name, base64.b64encode(file.read_bytes()).decode(), event],
    )


@pytest.mark.parametrize("way", ["drop", "paste", "choose"])
def test_a_picture_finds_what_python_finds(server, open_page, search_index, drawing, way):
    page = open_page(server.url)
    expect(page.locator(".row")).to_have_count(4)
    if way == "choose":
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Picture").click()
        chooser.value.set_files(drawing)
    else:
        give(page, drawing, way)
    expect(page.locator(TILES).first).to_be_visible()
    key = search_index.ask(image=drawing)[0].key
    hits = search_index.near(key, "image", k=60)
    assert shown(page) == [hit.id for hit in hits]
    assert next(hit.distance for hit in hits if hit.id == 5) == 0
    expect(page.locator("#query b")).to_have_text("my drawing.png")
    expect(page.locator("#query img")).to_have_js_property("complete", True)
    assert page.locator("#query img").evaluate("image => image.naturalWidth") == 224
    assert f"code={key.hex()}&" in page.url
    expect(page.locator("#precision")).to_have_text("")  # without a radius


def test_more_hits_have_the_order_of_one_large_answer(server, open_page, search_index, drawing):
    page = open_page(server.url)
    give(page, drawing, "drop")
    expect(page.locator(TILES)).to_have_count(60)
    to_the_end(page)
    key = search_index.ask(image=drawing)[0].key
    assert shown(page) == [hit.id for hit in search_index.near(key, "image", k=1000)]


def test_a_reload_keeps_the_results_and_says_what_is_gone(server, open_page, drawing):
    page = open_page(server.url)
    give(page, drawing, "drop")
    expect(page.locator(TILES).first).to_be_visible()
    expect(page.locator(".aside")).to_contain_text("a reload keeps the results")
    before = shown(page)
    page.reload()
    expect(page.locator(TILES).first).to_be_visible()
    assert shown(page) == before
    expect(page.locator("#query img")).to_have_count(0)
    expect(page.locator(".aside")).to_have_text("These are the results for its code; the picture itself is not stored.")
    page.go_back()
    expect(page.locator("#home")).to_be_visible()


def test_what_is_no_picture_is_refused_with_a_sentence(server, open_page, tmp_path):
    page = open_page(server.url, expected=("status of 4",))
    expect(page.locator(".row")).to_have_count(4)
    (tmp_path / "notes.txt").write_text("no picture")
    give(page, tmp_path / "notes.txt", "drop")
    expect(page.locator("#message")).to_contain_text("notes.txt is not a picture.")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    give(page, tmp_path / "broken.png", "drop")
    expect(page.locator("#message .sentence")).not_to_contain_text("notes.txt")
    expect(page.locator("#message .sentence")).to_contain_text("picture")
    page.evaluate(
        """() => {
            const given = new DataTransfer();
            given.items.add(new File([new Uint8Array(34_200_000)], "huge.png", { type: "image/png" }));
            document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: given, bubbles: true }));
        }"""
    )
    expect(page.locator("#message")).to_contain_text("huge.png has 34.2 MB; the server accepts up to 20.0 MB.")
    page.fill("#words", "fruit")
    page.press("#words", "Enter")
    expect(page.locator(TILES).first).to_be_visible()
    expect(page.locator("#message")).to_be_hidden()
