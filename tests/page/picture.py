"""The picture of the page in the README: python tests/page/picture.py demo/openmoji.dcmh docs/page.png"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from PIL import Image, ImageDraw

WORDS = "heart"
SCALE, HEIGHT, GAP, CORNER = 1.25, 940, 24, 14


def take(browser, url: str, words: str, out: Path) -> None:
    """Side by side: what the words find, on a desk and in light; one item, on a telephone and in the dark."""
    address = f"{url}?text={words}"
    found = _shot(browser, address, 1100, "light")
    item = _shot(browser, address, 390, "dark", rank=24)
    whole = Image.new("RGBA", (found.width + round(GAP * SCALE) + item.width, found.height))
    whole.paste(found, mask=_rounded(found))
    whole.paste(item, (whole.width - item.width, 0), mask=_rounded(item))
    whole.quantize(256, method=Image.Quantize.FASTOCTREE).save(out, optimize=True)


def _shot(browser, address: str, width: int, scheme: str, rank: int | None = None) -> Image.Image:
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHT},
        device_scale_factor=SCALE,
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page.goto(address)
    page.wait_for_selector("#grid img.loaded")
    if rank is not None:
        page.locator("#grid .tile").nth(rank).click()
        page.wait_for_selector("#item .about")
    page.wait_for_load_state("networkidle")
    taken = Image.open(io.BytesIO(page.screenshot()))
    page.close()
    return taken


def _rounded(picture: Image.Image) -> Image.Image:
    mask = Image.new("L", picture.size)
    edge = (0, 0, picture.width - 1, picture.height - 1)
    ImageDraw.Draw(mask).rounded_rectangle(edge, CORNER * SCALE, fill=255)
    return mask


def main() -> None:
    from chromium import find_chromium
    from playwright.sync_api import sync_playwright
    from serving import Server

    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    server = Server(folder)
    server.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(), args=["--no-sandbox"] if os.geteuid() == 0 else []
            )
            take(browser, server.url, WORDS, out)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
