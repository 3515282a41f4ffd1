"""Upgrading an index to another model while a service answers from it."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image
from served import COUNT, train

from dcmh.cli import main
from dcmh.errors import ModelMismatch
from dcmh.search import SearchIndex
from toy_photos import load


@pytest.fixture(scope="module")
def other(cheap_home, tmp_path_factory):
    """A model with longer codes."""
    return train(tmp_path_factory.mktemp("other") / "model", bits=32)


@pytest.fixture
def grown(own, writer, tmp_path):
    """An index with an upload and an item from `add`, whose file is gone by now; and a client of its service."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    answer = writer.post("/api/items", files={"image": file.getvalue()}, data={"text": "a sunny upload"})
    assert answer.status_code == 201
    Image.fromarray(255 - pixels).save(tmp_path / "added.png")
    with SearchIndex.open(own / "photos.dcmh") as index:
        index.add([tmp_path / "added.png"], text=["an added night"], ids=["added"])
    (tmp_path / "added.png").unlink()
    return writer


def no_decoding(*arguments, **options):
    raise AssertionError("a picture was decoded")


def test_everything_is_kept_and_no_picture_decoded_while_the_service_answers(own, grown, other, monkeypatch, capsys):
    index = own / "photos.dcmh"
    with SearchIndex.open(index) as before:
        items = list(before.store.items())
        was = before.fingerprint
    asked = []

    def progress(done, total):
        asked.append(grown.get("/api/info").json()["model"])

    monkeypatch.setattr("dcmh.inputs.decoding.Decoder.submit", no_decoding)
    with pytest.raises(ModelMismatch, match="--upgrade"):
        SearchIndex.build(other, load(own / "photos"), index)
    built = SearchIndex.build(other, load(own / "photos"), index, upgrade=True, progress=progress)
    assert str(built.changes) == f"{COUNT + 2} encoded again, 0 new, 0 changed, 0 gone, 0 unchanged."
    built.close()
    assert set(asked) == {was}
    info = grown.get("/api/info").json()
    assert (info["bits"], info["items"]) == (32, COUNT + 2)
    assert info["model"] != was
    with SearchIndex.open(index) as after:
        assert list(after.store.items()) == items
        assert after.search(text="sunny upload", k=1)[0].name.startswith("upload:")
        ids = [item.id for item in items]
        found = {name: (after.store.codes_of(name, ids), after.store.fine_of(name, ids)) for name in ("image", "text")}
    (upload,) = [item.id for item in items if item.uploaded]
    assert grown.get(f"/api/items/{upload}/thumbnail").status_code == 200
    with SearchIndex.build(other, load(own / "photos"), own / "fresh.dcmh") as fresh:
        for name, (codes, fine) in found.items():
            for item in fresh.store.items():
                number = next(known.id for known in items if known.name == item.name)
                assert codes[number] == fresh.store.codes_of(name, [item.id])[item.id]
                assert fine[number] == fresh.store.fine_of(name, [item.id])[item.id]
            assert len(codes) == len(items)
    assert main(["check", str(index)]) == 0
    capsys.readouterr()
    assert main(["index", str(own / "photos"), "--model", str(other), "--out", str(index), "--upgrade", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == COUNT


def test_an_upgrade_that_fails_leaves_the_old_index(own, grown, other):
    index = own / "photos.dcmh"

    def stop(done, total):
        raise KeyboardInterrupt

    with SearchIndex.open(index) as before:
        items = list(before.store.items())
    with pytest.raises(KeyboardInterrupt):
        SearchIndex.build(other, load(own / "photos"), index, upgrade=True, progress=stop)
    assert not (index / ".rebuild.part").exists()
    with SearchIndex.open(index) as after:
        assert list(after.store.items()) == items
        assert after.bits == 16


def test_an_unreadable_item_leaves_and_a_gone_one_stays(own, grown, other):
    photos = own / "photos"
    first, _, third = sorted(photos.glob("*.png"))[:3]
    third.write_bytes(b"no picture")
    data = load(photos)
    with SearchIndex.build(other, data.take(np.arange(2, COUNT)), own / "photos.dcmh", upgrade=True) as index:
        names = {item.name for item in index.store.items()}
        assert first.name in names or first.stem in names
        assert len(index) == COUNT + 1
        assert [name for name, _ in index.changes.skipped] == [data.ids[2]]
