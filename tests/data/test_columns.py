"""Columns: what is observed, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from dcmh.data import Images, Texts, Vectors
from dcmh.errors import DataError


def test_images_find_their_files():
    array = np.zeros((4, 4, 3), np.uint8)
    column = Images(["a.jpg", Path("/far/b.jpg"), array, None], root="photos")
    assert [column.path(row) for row in range(4)] == [Path("photos/a.jpg"), Path("/far/b.jpg"), None, None]
    assert column.source(0) == Path("photos/a.jpg")
    assert column.source(2) is array
    assert column.source(3) is None
    assert column.observed.tolist() == [True, True, True, False]
    taken = column.take(np.array([3, 0]))
    assert taken.path(1) == Path("photos/a.jpg")
    assert taken.observed.tolist() == [False, True]
    assert Images(["a.jpg"]).path(0) == Path("a.jpg")


def test_blank_texts_are_missing():
    column = Texts(["dog", "", "  \n", None])
    assert column.values == ["dog", None, None, None]
    assert column.observed.tolist() == [True, False, False, False]


def test_half_an_emoji_can_be_written():
    assert Texts(["boat \ud83d"]).values == ["boat \ufffd"]


def test_missing_vectors_may_hold_anything():
    values = np.array([[1.0, 2.0], [np.nan, 0.0]])
    column = Vectors(values, observed=[True, False])
    assert column.take(np.array([1])).observed.tolist() == [False]
    with pytest.raises(DataError, match="item 1 holds NaN or infinity"):
        Vectors(values)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: Images([3]), "Picture of item 0 is a int"),
        (lambda: Images(["a.jpg", Path("caf\udce9.jpg")]), "Picture of item 1, caf\ufffd.jpg: its name is not UTF-8"),
        (lambda: Texts(["a", 3]), "Text of item 1 is a int"),
        (lambda: Texts("dog"), "got one string"),
        (lambda: Vectors(np.zeros(3)), "two dimensions"),
        (lambda: Vectors(np.array([["a"]])), "must be numbers"),
        (lambda: Vectors(np.zeros((3, 2)), observed=[True]), "one value for 3 items"),
    ],
)
def test_what_is_refused(act, says):
    with pytest.raises(DataError, match=says):
        act()
