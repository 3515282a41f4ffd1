"""The documentation: the site builds, blocks of tutorials and how-to pages run, and what is quoted exists.

A block of Python or of commands is run as it is written, the blocks of a page in order and in one folder. A block that cannot
be run here follows a line <!-- not run: reason -->; of its commands, the options are checked, and of its code the names of dcmh.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

import dcmh
from dcmh.cli import app
from toy_photos import write_photos

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = {"README.md", "cli.md", "api.md", "promises.md", "protocol.md", "recipe.md", "paper-map.md"}
PAGES = sorted(page.name for page in DOCS.glob("*.md") if page.name not in REFERENCE)
FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>[^\n]+) -->\n)?```(?P<language>console|python|bash|toml)\n(?P<code>.*?)```", re.DOTALL
)
SLOW = {"getting-started.md", "tutorial-research.md"}  # they train


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    not_run: str | None
    before: str  # the line above it

    @property
    def commands(self) -> list[str]:
        joined = self.code.replace("\\\n", " ")
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        found.append(Block(match["language"], match["code"], match["reason"], before))
    return found


TO_RUN = [page for page in PAGES if any(block.not_run is None and block.language != "toml" for block in blocks(page))]


@pytest.fixture
def folder(tmp_path, toy_model, monkeypatch):
    """What the pages take for granted: photos, a model and an index of them, a picture, a file with queries."""
    write_photos(tmp_path / "photos", 24)
    shutil.copytree(toy_model, tmp_path / "photos.model")
    for name in ("sunset.jpg", "square.jpg", "new/IMG_1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with Image.open(tmp_path / "photos" / "000.png") as picture:
            picture.convert("RGB").save(tmp_path / name)
    (tmp_path / "queries.txt").write_text("dog\nsunny noon\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.slow) if page in SLOW else page for page in TO_RUN]
)
def test_blocks_run(page, folder, cli, monkeypatch):
    names: dict[str, object] = {}
    if page == "getting-started.md":
        shutil.rmtree(folder / "photos")
    elif page in ("mcp.md", "service.md", "collections.md"):
        assert cli("index", "photos", "--model", "photos.model").code == 0
        for name in ("summer.dcmh", "winter.dcmh"):
            shutil.copytree("photos.dcmh", name)
    for block in blocks(page):
        if block.not_run is not None:
            continue
        if block.language == "python":
            exec(compile(block.code, page, "exec"), names)
            thin_out(folder)
        elif block.language == "toml":
            for name in re.findall(r"Save this as `([\w.]+)`", block.before):
                (folder / name).write_text(block.code, encoding="utf-8")
        for command in block.commands:
            run(command, cli, monkeypatch)


def run(command: str, cli, monkeypatch) -> None:
    """Run a line: a command of dcmh, also with cat FILE | before it, or mv."""
    before, _, after = command.rpartition(" | ")
    if before:
        name, file = shlex.split(before)
        assert name == "cat", command
        monkeypatch.setattr(sys, "stdin", io.StringIO(Path(file).read_text()))
    program, *arguments = shlex.split(after, comments=True)
    if program == "mv":
        shutil.move(*arguments)
        return
    assert program == "dcmh", f"Mark the block as not run, or teach this test to run: {command}"
    answer = cli(*arguments)
    assert answer.code == 0, (command, answer.err)


def thin_out(folder: Path) -> None:
    """Of the practice pictures, keep those that the tutorial names and a few others."""
    photos = sorted((folder / "photos").glob("*-*.png"))
    if len(photos) < 1000:
        return
    named = set(re.findall(r"\S+-\d+\.png", (DOCS / "getting-started.md").read_text(encoding="utf-8")))
    kept = {path.name for row, path in enumerate(photos) if row % 15 == 0} | {Path(name).name for name in named}
    for path in photos:
        if path.name not in kept:
            path.unlink()
    head, *rows = (folder / "pairs.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    left = [row for row in rows if row.partition(",")[0] in kept]
    (folder / "pairs.csv").write_text("".join([head, *left]), encoding="utf-8")


def everything() -> list[tuple[str, Block]]:
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    return [(page, block) for page in [*pages, "../README.md", "../CONTRIBUTING.md"] for block in blocks(page)]


def test_options_of_all_commands_exist():
    count = 0
    for _, block in everything():
        for line in block.commands:
            tokens = shlex.split(line.rpartition(" | ")[2], comments=True)
            if tokens[0] == "dcmh":
                app.parse_args(tokens[1:], print_error=False, exit_on_error=False)  # raises with the name of the option
                count += 1
    assert count > 50


def test_names_in_all_code_exist():
    for page, block in everything():
        if block.language == "python":
            for node in ast.walk(ast.parse(block.code)):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dcmh":
                    assert hasattr(dcmh, node.attr), (page, ast.unparse(node))


def test_reasons_for_not_running_name_files_that_exist():
    for page, block in everything():
        for path in re.findall(r"(?:tests|examples|benchmarks)/[\w/.]+\w", block.not_run or ""):
            assert (ROOT / path).exists(), (page, path)


def test_quoted_error_messages_are_those_of_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    quoted = re.findall(r"^### `(.*)`$", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) > 10
    for message in quoted:
        for part in message.split("…"):
            assert part.strip() in source, message


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: dcmh\.(\w+)", page, re.MULTILINE))
    assert set(dcmh.__all__) - {"data"} <= listed  # dcmh.data: load_dataset and the classes, which are listed


def test_the_site_builds_without_a_warning(tmp_path):
    """Links and anchors inside it are checked, every page is in the navigation, and nothing comes from other sites."""
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not included in the" not in done.stderr
    assert (tmp_path / "site" / "search" / "search_index.js").exists()  # the search works offline
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text(encoding="utf-8")
        )
        assert not fetched, (page.name, fetched)
