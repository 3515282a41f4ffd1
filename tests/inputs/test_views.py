"""Views: queries are seen as the training items were, and what does not fit is said."""

import numpy as np
import pytest

from dcmh.data import Images, Texts, Vectors
from dcmh.errors import DataError, ModelError, ModelMismatch
from dcmh.inputs.views import FeatureView, PixelView, VectorView, WordView, as_column, load_view


def test_words_survive_saving(tmp_path):
    view = WordView().fit(Texts(["red cat", "red dog", None, "cat dog"]))
    record = view.save(tmp_path, "text")
    again = load_view(tmp_path, "text", record)
    column = Texts(["dogs and cats", "fish"])
    assert np.array_equal(again(column), view(column))
    assert again(column).tolist()[1] == [0, 0, 0]


def test_vectors_of_another_width_are_refused(tmp_path):
    view = VectorView().fit(Vectors(np.zeros((3, 4), np.float32)))
    assert load_view(tmp_path, "image", view.save(tmp_path, "image")).width == 4
    with pytest.raises(ModelMismatch, match="5 features, the model learned from 4"):
        view(Vectors(np.zeros((1, 5))))


def test_pictures_keep_their_network(tmp_path):
    record = FeatureView("efficientnet-lite0").save(tmp_path, "image")
    assert load_view(tmp_path, "image", record).network == "efficientnet-lite0"
    assert isinstance(load_view(tmp_path, "image", PixelView().save(tmp_path, "image")), PixelView)


def test_unknown_views_are_refused(tmp_path):
    with pytest.raises(ModelError, match="Upgrade"):
        load_view(tmp_path, "image", {"view": "holograms"})


@pytest.mark.parametrize(
    ("values", "kind", "length"),
    [
        ("two dogs", "text", 1),
        (["two dogs", "a cat"], "text", 2),
        ("a.jpg", "image", 1),
        (["a.jpg", "b.jpg", "c.jpg"], "image", 3),
        (np.zeros((8, 8, 3), np.uint8), "image", 1),
        (np.zeros((2, 8, 8, 3), np.uint8), "image", 2),
        (np.zeros(5), "vector", 1),
        (np.zeros((4, 5)), "vector", 4),
    ],
)
def test_what_users_pass_becomes_a_column(values, kind, length):
    column = as_column(values, kind, "m")
    assert column.kind == kind
    assert len(column) == length


def test_a_column_of_another_kind_is_refused():
    with pytest.raises(ModelMismatch, match="holds texts, not images"):
        as_column(Images(["a.jpg"]), "text", "text")
    with pytest.raises(DataError):
        WordView().fit(Images(["a.jpg"]))
