"""What was trained on and what was not, measured apart; measures of other papers; cautions; reports of older versions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from signs import BITS, Signs

import dcmh
from dcmh import codes
from dcmh.data import Dataset, Vectors
from dcmh.evaluation import Report, metrics

MODEL = Signs("a", "b")
OF_NEWER_VERSIONS = ("interval", "map_at", "ndcg_at", "own_recall_at", "ramap")


def data_of(n=200, labels=6, share=0.2):
    random = np.random.default_rng(0)
    a = random.normal(size=(n, BITS))
    b = a + 0.5 * random.normal(size=a.shape)
    observed = np.ones(n, bool)
    observed[::9] = False
    marks = (random.random((n, labels)) < share).astype(np.uint8)
    return Dataset({"a": Vectors(a), "b": Vectors(b, observed=observed)}, labels=marks)


@pytest.fixture
def split():
    return data_of().split(queries=60, train=90, seed=1)


def without_trained(split):
    unseen = np.flatnonzero(~np.isin(split.database.ids, split.train.ids))
    return replace(split, database=split.database.take(unseen))


@pytest.mark.parametrize("relevance", ["labels", "pairing"])
def test_unseen_is_the_evaluation_without_trained_items(split, relevance):
    report = dcmh.evaluate(MODEL, split, joint=True, relevance=relevance)
    alone = dcmh.evaluate(MODEL, without_trained(split), joint=True, relevance=relevance)
    assert (report.seen, report.unseen.seen, report.unseen.train) == (90, 0, 90)
    assert report.unseen.to_json() == alone.to_json()
    assert report["a_to_b"].map != alone["a_to_b"].map
    assert alone.unseen is None
    again = Report.from_json(json.loads(json.dumps(report.to_json())))
    assert again.to_json() == report.to_json()


def test_nothing_is_apart_where_everything_was_trained_on():
    report = dcmh.evaluate(MODEL, data_of().split(queries=60, seed=1))
    assert (report.seen, report.database, report.unseen) == (140, 140, None)


def test_measures_of_other_papers(split):
    report = dcmh.evaluate(MODEL, split)
    query, rows = split.query, split.database.observed("b")
    database = codes.sign(split.database.b.values[rows])
    distance = codes.hamming(codes.sign(query.a.values), database)
    grades = query.labels.astype(int) @ split.database.labels[rows].T.astype(int)
    found = report["a_to_b"]
    pool = np.concatenate([database, codes.sign(query.b.values)])  # every query has both modalities
    own = np.hstack([np.zeros((60, len(database)), bool), np.eye(60, dtype=bool)])
    near = codes.hamming(codes.sign(query.a.values), pool)
    for ties in metrics.TIES:
        average = metrics.mean_average_precision(distance, grades > 0, ties=ties, k=50)
        assert found.map_at[50][ties] == pytest.approx(average)
        assert found.map_at[5000][ties] == found.map[ties]
        assert found.ndcg_at[10][ties] == pytest.approx(metrics.ndcg_at(distance, grades, [10], ties=ties)[0])
        assert found.own_recall_at[5][ties] == pytest.approx(metrics.recall_at(near, own, [5], ties=ties)[0])
    each = metrics.average_precision(distance, grades > 0, ties="worst")
    assert found.interval["worst"] == pytest.approx(tuple(metrics.prediction_interval(each)))


def test_ramap_averages_precision_over_radii_and_is_not_the_mean_over_orders():
    # Two buckets: at distance 0 one relevant point of two, at distance 2 two relevant points; nothing at 1 and 3.
    distance, relevant = np.array([[0, 0, 2, 2]]), np.array([[True, False, True, True]])
    by_hand = (1 / 2 + 1 / 2 + 3 / 4 + 3 / 4) / 4
    assert metrics.lookup(distance, relevant, bits=3).per_query.precision.mean() == pytest.approx(by_hand)
    orders = [(1 + 2 / 3 + 3 / 4) / 3, (1 / 2 + 2 / 3 + 3 / 4) / 3]  # of the first bucket
    assert metrics.mean_average_precision(distance, relevant, ties="expected") == pytest.approx(np.mean(orders))
    assert by_hand != pytest.approx(np.mean(orders), abs=0.05)


def test_a_report_of_an_older_version_loads(split):
    record = dcmh.evaluate(MODEL, split).to_json()
    older = {name: value for name, value in record.items() if name not in ("seen", "labels", "cautions", "unseen")}
    for name in ("a_to_b", "b_to_a"):
        older[name] = {key: value for key, value in record[name].items() if key not in OF_NEWER_VERSIONS}
    report = Report.from_json(older)
    assert (report.seen, report.labels, report.unseen) == (None, None, None)
    assert report["a_to_b"].map == record["a_to_b"]["map"]
    assert report["a_to_b"].interval == report["a_to_b"].ndcg_at == {}
    assert report.cautions() == []


def test_few_queries_labels_and_unseen_items_are_pointed_out():
    report = dcmh.evaluate(MODEL, data_of(labels=2, share=0.7).split(queries=12, train=150, seed=1))
    few, labels, shared, unseen = report.cautions()
    assert few.startswith("12 queries cannot tell much: with others, MAP ")
    assert labels == "The queries have only 2 labels, so finding the right ones is easy."
    assert shared.startswith("Most items share a label: a random order has a MAP of about 0.")
    assert unseen == "Only 38 items were not trained on, too few to say how new items are found."
    rare = dcmh.evaluate(MODEL, data_of(labels=90, share=0.02).split(queries=60, train=80, seed=1))
    assert any("relevant items on average" in caution for caution in rare.cautions())
    assert dcmh.evaluate(MODEL, data_of(2000).split(queries=500, train=900)).cautions() == []
