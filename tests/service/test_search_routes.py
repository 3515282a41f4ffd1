"""Hits for words, pictures, codes and items are those of the index, page by page."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from malformed import picture
from served import COUNT, UNREADABLE, problem, train

from dcmh.errors import EncoderError
from dcmh.inputs import sentences
from dcmh.search import Filter, SearchIndex
from dcmh.service import schemas
from dcmh.service.state import WaitingTexts
from toy_photos import load

WORDS = "sunny yellow bright"
QUESTION = "a bright day with sunny weather"  # for sentences precision was measured


def checked(answer):
    assert answer.status_code == 200, answer.text
    schemas.Search.model_validate_json(answer.content)
    return answer.json()


def pairs(record):
    return [(hit["id"], hit["distance"]) for hit in record["hits"]]


def scored(record):
    return [(hit["id"], hit["score"]) for hit in record["hits"]]


def every_page(client, found, seen=scored):
    """What an answer and all those after it hold."""
    hits = seen(found)
    while found["next"]:
        found = checked(client.get(found["next"]))
        hits += seen(found)
    return hits


class TestSideBySide:
    TEXTS = ("a purple zebra -crab", "nine trains without rain", "a purple zebra")

    @pytest.fixture
    def batches(self, index, monkeypatch):
        """What the encoder is given."""
        found = []
        kind = type(index.encoders.words.encoder)
        encode = kind.encode_texts
        monkeypatch.setattr(kind, "encode_texts", lambda self, texts: found.append(list(texts)) or encode(self, texts))
        monkeypatch.setattr(sentences, "_recent", {})
        return found

    def test_the_words_of_all_that_wait_are_encoded_at_once(self, index, batches):
        waiting = WaitingTexts()
        with waiting.waiting(self.TEXTS[0]), waiting.waiting(self.TEXTS[1]), waiting.waiting(self.TEXTS[2]):
            for text in self.TEXTS[::-1]:
                waiting.read(index, text)
                index.search(text=text)
        assert batches == [["a purple zebra", "crab", "nine trains", "rain"]]

    def test_an_encoder_that_fails_is_an_error_of_each_search(self, index, monkeypatch):
        def fail(self, texts):
            raise EncoderError("It is broken.")

        waiting = WaitingTexts()
        monkeypatch.setattr(type(index.encoders.words.encoder), "encode_texts", fail)
        with waiting.waiting("a mauve zebra"):
            waiting.read(index, "a mauve zebra")
        with pytest.raises(EncoderError, match="broken"):
            index.search(text="a mauve zebra")

    def test_a_search_that_finds_no_room_leaves_nothing(self, serve):
        client = serve()
        service = client.app.state.service
        service.searches.capacity = 0
        assert client.get("/api/search", params={"text": "a beige zebra"}).status_code == 503
        assert not service._texts._texts

    def test_hits_are_those_of_one_after_another(self, client, index):
        texts = [f"{color} {thing}" for color in ("pink", "black", "cyan") for thing in ("boat", "cat", "hill", "sea")]
        with ThreadPoolExecutor(12) as clients:
            answers = clients.map(lambda text: client.get("/api/search", params={"text": text, "k": 5}), texts)
        for text, answer in zip(texts, answers, strict=True):
            assert scored(checked(answer)) == [(hit.id, round(hit.score, 4)) for hit in index.search(text=text, k=5)]


class TestWords:
    def test_hits_are_those_of_the_index(self, client, index):
        found = checked(client.get("/api/search", params={"text": WORDS, "k": 7}))
        hits = index.search(text=WORDS, k=7)
        assert pairs(found) == [(hit.id, hit.distance) for hit in hits]
        first, hit = found["hits"][0], hits[0]
        assert hit.words == ("sunny", "yellow", "bright")[: len(hit.words)]
        assert [one["precision"] for one in found["hits"]] == [round(one.precision, 4) for one in hits]
        assert scored(found) == [(one.id, round(one.score, 4)) for one in hits]
        assert [one["fine"] for one in found["hits"]] == [round(one.fine, 4) for one in hits]
        assert [one["words"] for one in found["hits"]] == [list(one.words) for one in hits]
        assert (first["name"], first["text"], first["labels"]) == (hit.name, hit.text, list(hit.labels))
        assert first["thumbnail"] == f"/api/items/{hit.id}/thumbnail"
        assert found["query"] == {
            "text": WORDS,
            "item": None,
            "modality": "text",
            "used": ["sunny", "yellow", "bright"],
            "ignored": [],
            "nearest": {},
            "corrected": {},
            "code": hits.query.code.hex(),
            "key": hits.query.key.hex(),
            "without": [],
            "like": [],
            "unlike": [],
            "filter": {"labels": [], "folder": None, "since": None, "until": None, "where": []},
        }
        assert (found["candidates"], found["at_least"], found["below"]) == (None, None, 0)
        assert (found["searched"], found["bits"], found["radius"], found["nearest"]) == (COUNT, 16, None, None)

    def test_pages_hold_every_hit_once(self, client, index):
        found = checked(client.get("/api/search", params={"text": WORDS, "k": 13}))
        assert every_page(client, found, pairs) == [(hit.id, hit.distance) for hit in index.search(text=WORDS, k=COUNT)]

    def test_the_last_full_page_has_no_next(self, client):
        assert checked(client.get(f"/api/search?text=sea&k={COUNT}"))["next"] is None
        assert checked(client.get(f"/api/search?text=sea&k={COUNT - 1}"))["next"] is not None

    def test_items_whose_text_holds_the_words_say_so_and_come_first(self, client, index):
        found = checked(client.get("/api/search", params={"text": "a yellow anchor", "k": COUNT}))
        for hit in found["hits"]:
            text = index.item(hit["id"]).text.split()
            assert hit["words"] == [word for word in ("yellow", "anchor") if word in text]
        counts = [len(hit["words"]) for hit in found["hits"]]
        assert counts[0] == 1
        assert [hit["score"] for hit in found["hits"]] == sorted((hit["score"] for hit in found["hits"]), reverse=True)
        matched = next(hit for hit in found["hits"] if hit["words"])
        assert matched["score"] > matched["fine"]

    def test_without_fine_vectors_distances_order_the_hits(self, vocabulary_client):
        found = checked(vocabulary_client.get("/api/search", params={"text": WORDS, "k": COUNT}))
        assert {(hit["score"], hit["fine"]) for hit in found["hits"]} == {(None, None)}
        distances = [hit["distance"] for hit in found["hits"]]
        assert distances == sorted(distances)
        assert found["query"]["key"] == found["query"]["code"]

    def test_ignored_words_are_told_with_known_ones(self, vocabulary_client):
        query = checked(vocabulary_client.get("/api/search?text=sunnny+yellow+the"))["query"]
        assert (query["used"], query["ignored"]) == (["yellow"], ["sunnny", "the"])
        assert "sunny" in query["nearest"]["sunnny"]

    def test_radius_keeps_what_is_within_and_travels_to_the_next_page(self, client, index):
        every = index.search(text=WORDS, k=COUNT)
        radius = every[5].distance
        found = checked(client.get("/api/search", params={"text": WORDS, "radius": radius, "k": 2}))
        assert f"radius={radius}" in found["next"]
        assert every_page(client, found, pairs) == [(hit.id, hit.distance) for hit in every if hit.distance <= radius]

    def test_nothing_within_the_radius_names_the_nearest(self, client, index):
        nearest = min(index.search(text=WORDS, k=COUNT), key=lambda hit: (hit.distance, hit.id))
        assert nearest.distance > 0
        found = checked(client.get("/api/search", params={"text": WORDS, "radius": nearest.distance - 1}))
        assert (found["hits"], found["next"]) == ([], None)
        assert (found["nearest"]["id"], found["nearest"]["distance"]) == (nearest.id, nearest.distance)

    def test_beyond_the_end_is_empty_and_names_no_nearest(self, client):
        found = checked(client.get("/api/search?text=sea&offset=5000"))
        assert (found["hits"], found["nearest"], found["next"]) == ([], None, None)

    def test_a_misspelt_parameter_is_refused_with_the_nearest_one(self, client):
        record = problem(client.get("/api/search?text=sea&labels=night"), 422, "bad-parameter")
        assert (record["title"], record["hint"]) == ("There is no parameter 'labels'.", "Did you mean label?")

    def test_in_chooses_the_codes(self, client, index):
        found = checked(client.get("/api/search", params={"text": WORDS, "in": "text", "k": 3}))
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.search(text=WORDS, k=3, modality="text")]
        assert "in=text" in found["next"]

    def test_unknown_words_are_a_problem_with_known_ones(self, vocabulary_client, vocabulary_ready):
        said = problem(vocabulary_client.get("/api/search?text=sunnny"), 422, "query-not-encodable")
        assert said["title"].startswith("No word of 'sunnny' is in the model's vocabulary (")
        assert said["hint"].startswith("Closest known: sunny")
        assert said["hint"].endswith("GET /api/words lists them all.")
        assert "sunny" in said["nearest"]
        assert str(vocabulary_ready) not in str(said)  # no path of the server

    def test_any_word_is_known_to_a_sentence_encoder(self, client):
        query = checked(client.get("/api/search?text=sunnny+plage"))["query"]
        assert (query["used"], query["ignored"], query["nearest"]) == (["sunnny", "plage"], [], {})

    def test_what_a_sentence_encoder_cannot_read_is_a_problem(self, client):
        said = problem(client.get("/api/search", params={"text": UNREADABLE}), 422, "query-not-encodable")
        assert "use-multilingual cannot read" in said["title"]
        assert said["hint"] == "Use words of a language that it knows."
        assert "nearest" not in said

    def test_what_it_cannot_read_is_found_word_by_word(self, writer):
        """In a script that the sentence encoder never saw."""
        form = {"text": (None, "\u2d30\u2d4e\u2d53\u2d54"), "image": picture("PNG")}
        item = writer.post("/api/items", files=form).json()
        assert set(item["codes"]) == {"image"}
        found = checked(writer.get("/api/search", params={"text": item["text"]}))
        assert [(hit["id"], hit["words"]) for hit in found["hits"]] == [(item["id"], [item["text"]])]
        problem(writer.get("/api/search", params={"text": "\u2d5c\u2d49\u2d3c"}), 422, "query-not-encodable")
        problem(writer.post("/api/encode", json={"text": [item["text"]]}), 422, "query-not-encodable")

    def test_blank_words_are_a_problem(self, client):
        assert problem(client.get("/api/search?text=+"), 422, "query-not-encodable")["hint"]

    @pytest.mark.parametrize(
        "query",
        [
            "",
            "text=sea&since=someday",
            "text=sea&where=rating",
            "like=0",
            "text=sea&k=0",
            "text=sea&k=1001",
            "text=sea&k=x",
            "text=sea&offset=-1",
            "text=sea&offset=10001",
            "text=sea&radius=-1",
            "text=sea&in=sound",
            "text=sea&at_least=-0.1",
            "text=sea&at_least=1.1",
            "text=sea&at_least=nan",
            "text=sea&at_least=x",
            f"text={'x' * 1001}",
            "code=00&modality=image",
            "code=xyz&modality=image",
            "code=000&modality=image",
            f"code={'0' * 766}&modality=image",
            f"code={'0' * 770}&modality=image",
            "code=0000&modality=sound",
        ],
    )
    def test_wrong_parameters_are_problems(self, client, query):
        assert problem(client.get(f"/api/search?{query}"), 422, "bad-parameter")["title"]

    def test_a_wrong_value_in_a_list_is_told_with_its_parameter(self, client):
        said = problem(client.get("/api/search?like=1&like=x"), 422, "bad-parameter")
        assert said["title"].startswith("like: Input should be a valid integer")


class TestPictures:
    def test_a_picture_finds_what_the_index_finds(self, client, index):
        path = index.root / "007.png"
        found = checked(client.post("/api/search?k=9", files={"image": path.read_bytes()}))
        key = index.ask(image=path)[0].key
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.near(key, "image", k=9)]
        assert (found["hits"][0]["id"], found["query"]["key"]) == (8, key.hex())
        assert (found["query"]["modality"], found["query"]["text"]) == ("image", None)

    def test_its_pages_have_the_order_of_one_large_page(self, client, index):
        path = index.root / "007.png"
        large = checked(client.post(f"/api/search?k={COUNT}", files={"image": path.read_bytes()}))
        found = checked(client.post("/api/search?k=10", files={"image": path.read_bytes()}))
        assert f"code={found['query']['key']}&" in found["next"]
        assert every_page(client, found) == scored(large)

    def test_a_code_alone_is_ordered_by_distance(self, client, index):
        """And so in another order than the key, which holds the fine vector as well."""
        query = index.ask(image=index.root / "007.png")[0]
        address = f"/api/search?modality=image&k={COUNT}&code="
        by_code, by_key = (checked(client.get(address + code.hex())) for code in (query.code, query.key))
        distances = [hit["distance"] for hit in by_code["hits"]]
        assert distances == sorted(distances)
        assert {hit["score"] for hit in by_code["hits"]} == {None}
        assert pairs(by_code) != pairs(by_key)
        assert sorted(pairs(by_code)) == sorted(pairs(by_key))

    def test_the_longest_key_is_taken(self, serve, own):
        """Codes of 1,024 bits with fine vectors of 256 dimensions."""
        model = train(own / "longest", bits=1024, fine=256)
        SearchIndex.build(model, load(own / "photos"), own / "photos.dcmh", rebuild=True).close()
        client = serve()
        found = checked(client.post("/api/search?k=5", files={"image": (own / "photos" / "007.png").read_bytes()}))
        width = SearchIndex.open(own / "photos.dcmh").encoders.fine.dimensions
        assert len(found["query"]["key"]) == 2 * (128 + width)
        assert len(every_page(client, found)) == COUNT

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

    def test_its_pages_have_the_order_of_one_large_page(self, client):
        large = checked(client.get(f"/api/items/5/similar?k={COUNT}"))
        assert every_page(client, checked(client.get("/api/items/5/similar?k=9"))) == scored(large)

    def test_no_such_item(self, client):
        problem(client.get("/api/items/999/similar"), 404, "no-such-item")

    def test_what_is_wrong_with_a_filter_is_not_blamed_on_the_item(self, client):
        said = problem(client.get("/api/items/5/similar?where=rating>3"), 422, "query-not-encodable")
        assert said["title"] == "The index has no column 'rating'."
        said = problem(client.get("/api/items/5/similar?label=sea&at_least=0.5"), 422, "query-not-encodable")
        assert said["title"].startswith("The precision of hits was not measured")


def precisions(record):
    """Those that the hits have, rising."""
    return sorted({hit["precision"] for hit in record["hits"] if hit["precision"] is not None})


class TestPrecision:
    """Hits whose measured precision is high enough."""

    def ask(self, client, index, way, **given):
        if way == "words":
            return client.get("/api/search", params={"text": QUESTION, **given})
        if way == "similar":
            return client.get("/api/items/16/similar", params=given)
        picture = (index.root / "015.png").read_bytes()
        return client.post("/api/search", params=given, files={"image": picture})

    @pytest.mark.parametrize("way", ["words", "picture", "similar"])
    def test_only_hits_that_reach_it(self, client, index, way):
        every = checked(self.ask(client, index, way, k=COUNT))
        assert (every["below"], every["at_least"]) == (0, None)
        known = precisions(every)
        for least in (known[len(known) // 3] + 0.0001, known[-1] - 0.0001):  # beside the values, which are rounded
            found = checked(self.ask(client, index, way, k=100, at_least=least))
            good = [hit for hit in every["hits"] if hit["precision"] is not None and hit["precision"] >= least]
            assert 0 < len(good) < len(every["hits"])
            assert found["hits"] == good
            assert (found["at_least"], found["below"]) == (least, len(every["hits"]) - len(good))
            assert (found["nearest"], found["next"]) == (None, None)

    @pytest.mark.parametrize("way", ["words", "picture", "similar"])
    def test_pages_hold_them_once_in_the_same_order(self, client, index, way):
        every = checked(self.ask(client, index, way, k=COUNT))
        least = precisions(every)[1]
        found = checked(self.ask(client, index, way, k=7, at_least=least))
        assert f"at_least={least}" in found["next"]
        large = checked(self.ask(client, index, way, k=COUNT, at_least=least))
        assert large["below"] > 0
        assert every_page(client, found) == scored(large)

    def test_where_none_reaches_it_the_best_is_named(self, client, index):
        best = index.search(text=QUESTION, k=1)[0]
        assert best.precision < 1
        found = checked(client.get("/api/search", params={"text": QUESTION, "k": 5, "at_least": 1}))
        assert (found["hits"], found["below"]) == ([], min(50, len(index)))  # of all that can have a precision
        assert (found["nearest"]["id"], found["nearest"]["precision"]) == (best.id, round(best.precision, 4))

    @pytest.mark.parametrize("way", ["words", "picture", "similar"])
    def test_a_model_without_measured_precision_says_so(self, own, serve, index, way):
        (own / "photos.dcmh" / "model" / "report.json").unlink()
        client = serve()
        said = problem(self.ask(client, index, way, at_least=0.5), 422, "precision-not-measured")
        assert str(own) not in str(said)
        assert self.ask(client, index, way).status_code == 200


class TestEncode:
    def test_texts(self, client, index):
        answer = client.post("/api/encode", json={"text": ["sunny sea", "yellow"]})
        schemas.Codes.model_validate_json(answer.content)
        expected = [index.ask(text=text)[0].code.hex() for text in ("sunny sea", "yellow")]
        assert answer.json() == {"codes": expected, "bits": 16}

    def test_a_picture(self, client, index):
        data = (index.root / "003.png").read_bytes()
        assert client.post("/api/encode", files={"image": data}).json()["codes"] == [index.codes_of(4)["image"].hex()]

    def test_unknown_words_are_a_problem(self, client, vocabulary_client):
        problem(vocabulary_client.post("/api/encode", json={"text": ["sea", "qqqq"]}), 422, "query-not-encodable")
        problem(client.post("/api/encode", json={"text": ["sea", UNREADABLE]}), 422, "query-not-encodable")

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


class TestSeveralParts:
    def test_words_that_are_excluded_are_told(self, client, index):
        found = checked(client.get("/api/search", params={"text": "sea -night", "k": COUNT}))
        assert found["query"]["without"] == ["night"]
        assert pairs(found) == [(hit.id, hit.distance) for hit in index.search("sea -night", k=COUNT)]
        assert all("night" not in hit["labels"] and hit["precision"] is None for hit in found["hits"])

    def test_examples_travel_to_the_next_page(self, client, index):
        found = checked(client.get("/api/search?text=sea&like=3&like=5&unlike=7&k=9"))
        assert (found["query"]["like"], found["query"]["unlike"]) == ([3, 5], [7])
        expected = index.search("sea", like=[3, 5], unlike=[7], k=COUNT)
        assert every_page(client, found) == [(hit.id, round(hit.score, 4)) for hit in expected]
        assert not {3, 5, 7} & {hit.id for hit in expected}
        problem(client.get("/api/search?like=4711"), 422, "no-such-item")

    def test_a_picture_with_words(self, client, index):
        photo = (index.root / "005.png").read_bytes()
        found = checked(
            client.post("/api/search?k=9&label=sea", files={"image": ("a.png", photo)}, data={"text": "sunny -night"})
        )
        assert (found["query"]["text"], found["query"]["without"]) == ("sunny -night", ["night"])
        everything = index.search("sunny -night", photo, k=COUNT, filter=Filter(labels=["sea"]))
        assert [one for one, _ in every_page(client, found)] == [hit.id for hit in everything]

    def test_filters_travel_to_the_next_page(self, client, index):
        query = "text=sunny&label=sea&label=night&since=2001&until=2999-12-31&k=5"
        found = checked(client.get(f"/api/search?{query}"))
        assert found["query"]["filter"]["labels"] == ["sea", "night"]
        wanted = [hit for hit in index.search("sunny", k=COUNT) if {"sea", "night"} & set(hit.labels)]
        assert every_page(client, found) == [(hit.id, round(hit.score, 4)) for hit in wanted]
        assert found["searched"] == len(wanted)
        assert checked(client.get("/api/search?text=sunny&until=1970"))["hits"] == []
        assert checked(client.get("/api/items/3/similar?label=nothing"))["hits"] == []
        assert "rating" in problem(client.get("/api/search?text=a&where=rating>3"), 422, "query-not-encodable")["title"]

    def test_a_minimum_precision_is_refused_where_none_was_measured(self, client):
        for query in ("text=sea+-night", "text=sea&like=3", "text=sea&label=sea"):
            assert (
                "not measured"
                in problem(client.get(f"/api/search?{query}&at_least=0.5"), 422, "query-not-encodable")["title"]
            )
