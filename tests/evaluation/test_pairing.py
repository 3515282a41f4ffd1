"""Evaluation without labels: each query wants its own item in the other modality."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from signs import Signs

import dcmh
from dcmh import codes
from dcmh.data import Dataset, Vectors
from dcmh.errors import DataError
from dcmh.evaluation import Report, short
from dcmh.evaluation.metrics.packed import paired_counts, paired_stable

MODEL = Signs("a", "b")


def packed(n, bits, seed):
    return codes.pack(codes.sign(np.random.default_rng(seed).normal(size=(n, bits))))


def test_counts_against_brute_force():
    query, database = packed(9, 6, 0), packed(30, 6, 1)
    wanted = np.random.default_rng(2).integers(0, 30, 9)
    distance = codes.hamming(query, database)
    counts = paired_counts(query, database, wanted, 6)
    stable = paired_stable(query, database, wanted)
    for i, own in enumerate(wanted):
        near, equal = (distance[i] < distance[i, own]).sum(), (distance[i] == distance[i, own]).sum()
        rank = np.flatnonzero(np.argsort(distance[i], kind="stable") == own)[0] + 1
        assert stable[i] == pytest.approx(1 / rank)
        expected = np.mean([1 / (near + place) for place in range(1, equal + 1)])
        assert counts.average_precision(ties="expected")[i] == pytest.approx(expected)
        assert counts.points[i].tolist() == np.bincount(distance[i], minlength=7).tolist()
    assert counts.relevant.sum() == 9


def split_of(seed=0, labels=None):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(80, 12))
    b = a + 0.3 * rng.normal(size=a.shape)
    observed = np.ones(80, bool)
    observed[::9] = False
    data = Dataset({"a": Vectors(a), "b": Vectors(b, observed=observed)}, labels=labels)
    return data.split(queries=20, train=30, seed=1)


def test_the_queries_own_items_join_the_database():
    split = split_of()
    report = dcmh.evaluate(MODEL, split, relevance="pairing")
    assert (report.relevance, report.database, report.chance) == ("pairing", 80, 1 / 80)
    found = report["a_to_b"]
    there = split.database.observed("b").sum()
    assert (found.queries, found.database, found.without_relevant) == (20, there + 20, 0)
    pool = np.concatenate([split.database.b.values[split.database.observed("b")], split.query.b.values])
    distance = codes.hamming(codes.sign(split.query.a.values), codes.sign(pool))
    own = distance[np.arange(20), there + np.arange(20)]
    ranks = (distance < own[:, None]).sum(1)
    assert found.recall_at[1] <= (ranks == 0).mean()
    assert found.recall_at[10] > 0.5
    assert found.lookup.recall[-1] == 1
    again = Report.from_json(report.to_json())
    assert again.relevance == "pairing"
    assert again["a_to_b"].map == found.map


def test_labels_are_asked_for_unless_the_pairing_decides():
    with pytest.raises(DataError, match='relevance="pairing"'):
        dcmh.evaluate(MODEL, split_of())


def test_joint_codes_beside_the_others():
    labels = np.eye(4, dtype=np.uint8)[np.random.default_rng(0).integers(0, 4, 80)]
    split = split_of(labels=labels)
    whole = replace(split, database=split.database.take(split.database.observed("b")))
    report = dcmh.evaluate(MODEL, whole, joint=True)
    assert list(report.directions) == ["a_to_b", "b_to_a", "a_to_joint", "b_to_joint"]
    joint = codes.sign(whole.database.a.values + whole.database.b.values)
    distance = codes.hamming(codes.sign(whole.query.a.values), joint)
    relevant = whole.query.labels @ whole.database.labels.T > 0
    expected = dcmh.metrics.mean_average_precision(distance, relevant, ties="stable")
    assert report["a_to_joint"].map["stable"] == pytest.approx(expected)


def test_short_names_of_directions():
    assert short("image_to_text", ["image_to_text", "text_to_image"]) == "I→T"
    assert short("title_to_image", ["title_to_tags", "title_to_image"]) == "title→image"


def test_average_precision_by_direction_is_what_evaluate_reports():
    from dcmh.evaluation import average_precision_by_direction, encode_sides

    data = dcmh.load_dataset("toy", n=80)
    split = data.split(queries=20, seed=0)
    model = dcmh.methods.get("cca")(bits=8).fit(
        Dataset({"image": Vectors(pixels(split.train)), "text": split.train.text}, labels=split.train.labels)
    )
    query, database = (
        Dataset({"image": Vectors(pixels(part)), "text": part.text}, labels=part.labels, ids=part.ids)
        for part in (split.query, split.database)
    )
    for relevance in ("labels", "pairing"):
        sides = encode_sides(model, query, database, relevance)
        by_query = average_precision_by_direction(*sides, model.bits)
        report = dcmh.evaluate(model, replace(split, query=query, database=database), relevance=relevance)
        assert list(by_query) == list(report.directions) == ["image_to_text", "text_to_image"]
        for direction, values in by_query.items():
            assert values.shape == (20,)
            assert values.mean() == pytest.approx(report[direction].map["expected"])


def pixels(part):
    return np.stack([picture.reshape(-1) for picture in part.image.values]).astype(np.float32)
