"""What the page's tests serve: a folder of drawings, and the service in a thread of the tests' own process."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from PIL import ImageFont, ImageOps

from dcmh.data.benchmarks import openmoji
from dcmh.service import Settings, connections, create_app

COLOURS = {  # features that cost nothing see the background, which every fifth drawing lacks
    "smileys & emotion": "khaki",
    "food & drink": "salmon",
    "travel & places": "lightblue",
    "animals & nature": "darkseagreen",
}
OF_EACH = 45
HOSTILE = '<img src="nowhere" onerror="window.hurt = 1"><script>window.hurt = 2</script> fruit'


def some_drawings(folder: Path) -> Path:
    """A folder with some of OpenMoji, each group in a folder of its own, and one item whose words would like to be HTML."""
    lines = []
    for group, emoji, drawing in _drawings():
        name = f"{group.partition(' ')[0]}/{emoji.hexcode}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        drawing.save(folder / name, compress_level=1)
        lines.append({"id": emoji.hexcode, "image": name, "text": emoji.text, "labels": [group]})
    shutil.copyfile(folder / name, folder / "hostile.png")
    lines.append({"id": "<b>hostile", "image": "hostile.png", "text": HOSTILE, "labels": ["<i>label</i>"]})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "ATTRIBUTION.txt").write_text(openmoji.ATTRIBUTION + "\n")
    return folder


def _drawings() -> Iterator[tuple[str, openmoji.Emoji, object]]:
    font_file, words, _ = openmoji._find()
    font = ImageFont.truetype(font_file, openmoji._POINTS, layout_engine=ImageFont.Layout.BASIC)
    emojis = [emoji for emoji in openmoji.read_emojis(words) if len(emoji.characters) == 1]
    for group, colour in COLOURS.items():
        chosen = [emoji for emoji in emojis if emoji.group == group][::2][:OF_EACH]
        for number, emoji in enumerate(chosen):
            drawing = openmoji.draw(emoji.characters, font)
            if drawing is not None:
                shown = "white" if number % 5 == 0 else colour
                yield group, emoji, ImageOps.expand(drawing.resize((184, 184)), 20, shown)


class Server:
    """The service at a port of its own; it can go and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        settings = Settings(rate=0, access_log=None)
        config = uvicorn.Config(
            create_app(self.folder, settings),
            port=self.port,
            log_config=None,
            proxy_headers=False,
            timeout_graceful_shutdown=10,
            **connections.options(settings),
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        for _ in range(3000):
            if self._server.started:
                return
            assert self._thread.is_alive(), "the server has ended"
            self._thread.join(0.01)
        raise AssertionError("the server does not answer")

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join(timeout=20)
            self._server = self._thread = None


def to_the_end(page) -> None:
    """Scroll until all hits are there."""
    for _ in range(100):
        if not page.locator("#more").is_visible():
            return
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_timeout(30)
    raise AssertionError("There are always more hits to come.")
