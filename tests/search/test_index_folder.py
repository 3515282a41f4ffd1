"""The index folder: it can be moved, rebuilt, opened read-only, and damage is repaired or explained."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from folders import COUNT, contents, train

import dcmh
from dcmh.errors import BusyError, ModelError, ModelMismatch
from dcmh.search import SearchIndex
from dcmh.stores.local import layout
from toy_photos import load


def test_it_moves_alone_or_with_its_photos(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        expected = [hit.name for hit in index.search(text="sunny")]
    (own / "away").mkdir()
    shutil.move(own / "photos.dcmh", own / "away" / "p.dcmh")
    with SearchIndex.open(own / "away" / "p.dcmh") as index:  # the photos are where they were made from
        hits = index.search(text="sunny")
        assert [hit.name for hit in hits] == expected
        assert hits[0].path.is_file()
    shutil.copytree(own / "away" / "p.dcmh", own / "new" / "photos.dcmh")
    shutil.move(own / "photos", own / "new" / "photos")
    with SearchIndex.open(own / "new" / "photos.dcmh") as index:
        assert index.root == own / "new" / "photos"
        assert index.search(text="sunny")[0].path.is_file()
        assert str(index.update(load(own / "new" / "photos"))) == f"0 new, 0 changed, 0 gone, {COUNT} unchanged."


def test_it_lives_without_the_model_it_was_built_with(own, model, tmp_path):
    shutil.copytree(model, tmp_path / "m")
    SearchIndex.build(tmp_path / "m", load(own / "photos"), tmp_path / "p.dcmh").close()
    shutil.rmtree(tmp_path / "m")
    with SearchIndex.open(tmp_path / "p.dcmh") as index:
        assert index.search(image=own / "photos" / "000.png")[0].distance == 0


def test_the_model_may_lie_in_the_index_from_the_start(own, model):
    shutil.copytree(model, own / "in.dcmh" / "model")
    with SearchIndex.build(own / "in.dcmh" / "model", load(own / "photos"), own / "in.dcmh") as index:
        assert len(index) == COUNT


def test_another_model_is_refused_and_rebuilds_on_request(own, model):
    other, report = train(load(own / "photos"), seed=1)
    was = json.loads((model / "model.json").read_text())["fingerprint"][:4]
    with pytest.raises(
        ModelMismatch, match=rf"photos\.dcmh was built with model {was}, not ....\. Upgrade it: .*--upgrade"
    ):
        SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh")
    assert sorted(entry.name for entry in (own / "photos.dcmh").iterdir()) == [
        "catalogue.json",
        "catalogue.sqlite",
        "codes",
        "index.json",
        "lock",
        "model",
    ]
    with SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh", rebuild=True, report=report) as index:
        assert index.changes.new == COUNT
        assert any(hit.precision is not None for hit in index.search(text="sunny", k=COUNT))
    with SearchIndex.build(other, load(own / "photos"), own / "photos.dcmh") as index:
        assert index.changes.unchanged == COUNT


@pytest.mark.parametrize("step", ["layout._keep_model", "layout.switch", "store.LocalStore.settle"])
def test_an_interrupted_rebuild_leaves_the_old_index(own, model, monkeypatch, step):
    folder = own / "photos.dcmh"
    expected = contents(folder)
    (own / "photos" / "000.png").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(f"dcmh.stores.local.{step}", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            SearchIndex.build(model, load(own / "photos"), folder, rebuild=True)
    assert contents(folder) == expected
    with SearchIndex.build(model, load(own / "photos"), folder, rebuild=True) as index:
        assert index.search(text="sunny")
        assert index.search(image=own / "photos" / "001.png")
    assert not [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]
    assert contents(folder) != expected


@pytest.mark.parametrize("moves", range(8))
def test_a_rebuilt_index_that_was_not_moved_completely_is_completed(own, model, monkeypatch, moves):
    folder = own / "photos.dcmh"
    (own / "photos" / "000.png").unlink()
    SearchIndex.build(model, load(own / "photos"), own / "other.dcmh").close()
    replace, made = os.replace, []

    def until(source, target):
        if str(source).startswith(str(folder / ".rebuild.ready")):
            made.append(source)
            if len(made) > moves:
                raise ZeroDivisionError
        replace(source, target)

    with monkeypatch.context() as patch, contextlib.suppress(ZeroDivisionError):
        patch.setattr(os, "replace", until)
        SearchIndex.build(model, load(own / "photos"), folder, rebuild=True).close()
    assert contents(folder) == contents(own / "other.dcmh")
    assert not [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


def test_the_codes_are_made_again_when_they_are_stale_or_damaged(own):
    folder = own / "photos.dcmh"
    expected = contents(folder)
    for spoil in ("codes-", "ids-", "hamming.json"):
        victim = next(path for path in (folder / "codes" / "image").iterdir() if path.name.startswith(spoil))
        victim.write_bytes(victim.read_bytes()[:20])
        assert contents(folder) == expected
    shutil.rmtree(folder / "codes")
    assert contents(folder) == expected


def test_an_index_that_may_not_be_written_is_searched(own, monkeypatch):
    folder = own / "photos.dcmh"
    shutil.rmtree(folder / "codes")

    def refuse(path):
        raise ModelError("may not be written")

    monkeypatch.setattr("dcmh.stores.local.layout.writer", refuse)
    with SearchIndex.open(folder) as index:
        assert len(index.search(text="sunny")) == 10
        with pytest.raises(ModelError, match="may not be written"):
            index.remove([1])
    assert not (folder / "codes").exists()


def test_two_writers_do_not_meet(own):
    with SearchIndex.open(own / "photos.dcmh") as index, layout.writer(own / "photos.dcmh"):
        with pytest.raises(BusyError, match=r"Another process is writing .*photos\.dcmh\. Wait for it"):
            index.remove([1])
        assert len(index.search(text="sunny")) == 10


def test_what_is_no_index_is_explained(own, model, tmp_path):
    for folder, says in (
        (tmp_path / "none", "There is no index .*none. Make one: dcmh index DATA"),
        (
            own / "photos",
            r"photos is not a dcmh index \(no index.json\). Make one: dcmh index .*photos$",
        ),
        (model, "It is a model. Make an index with it: dcmh index DATA --model"),
    ):
        with pytest.raises(ModelError, match=says):
            SearchIndex.open(folder)
    with pytest.raises(ModelError, match="exists but is not a dcmh index, so it is not overwritten"):
        SearchIndex.build(model, load(own / "photos"), own / "photos")
    with pytest.raises(ModelMismatch, match="The model's image holds images, the data's vectors"):
        data = dcmh.Dataset.from_arrays(image=np.ones((3, 2)), text=["a", "b", "c"])
        SearchIndex.build(model, data, tmp_path / "x.dcmh")
    with pytest.raises(ModelMismatch, match="The data has sound, the model knows image, text"):
        SearchIndex.build(dcmh.load(model), dcmh.Dataset.from_arrays(sound=np.ones((3, 2))), tmp_path / "x.dcmh")
    assert not (tmp_path / "x.dcmh").exists()


def test_damage_and_newer_formats_are_explained(own):
    header = own / "photos.dcmh" / "index.json"
    good = header.read_text()
    header.write_text(json.dumps({**json.loads(good), "format": 3}))
    with pytest.raises(
        ModelError, match=r"has format 3; this dcmh \(\d+\.\d+\.\d+\) reads up to 1\. Upgrade: pip install"
    ):
        SearchIndex.open(own / "photos.dcmh")
    header.write_text(good[:40])
    with pytest.raises(ModelError, match=r"is damaged: index\.json .* --rebuild"):
        SearchIndex.open(own / "photos.dcmh")
    header.write_text(good)
    (own / "photos.dcmh" / "catalogue.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.raises(ModelError, match=r"is damaged: catalogue\.sqlite: .* --rebuild"):
        SearchIndex.open(own / "photos.dcmh")
    with SearchIndex.build(
        own / "photos.dcmh" / "model", load(own / "photos"), own / "photos.dcmh", rebuild=True
    ) as index:
        assert len(index) == COUNT


def test_build_without_a_folder_takes_the_name_of_the_data(own, model, monkeypatch):
    monkeypatch.chdir(own.parent)
    with SearchIndex.build(model, load(own / "photos")) as index:
        assert index.folder == Path("photos.dcmh")
        assert repr(index) == f"<SearchIndex 'photos.dcmh': {COUNT} items, 16 bits>"
        assert dcmh.SearchIndex.load("photos.dcmh").bits == 16
