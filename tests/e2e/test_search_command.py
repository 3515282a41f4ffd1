"""dcmh search: by words, by a picture, for people and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import finish, spawn

from dcmh.cli import main
from dcmh.search import SearchIndex
from toy_photos import write_pairs, write_photos


@pytest.fixture(scope="module")
def place(tmp_path_factory, toy_model):
    folder = tmp_path_factory.mktemp("search")
    write_photos(folder / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["index", "photos", "--model", str(toy_model)]) == 0
    return folder


@pytest.fixture
def ask(cli, place, monkeypatch):
    monkeypatch.chdir(place)
    return lambda *arguments: cli("search", "photos.dcmh", *arguments)


@pytest.mark.parametrize(
    ("precision", "why"),
    [(0.16, "the best hit has a precision of only 0.16"), (None, "such low scores are seldom right")],
)
def test_that_probably_nothing_matches_is_said(ask, monkeypatch, precision, why):
    search = SearchIndex.search

    def low(*arguments, **options):
        hits = search(*arguments, **options)
        return replace(hits, hits=tuple(replace(hit, precision=precision) for hit in hits), unlikely=True)

    assert "Probably nothing matches" not in ask("sunny").err
    monkeypatch.setattr(SearchIndex, "search", low)
    assert f"Probably nothing matches: {why}.\n" in ask("sunny").err


def test_a_table_that_says_why(ask):
    answer = ask("the yzzy noon", "-k", "3")
    assert answer.code == 0
    header, *rows = answer.out.splitlines()
    columns = ["score", "distance", "words", "file", "text"]
    assert header.split() in (columns, ["precision", *columns])
    assert len(rows) == 3
    assert all(re.search(r"-?\d\.\d\d +\d+ / 16 +(noon +)?\d{3}\.png +\w+", row) for row in rows), rows
    assert "noon" in rows[0]
    assert answer.err.splitlines()[-1].startswith("40 searched in ")
    if "precision" in header:
        assert "measured on items that the model did not learn from" in answer.err


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("word", "share of relevant items among such hits"),
        ("sentence", "share of such hits that match at least in part (by one label)"),
    ],
)
def test_what_precision_means_depends_on_the_query(ask, monkeypatch, kind, share):
    search = SearchIndex.search

    def measured(*arguments, **options):
        hits = search(*arguments, **options)
        query = replace(hits.query, kind=kind)
        return replace(hits, hits=tuple(replace(hit, precision=0.9) for hit in hits), query=query)

    monkeypatch.setattr(SearchIndex, "search", measured)
    assert f"precision: {share}, measured on items that the model did not learn from\n" in ask("sunny").err


def test_it_says_how_to_search_for_words_as_typed(ask, monkeypatch):
    search = SearchIndex.search

    def corrected(*arguments, **options):
        hits = search(*arguments, **options)
        return replace(
            hits, query=replace(hits.query, text="two motercycles", corrected={"motercycles": "motorcycles"})
        )

    monkeypatch.setattr(SearchIndex, "search", corrected)
    says = """Searched for motorcycles instead of motercycles. As typed: 'two "motercycles"'\n"""
    assert ask("sunny").err.startswith(says)


def test_at_least_says_that_nothing_reaches_it(ask):
    everything = json.loads(ask("sunny noon", "-k", "40", "--json").out)["hits"]
    answer = ask("sunny noon", "-k", "40", "--at-least", "1", "--json")
    record = json.loads(answer.out)
    assert [hit["id"] for hit in record["hits"]] == [hit["id"] for hit in everything if hit["precision"] == 1]
    assert record["at_least"] == 1
    refused = ask("sunny", "--at-least", "2")
    assert (refused.code, refused.last) == (1, "at_least must be a number from 0 to 1, not 2.0.")
    if not record["hits"]:
        assert ask("sunny noon", "--at-least", "1").last.startswith("No hit reaches a precision of 1.")


def test_several_words_need_no_quotes(ask):
    assert ask("sunny", "noon").out == ask("sunny noon").out
    assert ask("text:sunny noon").out == ask("sunny noon").out


def test_a_picture(ask, place):
    answer = ask("photos/003.png", "-k", "2", "--json")
    record = json.loads(answer.out)
    assert record["query"]["image"] == "photos/003.png"
    assert record["hits"][0]["distance"] == 0
    assert record["searched"] == 40
    assert json.loads(ask("image:photos/003.png", "-k", "2", "--json").out)["hits"] == record["hits"]
    texts = json.loads(ask("photos/003.png", "--in", "text", "--json").out)["hits"]
    assert {hit["modality"] for hit in texts} == {"text"}
    assert texts[0]["score"] is not None


def test_a_file_called_like_a_word_is_asked_for_as_a_word(ask, place):
    """Unless it is a picture."""
    (place / "sunny").write_text("a list of sunny days")
    assert json.loads(ask("sunny", "--json").out)["query"]["text"] == "sunny"
    picture = next((place / "photos").glob("*.png"))
    (place / "sunny").write_bytes(picture.read_bytes())
    assert json.loads(ask("sunny", "--json").out)["query"]["image"] == "sunny"
    (place / "sunny").unlink()


def test_json_has_the_agreed_shape(ask):
    record = json.loads(ask("sunny noon", "-k", "2", "--json").out)
    assert {"query", "searched", "took_ms", "hits"} <= set(record)
    assert {"text", "used", "ignored"} <= set(record["query"])
    assert {"id", "distance", "bits", "precision", "text", "path"} <= set(record["hits"][0])
    assert len(record["hits"]) == 2


def test_what_has_no_file_has_no_path(cli, toy_model, tmp_path):
    write_pairs(tmp_path / "photos", 12, without_picture=(3, 7))
    assert cli("index", "photos", "--model", toy_model).code == 0
    answer = cli("search", "photos.dcmh", "sunny noon", "--paths", "-k", "12")
    paths = answer.out.splitlines()
    assert len(paths) == 10
    assert all(Path(path).is_file() for path in paths)
    assert answer.last == "Left out because they have no picture file: 2 of 12 hits."


def test_a_folder_of_codes_is_no_index(cli, toy_model, tmp_path):
    assert cli("encode", "toy", "--model", toy_model, "--modality", "image", "--out", "toy.codes").code == 0
    answer = cli("search", "toy.codes", "sunny")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "toy.codes is not a dcmh index (no index.json). It is a folder of codes that dcmh encode wrote. Make an index "
        "of the data: dcmh index DATA --model MODEL\n"
    )


def test_paths_for_other_programs(ask, place):
    answer = ask("sunny noon", "--radius", "16", "--paths")
    paths = answer.out.splitlines()
    assert len(paths) == 40
    assert all(path.startswith(f"{place}/photos/") for path in paths)


def test_words_are_excluded_also_without_quotes(ask):
    answer = ask("sea", "-night", "-k", "40", "--json")
    record = json.loads(answer.out)
    assert record["query"]["without"] == ["night"]
    assert record["hits"]
    assert not any("night" in hit["labels"] for hit in record["hits"])
    assert json.loads(ask("sea without night", "-k", "40", "--json").out)["hits"] == record["hits"]
    assert "without: night" in ask("-night").err
    assert ask("sea", "-night", "--at-least", "0.5").last.startswith(
        "The precision of hits was not measured for queries"
    )


def test_words_with_a_picture_and_examples_within_a_filter(ask):
    options = (
        "--image",
        "photos/003.png",
        "--like",
        "5",
        "--like",
        "005.png",
        "--unlike",
        "7",
        "--label",
        "sea",
        "-k",
        "40",
    )
    record = json.loads(ask("noon", *options, "--json").out)
    assert record["query"]["image"] == "photos/003.png"
    assert (record["query"]["like"], record["query"]["unlike"]) == ([5, 6], [7])
    assert record["query"]["filter"] == {"labels": ["sea"]}
    assert all("sea" in hit["labels"] and hit["id"] not in (5, 6, 7) for hit in record["hits"])
    lines = list(csv.DictReader(io.StringIO(ask("noon", *options, "--csv").out)))
    assert [int(line["id"]) for line in lines] == [hit["id"] for hit in record["hits"]]
    assert [line["path"] for line in lines] == [hit["path"] for hit in record["hits"]]
    assert ask("noon", *options, "-0").out.split("\0")[:-1] == [hit["path"] for hit in record["hits"]]


def test_nothing_within_the_radius_says_what_is_nearest(ask):
    hits = json.loads(ask("sunny noon", "-k", "40", "--in", "image", "--json").out)["hits"]
    first = min(hits, key=lambda hit: (hit["distance"], hit["id"]))
    assert first["distance"] > 0
    answer = ask("sunny noon", "--radius", str(first["distance"] - 1))
    assert (answer.code, answer.out) == (0, "")
    assert answer.last == (
        f"Nothing within radius {first['distance'] - 1}. Nearest is at {first['distance']} ({first['name']}). "
        f"Try --radius {first['distance']}."
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ("ሰላም",),
            1,
            "The text encoder use-multilingual cannot read any part of 'ሰላም', and no item's text contains it.",
        ),
        (("  ",), 1, "The query is empty. Give some words, or a picture."),
        (("none.jpg",), 1, "There is no picture none.jpg. If these are words, write 'text:none.jpg'."),
        (
            ("003.png",),
            1,
            "There is no picture 003.png. To find more like the item of this name in the index, write --like '003.png'.",
        ),
        (("image:none.jpg",), 1, "Cannot read none.jpg: does not exist. Give another picture."),
        (("photos/captions.csv",), 1, "Cannot read photos/captions.csv: not an image. Give another picture."),
        (("sunny", "-k", "0"), 1, "k must be a whole number of at least 1, not 0."),
        (("sunny", "--in", "sound"), 1, "The index has no 'sound' codes. It has: image, text."),
        (("sunny", "--raduis", "3"), 2, "Unknown option: --raduis. Did you mean --radius? Try: dcmh search --help"),
        ((), 1, "Say what to search for: words, a picture, --image or --like."),
        (
            ("sunny", "--label", "nothing"),
            0,
            "None of the 40 items of photos.dcmh passes the filter. No item has the label nothing.",
        ),
        (
            ("sunny", "--folder", "photos/sea"),
            0,
            "None of the 40 items of photos.dcmh passes the filter. There is no folder photos/sea in /",
        ),
        (("sunny", "--since", "soon"), 1, "Not a date: 'soon'. Write a year, a month, a day or a time"),
        (("sunny", "--where", "stars"), 1, "Not a condition: 'stars'. Write COLUMN = != < <= > >= VALUE"),
        (("sunny", "--like", "999"), 1, "There is no item 999 in photos.dcmh."),
        (("sunny", "--like", "a.png"), 1, "There is no item a.png in photos.dcmh. Give an id, which --csv shows."),
    ],
)
def test_what_cannot_be_answered_is_one_line(ask, arguments, code, says):
    answer = ask(*arguments)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith(says)
    assert answer.err.count("\n") == 1


def test_an_example_without_others_is_not_said_to_be_excluded(cli, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    shutil.copy(place / "photos" / "003.png", tmp_path / "one")
    assert cli("index", "one", "--model", place / "photos.dcmh" / "model").code == 0
    for question in (("--like", "1"), ("sea", "--unlike", "1", "--folder", ".")):
        answer = cli("search", "one.dcmh", *question)
        assert answer.last == "Of 1 items, none remains: examples are no hits themselves."


def test_what_is_no_index_is_one_line(cli, place, toy_model, monkeypatch):
    monkeypatch.chdir(place)
    for folder, says in (
        ("photos", "photos is not a dcmh index (no index.json). Did you mean photos.dcmh?"),
        (toy_model, f"{toy_model} is not a dcmh index (no index.json). It is a model. Make an index with it: "),
        ("none", "There is no index none. Make one: dcmh index DATA --out none"),
    ):
        answer = cli("search", folder, "sunny")
        assert (answer.code, answer.out) == (1, "")
        assert answer.err.startswith(says)


def test_queries_from_stdin_are_answered_line_by_line(ask, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("sunny noon\n\nሰላም\nphotos/003.png\n"))
    answer = ask("-", "-k", "1")
    assert answer.code == 0
    words, blank, unknown, picture = map(json.loads, answer.out.splitlines())
    assert "empty" in blank["error"]
    assert (words["query"]["text"], len(words["hits"])) == ("sunny noon", 1)
    assert unknown["error"].startswith("The text encoder use-multilingual cannot read any part of 'ሰላም'")
    assert picture["hits"][0]["distance"] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("ሰላም\n"))
    assert ask("-").code == 1


def test_words_load_neither_torch_nor_numba_nor_pillow(place):
    program = (
        "import sys; from dcmh.cli import main; code = main()\n"
        "heavy = ('torch', 'numba', 'PIL', 'scipy', 'safetensors', 'rich')\n"
        "print([name for name in heavy if name in sys.modules]); sys.exit(code)"
    )
    for _ in range(2):  # the first search of all unpacks the text encoder
        answer = finish(spawn("search", "photos.dcmh", "sunny noon", "--paths", cwd=place, program=("-c", program)))
        assert answer.code == 0
    assert answer.out.splitlines()[-1] == "[]"
