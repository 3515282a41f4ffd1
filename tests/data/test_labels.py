"""Labels from words."""

import numpy as np
import pytest

from dcmh.data import Dataset, labels_from_text
from dcmh.data.labels import multi_hot, tell_apart
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
        (
            ["dog cat boat"] * 5 + ["x"] * 10,
            "only boat, cat, dog occur in 5 or more, but at most half, of the 15 texts",
        ),
        (["dog"] * 5 + ["x"] * 10, "only dog occurs in 5 or more, but at most half, of the 15 texts"),
        (["dog", "cat"], "no word occurs in 5 or more, but at most half, of the 2 texts"),
    ],
)
def test_too_few(texts, says):
    with pytest.raises(
        DataError, match=f"{says}.*Add a column of labels, give a lower --min-tag-count, or learn from the pairs"
    ):
        labels_from_text(texts)


def test_the_note_names_the_first_five():
    data = Dataset.from_arrays(text=TEXTS).with_labels_from_text()
    assert data.notes[-1].startswith("No labels given: the 5 most frequent words serve as labels (dog, ")
    assert data.labels.shape == (60, 5)
    with pytest.raises(DataError, match="'image' holds vectors"):
        Dataset.from_arrays(image=np.eye(3)).with_labels_from_text("image")


def test_words_that_were_counted_before_serve_again():
    data = Dataset.from_arrays(text=TEXTS).with_labels_from_text()
    again = Dataset.from_arrays(text=TEXTS).with_labels_from_words(data.label_names)
    np.testing.assert_array_equal(again.labels, data.labels)
    assert again.label_names == data.label_names
    assert again.fingerprint() == data.fingerprint()
    others = ["two Dogs", "a rose and a rose", None, "zebra zebra", "the tree of the dog"]
    labels = Dataset.from_arrays(text=others).with_labels_from_words(["dog", "cat", "tree", "rose"]).labels
    np.testing.assert_array_equal(labels, [[1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]])
    with pytest.raises(DataError, match="'image' holds vectors"):
        Dataset.from_arrays(image=np.eye(3)).with_labels_from_words(["dog"], "image")


def test_given_words_count_in_any_form():
    data = Dataset.from_arrays(text=["two Dogs", "a rose", "BERRIES and a dog"])
    labelled = data.with_labels_from_words(["Dogs", "Berry "])
    assert labelled.label_names == ["dog", "berry"]
    np.testing.assert_array_equal(labelled.labels, [[1, 0], [0, 0], [1, 1]])
    with pytest.raises(DataError, match="'dog' is given twice, as 'dog' and 'Dogs'"):
        data.with_labels_from_words(["dog", "rose", "Dogs"])
    for word in ("red boat", "x", "", "can't"):
        with pytest.raises(DataError, match="is not one word of two letters or more"):
            data.with_labels_from_words(["dog", word])
    with pytest.raises(DataError, match="got one string"):
        data.with_labels_from_words("dog")


def test_what_tells_items_apart():
    four = np.eye(4, dtype=np.uint8)
    assert tell_apart(four)
    assert not tell_apart(four[:, :3])  # too few
    assert not tell_apart(np.hstack([four, np.zeros((4, 9), np.uint8)])[:, 1:])  # too few in use
    assert not tell_apart(np.hstack([four, np.ones((4, 1), np.uint8)]))  # all pairs are similar
    assert not tell_apart(None)


def test_multi_hot():
    labels, names = multi_hot([["b", "a"], [], ["b"]])
    assert names == ["a", "b"]
    np.testing.assert_array_equal(labels, [[1, 1], [0, 0], [0, 1]])
