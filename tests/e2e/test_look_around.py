"""dcmh data, methods, info, --help, and how commands end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from commands import SRC, finish, spawn

import dcmh
from dcmh import cli as commands
from dcmh.cli.handbook import handbook
from dcmh.util.text import STOP_WORDS, singular
from toy_photos import write_photos

HEAVY = ("torch", "scipy", "sklearn", "matplotlib", "numba", "numpy", "PIL", "fastapi")


def test_help_is_light(tmp_path):
    """All in one process, which shows what any of them imports."""
    lines = (["--help"], *([name, "--help"] for name in commands.COMMANDS))
    program = "import contextlib, sys\nfrom dcmh.cli import main\n"
    program += f"for line in {list(lines)}:\n    sys.argv[1:] = line\n    with contextlib.suppress(SystemExit):\n        main()\n"
    answer = finish(spawn(cwd=tmp_path, program=("-X", "importtime", "-c", program)))
    assert answer.code == 0
    assert answer.out.count("Usage: ") == len(lines)
    loaded = {line.rpartition("|")[2].strip() for line in answer.err.splitlines()}
    assert not loaded.intersection(HEAVY)


def test_the_handbook_is_current():
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == handbook(), "python -m dcmh.cli.handbook docs/cli.md"


def test_every_command_has_an_example_and_json(cli):
    assert cli("--version").out == f"{dcmh.__version__}\n"
    for name in commands.COMMANDS:
        answer = cli(name, "--help")
        assert answer.code == 0
        assert f"Example: dcmh {name}" in answer.out
        assert "--json" in answer.out


def test_data_lists_what_there_is(cli):
    assert cli("data").out.splitlines()[0].split() == ["name", "state", "what"]
    assert [row["name"] for row in json.loads(cli("data", "--json").out)] == list(dcmh.data.available())


def test_data_says_what_is_in_a_folder(cli, tmp_path):
    write_photos(tmp_path / "photos", 20)
    (tmp_path / "photos" / "003.png").write_bytes(b"")
    answer = cli("data", "photos", "--check")
    assert answer.code == 0
    texts = dcmh.load_dataset(tmp_path / "photos").text.values
    counts = Counter(word for text in texts for word in {singular(word) for word in text.split()})
    words = sum(count >= 2 and word not in STOP_WORDS for word, count in counts.items())
    assert dict(line.split(None, 1) for line in answer.out.splitlines()) == {
        "name": "photos",
        "items": "20",
        "image": "images of 20 items",
        "text": f"texts of 20 items, {words} words",
        "labels": answer.out.split("labels")[1].splitlines()[0].strip(),
        "note": "Text from captions.csv for 20 of 20 items.",
        "unreadable": "1",
    }
    assert "003.png: empty file\n1 skipped." in answer.err
    record = json.loads(cli("data", "photos", "--json").out)
    assert record["modalities"]["image"] == {"kind": "image", "observed": 20}
    assert json.loads(cli("info", "photos", "--json").out) == {"path": "photos", "kind": "data", **record}


def test_data_says_what_is_in_any_folder(cli, tmp_path):
    folder = tmp_path / "my photos"
    (folder / "@eaDir").mkdir(parents=True)
    for name in ("clip.mp4", "new\nline.pdf", "readme.txt"):
        (folder / name).touch()
    answer = cli("data", "my photos", "--check")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "name      my photos",
        "items     0",
        "labels    none",
        "not read  1 PDF file (new\\nline.pdf), 1 text file (readme.txt), 1 video (clip.mp4)",
        "left out  1 hidden or system folder (@eaDir)",
    ]
    assert answer.err.splitlines() == [
        "not read new\\nline.pdf: PDF file",
        "not read readme.txt: text file",
        "not read clip.mp4: video",
        "There are no pictures to index.",
    ]
    write_photos(folder, 3)
    (folder / "captions.csv").unlink()
    (folder / "000.txt").write_text("nothing like it")
    answer = cli("data", "my photos")
    assert "text      texts of 1 item, 0 words\n" in answer.out
    assert answer.last == "Next: dcmh index 'my photos'"
    (folder / "000.txt").unlink()
    answer = cli("data", "my photos")
    assert "text      none\nlabels    none\n" in answer.out
    assert answer.last == "Next: dcmh index 'my photos'"
    record = json.loads(cli("info", "my photos", "--json").out)
    assert (record["items"], record["not_read"]["video"]) == (3, ["clip.mp4"])


def test_data_says_how_to_read_heic(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("dcmh.data.folder.can_read_heic", lambda: False)
    (tmp_path / "a.heic").touch()
    assert 'not read  1 HEIC picture (a.heic) (to read HEIC: pip install "dcmh[heic]")\n' in cli("data", tmp_path).out


def test_the_file_that_a_folder_was_read_from_is_not_listed_as_unread(cli, tmp_path):
    generator = np.random.default_rng(0)
    parts = {f"{name}_{part}": generator.random((20, 4)) for name in "IT" for part in ("tr", "te")}
    scipy.io.savemat(
        tmp_path / "wiki.mat", parts | {f"L_{part}": np.eye(2)[np.arange(20) % 2] for part in ("tr", "te")}
    )
    (tmp_path / "notes.md").touch()
    (tmp_path / "more").mkdir()
    for name in ("more.parquet", "more/photos.tar"):
        (tmp_path / name).touch()
    found = json.loads(cli("data", str(tmp_path), "--json").out)
    assert found["items"] == 40
    not_read = {file for files in found["not_read"].values() for file in files}
    assert not_read == {"notes.md", "more.parquet", "more/photos.tar"}


def test_arguments_that_no_command_takes_are_named(cli):
    answer = cli("serve", "a.dcmh", "b c.dcmh")
    assert (answer.code, answer.last) == (2, "Too many arguments: 'b c.dcmh'. Try: dcmh serve --help")


def test_methods_are_listed_with_their_papers(cli):
    rows = {row["name"]: row for row in json.loads(cli("methods", "--json").out)}
    assert rows["dcmh"]["labels"] is True
    assert rows["cca"]["labels"] is False
    assert "Hotelling" in rows["cca"]["paper"]
    assert cli("methods").out.count("\n") == len(rows) + 1


def test_a_method_is_described_with_its_settings(cli):
    page = cli("methods", "dcmh").out
    assert page.startswith("DCMH: Deep Cross-Modal Hashing")
    assert "Labels: needed, or --similarity." in page
    assert "gamma          1.0" in page
    assert json.loads(cli("methods", "ridge", "--json").out)["parameters"] == {"bits": 64, "seed": 0, "ridge": 0.1}
    assert cli("methods", "dhmc").code == 1


def test_info_explains_a_model(cli, toy_model):
    page = dict(line.split(None, 1) for line in cli("info", toy_model).out.splitlines())
    assert page["kind"] == "model"
    assert page["method"] == "dcmh"
    assert page["bits"] == "16"
    assert page["command"] == f"dcmh train toy --epochs 2 --hidden 32 --bits 16 --device cpu --out {toy_model}"
    assert page["iterations"] == "2"
    assert page["measured"].startswith("queries 40, database 160, chance 0.17")
    record = json.loads(cli("info", toy_model, "--json").out)
    assert record["trained_on"]["source"] == "toy"
    assert set(record["measured"]["map"]) == {"image_to_text", "text_to_image", "image_to_joint", "text_to_joint"}


def test_a_bug_shows_its_traceback_and_asks_for_a_report(cli, monkeypatch):
    monkeypatch.setattr("dcmh.methods.available", lambda: 1 / 0)
    answer = cli("methods", "--json")
    assert (answer.code, answer.out) == (1, "")
    assert "ZeroDivisionError" in answer.err
    assert answer.last.startswith("This is a bug in dcmh")
    assert answer.last.endswith("command: dcmh methods --json")


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (PermissionError(13, "Permission denied", "/m"), "Permission denied: /m. Check the file permissions.", 1),
        (OSError(28, "No space left on device", "/m"), "The disk is full: cannot write /m (No space left on", 4),
        (
            OSError(5, "Input/output error", "/m"),
            "The disk fails: cannot read or write /m (Input/output error). Check",
            4,
        ),
        (OSError(30, "Read-only file system"), "The disk is read-only (Read-only file system). Make it", 4),
        (MemoryError(), "Out of memory. ", 1),
    ],
)
def test_what_the_system_refuses_is_not_a_bug(cli, monkeypatch, error, message, code):
    def refuse():
        raise error

    monkeypatch.setattr("dcmh.methods.available", refuse)
    answer = cli("methods")
    assert answer.code == code
    assert answer.err.startswith(message)
    assert answer.err.count("\n") == 1


def test_an_interruption_is_said(cli, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("dcmh.methods.available", interrupt)
    assert cli("methods").code == 130


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    # The pipe is closed before the program writes into it.
    process = subprocess.Popen(
        [sys.executable, "-m", "dcmh", "data", "toy"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(SRC), "PATH": "", "DCMH_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0
    assert err == "Next: dcmh train toy\n"


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(capsys, monkeypatch):
    from dcmh.cli import console

    clock = iter([0.0, 1.0, 11.0, 12.0, 22.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.progress("reading", "pictures") as bar:
        for done in (10, 110, 120, 220):
            bar.update(done, 320, "detail")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "reading: 110 of 320  detail  10 pictures/s  0:00:21 left",
        "reading: 220 of 320  detail  10 pictures/s  0:00:10 left",
    ]


def test_no_time_left_is_said_before_the_image_network_learns(capsys, monkeypatch):
    from dcmh.cli import console
    from dcmh.cli.training_run import show_on

    clock = iter([0.0, 11.0, 22.0, 100.0, 180.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    with console.progress("dcmh") as bar:
        show = show_on(bar)
        for epoch, resting in ((1, True), (2, True), (3, False), (4, False)):
            show({"epoch": epoch, "epochs": 6, "resting": resting})
    assert [line.strip() for line in capsys.readouterr().err.splitlines()] == [
        "dcmh: 1 of 6  (slower once the image network is trained)",
        "dcmh: 2 of 6  (slower once the image network is trained)",
        "dcmh: 3 of 6",
        "dcmh: 4 of 6  0:02:40 left",  # by the pace of the second part alone
    ]


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    from dcmh.cli import console

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with console.progress("dcmh") as bar:
        for done in (1, 2):
            bar.update(done, 2, f"likelihood 0.{done}")
    said = capsys.readouterr()
    assert said.out == ""
    assert "2/2  likelihood 0.2" in said.err
    assert "\x1b[3" not in said.err
