"""Dataset: building, taking, checking."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcmh.data import Dataset, Images, Texts, Vectors, similarity
from dcmh.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
WORDS = ["two dogs", "a boat", None, "dogs"]
LABELS = np.array([[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 0, 0]])


def small(**more) -> Dataset:
    return Dataset.from_arrays(image=X, text=WORDS, **{"labels": LABELS, "ids": "abcd", **more})


def test_from_arrays_makes_columns_by_kind():
    pictures = Images(["a.jpg", "b.jpg", None, "d.jpg"])
    data = Dataset.from_arrays(image=pictures, text=WORDS, audio=X, labels=LABELS)
    assert data.modalities == ("image", "text", "audio")
    assert data.image is pictures
    assert isinstance(data.text, Texts)
    assert isinstance(data["audio"], Vectors)
    assert data.ids == ["0", "1", "2", "3"]
    assert data.labels.dtype == np.uint8
    assert data.observed("text").tolist() == [True, True, False, True]
    assert data.complete().tolist() == [True, True, False, True]
    assert len(data) == 4
    assert "4 items" in repr(data)


def test_attributes_that_are_not_there():
    data = small()
    with pytest.raises(AttributeError, match=r"'audio'. Its modalities: image, text"):
        _ = data.audio
    with pytest.raises(DataError, match=r"no modality 'audio'. It has: image, text"):
        data["audio"]
    assert not hasattr(data, "shape")
    assert copy.deepcopy(data).text.values == data.text.values
    assert pickle.loads(pickle.dumps(data)).ids == data.ids


def test_a_data_set_is_known_by_its_modalities():
    data = small()
    assert "text" in data
    assert "sound" not in data
    for act in (lambda: data[3], lambda: data[:3], lambda: data[[1, 2]]):
        with pytest.raises(DataError, match=r"name of a modality.*data\.take\(rows\)"):
            act()
    with pytest.raises(DataError, match=r"cannot be iterated.*data\.ids.*data\.modalities"):
        list(data)


def test_ids_and_names_can_be_written():
    data = small(ids=["a", "b\ud83d", "c", "d"], label_names=["x", "y", "z\udce9"], name="caf\udce9")
    assert data.ids == ["a", "b\ufffd", "c", "d"]
    assert (data.label_names, data.name) == (["x", "y", "z\ufffd"], "caf\ufffd")
    with pytest.raises(DataError, match="occurs more than once"):
        small(ids=["a\ud83c", "a\ud83d", "c", "d"])


def test_take_and_drop():
    data = small(label_names=["dog", "boat", "sea"])
    taken = data.take([3, 0])
    assert taken.ids == ["d", "a"]
    assert taken.text.values == ["dogs", "two dogs"]
    np.testing.assert_array_equal(taken.labels, LABELS[[3, 0]])
    np.testing.assert_array_equal(taken.image.values, X[[3, 0]])
    assert taken.label_names == data.label_names
    assert data.take(np.array([True, False, False, True])).ids == ["a", "d"]
    assert data.take(slice(1, 3)).ids == ["b", "c"]
    assert data.take([-1]).ids == ["d"]
    assert data.take((1, 2)).ids == ["b", "c"]
    assert data.drop([1, 2]).ids == ["a", "d"]
    assert data.drop([]).ids == data.ids
    with pytest.raises(DataError, match="no items"):
        data.take([])


def test_classes_become_one_hot():
    data = Dataset.from_arrays(text=WORDS, labels=[7, 3, 7, 9])
    assert data.label_names == ["3", "7", "9"]
    np.testing.assert_array_equal(data.labels, [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert Dataset.from_arrays(text=WORDS, labels=["b", "a", "b", "a"]).label_names == ["a", "b"]


def test_sparse_labels():
    from scipy.sparse import csr_array

    np.testing.assert_array_equal(small(labels=csr_array(LABELS)).labels, LABELS)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: Dataset.from_arrays(image=X, text=["one"]), "differ in length: image 4, text 1"),
        (lambda: Dataset.from_arrays(text=[]), "no items"),
        (lambda: Dataset.from_arrays(), "at least one modality"),
        (lambda: Dataset.from_arrays(image=X * np.nan), "item 0 holds NaN"),
        (lambda: Dataset.from_arrays(image=[object()] * 4), "type object are neither vectors"),
        (lambda: Dataset.from_arrays(image=np.zeros((4, 2, 2))), "two dimensions"),
        (lambda: small(ids=["a", "b", "c", "b"]), "The id 'b' occurs more than once"),
        (lambda: small(ids=["a"]), "1 ids are given for 4 items"),
        (lambda: small(labels=LABELS[:3]), "given for 3 items, but there are 4"),
        (lambda: small(labels=LABELS * 2), "must be 0 or 1; item 0 has 2"),
        (lambda: small(labels=LABELS * np.nan), "must be 0 or 1; item 0 has nan"),
        (lambda: small(labels=LABELS[None]), "expected"),
        (lambda: small(labels=[0.5, 1, 1, 1]), "whole numbers or strings"),
        (lambda: small(labels=np.zeros((4, 0))), "no columns"),
        (lambda: small(labels=np.full((4, 2), "x")), "must be 0 or 1"),
        (lambda: small(label_names=["dog"]), "1 label names are given for 3 labels"),
        (lambda: Dataset({"text": Texts(WORDS)}, parts=["query"]), "names 1 items"),
        (lambda: Dataset({"text": Texts(["a"])}, parts=["test"]), "split of item 0 is 'test'"),
    ],
)
def test_what_is_refused(act, says):
    with pytest.raises(DataError, match=says):
        act()


def test_fingerprint_follows_ids_labels_and_texts():
    assert small().fingerprint() == small().fingerprint()
    changed = [
        small(ids="abce"),
        small(labels=1 - LABELS),
        small(label_names=["dog", "boat", "sea"]),
        Dataset.from_arrays(image=X, text=["two dogs", "a boat", None, "dog"], labels=LABELS, ids="abcd"),
        small().take([1, 0, 2, 3]),
    ]
    assert len({data.fingerprint() for data in [small(), *changed]}) == 6
    # Recorded: it must not change between versions or machines, as saved splits hold it.
    assert Dataset.from_arrays(text=["é"], labels=[[1]], ids=["x"]).fingerprint() == "fadcd9a347ac94c74b6093ecf00ab0aa"


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 99))
def test_similarity_is_a_shared_label(n_a, n_b, count, seed):
    generator = np.random.default_rng(seed)
    a, b = (generator.integers(0, 2, (n, count), dtype=np.uint8) for n in (n_a, n_b))
    expected = [[bool((row & other).any()) for other in b] for row in a]
    np.testing.assert_array_equal(similarity(a, b), expected)


def test_similarity_with_more_than_255_shared_labels():
    many = np.ones((1100, 256), np.uint8)
    assert similarity(many, many[:3]).all()


def test_importing_data_is_light():
    code = "import sys, dcmh.data; print([m for m in ('torch', 'scipy', 'sklearn', 'h5py') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_single_value_is_no_column():
    with pytest.raises(DataError, match=r"Values of type int are not items\. Give a list, one value per item\."):
        Dataset.from_arrays(image=5, text=["a"])
    with pytest.raises(
        DataError, match=r"Pictures need a list of paths or pictures, got a single one\. Write \[path\]\."
    ):
        Images("dog.jpg")
