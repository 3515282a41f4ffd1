"""dcmh index: what it prints, what it leaves, what it says about bad input."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
from commands import QUICK, finish, left_behind, spawn
from starlette.testclient import TestClient

import dcmh
from dcmh.errors import DCMHError, ModelError
from dcmh.search import SearchIndex
from dcmh.service import create_app
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue
from toy_photos import write_photos


@pytest.fixture
def indexed(cli, photos, toy_model):
    answer = cli("index", "photos", "--model", toy_model, "--device", "cpu")
    assert answer.code == 0
    return answer


def test_new_then_unchanged_then_what_changed(cli, indexed, photos, tmp_path):
    assert indexed.out == "40 new, 0 changed, 0 gone, 0 unchanged.\n"
    assert "photos: Text from captions.csv for 40 of 40 items.\n" in indexed.err
    assert "Indexing 40 items of photos in photos.dcmh with" in indexed.err
    assert (
        "Wrote photos.dcmh: 40 items (40 by image, 40 by text), 10 kB of codes. Any words can be searched for (text encoder "
        "use-multilingual)." in indexed.err
    )
    assert indexed.err.splitlines()[-2:] == [
        "Next: dcmh search photos.dcmh 'dog on the beach'",
        "or in a browser: dcmh serve photos.dcmh",
    ]
    assert left_behind(tmp_path) == ["photos", "photos.dcmh"]
    files = ["catalogue.json", "catalogue.sqlite", "codes", "index.json", "lock", "model"]
    assert left_behind(tmp_path / "photos.dcmh") == files

    shutil.copy(photos / "000.png", photos / "001.png")
    (photos / "002.png").unlink()
    (photos / "003.png").rename(photos / "moved.png")
    shutil.copy(photos / "005.png", photos / "new.png")
    table = (photos / "captions.csv").read_text().replace("003.png", "moved.png")
    (photos / "captions.csv").write_text(table.replace("002.png", "new.png"))
    answer = cli("index", "photos", "--json")  # the index has its model
    record = json.loads(answer.out)
    assert [record[name] for name in ("new", "changed", "moved", "gone", "unchanged")] == [1, 1, 1, 1, 37]
    assert (record["items"], record["codes"], record["skipped"]) == (40, {"image": 40, "text": 40}, [])
    assert cli("index", "photos").out == "0 new, 0 changed, 0 gone, 40 unchanged.\n"


def test_photos_that_the_table_does_not_list(cli, photos, toy_model):
    shutil.copy(photos / "000.png", photos / "extra.png")
    asked = ("index", "photos", "--model", toy_model, "--device", "cpu", "--json")
    answer = cli(*asked, "--out", "all.dcmh")
    note = "Not listed in captions.csv: 1 picture (extra.png), kept without text (--only-listed leaves them out)."
    assert f"photos: {note}\n" in answer.err
    record = json.loads(answer.out)
    assert note in record["notes"]
    assert record["codes"] == {"image": 41, "text": 40}
    assert json.loads(cli(*asked, "--out", "listed.dcmh", "--only-listed").out)["codes"] == {"image": 40, "text": 40}
    assert cli("index", "photos/captions.csv", "--out", "listed.dcmh", "--only-listed").out.endswith("40 unchanged.\n")


def test_words_of_folders_find_photos_without_captions(cli, photos, toy_model):
    (photos / "captions.csv").unlink()
    (photos / "2019 Zanzibar").mkdir()
    for name in ("001.png", "002.png"):
        (photos / name).rename(photos / "2019 Zanzibar" / name)
    answer = cli("index", "photos", "--model", toy_model, "--device", "cpu")
    assert "photos: No captions: the names of folders serve as words.\n" in answer.err
    hits = json.loads(cli("search", "photos.dcmh", "zanzibar", "-k", "3", "--json").out)["hits"]
    assert [hit["words"] for hit in hits] == [["zanzibar"], ["zanzibar"], []]
    assert {hit["name"] for hit in hits[:2]} == {"2019 Zanzibar/001.png", "2019 Zanzibar/002.png"}
    assert [(hit["text"], hit["precision"]) for hit in hits[:2]] == [(None, None)] * 2
    (photos / "2019 Zanzibar").rename(photos / "Cairo")
    assert "2 moved" in cli("index", "photos").out
    hits = json.loads(cli("search", "photos.dcmh", "cairo", "-k", "2", "--json").out)["hits"]
    assert [hit["words"] for hit in hits] == [["cairo"], ["cairo"]]
    hits = json.loads(cli("search", "photos.dcmh", "zanzibar", "--json").out)["hits"]
    assert not any(hit["words"] for hit in hits)


def test_an_index_where_a_model_is_asked_for(cli, indexed, tmp_path):
    says = "photos.dcmh is not a dcmh model (no model.json). It is a search index; its model is photos.dcmh/model"
    for asked in (
        ("evaluate", "photos.dcmh"),
        ("encode", "photos", "--model", "photos.dcmh", "--modality", "text"),
        ("index", "photos", "--model", "photos.dcmh", "--out", "other.dcmh"),
    ):
        answer = cli(*asked)
        assert (answer.code, answer.out, answer.err) == (1, "", f"{says}\n")
    with pytest.raises(ModelError, match=re.escape(says)):
        dcmh.load("photos.dcmh")
    assert left_behind(tmp_path) == ["photos", "photos.dcmh"]
    assert cli("evaluate", "photos.dcmh/model").code == 0  # what it says works
    assert "search index" in cli("info", "photos.dcmh").out
    (tmp_path / "photos.dcmh" / "index.json").unlink()
    assert cli("evaluate", "photos.dcmh").last.endswith("(no model.json). Did you mean photos.dcmh/model ?")


def test_gone_items_are_kept_on_request(cli, indexed, photos):
    (photos / "002.png").unlink()
    answer = cli("index", "photos", "--keep-gone")
    assert answer.out == "0 new, 0 changed, 1 gone, 39 unchanged. The items that are gone are kept.\n"
    assert cli("index", "photos").out == "0 new, 0 changed, 1 gone, 39 unchanged.\n"


def test_a_second_folder_is_refused(cli, indexed, tmp_path):
    write_photos(tmp_path / "more", 5)
    for options in ((), ("--keep-gone",)):
        answer = cli("index", "more", "--out", "photos.dcmh", *options)
        assert (answer.code, answer.out) == (1, "")
        assert answer.last == (
            f"photos.dcmh is an index of {tmp_path / 'photos'}, and more is another folder. "
            f"To add photos, put them into {tmp_path / 'photos'} and index that again; "
            "to index them separately, choose another --out; to replace the collection add --rebuild."
        )
    assert cli("index", "photos").out == "0 new, 0 changed, 0 gone, 40 unchanged.\n"
    assert cli("index", "more", "--out", "photos.dcmh", "--rebuild").out.startswith("5 new")


def test_bad_files_are_skipped_and_listed(cli, photos, toy_model, tmp_path):
    (photos / "000.png").write_bytes(b"")
    (photos / "001.png").write_bytes((photos / "001.png").read_bytes()[:700])
    (photos / "ünï cödé.png").write_bytes(b"no picture")
    (photos / "loop").symlink_to(photos)
    answer = cli("index", "photos", "--model", toy_model)
    assert answer.code == 0
    assert answer.out == "38 new, 0 changed, 0 gone, 0 unchanged.\n"
    assert "skipped 001.png: truncated after 700 bytes\n" in answer.err
    assert "3 skipped, listed in photos.dcmh/skipped.tsv.\n" in answer.err
    assert (tmp_path / "photos.dcmh" / "skipped.tsv").read_text() == (
        "file\treason\n000.png\tempty file\n001.png\ttruncated after 700 bytes\nünï cödé.png\tnot an image\n"
    )
    assert cli("index", "photos", "--strict").code == 3


def test_photos_without_any_text(cli, photos, toy_model):
    (photos / "captions.csv").unlink()
    answer = cli("index", "photos", "--model", toy_model)
    assert answer.code == 0
    assert "40 items (40 by image)" in answer.err
    assert cli("search", "photos.dcmh", "sunny", "--paths").out.count("\n") == 10


def test_words_that_the_model_calls_otherwise_are_said_to_be_left_out(cli, photos, tmp_path):
    lines = (photos / "captions.csv").read_text().replace("file,text,labels", "image,title,labels")
    (tmp_path / "things").mkdir()
    (tmp_path / "things" / "pairs.csv").write_text(lines)
    for file in photos.glob("*.png"):
        shutil.copy(file, tmp_path / "things")
    assert cli("train", "things", *QUICK, "--modalities", "image,title", "--queries", "8", "--out", "m.model").code == 0
    answer = cli("index", "photos", "--model", "m.model")
    assert answer.out.startswith("40 new")
    said = "photos: text left out, because the model has no such modality; its texts are: title."
    assert answer.err.splitlines().count(said) == 1
    (photos / "captions.csv").unlink()
    assert "left out" not in cli("index", "photos").err
    (photos / "000.txt").write_text("sunny noon")
    assert said in cli("index", "photos").err.splitlines()
    assert "left out" not in cli("index", "things", "--model", "m.model").err


def test_built_in_data_has_no_files_and_is_indexed_all_the_same(cli, toy_model):
    assert cli("index", "toy", "--model", toy_model).out.startswith("200 new")
    assert cli("index", "toy").out == "0 new, 0 changed, 0 gone, 200 unchanged.\n"
    hit = json.loads(cli("search", "toy.dcmh", "sunny", "--json").out)["hits"][0]
    assert hit["path"] is None
    assert hit["score"] is not None


def test_the_same_command_again_may_name_the_text_encoder(cli, photos):
    command = ("index", "photos", "--text-encoder", "use-multilingual")
    assert cli(*command).code == 0
    assert "0 new, 0 changed, 0 gone, 40 unchanged." in cli(*command).out
    other = cli("index", "photos", "--text-encoder", "minilm")
    assert other.last.startswith("--text-encoder chooses a starter model, but the model is photos.dcmh/model.")


def test_quality_chooses_the_starter_model_with_the_better_image_network(cli, photos):
    command = ("index", "photos", "--quality", "good")
    assert cli(*command).code == 0
    record = json.loads((photos.parent / "photos.dcmh/model/model.json").read_text())
    assert record["modalities"]["image"]["network"] == "efficientnet-lite2"
    assert "40 unchanged." in cli(*command).out
    assert json.loads(cli("search", "photos.dcmh", "boat", "--json").out)["hits"]
    refused = cli("index", "photos", "--quality", "fast")
    assert refused.last.startswith("--quality chooses a starter model, but the model is photos.dcmh/model.")


def test_without_a_model_the_starter_model_serves(cli, photos, tmp_path):
    for table in photos.glob("captions.csv"):
        table.unlink()  # pictures alone
    answer = cli("index", "photos")
    assert answer.out == "40 new, 0 changed, 0 gone, 0 unchanged.\n"
    assert "with the starter model, learned from 11,000 photos of MS-COCO with their captions" in answer.err
    hits = json.loads(cli("search", "photos.dcmh", "ein Boot auf dem Meer", "--json").out)["hits"]
    assert len(hits) == 10
    assert all(hit["precision"] is None and hit["score"] is not None for hit in hits)
    refused = cli("search", "photos.dcmh", "boat", "--at-least", "0.8")
    assert (refused.code, refused.out) == (1, "")
    assert "was not measured for the model of photos.dcmh" in refused.last
    assert cli("index", "photos").out == "0 new, 0 changed, 0 gone, 40 unchanged.\n"


def test_another_model_is_refused_with_the_command_that_rebuilds(cli, indexed, toy_model, tmp_path):
    assert cli("train", "toy", *QUICK, "--seed", "1", "--out", "other.model").code == 0
    answer = cli("index", "photos", "--model", "other.model")
    prints = [
        json.loads((folder / "model.json").read_text())["fingerprint"]
        for folder in (toy_model, tmp_path / "other.model")
    ]
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"photos.dcmh was built with model {prints[0][:4]}, not {prints[1][:4]}. "
        "Upgrade it: dcmh index photos --model other.model --upgrade\n"
    )
    assert cli("index", "photos", "--model", "other.model", "--rebuild").out.startswith("40 new")


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (
                ("empty", "--model", "MODEL"),
                "No images in empty/ (looked for jpg, png, webp, gif, bmp, tiff, avif, heic, also in subfolders). "
                "It is empty. Is it the right folder?",
            ),
            (
                ("photos", "--model", "photos"),
                "photos is not a dcmh model (no model.json). It holds images or pairs: did you mean dcmh train photos ?",
            ),
            (("photos", "--model", "nothing"), "There is no model nothing. Train one: dcmh train DATA --out nothing"),
            (
                ("photos", "--text-encoder", "glove"),
                "There is no starter model for the text encoder 'glove'; there is one for use-multilingual and minilm. "
                "Train a model of your own: dcmh train DATA --text-encoder FOLDER",
            ),
            (
                ("photos", "--model", "MODEL", "--bits", "8", "--text-encoder", "minilm"),
                "--text-encoder chooses a starter model, but the model is ",
            ),
            (
                ("photos", "--model", "MODEL", "--out", "photos"),
                "photos exists but is not a dcmh index, so it is not overwritten. Choose another --out.",
            ),
            (("photo", "--model", "MODEL"), "No data set or folder 'photo'. Did you mean 'photos'?"),
        ],
    )
    def test_one_line_and_nothing_is_left(self, cli, photos, toy_model, tmp_path, arguments, says):
        (tmp_path / "empty").mkdir()
        answer = cli("index", *(toy_model if word == "MODEL" else word for word in arguments))
        assert (answer.code, answer.out) == (1, "")
        assert answer.last.startswith(says)
        assert "Traceback" not in answer.err
        assert left_behind(tmp_path) == ["empty", "photos"]

    def test_another_writer(self, cli, indexed, tmp_path):
        with layout.writer(tmp_path / "photos.dcmh"):
            answer = cli("index", "photos")
        assert answer.code == 1
        assert answer.last == "Another process is writing photos.dcmh. Wait for it, or choose another --out."

    def test_no_right_to_write(self, cli, indexed, monkeypatch, tmp_path):
        import builtins

        real = open

        def guarded(path, mode="r", *arguments, **settings):
            if "a" in mode and str(path).endswith("lock"):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, mode, *arguments, **settings)

        monkeypatch.setattr(builtins, "open", guarded)
        answer = cli("index", "photos")
        assert answer.code == 4
        assert answer.last == (
            "Cannot write to photos.dcmh (Permission denied). Check its permissions, or choose another --out."
        )
        assert cli("search", "photos.dcmh", "sunny").code == 0

    def test_a_newer_index(self, cli, indexed, tmp_path):
        header = tmp_path / "photos.dcmh" / "index.json"
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": 3}))
        for command in (("index", "photos"), ("search", "photos.dcmh", "sunny"), ("info", "photos.dcmh")):
            answer = cli(*command)
            assert (answer.code, answer.out) == (1, "")
            assert answer.last == (
                f"photos.dcmh has format 3; this dcmh ({dcmh.__version__}) reads up to 1. Upgrade: pip install -U dcmh"
            )


def test_info_explains_an_index(cli, indexed):
    page = dict(line.split(None, 1) for line in cli("info", "photos.dcmh").out.splitlines())
    assert (page["kind"], page["items"], page["state"]) == ("search index", "40", "ready")
    assert page["codes"] == "image 40, text 40"
    assert json.loads(cli("info", "photos.dcmh", "--json").out)["method"] == "dcmh"


def test_info_tells_changes_through_the_service_from_an_unfinished_run(cli, indexed, photos, tmp_path, monkeypatch):
    from fastapi.testclient import TestClient

    from dcmh.search.update import Update
    from dcmh.service import Settings, create_app

    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123")
    settings = Settings(token_file=str(token), rate=0, access_log=None)
    with TestClient(create_app(tmp_path / "photos.dcmh", settings), base_url="http://127.0.0.1") as client:
        gone = client.delete("/api/items/3", headers={"Authorization": f"Bearer {token.read_text()}"})
        assert gone.status_code == 204
        record = json.loads(cli("info", "photos.dcmh", "--json").out)
        assert (record["items"], record["codes"]) == (39, {"image": 39, "text": 39})
        assert record["state"] == "ready; changed since dcmh index ran, by dcmh serve or a program"
    assert "state       ready\n" in cli("info", "photos.dcmh").out  # the service writes the codes as it ends

    commit = Update._commit

    def stop(self, *arguments):
        commit(self, *arguments)
        raise KeyboardInterrupt

    shutil.copy(photos / "000.png", photos / "new.png")
    with monkeypatch.context() as patch:
        patch.setattr(Update, "_commit", stop)
        assert cli("index", "photos").code == 130
    for _ in range(2):  # a search that writes the codes does not finish the run
        assert "state       unfinished: run dcmh index again\n" in cli("info", "photos.dcmh").out
        assert cli("search", "photos.dcmh", "sunny").code == 0
    assert cli("index", "photos").code == 0
    assert "state       ready\n" in cli("info", "photos.dcmh").out


def committed(folder):
    """How many items are in an index that is being written."""
    with contextlib.suppress(DCMHError), contextlib.closing(Catalogue(folder / "catalogue.sqlite")) as catalogue:
        return len(catalogue)
    return 0


def test_ctrl_c_keeps_what_was_encoded_and_says_how_to_go_on(toy_model, tmp_path):
    write_photos(tmp_path / "photos")
    program = (
        "import sys, time; from dcmh.search import pipeline, update; pipeline.PICTURES, update.COMMIT_SECONDS = 4, 0\n"
        "finish = pipeline.Pipeline._finish\n"
        "def slowly(self, *arguments): time.sleep(0.3); return finish(self, *arguments)\n"
        "pipeline.Pipeline._finish = slowly\n"
        "from dcmh.cli import main; sys.exit(main())"
    )
    process = spawn("index", "photos", "--model", toy_model, cwd=tmp_path, program=("-c", program))
    while process.poll() is None and not committed(tmp_path / "photos.dcmh"):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    answer = finish(process)
    assert answer.code == 130
    assert answer.last == (
        f"Stopped. The codes so far are kept in photos.dcmh. Continue: dcmh index photos --model {toy_model}"
    )
    with SearchIndex.open(tmp_path / "photos.dcmh") as index:
        assert 0 < len(index) < 40
        kept = len(index)
    answer = finish(spawn("index", "photos", cwd=tmp_path))
    assert answer.out == f"{40 - kept} new, 0 changed, 0 gone, {kept} unchanged.\n"


def test_the_first_bits_of_a_nested_model(cli, photos, tmp_path):
    assert cli("train", "photos", *QUICK[:4], "--bits", "32", "--device", "cpu", "--out", "nested").code == 0
    answer = cli("index", "photos", "--model", "nested", "--bits", "16", "--out", "short", "--device", "cpu")
    assert answer.code == 0
    assert "(dcmh, 16 bits)" in answer.err
    assert cli("index", "photos", "--model", "nested", "--bits", "16", "--out", "short").out.endswith("40 unchanged.\n")
    assert cli("search", "short", "red circle").code == 0
    assert cli("info", "short").code == 0
    assert json.loads(cli("evaluate", "nested", "--bits", "16", "--json").out)["bits"] == 16
    answer = cli("index", "photos", "--model", "nested", "--bits", "24", "--out", "other")
    assert (answer.code, "16, 32 bits, not of 24" in answer.err) == (1, True)
    assert "Name the model" in cli("index", "photos", "--bits", "16").err


def test_a_model_of_good_quality_from_training_to_a_query_picture(cli, photos, tmp_path):
    assert cli("train", "photos", *QUICK, "--quality", "good", "--out", "good").code == 0
    assert json.loads(cli("info", "good", "--json").out)["parameters"]["quality"] == "good"
    assert cli("index", "photos", "--model", "good", "--out", "found", "--device", "cpu").code == 0
    hits = json.loads(cli("search", "found", str(photos / "000.png"), "-k", "3", "--json").out)["hits"]
    assert "000.png" in [Path(hit["path"]).name for hit in hits if hit["distance"] == 0]
    with TestClient(
        create_app(tmp_path / "found"), base_url="http://localhost"
    ) as client:  # which decodes in a sandbox
        answer = client.post("/api/search", files={"image": (photos / "000.png").read_bytes()}).json()
    assert answer["hits"][0]["distance"] == 0
