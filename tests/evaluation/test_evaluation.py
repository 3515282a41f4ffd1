"""Evaluation on a stand-in model whose codes are known."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from signs import BITS, Signs

from dcmh import codes
from dcmh.data import Dataset, Vectors
from dcmh.errors import DataError, ParameterError
from dcmh.evaluation import Report, evaluate, metrics

MODEL = Signs("image", "text")


def make_part(seed, name, n, modalities=MODEL.modalities):
    random = np.random.default_rng(seed)
    columns = {modality: Vectors(random.normal(size=(n, BITS))) for modality in modalities}
    labels = (random.random((n, 5)) < 0.2).astype(np.uint8)
    return Dataset(columns, labels=labels, ids=[f"{name}{i}" for i in range(n)])


def make_split(queries=15, database=200, train=40, **options):
    """Three parts that have nothing in common, which `evaluate` takes for a `Split`."""
    parts = (("query", queries), ("database", database), ("train", train))
    return SimpleNamespace(**{name: make_part(i, name[0], n, **options) for i, (name, n) in enumerate(parts)})


@pytest.fixture
def split():
    return make_split()


def pairs(split, a, b):
    query, database = (part.take(part.observed(name)) for part, name in ((split.query, a), (split.database, b)))
    distance = codes.hamming(codes.sign(query[a].values), codes.sign(database[b].values))
    return distance, (query.labels.astype(int) @ database.labels.T.astype(int)) > 0


@pytest.mark.parametrize("k", [None, 20])
def test_equals_the_measures(split, k):
    report = evaluate(MODEL, split, k=k)
    assert (report.bits, report.queries, report.database, report.train, report.k) == (BITS, 15, 200, 40, k)
    assert list(report.directions) == ["image_to_text", "text_to_image"]
    for name, direction in report.directions.items():
        distance, relevant = pairs(split, *name.split("_to_"))
        assert report.chance == direction.chance == pytest.approx(metrics.chance(relevant))
        assert report.without_relevant == direction.without_relevant == metrics.without_relevant(relevant)
        assert list(direction.map) == ["stable", "expected", "best", "worst"]
        for ties, value in direction.map.items():
            assert value == pytest.approx(metrics.mean_average_precision(distance, relevant, ties=ties, k=k))
        assert list(direction.precision_at) == list(direction.recall_at) == [1, 5, 10, 50, 100]
        ks = list(direction.precision_at)
        assert list(direction.precision_at.values()) == pytest.approx(metrics.precision_at(distance, relevant, ks))
        assert list(direction.recall_at.values()) == pytest.approx(metrics.recall_at(distance, relevant, ks))
        expected = metrics.lookup(distance, relevant, bits=BITS)
        np.testing.assert_allclose(direction.lookup.precision, expected.precision)
        np.testing.assert_allclose(direction.lookup.per_query.f, expected.per_query.f)
        counts = metrics.count(distance, relevant, bits=BITS)
        np.testing.assert_array_equal(
            metrics.precision_by_distance(report[name]), metrics.precision_by_distance(counts)
        )


def test_only_observed_items_count(split):
    split.query.image.observed[:4] = False
    split.database.text.observed[50:] = False
    split.query.image.values[:4] = np.nan
    report = evaluate(MODEL, split)
    assert (report.queries, report.database) == (15, 200)
    assert report.chance == pytest.approx(
        (split.query.labels.astype(int) @ split.database.labels.T.astype(int) > 0).mean()
    )
    forth, back = report["image_to_text"], report["text_to_image"]
    assert (forth.queries, forth.database, back.queries, back.database) == (11, 50, 15, 200)
    distance, relevant = pairs(split, "image", "text")
    assert forth.map["stable"] == pytest.approx(metrics.mean_average_precision(distance, relevant))
    assert forth.chance == pytest.approx(relevant.mean())


def test_three_modalities():
    names = ("image", "text", "audio")
    report = evaluate(Signs(*names), make_split(3, 20, 5, modalities=names))
    assert len(report.directions) == 6
    assert "audio_to_text" in report.to_json()


def test_json(split):
    report = evaluate(MODEL, split)
    record = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert {"bits", "queries", "database", "train", "chance", "image_to_text", "text_to_image"} <= set(record)
    direction = record["image_to_text"]
    assert set(direction["map"]) == {"stable", "expected", "best", "worst"}
    assert set(direction["precision_at"]) == {"1", "5", "10", "50", "100"}
    assert [row["radius"] for row in direction["lookup"]] == list(range(BITS + 1))
    assert all(set(row) == {"radius", "precision", "recall", "f"} for row in direction["lookup"])
    assert Report.from_json(record).to_json() == report.to_json() == record


def test_json_has_null_where_nothing_is_returned(split):
    split.query.image.values[:] = 1
    split.database.text.values[:] = -1
    record = evaluate(MODEL, split).to_json()
    rows = record["image_to_text"]["lookup"]
    assert rows[0] == {"radius": 0, "precision": None, "recall": 0.0, "f": 0.0}
    assert rows[-1]["recall"] == 1
    again = Report.from_json(record)["image_to_text"]
    assert math.isnan(again.lookup.precision[0])
    assert np.isnan(metrics.precision_by_distance(again)[:-1]).all()


def test_foreign_json():
    with pytest.raises(DataError, match="not an evaluation report: it lacks 'queries'"):
        Report.from_json({"bits": 16})


def test_refuses_queries_that_were_trained_on(split):
    split.train.ids[3] = "q7"
    with pytest.raises(DataError, match=r"1 of 15 queries were trained on, such as 'q7'"):
        evaluate(MODEL, split)


def test_refuses_queries_in_the_database(split):
    split.database.ids[:2] = ["q1", "q2"]
    with pytest.raises(DataError, match="2 of 15 queries are in the database as well"):
        evaluate(MODEL, split)


def test_refuses_what_cannot_be_measured(split):
    with pytest.raises(ParameterError, match="k must be"):
        evaluate(MODEL, split, k=0)
    with pytest.raises(DataError, match="two or more modalities"):
        evaluate(Signs("image"), split)
    split.database.text.observed[:] = False
    with pytest.raises(DataError, match="No item of the database part has the modality 'text'"):
        evaluate(MODEL, split)
    split.query.labels = None
    with pytest.raises(DataError, match="queries have no labels"):
        evaluate(MODEL, split)


def test_a_data_set_in_place_of_a_split():
    with pytest.raises(ParameterError, match=r"a fitted model and a Split, not a Dataset\. Write data\.split"):
        evaluate(None, Dataset.from_arrays(text=["a dog"]))
    with pytest.raises(ParameterError, match=r"a fitted model and a Split, not a NoneType"):
        evaluate(Dataset.from_arrays(text=["a dog"]), None)
