"""Evaluation on a stand-in model whose codes are known."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from dcmh import codes
from dcmh.data import Dataset
from dcmh.errors import DataError, ParameterError
from dcmh.evaluation import Report, evaluate, metrics

BITS = 12


class Column:
    def __init__(self, values):
        self.values = values

    def take(self, rows):
        return Column(self.values[rows])


@dataclass
class Part:
    ids: list
    columns: dict
    labels: np.ndarray | None
    seen: dict

    def __getitem__(self, name):
        return Column(self.columns[name])

    def __len__(self):
        return len(self.ids)

    def observed(self, name):
        return self.seen[name]


@dataclass
class Split:
    query: Part
    database: Part
    train: Part


class Signs:
    """Takes each column for real-valued outputs of hash functions."""

    bits = BITS
    modalities = ("image", "text")

    def encode(self, **columns):
        ((_, column),) = columns.items()
        return codes.sign(column.values)


def make_part(seed, name, n, modalities=("image", "text")):
    random = np.random.default_rng(seed)
    columns = {modality: random.normal(size=(n, BITS)) for modality in modalities}
    labels = (random.random((n, 5)) < 0.2).astype(np.uint8)
    return Part(
        [f"{name}{i}" for i in range(n)], columns, labels, {modality: np.ones(n, bool) for modality in modalities}
    )


@pytest.fixture
def split():
    return Split(make_part(0, "q", 15), make_part(1, "d", 200), make_part(2, "t", 40))


def pairs(split, a, b):
    query, database = split.query, split.database
    rows, columns = query.seen[a], database.seen[b]
    distance = codes.hamming(codes.sign(query.columns[a][rows]), codes.sign(database.columns[b][columns]))
    return distance, (query.labels[rows].astype(int) @ database.labels[columns].T.astype(int)) > 0


@pytest.mark.parametrize("k", [None, 20])
def test_equals_the_measures(split, k):
    report = evaluate(Signs(), split, k=k)
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
    split.query.seen["image"][:4] = False
    split.database.seen["text"][50:] = False
    split.query.columns["image"][:4] = np.nan
    report = evaluate(Signs(), split)
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
    split = Split(*(make_part(i, name, n, names) for i, (name, n) in enumerate([("q", 3), ("d", 20), ("t", 5)])))
    model = Signs()
    model.modalities = names
    assert len(evaluate(model, split).directions) == 6
    assert "audio_to_text" in evaluate(model, split).to_json()


def test_json(split):
    report = evaluate(Signs(), split)
    record = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert {"bits", "queries", "database", "train", "chance", "image_to_text", "text_to_image"} <= set(record)
    direction = record["image_to_text"]
    assert set(direction["map"]) == {"stable", "expected", "best", "worst"}
    assert set(direction["precision_at"]) == {"1", "5", "10", "50", "100"}
    assert [row["radius"] for row in direction["lookup"]] == list(range(BITS + 1))
    assert all(set(row) == {"radius", "precision", "recall", "f"} for row in direction["lookup"])
    assert Report.from_json(record).to_json() == report.to_json() == record


def test_json_has_null_where_nothing_is_returned(split):
    split.query.columns["image"] = np.ones((15, BITS))
    split.database.columns["text"] = -np.ones((200, BITS))
    record = evaluate(Signs(), split).to_json()
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
        evaluate(Signs(), split)


def test_refuses_queries_in_the_database(split):
    split.database.ids[:2] = ["q1", "q2"]
    with pytest.raises(DataError, match="2 of 15 queries are in the database as well"):
        evaluate(Signs(), split)


def test_refuses_what_cannot_be_measured(split):
    with pytest.raises(ParameterError, match="k must be"):
        evaluate(Signs(), split, k=0)
    model = Signs()
    model.modalities = ("image",)
    with pytest.raises(DataError, match="two or more modalities"):
        evaluate(model, split)
    split.database.seen["text"][:] = False
    with pytest.raises(DataError, match="No item of the database part has the modality 'text'"):
        evaluate(Signs(), split)
    split.query.labels = None
    with pytest.raises(DataError, match="queries have no labels"):
        evaluate(Signs(), split)


def test_a_data_set_in_place_of_a_split():
    with pytest.raises(ParameterError, match=r"a fitted model and a Split, not a Dataset\. Write data\.split"):
        evaluate(None, Dataset.from_arrays(text=["a dog"]))
    with pytest.raises(ParameterError, match=r"a fitted model and a Split, not a NoneType"):
        evaluate(Dataset.from_arrays(text=["a dog"]), None)
