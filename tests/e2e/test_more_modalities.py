"""Commands on tables of more than pictures and texts: title, tags and sounds; joint codes; no labels."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from commands import QUICK

import dcmh
from dcmh import codes
from dcmh.errors import DataError
from dcmh.experiments.tuning import Trial
from dcmh.search import SearchIndex

KINDS = ["red apple fruit", "blue boat harbour", "grey owl night", "iron nail hammer"]


def write_table(folder, n=120, *, labels=True, name="pairs.csv"):
    """Titles, tags and sounds; a sixth of the items have no tags, and another sixth no sound."""
    rng = np.random.default_rng(0)
    which = rng.integers(0, 4, n)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "sound.npy", (rng.normal(size=(4, 6))[which] + 0.2 * rng.normal(size=(n, 6))).astype(np.float32))
    lines = ["id,title,tags,sound,source" + (",labels" if labels else "")]
    for row, kind in enumerate(which):
        first, second, third = KINDS[kind].split()
        tags = "" if row % 6 == 1 else f"{third} x{row % 5}x"
        sound = "" if row % 6 == 2 else f"sound.npy#{row}"
        lines.append(f"i{row},{first} {second},{tags},{sound},camera" + (f",{kind}" if labels else ""))
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def test_columns_are_modalities_when_they_are_named(cli, tmp_path):
    write_table(tmp_path / "things")
    answer = cli("data", "things")
    assert answer.code == 1
    assert "expected 'image, text'" in answer.err
    data = dcmh.load_dataset(tmp_path / "things", modalities="title,tags,sound", keep_partial=True)
    assert {name: column.kind for name, column in data.columns.items()} == {
        "title": "text",
        "tags": "text",
        "sound": "vector",
    }
    assert data.observed("tags").sum() == 100
    assert data.observed("sound").sum() == 100
    np.testing.assert_array_equal(data["sound"].values[5], np.load(tmp_path / "things" / "sound.npy")[5])
    assert data.notes == (
        "From pairs.csv, of 120 items: title (texts) for 120, tags (texts) for 100, sound (vectors) for 100.",
    )
    whole = dcmh.load_dataset(tmp_path / "things", modalities=["title", "tags:text"])
    assert len(whole) == 100
    assert "20 that lack one left out" in whole.notes[0]


def test_columns_that_nothing_uses_are_said(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "pairs.jsonl").write_text('{"image": "a.jpg", "text": "dog", "sound": [1, 2], "by": "me"}\n')
    data = dcmh.load_dataset(tmp_path)
    assert data.notes[-1] == (
        "Further columns, for filters (--where): sound, by. To learn from them: --modalities image,text,sound,by"
    )
    three = dcmh.load_dataset(tmp_path, modalities="image,text,sound,audio?")
    assert three["sound"].values.tolist() == [[1, 2]]


def test_vectors_that_cannot_be_read_are_named(tmp_path):
    np.save(tmp_path / "sound.npy", np.zeros((3, 6)))
    lines = ["id,title,sound", "a,one,sound.npy#0", "b,two,none.npy", "c,three,sound.npy#99", "d,four,"]
    (tmp_path / "pairs.csv").write_text("\n".join(lines) + "\n")
    data = dcmh.load_dataset(tmp_path, modalities="title,sound", keep_partial=True)
    assert data.ids == ["a", "d"]
    assert data.skipped == [
        ("none.npy", "does not exist"),
        ("sound.npy#99", "has no such row: sound.npy has shape (3, 6)"),
    ]
    (tmp_path / "pairs.csv").write_text('id,title,sound\na,one,sound.npy#0\nb,two,"[1, 2]"\n')
    with pytest.raises(DataError, match=r"pairs.csv line 3: 'sound' has 2 numbers, others have 6"):
        dcmh.load_dataset(tmp_path, modalities="title,sound")
    with pytest.raises(DataError, match=r"no column 'smell' for a modality. It has: title, sound"):
        dcmh.load_dataset(tmp_path, modalities="title,smell")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of title, tags and sound, made by the command."""
    from dcmh.cli import main

    folder = tmp_path_factory.mktemp("three")
    write_table(folder / "things")
    given = ["--modalities", "title,tags,sound", "--keep-partial", "--hidden", "32", "--bits", "16", "--device", "cpu"]
    assert main(["train", str(folder / "things"), *given, "--epochs", "20", "--out", str(folder / "model")]) == 0
    return folder


def test_train_and_evaluate_every_direction(cli, trained, capsys):
    answer = cli("evaluate", trained / "model", "--json")
    assert answer.code == 0
    report = json.loads(answer.out)
    directions = [name for name in report if "_to_" in name]
    assert len(directions) == 9
    assert report["sound_to_joint"]["by_distance"]
    kept = json.loads((trained / "model" / "report.json").read_text())
    assert {key: value for key, value in kept.items() if key != "held_out"} == report


def test_search_takes_any_modality(cli, trained, tmp_path):
    index = tmp_path / "things.dcmh"
    answer = cli("index", trained / "things", "--model", trained / "model", "--out", index, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["codes"] == {"title": 120, "tags": 100, "sound": 100}
    model = dcmh.load(trained / "model")
    data = dcmh.load_dataset(trained / "things", modalities="title,tags,sound", keep_partial=True)
    for name, words in (("title", "red apple"), ("tags", "night")):
        answer = cli("search", index, words, "--as", name, "--in", "sound", "-k", "5", "--json")
        rows = np.flatnonzero(data.observed("sound"))
        distance = codes.hamming(model.encode(**{name: [words]}), model.encode(sound=data["sound"].take(rows)))[0]
        by_name = {data.ids[row]: int(distance[i]) for i, row in enumerate(rows)}
        hits = json.loads(answer.out)["hits"]
        assert [hit["distance"] for hit in hits] == [by_name[hit["name"]] for hit in hits]
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
        assert {hit["modality"] for hit in hits} == {"sound"}
    np.save(tmp_path / "one.npy", data["sound"].values[0])
    by_sound = json.loads(cli("search", index, tmp_path / "one.npy", "--in", "sound", "--json").out)
    assert data.ids[0] in [hit["name"] for hit in by_sound["hits"] if hit["distance"] == 0]
    assert cli("search", index, "red", "--as", "smell").code == 1
    assert "It has: title, tags, sound" in cli("search", index, "red", "--as", "smell").err


def test_joint_codes_are_the_models_own(cli, trained, tmp_path):
    index = tmp_path / "joint.dcmh"
    answer = cli(
        "index", trained / "things", "--model", trained / "model", "--out", index, "--codes", "joint", "--json"
    )
    assert json.loads(answer.out)["codes"] == {"joint": 120}
    model = dcmh.load(trained / "model")
    data = dcmh.load_dataset(trained / "things", modalities="title,tags,sound", keep_partial=True)
    with SearchIndex.open(index) as found:
        rows = {found.item(number).name: found.codes_of(number)["joint"] for number in range(1, 121)}
    packed = codes.pack(model.encode(**data.columns))
    same = sum(rows[name] == packed[row].tobytes() for row, name in enumerate(data.ids))
    assert same >= 118  # words are summed in another order there, and an output next to 0 may fall on the other side
    hits = json.loads(cli("search", index, "red apple", "--json", "-k", "3").out)["hits"]
    assert {hit["modality"] for hit in hits} == {"joint"}
    assert all(hit["score"] is not None for hit in hits)
    refused = cli("index", trained / "things", "--model", trained / "model", "--out", index, "--codes", "each")
    assert refused.code == 1
    assert "was built with codes 'joint'" in refused.err


@pytest.mark.parametrize("kind", ["each", "joint"])
def test_a_change_in_any_modality_is_seen(cli, trained, tmp_path, kind):
    things = tmp_path / "things"
    write_table(things)
    index = tmp_path / "i.dcmh"
    cli("index", things, "--model", trained / "model", "--out", index, "--codes", kind)
    assert "0 new, 0 changed" in cli("index", things, "--out", index).out
    table = (things / "pairs.csv").read_text().splitlines()
    table[1] = table[1].replace(table[1].split(",")[2], "night hammer")  # its tags
    (things / "pairs.csv").write_text("\n".join(table) + "\n")
    assert "1 changed" in cli("index", things, "--out", index).out
    sounds = np.load(things / "sound.npy")
    sounds[4] *= -1
    np.save(things / "sound.npy", sounds)
    assert "1 changed" in cli("index", things, "--out", index).out
    fresh = tmp_path / "fresh.dcmh"
    cli("index", things, "--model", trained / "model", "--out", fresh, "--codes", kind)
    with SearchIndex.open(index) as old, SearchIndex.open(fresh) as new:
        for number in range(1, 121):
            name = new.item(number).name
            assert old.codes_of(old.store.find(name).id) == new.codes_of(number)


def test_without_labels_the_pairing_is_learned_and_measured(cli, tmp_path):
    write_table(tmp_path / "things", labels=False)
    given = ["--modalities", "title,sound", "--similarity", "pairing", *QUICK]
    answer = cli("train", "things", *given, "--out", "m", "--json")
    assert answer.code == 0
    assert "Similarity from the pairing alone" in answer.err
    report = json.loads(answer.out)["report"]
    assert report["relevance"] == "pairing"
    assert set(report) >= {"title_to_sound", "sound_to_title"}
    assert json.loads((tmp_path / "m" / "model.json").read_text())["parameters"]["similarity"] == "pairing"
    again = cli("evaluate", "m")
    assert "R@10" in again.out
    assert "own item in the other modality" in again.err
    assert cli("train", "things", "--similarity", "friends").code == 1


def test_vectors_without_labels(cli, tmp_path):
    write_table(tmp_path / "things", labels=False)
    answer = cli("train", "things", "--modalities", "sound", *QUICK)
    assert answer.last.startswith(
        "things has no labels, and no texts whose words could serve as labels. It has: sound (vectors)"
    )
    assert answer.last.endswith("--similarity pairing")
    data = dcmh.Dataset.from_arrays(a=np.eye(4), b=np.eye(4))
    with pytest.raises(DataError, match=r"Give labels, or learn without any: dcmh.DCMH\(similarity='pairing'\)"):
        dcmh.DCMH(bits=8).fit(data)


def test_tune_that_compares_nothing_writes_no_settings(cli, tmp_path):
    write_table(tmp_path / "things")
    given = ["--modalities", "title,tags", "--hidden", "8", "--bits", "8", "--device", "cpu", "--epochs", "2"]
    answer = cli("tune", "things", *given, "--budget", "0.001s")
    assert (answer.code, answer.out) == (0, "")
    assert answer.last.startswith("Nothing was tuned, and no settings are written. The budget is too short")
    assert [path.name for path in (tmp_path / "things.tune").iterdir()] == ["trials"]


def test_tune_writes_a_config_that_train_takes(cli, tmp_path):
    write_table(tmp_path / "things")
    given = ["--modalities", "title,tags", "--hidden", "16", "--bits", "8", "--device", "cpu", "--epochs", "4"]
    answer = cli("tune", "things", *given, "--learning-rate", "0.01", "--budget", "20s")
    assert answer.code == 0, answer.err
    header = "length  seed  settings  iterations  MAP select  to defaults  MAP confirm  to defaults  seconds"
    assert re.split(r"  +", answer.out.splitlines()[0]) == header.split("  ")
    assert re.search(r"MAP select: on \d+ training items.*MAP confirm: on \d+ others", answer.err)
    folder = tmp_path / "things.tune"
    assert {"gamma.svg", "gamma.png", "gamma.csv", "eta.svg", "tuned.toml", "table.md"} <= {
        f.name for f in folder.iterdir()
    }
    values = [line.split(",")[1] for line in (folder / "gamma.csv").read_text().splitlines()[1:]]
    assert len(set(values)) == 5
    config = (folder / "tuned.toml").read_text()
    assert 'modalities = "title,tags"' in config
    assert "epochs = 4" in config
    again = cli("tune", "things", *given, "--learning-rate", "0.01", "--budget", "20s", "--json")
    record = json.loads(again.out)
    assert record["verdict"] in config
    for trial in record["trials"]:  # as the files of the trials say, each part by its own name
        name = Trial(tuple(trial["settings"].items()), trial["length"], trial["seed"]).name
        written = json.loads((folder / "trials" / f"{name}.json").read_text())
        for part in ("select", "confirm"):
            assert trial[part]["map"] == pytest.approx(np.mean(written[part]), abs=1e-5)
            assert len(written[part]) == record["items"][part]
        assert trial["select"]["directions"] == written["directions"]
    assert any(trial["select"]["map"] != trial["confirm"]["map"] for trial in record["trials"])
    trial, shown = record["trials"][0], answer.out.splitlines()[1].split()
    assert shown[2:] == [
        "defaults",
        str(trial["iterations"]),
        f"{trial['select']['map']:.3f}",
        f"{trial['confirm']['map']:.3f}",
        str(round(trial["seconds"])),
    ]
    trained = cli("train", "things", "--config", folder / "tuned.toml", "--bits", "16", "--out", "m")
    assert trained.code == 0, trained.err
    assert dcmh.load(tmp_path / "m").bits == 16  # the flag wins over the file
    assert dcmh.load(tmp_path / "m").hidden == 16
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    assert "is not a folder of dcmh tune" in cli("tune", "things", *given, "--out", "mine").err
    assert "expected a time" in cli("tune", "things", "--budget", "soon").err
    assert "only for the method dcmh" in cli("tune", "things", "--method", "ridge").err
