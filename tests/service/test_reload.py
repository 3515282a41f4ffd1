"""The server follows its index: changes by others, a rebuild with another model, and damage."""

from __future__ import annotations

import shutil
import threading

from served import COUNT, train
from starlette.testclient import TestClient

from dcmh.inputs import sentences
from dcmh.search import SearchIndex
from dcmh.service import Settings, create_app
from toy_photos import load, write_photos


def items(client):
    return client.get("/api/info").json()["items"]


def test_what_another_process_adds_is_found(serve, own):
    client = serve()
    assert items(client) == COUNT
    with SearchIndex.open(own / "photos.dcmh") as other:
        (number,) = other.add(text=["sunny sea yellow"], ids=["new"])
    assert items(client) == COUNT + 1
    assert number in [hit["id"] for hit in client.get("/api/search?text=sunny&k=100").json()["hits"]]


def test_the_sentence_encoder_is_ready_before_the_first_request(serve, own, monkeypatch):
    """At the start, and when another index takes over."""
    read = []
    encode = sentences.encode
    monkeypatch.setattr(sentences, "encode", lambda encoder, texts: read.extend(texts) or encode(encoder, texts))
    client = serve()
    assert "photo" in read
    shutil.copytree(own / "photos.dcmh", own / "same.dcmh")
    shutil.rmtree(own / "photos.dcmh")
    shutil.move(own / "same.dcmh", own / "photos.dcmh")
    read.clear()
    assert client.post("/api/reload").json()["changed"]
    assert "photo" in read


def test_reload_says_whether_anything_had_changed(serve, own):
    client = serve(check_seconds=1000)
    assert client.post("/api/reload").json() == {"changed": False, "items": COUNT}
    with SearchIndex.open(own / "photos.dcmh") as other:
        other.remove([1, 2])
    assert items(client) == COUNT
    assert client.post("/api/reload").json() == {"changed": True, "items": COUNT - 2}
    assert "dcmh_reloads_total 1.0" in client.get("/metrics").text.splitlines()


def test_a_rebuild_with_another_model_is_taken_in_whole(serve, own, tmp_path):
    client = serve()
    before = client.get("/api/info").json()
    model = train(tmp_path / "other", bits=24)
    write_photos(own / "photos", COUNT + 4)
    SearchIndex.build(model, load(own / "photos"), own / "photos.dcmh", rebuild=True).close()
    after = client.get("/api/info").json()
    assert (before["bits"], after["bits"], after["items"]) == (16, 24, COUNT + 4)
    assert after["model"] != before["model"]
    found = client.get("/api/search?text=sunny+sea&k=3").json()
    assert (found["bits"], len(found["query"]["code"])) == (24, 6)
    picture = (own / "photos" / "007.png").read_bytes()
    assert client.post("/api/search?k=1", files={"image": picture}).json()["hits"][0]["distance"] == 0


def test_while_it_is_rebuilt_the_old_one_answers(serve, own, tmp_path, monkeypatch):
    client = serve()
    model = train(tmp_path / "other", bits=24)
    seen = []

    def watch(done, total):
        seen.append((client.get("/api/search?text=sunny+sea&k=5").json()["bits"], items(client)))
        picture = (own / "photos" / "007.png").read_bytes()
        seen.append(client.post("/api/search?k=1", files={"image": picture}).status_code)

    SearchIndex.build(model, load(own / "photos"), own / "photos.dcmh", rebuild=True, progress=watch).close()
    assert set(seen) == {(16, COUNT), 200}
    assert client.get("/api/info").json()["bits"] == 24


def test_another_folder_in_its_place_is_taken_in(serve, own, ready):
    client = serve()
    with SearchIndex.open(own / "photos.dcmh") as other:
        other.remove([1])
    assert items(client) == COUNT - 1
    shutil.rmtree(own / "photos.dcmh")
    assert client.get("/api/search?text=sunny").status_code == 200
    shutil.copytree(ready / "photos.dcmh", own / "photos.dcmh")
    assert items(client) == COUNT


def test_a_damaged_folder_leaves_the_old_index_in_service(serve, own):
    client = serve()
    good = (own / "photos.dcmh" / "index.json").read_text()
    with SearchIndex.open(own / "photos.dcmh") as other:
        other.remove([1])
    (own / "photos.dcmh" / "index.json").write_text("{")
    assert items(client) == COUNT
    assert client.get("/api/search?text=sunny").status_code == 200
    assert "dcmh_reload_failures_total 0.0" not in client.get("/metrics").text.splitlines()
    (own / "photos.dcmh" / "index.json").write_text(good)
    assert items(client) == COUNT - 1


def test_searches_go_on_while_the_index_changes(serve, own):
    client = serve()
    stop = threading.Event()
    wrong = []

    def ask():
        while not stop.is_set():
            answer = client.get("/api/search?text=sunny+sea&k=100")
            if answer.status_code != 200:
                wrong.append(answer.text)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    with SearchIndex.open(own / "photos.dcmh") as other:
        for number in range(10):
            added = other.add(text=["sunny sea"], ids=[f"new {number}"])
            if number % 3 == 0:
                other.save()
            if number % 2:
                other.remove(added)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert items(client) == COUNT + 5


def test_an_index_that_was_given_open_stays_open(own):
    with SearchIndex.open(own / "photos.dcmh") as index:
        with TestClient(create_app(index, Settings())) as client:
            assert items(client) == COUNT
        assert len(index.search(text="sunny", k=3)) == 3


def test_it_can_be_mounted_in_another_application(ready):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    app = create_app(ready / "photos.dcmh")
    with TestClient(Starlette(routes=[Mount("/photos", app)])) as client:
        assert client.get("/photos/api/info").json()["items"] == COUNT
        found = client.get("/photos/api/search?text=sunny&k=3").json()
        assert client.get(f"/photos{found['next']}").status_code == 200
    app.state.service.close()
