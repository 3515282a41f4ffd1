"""The commands, code and links of the README and the docs, as they are written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from dcmh import load_dataset
from toy_photos import write_photos

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "getting-started.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def commands(block: str) -> list[list[str]]:
    return [shlex.split(line[2:], comments=True) for line in block.splitlines() if line.startswith("$ ")]


def headings(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_commands_for_your_own_photos(cli, tmp_path):
    write_photos(tmp_path / "photos", 60)
    Image.open(tmp_path / "photos" / "000.png").convert("RGB").save(tmp_path / "sunset.jpg")
    (block,) = [block for block in blocks(README, "console") if "$ dcmh train photos/" in block]
    lines = commands(block)
    assert len(lines) >= 4
    for name, *arguments in lines:
        assert name == "dcmh"
        if arguments[0] == "search" and "dog beach" in arguments:  # words that the toy texts have
            arguments[arguments.index("dog beach")] = "apple boat sea fruit sun"
        answer = cli(*arguments)
        assert answer.code == 0, (arguments, answer.err)
        assert answer.out or arguments[0] == "index", arguments


def test_first_commands_and_python_code(cli, tmp_path, capsys):
    """Index without training, search in two languages; the Python code opens the same index."""
    write_photos(tmp_path / "photos", 12)
    for name, *arguments in commands(blocks(README, "console")[0]):
        if name == "dcmh" and arguments[0] != "serve":
            answer = cli(*arguments)
            assert answer.code == 0, (arguments, answer.err)
    (code,) = blocks(README, "python")
    exec(code, {})
    assert len(re.findall(r"^-?\d\.\d\d  .*\.png$", capsys.readouterr().out, re.MULTILINE)) == 5


@pytest.mark.slow
def test_python_code_of_the_tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks(TUTORIAL, "python") if "dcmh.evaluate" in block]
    names: dict[str, object] = {}
    exec(code, names)
    report = names["report"]
    assert report["image_to_text"].map["stable"] > report.chance
    assert (tmp_path / "model" / "model.json").exists()


def test_practice_pictures_of_the_tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks(TUTORIAL, "python") if "openmoji" in block and "pairs.csv" in block]
    exec(code, {})
    shutil.move("pairs.csv", "photos")
    assert len(load_dataset("photos")) == 1914
    for name in re.findall(r"\S+-\d+\.png", TUTORIAL.read_text(encoding="utf-8")):  # the hits that the page shows
        assert (tmp_path / "photos" / Path(name).name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        assert link.startswith("https://") or target.exists(), link
        assert not anchor or anchor[1:] in headings(target), f"{link}{anchor}"


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "README.md" or f"]({name})" in index, name


def test_the_two_commands_are_on_the_first_screen():
    first = README.read_text(encoding="utf-8")[:3000]
    assert "make demo" in first
    assert "make test" in first
