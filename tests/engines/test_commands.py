"""The commands with addresses, as a user types them."""

from __future__ import annotations

import json

import pytest

from dcmh.cli import main
from dcmh.search import SearchIndex


@pytest.fixture
def cli(capsys):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_index_search_info(cli, engine, address, models, photos, folder_index):
    shown = address.replace(f":{engine.password}@", "@") if hasattr(engine, "password") else address
    code, out, err = cli("index", photos, "--model", models[0], "--out", address)
    assert (code, out) == (0, "40 new, 0 changed, 0 gone, 0 unchanged.\n")
    assert f"Wrote {shown}: 40 items (38 by image, 40 by text), 10 kB of codes." in err
    assert f"Next: dcmh search {shown!r}" in err.replace(f"search {shown}", f"search {shown!r}")
    code, out, _ = cli("index", photos, "--out", address, "--json")  # the model is known
    record = json.loads(out)
    assert (code, record["index"], record["unchanged"]) == (0, shown, 40)
    code, out, _ = cli("search", address, "sunny", "yellow", "-k", "3", "--json")
    hits = folder_index.search(text="sunny yellow", k=3)
    assert code == 0
    assert [hit["id"] for hit in json.loads(out)["hits"]] == [hit.id for hit in hits]
    code, out, _ = cli("info", address, "--json")
    record = json.loads(out)
    assert (record["path"], record["kind"], record["items"], record["state"]) == (shown, "search index", 40, "ready")
    assert record["codes"] == {"image": 38, "text": 40}
    code, out, _ = cli("check", address, "--json")
    record = json.loads(out)
    assert (code, record["path"], record["kind"], record["intact"]) == (0, shown, "collection", True)
    assert record["findings"][-1] == {"what": "items and codes", "result": "ok", "detail": "40 items", "hint": ""}
    with SearchIndex.open(address) as index:
        index.remove([1])
    record = json.loads(cli("info", address, "--json")[1])
    assert (record["items"], record["codes"]) == (39, {"image": 37, "text": 39})
    assert record["state"] == "ready; changed since dcmh index ran, by dcmh serve or a program"
    code, _, err = cli("index", photos, "--model", models[1], "--out", address)
    assert code == 1
    assert f"{shown} was built with model" in err
    if hasattr(engine, "password"):
        assert engine.password not in err


def test_approximate_searches_say_what_they_miss(cli, engine, address, models, photos):
    asked = f"{address}&approximate=hnsw" if address.startswith("postgres") else f"{address}?approximate=ivf"
    code, out, err = cli("index", photos, "--model", models[0], "--out", asked, "--json")
    assert code == 0
    recall = json.loads(out)["recall"]
    assert set(recall) == {"image", "text"}
    assert all(0 < share <= 1 for share in recall.values())
    assert "Searches are approximate: on items of the collection they found" in err
    code, _, err = cli("search", asked, "sunny")
    assert code == 0
    assert "approximate, with a measured recall" in err
    code, _, err = cli("search", address, "sunny")  # exact by default
    assert code == 0
    assert "approximately" not in err


def test_a_service_over_a_server(engine, address, models, photos, folder_index, tmp_path):
    from fastapi.testclient import TestClient

    from dcmh.service import create_app

    SearchIndex.build(models[0], load_photos(photos), address).close()
    with SearchIndex.open(address) as index, TestClient(create_app(index), base_url="http://127.0.0.1") as client:
        answer = client.get("/api/search", params={"text": "sunny yellow", "k": 4})
        assert answer.status_code == 200
        hits = folder_index.search(text="sunny yellow", k=4)
        assert [hit["distance"] for hit in answer.json()["hits"]] == [hit.distance for hit in hits]
        assert client.get("/api/info").json()["items"] == 40


def load_photos(photos):
    from toy_photos import load

    return load(photos)
