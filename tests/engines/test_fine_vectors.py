"""The second stage on servers: what is fetched and kept, of how many items, and collections that were made before it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from test_remote_search import contents, folder_like, told  # noqa: F401 - a fixture

import dcmh
from dcmh.search import SearchIndex, rank
from dcmh.stores import fetched_vectors
from dcmh.stores.local.catalogue import Catalogue
from dcmh.stores.server import ServerStore
from toy_photos import load, write_pairs


@pytest.fixture
def fetched(monkeypatch):
    """The modalities whose fine vectors were all fetched."""
    found = []
    fine = ServerStore.fine
    monkeypatch.setattr(ServerStore, "fine", lambda self, modality: found.append(modality) or fine(self, modality))
    return found


def found(index):
    return [hit.id for hit in index.search("sunny", k=100)]


def test_fine_vectors_are_fetched_once(address, models, photos, folder_index, fetched, tmp_path):
    SearchIndex.build(models[0], load(photos), address).close()
    assert fetched == []
    with SearchIndex.open(address) as index:
        expected = told(folder_index, photos)
        assert told(index, photos) == expected
        assert sorted(fetched) == ["image", "text"]
        assert told(index, photos) == expected
        other = SearchIndex.open(address)  # another process of this machine, before the change and after
        index.remove([5])
        (added,) = index.add([photos / "004.png"], text=["sunny"], ids=["again"])
        index.save()
        assert set(found(index)) == set(found(other)) - {5} | {added}
        assert len(fetched) == 2  # neither what this process has changed, nor what another has kept
        assert other.refresh()
        assert found(other) == found(index)
        assert len(fetched) == 4
        other.close()
    (kept,) = (index.folder / "fine").iterdir()
    assert sorted(folder.name for folder in kept.iterdir()) == ["image", "text"]
    (kept / "text" / "fine.json").write_text("damaged")
    with SearchIndex.open(address) as index:
        index.search("sunny")
        assert fetched[4:] == ["text"]
    SearchIndex.build(models[0], load(photos), address, rebuild=True).close()
    with SearchIndex.open(address) as index:
        assert told(index, photos) == expected
        assert kept not in list((index.folder / "fine").iterdir())
        index.store.read()
        (tmp_path / "file").touch()
        for fine in index.store.snapshot.fine.values():
            fine._whole, fine.folder = None, tmp_path / "file" / "nowhere"  # which cannot be written
        assert told(index, photos) == expected


def test_only_candidates_of_many_items(address, models, photos, folder_index, fetched, monkeypatch):
    monkeypatch.setattr(rank, "CANDIDATES", 8)
    for module in (rank, fetched_vectors):
        monkeypatch.setattr(module, "EVERYTHING", 20)
    monkeypatch.setattr(rank, "COMMON", 3)
    monkeypatch.setattr("dcmh.stores.postgres.store.COMMON", 3)
    with SearchIndex.build(models[0], load(photos), address) as index:
        assert told(index, photos) == told(folder_index, photos)
        assert 8 <= index.search("sunny").candidates < 40
        assert fetched == []


def test_texts_of_unknown_words(address, tmp_path):
    """A bag of words gives them no code, the sentence encoder a fine vector; words of any length and sign are found."""
    toy = dcmh.load_dataset("toy")
    model = dcmh.DCMH(bits=16, hidden=8, epochs=1, device="cpu", text_encoder="none").fit(toy)
    photos = write_pairs(tmp_path / "photos", 12)
    long = "x" * 3_000
    with open(photos / "pairs.jsonl", "a") as file:
        for number, text in enumerate(
            ["quixotic zebras", f"it's {long} \\ % {{brace}} 猫", "\ud83d ħéllo a:b & !c | d's"]
        ):
            record = {"id": f"odd {number}", "text": text, "image": f"00{number}.png", "labels": ['o\'clock "x"']}
            file.write(json.dumps(record) + "\n")
        file.write('{"id": "blank", "image": "003.png"}\n')
    indexes = [SearchIndex.build(model, load(photos), place) for place in (tmp_path / "index", address)]
    folder, server = indexes
    assert len(folder.store.snapshot.fine["text"]) > len(folder.store.snapshot.indexes["text"])
    assert contents(server) == contents(folder)
    for text in ("zebra", "brace", "猫", "hello", f"{long} zebra", "clock x", "a zebra with a brace"):
        assert list(server.search(text, k=20)) == list(folder.search(text, k=20))
    for index in indexes:
        index.close()


def make_older(index):
    """As dcmh made it before there were fine vectors and words."""
    store = index.store
    if index.place.startswith("milvus"):
        for modality in ("image", "text"):
            store.server.call(
                lambda client, _, name=modality: client.drop_collection(f"{store._rows.name}_fine_{name}")
            )
        about = {name: value for name, value in store.read_about().items() if name not in ("fine", "sizes")}
        row = {"id": -1, "code": bytes(1), "name": "", "content": "", "record": about | {"format": "1"}}
        store._rows.upsert_rows([row])
    else:
        store._run("DROP TABLE {schema}.fine_image, {schema}.fine_text")
        store._run("ALTER TABLE {schema}.items DROP COLUMN words")
        store._run("DELETE FROM {schema}.about WHERE key IN ('fine', 'sizes')")
        store._run("UPDATE {schema}.about SET value = '1' WHERE key = 'format'")
    index.close()


def nearest(index):
    """Hits by distance alone, as they were before."""
    return [(hit.id, hit.distance, hit.score, hit.words) for hit in index.search("sunny yellow", k=100)]


@pytest.mark.parametrize("first", ["index", "add"])
def test_an_older_collection(address, models, photos, folder_index, monkeypatch, first):
    make_older(SearchIndex.build(models[0], load(photos), address))
    counts = folder_index.store.word_counts(["sunny", "sea", "nowhere"])
    with monkeypatch.context() as patch:
        patch.setattr(folder_index.store, "snapshot", replace(folder_index.store.snapshot, fine={}))
        expected = nearest(folder_index)
    with SearchIndex.open(address) as older:
        assert nearest(older) == expected
        assert older.store.word_counts(["sunny"]) == {}
        assert older.store.with_word("sunny").tolist() == []
        assert older.store.read_about()["format"] == "1"
        if first == "add":
            (added,) = older.add([photos / "001.png"], text=["nowhere"], ids=["new"])
            assert older.remove([added]) == 1
    for _ in range(2):
        with SearchIndex.build(models[0], load(photos), address) as index:
            assert index.changes.unchanged == 40
            assert index.store.read_about()["format"] == "2"
            assert nearest(index) == expected
            assert index.store.word_counts(["sunny", "sea", "nowhere"]) == counts
            assert index.store.with_word("sea").tolist() == folder_index.store.with_word("sea").tolist()
    with SearchIndex.build(models[0], load(photos), address, rebuild=True) as index:
        assert told(index, photos) == told(folder_index, photos)


def test_a_model_without_fine_vectors(address, tmp_path):
    toy = dcmh.load_dataset("toy")
    model = dcmh.DCMH(bits=16, hidden=8, epochs=1, device="cpu").fit(toy, fine=0)
    photos = write_pairs(tmp_path / "photos", 12)
    indexes = [SearchIndex.build(model, load(photos), place) for place in (tmp_path / "index", address)]
    assert nearest(indexes[1]) == nearest(indexes[0])
    assert indexes[1].store.snapshot.fine == {}
    assert indexes[1].store.fine("image")[1].shape == (0, 0)
    for index in indexes:
        index.close()


def test_milvus_orders_pictures_as_a_folder_does_with_words(milvus, models, photos, folder_index):
    """In pictures alone words do not count anyway."""
    assert Catalogue.word_counts(folder_index.store, ["sunny"]) == {"sunny": 1}
    with SearchIndex.build(models[0], load(photos), milvus.address("pictures")) as index:
        for text in ("sunny", "yellow sea", "a sunny day over the sea"):
            asked = {"text": text, "k": 20, "modality": "image"}
            assert list(index.search(**asked)) == list(folder_index.search(**asked))
            assert all(np.isfinite(hit.score) for hit in index.search(**asked))


def test_codes_and_fine_vectors_are_loaded_in_bulk(engine, address):
    """Twice, as after an interruption; the vectors are those that a collection of these names reads."""
    from dcmh.stores.milvus.index import MilvusIndex
    from dcmh.stores.postgres.index import PostgresIndex

    rng = np.random.default_rng(0)
    ids, packed = np.arange(1, 301), rng.integers(0, 256, (300, 8), dtype=np.uint8)
    vectors = rng.integers(-128, 128, (300, 16)).astype(np.int8)
    kind = PostgresIndex if address.startswith("postgresql") else MilvusIndex
    index = kind(address, 64, name="codes_image")
    assert index.load(ids[:200], packed[:200], fine=vectors[:200]) == 200
    assert index.load(ids, packed, fine=vectors) == 100
    assert index.count == 300
    np.testing.assert_array_equal(index.codes(ids), packed)
    if kind is PostgresIndex:
        rows = index.table.rows("SELECT id, vector FROM " + index.table.fine.as_string(None) + " ORDER BY id")
        stored = dict(rows)
    else:
        from dcmh.stores.milvus.fine import FineCollection

        beside = FineCollection(index.server, f"{index.server.address.collection}_fine_image")
        beside.open(create=False)
        stored = beside.some(ids.tolist(), "Strong")
    assert stored == {int(number): vector.tobytes() for number, vector in zip(ids, vectors, strict=True)}
    index.server.close()
