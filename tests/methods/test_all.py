"""The contract that every method keeps, run on each file in methods/."""

import inspect
import re

import numpy as np
import pytest

import dcmh
from dcmh import methods
from dcmh.data import Dataset
from dcmh.errors import DCMHError, NotFittedError, ParameterError
from dcmh.methods._two_views import TwoViewHasher

BITS = 12
# What is slow, or short of data, at its own settings.
FAST = {
    "dcmh": {"epochs": 30, "hidden": 64, "learning_rate": 0.01, "device": "cpu"},
    "cmssh": {"pairs": 5_000},
    "crh": {"pairs": 5_000},
    "mlbe": {"landmarks": 120, "sweeps": 10},
}
# Both directions must be above this many times chance; 2.5 where nothing is said.
TIMES_CHANCE = {"cca": 2, "cvh": 2, "mlbe": 2}

every_method = pytest.mark.parametrize("name", methods.available())
every_method_of_two_views = pytest.mark.parametrize(
    "name", [name for name in methods.available() if issubclass(methods.get(name), TwoViewHasher)]
)


def new(name, bits=BITS, **settings):
    return methods.get(name)(bits=bits, **FAST.get(name, {}), **settings)


@pytest.fixture(scope="module")
def fitted(split):
    """name -> the method fitted on the training part, once."""
    models = {}

    def fit(name):
        if name not in models:
            models[name] = new(name).fit(split.train)
        return models[name]

    return fit


@every_method
def test_fit_returns_self_and_codes_are_signs(name, split):
    model = new(name)
    assert model.fit(split.train) is model
    assert model.modalities == ("image", "text")
    for modality in model.modalities:
        codes = model.encode(**{modality: split.query[modality]})
        assert codes.dtype == np.int8
        assert codes.shape == (len(split.query), BITS)
        assert set(np.unique(codes)) <= {-1, 1}


@every_method
def test_same_seed_same_codes(name, split, fitted):
    again = new(name).fit(split.train)
    for modality in ("image", "text"):
        values = {modality: split.query[modality]}
        assert (again.encode(**values) == fitted(name).encode(**values)).all()


@every_method
def test_encode_before_fit(name, split):
    with pytest.raises(NotFittedError):
        new(name).encode(image=split.query.image)


@every_method
def test_save_and_load(name, split, fitted, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model")
    loaded = methods.load(tmp_path / "model")
    assert type(loaded) is type(model)
    assert loaded.name == name
    assert loaded.parameters == {key: "auto" if key == "device" else value for key, value in model.parameters.items()}
    for modality in model.modalities:
        values = {modality: split.query[modality]}
        assert (loaded.encode(**values) == model.encode(**values)).all()


@every_method
def test_one_item_and_many_get_the_same_codes(name, split, fitted):
    model = fitted(name)
    for modality in model.modalities:
        values = split.query[modality].values
        together = model.encode(**{modality: values})
        alone = np.concatenate([model.encode(**{modality: row[None]}) for row in values])
        # A bit at zero may fall to either side by the order of a sum.
        assert (together != alone).sum() <= 1


@every_method
def test_beats_chance_in_both_directions(name, split, fitted):
    report = dcmh.evaluate(fitted(name), split)
    for direction, found in report.directions.items():
        assert found.map["expected"] > TIMES_CHANCE.get(name, 2.5) * report.chance, direction


@every_method
def test_constructor_stores_each_argument_under_its_name(name):
    method = methods.get(name)
    taken = inspect.signature(method.__init__).parameters
    assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in taken.values())
    assert {"bits", "seed"} <= set(taken)
    model = method(bits=24, seed=5)
    given = {key: p.default for key, p in taken.items() if key != "self"} | {"bits": 24, "seed": 5}
    assert model.parameters == given
    assert {key for key in vars(model) if key.endswith("_")} == set()


@every_method
def test_first_line_names_a_paper(name):
    line = methods.available()[name]
    assert re.search(r"\(.*(19|20)\d\d\b.*\)", line), line


@every_method
def test_says_whether_it_uses_labels(name, split):
    method = methods.get(name)
    unlabelled = Dataset(split.train.columns)
    if method.uses_labels or method.needs_fine:  # of vectors, only label names say what they are
        with pytest.raises(DCMHError, match="labels"):
            new(name).fit(unlabelled)
    else:
        assert "labels are not used" in inspect.getmodule(method).__doc__
        with_labels, without = new(name).fit(split.train), new(name).fit(unlabelled)
        values = {"image": split.query.image}
        assert (with_labels.encode(**values) == without.encode(**values)).all()


@every_method
def test_dependent_features_are_handled_or_refused(name, split):
    train = split.train
    image = np.repeat(train.image.values[:, :13], 2, axis=1)  # every feature twice
    text = train.text.values.copy()
    text[:, 0] = 0  # a word that never occurs
    data = Dataset.from_arrays(image=image, text=text, labels=train.labels, label_names=train.label_names)
    model = new(name).fit(data)
    for modality, values in (("image", image), ("text", text)):
        assert np.isfinite(model.outputs(**{modality: values})).all()


@every_method
def test_more_bits_than_dimensions_work_or_are_explained(name, split):
    if name in ("cca", "cvh"):
        with pytest.raises(ParameterError, match=r"24.*20.*40 bits.*at most 20"):
            new(name, bits=40).fit(split.train)
    else:
        model = new(name, bits=40).fit(split.train)
        assert model.encode(text=split.query.text).shape == (len(split.query), 40)


@every_method_of_two_views
def test_methods_for_two_modalities_say_so(name, split):
    train = split.train
    three = Dataset({**train.columns, "sound": train.image}, labels=train.labels)
    with pytest.raises(DCMHError, match="exactly two modalities; the data has 3: image, text, sound"):
        new(name).fit(three)


@every_method_of_two_views
def test_a_modality_that_never_varies_is_refused(name, split):
    train = split.train
    same = Dataset.from_arrays(image=train.image.values, text=np.ones((len(train), 5)), labels=train.labels)
    with pytest.raises(DCMHError, match="same text"):
        new(name).fit(same)


def test_a_refused_fit_leaves_nothing_fitted(split):
    model = methods.get("cca")(bits=1024)
    with pytest.raises(DCMHError):
        model.fit(split.train)
    with pytest.raises(NotFittedError):
        model.encode(image=split.query.image)
