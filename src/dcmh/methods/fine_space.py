"""The fine space: every item as a vector near the words that describe it, for any method, in closed form.

A code of 64 bits tells what kind of thing an item is; the fine vector ranks the hits of the codes. Both sides meet in the
space of a sentence encoder. With x an item's input (picture features, or any vector), y the vector of its text, and l the mean of
the vectors of its label names, weighted by rarity, each less the texts' mean c and at unit length:

    M = (Y'Y / n + m I)^-1/4                            half-whitening, m the mean eigenvalue of Y'Y / n
    t = (y + LABELS l) M                                the target of an item
    W = (X'X + ridge I)^-1 X' T                         regression, X standardised, T centred
    V = the first right singular vectors of X W         the directions that pictures can tell apart
    z = unit(x W V)                                     an item by its input
    z = unit((y - c) M V)                               an item by its text, and a query

Without M, the few directions in which most texts differ (people or no people, indoors or outdoors) decide most of each inner
product, and what sets one thing apart from its like counts too little.

An ImageNet network also knows the names of a thousand classes. With p its probabilities at temperature TEMPERATURE and C the
class names' vectors less their mean, k = unit(p C M V) joins the regression's inputs, and adds to its output:
z = unit(unit([x, INPUT k] W V) + CLASSES k). That covers what the training texts never name.

Where one encoder takes both pictures and texts, they share a space already, and nothing is regressed: z = unit((x - m) V) and
z = unit((y - c) V) with m the mean of the pictures' vectors, c that of the texts', and V from the centred vectors of both. The
two means take away what tells pictures from texts. No item needs both (`dcmh.methods.from_encoder`).

Vectors of one modality alone have a space of their own: z = unit(x V), whose inner products are nearly the cosines of x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import Texts
from dcmh.data.dataset import Dataset
from dcmh.errors import ModelError, ParameterError
from dcmh.inputs import encoders, sentences
from dcmh.inputs.encoders import TextEncoder
from dcmh.inputs.views import FeatureView, VectorView, View, WordView, sentence_vectors
from dcmh.methods._solvers import principal_axes
from dcmh.util.blas import product

DIMENSIONS = (0, 64, 128, 256)  # 0: no fine space
DEFAULT = 128
PREFIX = "fine:"  # of its arrays in the weights of a model
REFERENCE = "reference"  # the array of quantised vectors of everyday pictures
TEMPERATURE = 2.0
HEADROOM = 1.2  # how far beyond those learned from vectors may lie before they are clipped

Matrix = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Settings:
    """Weights of the closed form, chosen on validation items (docs/measurements/search-quality.md)."""

    labels: float = 0.45
    ridge: float = 4.7  # for each input
    classes: float = 0.15
    input: float = 30.0


OWN = Settings()  # a collection's own model
GENERAL = Settings(labels=0.3, ridge=9.0, classes=0.5)  # a model for collections it has never seen: the starter model


class FineSpace:
    """The learned arrays by name, and the record of the sentence encoder."""

    def __init__(self, record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        self.record = dict(record)
        self.arrays = dict(arrays)
        self.dimensions = int(record["dimensions"])
        try:
            self._basis = np.asarray(arrays["basis"], np.float32)
            self._centre = np.asarray(arrays["centre"], np.float32)
            self._step = np.asarray(arrays["step"], np.float32)
        except KeyError as error:
            raise ModelError(f"The fine space of the model is damaged: {error} is missing. Train it again.") from error
        self._classifier: tuple[Matrix, Matrix] | None = None

    @cached_property
    def encoder(self) -> TextEncoder | None:
        """The sentence encoder, loaded when it is first needed; None for a space of vectors alone."""
        record = self.record["encoder"]
        return None if record is None else encoders.text_encoder_from(record)

    @property
    def modalities(self) -> list[str]:
        """The modalities that have fine vectors, texts included."""
        return list(self.record["modalities"])

    def of_texts(self, texts: list[str]) -> Matrix:
        """Unit vectors (n, dimensions) of some texts."""
        encoder = self.encoder
        assert encoder is not None  # such a model has no modality that takes texts
        return self.of_sentences(sentences.encode(encoder, texts))

    def of_sentences(self, vectors: Matrix) -> Matrix:
        """Unit vectors (n, dimensions) of some texts, from their sentence vectors."""
        return _unit(product(vectors - self._centre, self._basis))

    def of_inputs(self, modality: str, inputs: Any, view: View) -> Matrix:
        """Unit vectors (n, dimensions) of items, from the inputs that a view gives."""
        mean, scale, weight, bias = (
            np.asarray(self.arrays[f"{modality}.{name}"], np.float32) for name in ("mean", "scale", "weight", "bias")
        )
        x = (inputs - mean) * scale
        names = self.arrays.get(f"{modality}.classes")
        if names is None:
            return _unit(product(x, weight) + bias)
        classes = self._class_vectors(inputs, view, np.asarray(names, np.float32))
        settings = self.record["settings"]
        z = _unit(product(np.concatenate([x, np.float32(settings["input"]) * classes], axis=1), weight) + bias)
        return _unit(z + np.float32(settings["classes"]) * classes)

    def quantise(self, vectors: Matrix) -> NDArray[np.int8]:
        """Vectors as an index stores them, one byte per dimension."""
        return np.asarray(np.clip(np.rint(vectors / self._step), -127, 127), np.int8)

    def as_query(self, vectors: Matrix) -> Matrix:
        """Vectors whose inner product with quantised ones is the fine score."""
        return np.asarray(vectors * self._step, np.float32)

    def restore(self, quantised: NDArray[np.int8]) -> Matrix:
        """Undo `quantise`, up to rounding."""
        return np.asarray(quantised.astype(np.float32) * self._step, np.float32)

    def reference_scores(self, query: Matrix) -> Matrix | None:
        """The scores of a query among everyday pictures that the space did not learn from, the highest first.

        None if it keeps no such pictures.
        """
        reference = self.arrays.get(REFERENCE)
        return None if reference is None else np.sort(reference @ query)[::-1]

    def _class_vectors(self, inputs: Matrix, view: View, names: Matrix) -> Matrix:
        """k: the prediction of the image network's own classifier, in the fine space."""
        if self._classifier is None:
            assert isinstance(view, FeatureView)
            self._classifier = view.classifier()
        assert self._classifier is not None
        return _unit(product(_softmax(product(inputs, self._classifier[0]) + self._classifier[1]), names))


def from_state(record: Mapping[str, Any], state: Mapping[str, NDArray[Any]]) -> FineSpace | None:
    """The fine space of a model, from its model.json and its weights; None where it has none."""
    if record.get("fine") is None:
        return None
    arrays = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
    return FineSpace(record["fine"], arrays)


def check_dimensions(dimensions: int) -> int:
    """Return the number of dimensions, or refuse one that is not offered."""
    if isinstance(dimensions, bool) or dimensions not in DIMENSIONS:
        raise ParameterError(f"fine must be one of {', '.join(map(str, DIMENSIONS))}, not {dimensions!r}.")
    return dimensions


def learn(
    train: Dataset,
    views: Mapping[str, View],
    inputs: Mapping[str, Any],
    *,
    dimensions: int = DEFAULT,
    encoder: str = encoders.DEFAULT,
    settings: Settings = OWN,
) -> FineSpace | None:
    """The fine space of some training items; None if there are neither texts nor label names to learn from."""
    check_dimensions(dimensions)
    texts = [name for name, column in train.columns.items() if isinstance(column, Texts)]
    has_names = train.labels is not None and train.label_names is not None and train.labels.shape[1] > 1
    if dimensions and len(views) == 1 and isinstance(next(iter(views.values())), VectorView):
        return _of_vectors(next(iter(views)), inputs, dimensions)
    if not dimensions or not (texts or has_names):
        return None
    opened = encoders.text_encoder(encoder)
    target, rows, centre = _targets(train, texts, opened, settings.labels)
    shared = {name for name, view in views.items() if isinstance(view, FeatureView) and view.network == opened.name}
    whitening = np.eye(target.shape[1], dtype=np.float32) if shared else _half_whitening(target[rows])
    target = target @ whitening
    standardised = _standardised(train, views, inputs, rows, shared)
    spread: list[Matrix] = []  # the vectors whose main directions are the space
    for name, (x, _, _, observed) in standardised.items():
        if name in shared:
            spread += [_unit(x[observed]), target[rows]]
        else:
            spread.append(_unit(_regression(x[observed], target[observed], settings.ridge)[2]))
    spread = spread or [target[rows]]  # only texts: their own directions
    axes = np.linalg.svd(np.concatenate(spread), full_matrices=False)[2][:dimensions].T
    basis = whitening @ axes
    arrays: dict[str, NDArray[Any]] = {"basis": basis.astype(np.float32), "centre": centre}
    vectors = [_unit(target[rows] @ axes)]
    classes = None
    for name, (x, mean, scale, observed) in standardised.items():
        view, x = views[name], x[observed]
        if name in shared:
            weight, bias, z = basis, np.zeros(basis.shape[1], np.float32), x @ basis
        elif isinstance(view, FeatureView) and (classifier := view.classifier()) is not None:
            classes = _class_names(opened) @ basis if classes is None else classes
            arrays[f"{name}.classes"] = classes.astype(np.float32)
            k = _unit(_softmax(inputs[name][observed] @ classifier[0] + classifier[1]) @ classes)
            x = np.concatenate([x, settings.input * (k - k.mean(0))], axis=1)
            weight, bias, z = _regression(x, target[observed] @ axes, settings.ridge)
            bias = bias - settings.input * k.mean(0) @ weight[-len(basis.T) :]
            z = _unit(z) + settings.classes * k
        else:
            weight, bias, z = _regression(x, target[observed] @ axes, settings.ridge)
        arrays |= {f"{name}.mean": mean, f"{name}.scale": scale, f"{name}.weight": weight, f"{name}.bias": bias}
        vectors.append(_unit(z))
    arrays["step"] = np.maximum(np.abs(np.concatenate(vectors)).max(0) / 127, 1e-6)
    record = {
        "dimensions": basis.shape[1],
        "encoder": encoders.record(opened),
        "modalities": [name for name in views if name in standardised or isinstance(views[name], WordView)],
        "settings": {"input": settings.input, "classes": settings.classes},
    }
    return FineSpace(record, {name: np.asarray(value, np.float32) for name, value in arrays.items()})


class _Input(NamedTuple):
    """The inputs of one modality, (x - mean) * scale, of all items, and which items the space is learned from."""

    x: Matrix
    mean: Matrix
    scale: Matrix
    observed: Mask


def _standardised(
    train: Dataset, views: Mapping[str, View], inputs: Mapping[str, Any], rows: Mask, shared: set[str]
) -> dict[str, _Input]:
    """The inputs that the space takes, standardised; those of the text encoder itself are only centred, and come first."""
    standardised = {}
    for name in filter(shared.__contains__, views):
        observed = train.observed(name)
        mean = inputs[name][observed].mean(0)
        standardised[name] = _Input(inputs[name] - mean, mean, np.ones_like(mean), observed)
    for name, view in views.items():
        observed = rows & train.observed(name)
        if name in shared or not isinstance(view, FeatureView | VectorView) or np.count_nonzero(observed) < 2:
            continue
        mean, scale = _standards(inputs[name][observed])
        standardised[name] = _Input((inputs[name] - mean) * scale, mean, scale, observed)
    return standardised


def _of_vectors(name: str, inputs: Mapping[str, Any], dimensions: int) -> FineSpace:
    """The space of the vectors of one modality."""
    x = _unit(inputs[name])
    basis = principal_axes(x, dimensions)
    width, dimensions = basis.shape
    arrays = {f"{name}.mean": np.zeros(width), f"{name}.scale": np.ones(width), f"{name}.weight": basis}
    arrays |= {f"{name}.bias": np.zeros(dimensions), "basis": basis, "centre": np.zeros(width)}
    arrays["step"] = np.maximum(HEADROOM * np.abs(_unit(x @ basis)).max(0) / 127, 1e-6)
    record: dict[str, Any] = {"dimensions": dimensions, "encoder": None, "modalities": [name], "settings": {}}
    return FineSpace(record, {key: np.asarray(value, np.float32) for key, value in arrays.items()})


def _targets(train: Dataset, texts: list[str], encoder: TextEncoder, labels: float) -> tuple[Matrix, Mask, Matrix]:
    """t (n, width), which items have one, and c."""
    sentence = [sentence_vectors(encoder, _texts_of(train, name)) for name in texts]
    observed = [np.array([bool(text) for text in _texts_of(train, name)]) for name in texts]
    rows = np.zeros(len(train), bool)
    names = None
    if train.labels is not None and train.label_names is not None:
        names = sentences.encode(encoder, list(train.label_names))
    if any(mask.any() for mask in observed):
        centre = np.concatenate([vectors[mask] for vectors, mask in zip(sentence, observed, strict=True)]).mean(0)
    else:
        assert names is not None
        centre, labels = names.mean(0), 1.0
    target = np.zeros((len(train), encoder.width), np.float32)
    for vectors, mask in zip(sentence, observed, strict=True):
        target[mask] += _unit(vectors[mask] - centre)
        rows |= mask
    target = _unit(target)
    if names is not None and train.labels is not None:
        weight = train.labels * np.log(len(train) / np.maximum(train.labels.sum(0), 1))
        target += labels * _unit(weight @ _unit(names - centre))
        rows |= train.labels.any(axis=1)
    return np.asarray(target, np.float32), rows, np.asarray(centre, np.float32)


def _texts_of(train: Dataset, name: str) -> list[str | None]:
    column = train[name]
    assert isinstance(column, Texts)
    return column.values


def _half_whitening(target: Matrix) -> Matrix:
    """M, at a scale that keeps the mean eigenvalue."""
    values, vectors = np.linalg.eigh((target.T @ target / max(len(target), 1)).astype(np.float64))
    values = np.maximum(values, 0) / max(values.mean(), 1e-12) + 1
    return np.asarray((vectors * (values / values.mean()) ** -0.25) @ vectors.T, np.float32)


def _standards(x: Matrix) -> tuple[Matrix, Matrix]:
    """Mean and inverse deviation of each input; 0 for one that is constant."""
    mean, deviation = x.mean(0), x.std(0)
    return mean, np.where(deviation > 1e-6 * (1 + np.abs(mean)), 1 / np.maximum(deviation, 1e-12), 0).astype(np.float32)


def _regression(x: Matrix, target: Matrix, ridge: float) -> tuple[Matrix, Matrix, Matrix]:
    """W, its bias for inputs that are not centred, and x W; by the smaller of the two equivalent systems."""
    centre = x.mean(0)
    x, target = x - centre, target - target.mean(0)
    penalty = ridge * x.shape[1]
    if len(x) > x.shape[1]:
        weight = np.linalg.solve((x.T @ x).astype(np.float64) + penalty * np.eye(x.shape[1]), x.T @ target)
    else:
        weight = x.T @ np.linalg.solve((x @ x.T).astype(np.float64) + penalty * np.eye(len(x)), target)
    weight = np.asarray(weight, np.float32)
    return weight, -centre @ weight, x @ weight


def _class_names(encoder: TextEncoder) -> Matrix:
    """C: the vectors of ImageNet's class names (1000, width), less their mean."""
    listed = (files("dcmh.networks") / "imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    vectors = sentences.encode(encoder, listed)
    return np.asarray(vectors - vectors.mean(0), np.float32)


def _softmax(logits: Matrix) -> Matrix:
    powers = np.exp((logits - logits.max(axis=1, keepdims=True)) / TEMPERATURE)
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def _unit(x: Any) -> Matrix:
    return np.asarray(x / np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), 1e-9), np.float32)
