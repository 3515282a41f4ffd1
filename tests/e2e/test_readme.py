"""The README's commands and code, run as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from PIL import Image

from toy_photos import write_photos

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_commands_for_your_own_photos(cli, tmp_path):
    write_photos(tmp_path / "photos", 120)
    Image.open(tmp_path / "photos" / "000.png").convert("RGB").save(tmp_path / "sunset.jpg")
    (block,) = [block for block in blocks("console") if "$ dcmh train photos/" in block]
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 4
    for command in commands:
        name, *arguments = shlex.split(command)
        assert name == "dcmh"
        if arguments[0] == "search" and "dog beach" in arguments:  # words that the toy texts have
            arguments[arguments.index("dog beach")] = "apple boat sea fruit sun"
        answer = cli(*arguments)
        assert answer.code == 0, (command, answer.err)
        assert answer.out or arguments[0] == "index", command


def test_python_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(code, names)
    report = names["report"]
    assert report["image_to_text"].map["stable"] > report.chance
    assert (tmp_path / "model" / "model.json").exists()


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert links
    for link in links:
        assert link.startswith("https://") or (README.parent / link).exists(), link


def test_the_two_commands_are_on_the_first_screen():
    first = README.read_text(encoding="utf-8")[:3000]
    assert "make demo" in first
    assert "make test" in first
