"""Labels from words."""

import numpy as np
import pytest

from dcmh.data import Dataset, labels_from_text
from dcmh.data.labels import multi_hot
from dcmh.errors import DataError

WORDS = ["dog", "cat", "boat", "tree", "rose"]
# "photo" in every text; dog in 12 of 60, …, rose in 8 of 60; the stop word "the" in all
TEXTS = [f"the photo {WORDS[i % 5]}" + (" dog" if i % 29 == 1 else "") for i in range(59)] + ["photo"]


def test_frequent_words_serve_as_labels():
    labels, names = labels_from_text(TEXTS)
    assert names[0] == "dog"
    assert sorted(names) == sorted(WORDS)
    expected = [[name in text.split() for name in names] for text in TEXTS]
    np.testing.assert_array_equal(labels, expected)
    assert labels.dtype == np.uint8
    assert labels_from_text(TEXTS, max_labels=4)[1] == names[:4]


def test_missing_texts_have_no_labels():
    labels, _ = labels_from_text([*TEXTS, None])
    assert not labels[-1].any()


def test_default_count_grows_with_the_data():
    texts = TEXTS * 40 + ["rare"] * 10
    assert "rare" not in labels_from_text(texts)[1]
    assert "rare" in labels_from_text(texts, min_count=10)[1]


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["dog cat boat"] * 5 + ["x"] * 10, "Only 3 tags occur 5 times or more; with so few, almost all pairs"),
        (["dog"] * 5 + ["x"] * 10, "Only 1 tag occurs 5 times"),
        (["dog", "cat"], "Only 0 tags occur 5 times"),
    ],
)
def test_too_few(texts, says):
    with pytest.raises(DataError, match=f"{says}.*--min-tag-count, or add a column of labels"):
        labels_from_text(texts)


def test_the_note_names_the_first_five():
    data = Dataset.from_arrays(text=TEXTS).with_labels_from_text()
    assert data.notes[-1].startswith("No labels given: the 5 most frequent words serve as labels (dog, ")
    assert data.labels.shape == (60, 5)
    with pytest.raises(DataError, match="'image' holds vectors"):
        Dataset.from_arrays(image=np.eye(3)).with_labels_from_text("image")


def test_multi_hot():
    labels, names = multi_hot([["b", "a"], [], ["b"]])
    assert names == ["a", "b"]
    np.testing.assert_array_equal(labels, [[1, 1], [0, 0], [0, 1]])
