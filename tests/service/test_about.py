"""What the server says about itself: info, words, health, counters, docs, the page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from served import COUNT, UNREADABLE, problem
from starlette.testclient import TestClient

import dcmh
from dcmh.methods import starter
from dcmh.search import SearchIndex
from dcmh.search.calibration import FEWEST
from dcmh.search.overview import Overview
from dcmh.service import Settings, create_app, schemas, state
from dcmh.service.routes import page
from toy_photos import load


class TestInfo:
    def test_it_describes_the_index(self, client, index):
        answer = client.get("/api/info")
        schemas.Info.model_validate_json(answer.content)
        info = answer.json()
        assert (info["name"], info["items"], info["bits"]) == ("photos.dcmh", COUNT, 16)
        assert (info["method"], info["model"]) == ("dcmh", index.fingerprint)
        assert info["codes"] == {"image": COUNT, "text": COUNT}
        assert info["asks"] == {"text": "text", "image": "image"}
        assert info["vocabulary"] == len(index.encoders.words.bag)
        assert (info["text_encoder"], info["precision_measured"]) == ("use-multilingual", True)
        assert info["versions"]["dcmh"] == dcmh.__version__
        assert info["limits"] == {
            "upload_bytes": 20_000_000,
            "megapixels": 50,
            "k": 1000,
            "offset": 10_000,
            "text": 1000,
        }

    @pytest.mark.skipif(os.name == "nt", reason="names are always Unicode there")
    def test_a_folder_whose_name_is_not_unicode(self, own, tmp_path):
        folder = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9")))
        try:
            shutil.move(own / "photos.dcmh", folder)
        except OSError:
            pytest.skip("this file system takes Unicode names only")
        with TestClient(create_app(folder, Settings(rate=0, access_log=None))) as client:
            assert client.get("/api/info").json()["name"] == "caf?"

    def test_precision_by_radius_is_the_reports(self, client, model):
        report = json.loads((model / "report.json").read_text())["text_to_image"]
        measured = next(one for one in client.get("/api/info").json()["measured"] if one["from"] == "text")
        assert (measured["to"], measured["queries"], measured["map"]) == ("image", 12, report["map"]["stable"])
        assert [row["radius"] for row in measured["by_radius"]] == list(range(17))
        for radius, row in enumerate(measured["by_radius"]):
            within = report["by_distance"][: radius + 1]
            points, relevant = (sum(one[key] for one in within) for key in ("points", "relevant"))
            assert row["precision"] == (round(relevant / points, 4) if points >= FEWEST else None)
        assert measured["by_radius"][-1]["recall"] == 1

    def test_a_radius_with_too_few_pairs_has_no_precision(self, own, serve):
        """As hits have none at such a distance: 19 pairs tell nothing, 20 do."""
        path = own / "photos.dcmh" / "model" / "report.json"
        report = json.loads(path.read_text())
        rows = report["text_to_image"]["by_distance"]
        for row, points in zip(rows, [0, FEWEST - 1, 1], strict=False):
            row.update(points=points, relevant=0)
        path.write_text(json.dumps(report))
        path.with_name("checksums.json").unlink()
        measured = next(one for one in serve().get("/api/info").json()["measured"] if one["from"] == "text")
        assert [row["precision"] for row in measured["by_radius"][:3]] == [None, None, 0.0]

    def test_a_model_without_report_has_no_measures(self, own, serve):
        (own / "photos.dcmh" / "model" / "report.json").unlink()
        client = serve()
        info = client.get("/api/info").json()
        assert (info["measured"], info["precision_measured"]) == ([], False)
        assert {hit["precision"] for hit in client.get("/api/search?text=sea").json()["hits"]} == {None}

    def test_a_vocabulary_that_limits_queries(self, vocabulary_client):
        assert vocabulary_client.get("/api/info").json()["text_encoder"] is None


def test_the_overview_has_topics_labels_and_folders(client, index):
    answer = client.get("/api/overview?limit=100")
    schemas.Overview.model_validate_json(answer.content)
    found, expected = answer.json(), Overview(index)
    assert [topic["word"] for topic in found["topics"]] == [topic.word for topic in expected.topics]
    assert found["labels"] == list(expected.labels)
    assert found["folders"] == []
    assert client.get("/api/overview?limit=1").json()["labels"] == found["labels"][:1]


class TestWords:
    def test_a_prefix_gives_the_most_frequent_first(self, client, index):
        bag = index.encoders.words.bag
        answer = client.get("/api/words?prefix=S&limit=1000")
        schemas.Words.model_validate_json(answer.content)
        counts = {word: int(count) for word, count in zip(bag.words_, bag.counts_, strict=True) if word.startswith("s")}
        found = answer.json()
        assert {one["word"]: one["count"] for one in found["words"]} == counts
        assert [one["count"] for one in found["words"]] == sorted(counts.values(), reverse=True)
        assert (found["total"], found["vocabulary"]) == (len(counts), len(bag))
        assert client.get("/api/words?prefix=s&limit=2&offset=1").json()["words"] == found["words"][1:3]

    def test_no_prefix_lists_them_all(self, client, index):
        found = client.get("/api/words?limit=10000").json()["words"]
        assert [one["word"] for one in found] == list(index.encoders.words.bag.words_)

    def test_a_prefix_of_nothing(self, client, index):
        size = len(index.encoders.words.bag)
        assert client.get("/api/words?prefix=qqq").json() == {
            "prefix": "qqq",
            "vocabulary": size,
            "total": 0,
            "words": [],
        }

    def test_a_model_without_vocabulary(self, own, tmp_path):
        """The starter model: its sentence encoder reads any words."""
        SearchIndex.build(starter.folder(), load(own / "photos"), tmp_path / "any.dcmh").close()
        with TestClient(create_app(tmp_path / "any.dcmh", Settings(rate=0, access_log=None))) as client:
            for prefix in ("", "s"):
                found = client.get("/api/words", params={"prefix": prefix}).json()
                assert found == {"prefix": prefix, "vocabulary": 0, "total": 0, "words": []}
            info = client.get("/api/info").json()
            assert (info["vocabulary"], info["text_encoder"]) == (0, "use-multilingual")
            assert (info["precision_measured"], info["measured"]) == (False, [])
            assert len(client.get("/api/search?text=sunny&k=5").json()["hits"]) == 5

    def test_wrong_parameters(self, client):
        for query in ("limit=0", "limit=10001", "offset=-1", f"prefix={'x' * 101}"):
            problem(client.get(f"/api/words?{query}"), 422, "bad-parameter")


def test_health(client):
    assert client.get("/api/health").json() == {"status": "ok"}
    for path in ("/api/health", "/"):  # as `curl -I` and uptime checks ask
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_searches_keep_to_one_thread_each(ready, monkeypatch):
    """As several run side by side. How a program that mounts the service computes is its own again afterwards."""
    entered = []

    @contextlib.contextmanager
    def one_thread():
        entered.append(True)
        yield
        entered.pop()

    monkeypatch.setattr("dcmh.service.state.one_blas_thread", one_thread)
    with TestClient(create_app(ready / "photos.dcmh", Settings(rate=0, access_log=None))):
        assert entered
    assert not entered


def test_metrics_count_requests(serve):
    client = serve()
    client.get("/api/search?text=sea")
    client.get("/api/search?text=sea")
    client.get("/api/search", params={"text": UNREADABLE})
    client.get("/nowhere/at/all")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'dcmh_requests_total{method="GET",route="/api/search",status="200"} 2.0' in lines
    assert 'dcmh_requests_total{method="GET",route="/api/search",status="422"} 1.0' in lines
    assert 'dcmh_requests_total{method="GET",route="other",status="404"} 1.0' in lines
    assert 'dcmh_request_seconds_count{route="/api/search"} 3.0' in lines
    assert 'dcmh_request_seconds_bucket{le="+Inf",route="/api/search"} 3.0' in lines
    assert f"dcmh_items {COUNT}.0" in lines
    for line in lines:
        assert re.fullmatch(r'#.*|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
    buckets = [float(line.split()[-1]) for line in lines if line.startswith("dcmh_request_seconds_bucket")]
    assert buckets == sorted(buckets[:12]) + buckets[12:]


class TestDocs:
    def test_the_schema_has_every_endpoint(self, client):
        schema = client.get("/openapi.json").json()
        ways = {(path, method) for path, ways in schema["paths"].items() for method in ways}
        assert ways == {
            ("/api/search", "get"),
            ("/api/search", "post"),
            ("/api/items/{id}", "get"),
            ("/api/duplicates", "get"),
            ("/api/items/{id}", "delete"),
            ("/api/items/{id}/image", "get"),
            ("/api/items/{id}/thumbnail", "get"),
            ("/api/items/{id}/similar", "get"),
            ("/api/items", "post"),
            ("/api/encode", "post"),
            ("/api/words", "get"),
            ("/api/overview", "get"),
            ("/api/info", "get"),
            ("/api/health", "get"),
            ("/api/reload", "post"),
            ("/metrics", "get"),
        }
        for ways in schema["paths"].values():
            for said in ways.values():
                assert said["summary"]
                assert "application/problem+json" in said["responses"]["422"]["content"]

    def test_the_page_names_every_endpoint_and_needs_nothing_from_elsewhere(self, client):
        page = client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        for path in client.get("/openapi.json").json()["paths"]:
            assert path in page.text
        assert "<script" not in page.text
        assert "style=" not in page.text
        assert "//" not in page.text
        assert client.get("/docs/style.css").headers["content-type"] == "text/css; charset=utf-8"


class TestPage:
    def test_its_files_are_sent(self, client):
        answer = client.get("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        files = {path.name: path.read_bytes() for path in Path(page.FILES.directory).iterdir()}
        assert answer.content == files["index.html"]
        for name, content in files.items():
            answer = client.get(f"/page/{name}")
            assert (answer.content, answer.headers["cache-control"]) == (content, "no-cache")

    def test_who_has_them_gets_304(self, client):
        tag = client.get("/").headers["etag"]
        assert client.get("/", headers={"If-None-Match": tag}).status_code == 304

    def test_nothing_else_is(self, client):
        for path in ("/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py", "/page//etc/passwd", "/page/"):
            problem(client.get(path), 404, "not-found")


@pytest.mark.parametrize(
    "report", ["{", "[]", '{"text_to_image": {"queries": 3}}', '{"text_to_image": 5}', "[" * 3000, "\udcff"]
)
def test_a_damaged_report_of_the_model_is_left_out(tmp_path, report):
    path = tmp_path / "report.json"
    path.write_bytes(report.encode(errors="surrogateescape"))
    assert state._read_measures(path) == []


def test_the_service_starts_without_map_in_the_report(own, serve):
    path = own / "photos.dcmh" / "model" / "report.json"
    report = json.loads(path.read_text())
    for direction in report.values():
        if isinstance(direction, dict):
            direction.pop("map", None)
    path.write_text(json.dumps(report))
    path.with_name("checksums.json").unlink()
    assert serve().get("/api/info").json()["measured"] == []


@pytest.mark.parametrize("text", [5, [5], [["a"]], [None], {"a": 1}, [True], []])
def test_texts_of_another_type_are_refused(client, text):
    problem(client.post("/api/encode", json={"text": text}), 422, "bad-parameter")
