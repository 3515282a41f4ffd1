"""Hits for words, pictures, codes and items are those of the index, page by page."""

from __future__ import annotations

import pytest
from served import COUNT, problem

from dcmh.service import answers

WORDS = "sunny yellow bright"


def checked(answer):
    assert answer.status_code == 200, answer.text
    answers.Search.model_validate_json(answer.content)
    return answer.json()


def pairs(record):
    return [(hit["id"], hit["distance"]) for hit in record["hits"]]


class TestWords:
    def test_hits_are_those_of_the_index(self, client, index):
        found = checked(client.get("/api/search", params={"text": WORDS, "k": 7}))
        hits = index.search(text=WORDS, k=7)
        assert pairs(found) == [(hit.id, hit.distance) for hit in hits]
        first, hit = found["hits"][0], hits[0]
        assert first["precision"] == (None if hit.precision is None else round(hit.precision, 4))
        assert (first["name"], first["text"], first["labels"]) == (hit.name, hit.text, list(hit.labels))
        assert first["thumbnail"] == f"/api/items/{hit.id}/thumbnail"
        assert found["query"] == {
            "text": WORDS,
            "item": None,
            "modality": "text",
            "used": ["sunny", "yellow", "bright"],
            "ignored": [],
            "nearest": {},
            "code": hits.query.code.hex(),
        }
        assert (found["searched"], found["bits"], found["radius"], found["nearest"]) == (COUNT, 16, None, None)

    def test_pages_hold_every_hit_once(self, client, index):
        address, seen = f"/api/search?text={WORDS.replace(' ', '+')}&k=13", []
        while address:
            found = checked(client.get(address))
            seen += pairs(found)
            address = found["next"]
        assert seen == [(hit.id, hit.distance) for hit in index.search(text=WORDS, k=COUNT)]

    def test_the_last_full_page_has_no_next(self, client):
        assert checked(client.get(f"/api/search?text=sea&k={COUNT}"))["next"] is None
        assert checked(client.get(f"/api/search?text=sea&k={COUNT - 1}"))["next"] is not None

    def test_ignored_words_are_told_with_known_ones(self, client):
        query = checked(client.get("/api/search?text=sunnny+yellow+the"))["query"]
        assert (query["used"], query["ignored"]) == (["yellow"], ["sunnny", "the"])
        assert "sunny" in query["nearest"]["sunnny"]

    def test_radius_keeps_what_is_within_and_travels_to_the_next_page(self, client, index):
        every = index.search(text=WORDS, k=COUNT)
        radius = every[5].distance
        found = checked(client.get("/api/search", params={"text": WORDS, "radius": radius, "k": 2}))
        seen = pairs(found)
        while found["next"]:
            assert f"radius={radius}" in found["next"]
            found = checked(client.get(found["next"]))
            seen += pairs(found)
        assert seen == [(hit.id, hit.distance) for hit in every if hit.distance <= radius]

    def test_nothing_within_the_radius_names_the_nearest(self, client, index):
        nearest = index.search(text=WORDS, k=1)[0]
        assert nearest.distance > 0
        found = checked(client.get("/api/search", params={"text": WORDS, "radius": nearest.distance - 1}))
        assert (found["hits"], found["next"]) == ([], None)
        assert (found["nearest"]["id"], found["nearest"]["distance"]) == (nearest.id, nearest.distance)

    def test_beyond_the_end_is_empty_and_names_no_nearest(self, client):
        found = checked(client.get("/api/search?text=sea&offset=5000"))
        assert (found["hits"], found["nearest"], found["next"]) == ([], None, None)

    def test_in_chooses_the_codes(self, client, index):
        found = checked(client.get("/api/search", params={"text": WORDS, "in": "text", "k": 3}))
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.search(text=WORDS, k=3, in_="text")]
        assert "in=text" in found["next"]

    def test_unknown_words_are_a_problem_with_known_ones(self, client, ready):
        said = problem(client.get("/api/search?text=sunnny"), 422, "query-not-encodable")
        assert said["title"] == "No word of 'sunnny' is in the model's vocabulary (276 words)."
        assert said["hint"].startswith("Closest known: sunny")
        assert said["hint"].endswith("GET /api/words lists them all.")
        assert "sunny" in said["nearest"]
        assert str(ready) not in str(said)  # no path of the server

    def test_blank_words_are_a_problem(self, client):
        assert problem(client.get("/api/search?text=+"), 422, "query-not-encodable")["hint"]

    @pytest.mark.parametrize(
        "query",
        [
            "",
            "text=a&code=0000",
            "text=sea&k=0",
            "text=sea&k=1001",
            "text=sea&k=x",
            "text=sea&offset=-1",
            "text=sea&offset=10001",
            "text=sea&radius=-1",
            "text=sea&in=sound",
            f"text={'x' * 1001}",
            "code=00&modality=image",
            "code=xyz&modality=image",
            "code=000&modality=image",
            "code=0000&modality=sound",
        ],
    )
    def test_wrong_parameters_are_problems(self, client, query):
        assert problem(client.get(f"/api/search?{query}"), 422, "bad-parameter")["title"]


class TestPictures:
    def test_a_picture_finds_what_the_index_finds(self, client, index):
        path = index.root / "007.png"
        found = checked(client.post("/api/search?k=9", files={"image": path.read_bytes()}))
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.search(image=path, k=9)]
        assert (found["query"]["modality"], found["query"]["text"]) == ("image", None)

    def test_its_next_page_asks_for_the_code(self, client, index):
        path = index.root / "007.png"
        found = checked(client.post("/api/search?k=10", files={"image": path.read_bytes()}))
        seen = pairs(found)
        while found["next"]:
            found = checked(client.get(found["next"]))
            seen += pairs(found)
        assert seen == [(hit.id, hit.distance) for hit in index.search(image=path, k=COUNT)]

    def test_a_damaged_picture_says_how(self, client, index):
        cut = (index.root / "007.png").read_bytes()[:-300]
        said = problem(client.post("/api/search", files={"image": cut}), 422, "damaged-picture")
        assert said["title"].startswith("The picture cannot be read: ")


class TestSimilar:
    def test_an_item_is_left_out(self, client, index):
        found = checked(client.get("/api/items/5/similar?k=6"))
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.similar(5, k=6)]
        assert (found["query"]["item"], found["query"]["text"], found["query"]["modality"]) == (5, None, "image")
        assert found["query"]["code"] == index.codes_of(5)["image"].hex()

    def test_its_pages_hold_every_other_item_once(self, client):
        address, seen = "/api/items/5/similar?k=20", []
        while address:
            found = checked(client.get(address))
            seen += [hit["id"] for hit in found["hits"]]
            address = found["next"]
        assert sorted(seen) == [number for number in range(1, COUNT + 1) if number != 5]

    def test_no_such_item(self, client):
        problem(client.get("/api/items/999/similar"), 404, "no-such-item")


class TestEncode:
    def test_texts(self, client, index):
        answer = client.post("/api/encode", json={"text": ["sunny sea", "yellow"]})
        answers.Codes.model_validate_json(answer.content)
        expected = [index.ask(text=text)[0].code.hex() for text in ("sunny sea", "yellow")]
        assert answer.json() == {"codes": expected, "bits": 16}

    def test_a_picture(self, client, index):
        data = (index.root / "003.png").read_bytes()
        assert client.post("/api/encode", files={"image": data}).json()["codes"] == [index.codes_of(4)["image"].hex()]

    def test_unknown_words_are_a_problem(self, client):
        problem(client.post("/api/encode", json={"text": ["sea", "qqqq"]}), 422, "query-not-encodable")

    @pytest.mark.parametrize(
        "body", [b'{"text": []}', b'{"text": "sea"}', b"[]", b'{"text": [1]}', b'{"text": ["' + b"x" * 1001 + b'"]}']
    )
    def test_other_json_is_a_problem(self, client, body):
        headers = {"content-type": "application/json"}
        problem(client.post("/api/encode", content=body, headers=headers), 422, "bad-parameter")

    def test_no_json_is_a_problem(self, client):
        headers = {"content-type": "application/json"}
        problem(client.post("/api/encode", content=b"{", headers=headers), 400, "bad-request")
        problem(client.post("/api/encode", content=b"[" * 100_000, headers=headers), 400, "bad-request")

    def test_other_content_is_a_problem(self, client):
        problem(client.post("/api/encode", content=b"sea", headers={"content-type": "text/plain"}), 415, "not-a-form")

    def test_too_much_is_a_problem(self, client):
        headers = {"content-type": "application/json"}
        problem(client.post("/api/encode", content=b" " * 1_100_000, headers=headers), 413, "too-large")
