"""Splits: disjoint, seeded, complete, saved by id."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcmh.data import Dataset, Split, Texts, Vectors, make_split, split_given
from dcmh.errors import DataError, ParameterError


def items(n: int = 40, **more) -> Dataset:
    texts = [f"text {i}" for i in range(n)]
    return Dataset.from_arrays(text=texts, labels=np.arange(n) % 3, ids=[f"id{i}" for i in range(n)], **more)


@settings(deadline=None)
@given(st.integers(5, 60), st.data())
def test_parts_are_what_the_paper_says(n, draw):
    queries = draw.draw(st.integers(1, n - 2))
    train = draw.draw(st.one_of(st.none(), st.integers(1, n - queries)))
    split = items(n).split(queries, train, seed=draw.draw(st.integers(0, 9)))
    query, database, trained = set(split.query.ids), set(split.database.ids), set(split.train.ids)
    assert len(query) == queries
    assert len(database) == n - queries
    assert len(trained) == (n - queries if train is None else train)
    assert not query & database
    assert trained <= database
    for rows in (split.query_rows, split.database_rows, split.train_rows):
        assert (np.diff(rows) > 0).all()


def test_the_seed_decides():
    data = items()
    one, again, other = data.split(10, 20, 1), data.split(10, 20, 1), data.split(10, 20, 2)
    assert one.query.ids == again.query.ids
    assert one.train.ids == again.train.ids
    assert one.query.ids != other.query.ids
    assert set(data.split(10, 5, 1).train.ids) <= set(one.train.ids)
    # Recorded: results of old runs must stay comparable.
    assert one.query_rows.tolist() == [0, 6, 7, 9, 15, 16, 17, 22, 23, 28]


def test_queries_have_every_modality_and_a_label():
    observed = np.arange(40) % 2 == 0
    columns = {"text": Texts([f"t{i}" for i in range(40)]), "image": Vectors(np.eye(40), observed=observed)}
    labels = np.eye(4, dtype=int)[np.arange(40) % 4]
    labels[0] = 0
    data = Dataset(columns, labels=labels)
    split = data.split(19, None, 0)
    assert split.query_rows.tolist() == list(range(2, 40, 2))
    assert not split.train.observed("image")[1:].any()
    with pytest.raises(DataError, match="20 queries were requested, but only 19 of 40"):
        data.split(20)


@pytest.mark.parametrize(
    ("queries", "train", "error", "says"),
    [
        (41, None, DataError, "41 queries were requested, but only 40 of 40"),
        (40, None, DataError, "need 41 items; there are 40"),
        (30, 11, DataError, "30 queries and 11 training items need 41 items; there are 40"),
        (0, None, ParameterError, "queries must be a whole number of at least 1"),
        (5, 0, ParameterError, "train must be"),
        (2.5, None, ParameterError, "queries must be"),
        (True, None, ParameterError, "queries must be"),
    ],
)
def test_more_than_there_is(queries, train, error, says):
    with pytest.raises(error, match=says):
        make_split(items(), queries, train, 0)


@pytest.mark.parametrize("labels", [np.ones(10, int), np.c_[np.ones(10, int), np.arange(10) % 2], np.eye(10, 2)[:, :1]])
def test_all_similar(labels):
    with pytest.raises(DataError, match="do not distinguish items"):
        Dataset.from_arrays(text=["x"] * 10, labels=labels.astype(int)).split(2)


def test_unlabelled_data_can_be_split():
    assert len(Dataset.from_arrays(text=["x"] * 10).split(2).database) == 8


def test_load_undoes_save(tmp_path):
    data = items()
    split = data.split(10, 20, 3)
    split.save(tmp_path / "deep" / "split.json")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["split.json"]
    for source in (data, data.take(np.arange(40)[::-1])):
        again = Split.load(tmp_path / "deep" / "split.json", source)
        assert sorted(again.query.ids) == sorted(split.query.ids)
        assert sorted(again.train.ids) == sorted(split.train.ids)
        assert sorted(again.database.ids) == sorted(split.database.ids)
        assert again.seed == 3
        assert bool(again.notes) == (source is not data)
    assert "changed" in again.notes[0]


def test_new_items_join_the_database(tmp_path):
    items(30).split(5, 5, 0).save(tmp_path / "split.json")
    assert len(Split.load(tmp_path / "split.json", items(40)).database) == 35


def test_items_that_are_gone_can_be_left_out(tmp_path):
    path = tmp_path / "split.json"
    items(30).split(10, 10, 0).save(path)
    found = Split.load(path, items(25), without_gone=True)
    assert set(found.query.ids) < set(items(30).split(10, 10, 0).query.ids)
    assert len(found.query) + len(found.train) < 20
    assert "of its 10 queries and" in found.notes[1]
    with pytest.raises(DataError, match="are not in the data"):
        Split.load(path, items(100).take(range(40, 60)), without_gone=True)  # none is left


def test_saved_splits_that_do_not_fit(tmp_path):
    path = tmp_path / "split.json"
    items().split(10, None, 0).save(path)
    with pytest.raises(DataError, match=r"20 items of the split .* are not in the data, the first is 'id2"):
        Split.load(path, items(20))
    with pytest.raises(DataError, match="does not exist"):
        Split.load(tmp_path / "none.json", items())
    said = json.loads(path.read_text())
    for change, says in [
        ({"format": 2}, r"format 2; this dcmh \(.*\) reads up to 1"),
        ({"train": said["query"]}, "both query and train"),
        ({"query": None}, "not a split"),
    ]:
        path.write_text(json.dumps(said | change))
        with pytest.raises(DataError, match=says):
            Split.load(path, items())
    path.write_text("[1")
    with pytest.raises(DataError, match="not a split"):
        Split.load(path, items())


def test_given_splits():
    columns = items(5).columns
    labels = [0, 1, 0, 1, 0]
    split = split_given(Dataset(columns, labels=labels, parts=["query", "train", "database", "train", "query"]))
    assert split.query_rows.tolist() == [0, 4]
    assert split.database_rows.tolist() == [1, 2, 3]
    assert split.train_rows.tolist() == [1, 3]
    assert split.seed is None
    whole = split_given(Dataset(columns, parts=["query"] + ["database"] * 4))
    assert whole.train_rows.tolist() == [1, 2, 3, 4]
    with pytest.raises(DataError, match="without a split"):
        split_given(items())
    for parts in (["train"] * 5, ["query"] * 5):
        with pytest.raises(DataError, match="of 5 items as query"):
            split_given(Dataset(columns, parts=parts))
