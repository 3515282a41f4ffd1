"""Hasher, the base class of every hashing method: fit, encode and save; `load` reads any of them back.

A method is one file in this folder. It implements `_fit` (learn from arrays), `_outputs` (one modality's real-valued outputs,
whose signs are the code), `_state` and `_restore` (its arrays, for the model folder).
"""

from __future__ import annotations

import inspect
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dcmh import __version__, codes
from dcmh.data.columns import Column, Kind
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, DivergedError, NotFittedError, ParameterError
from dcmh.inputs import encoders
from dcmh.inputs.views import FeatureView, PixelView, VectorView, View, WordView, as_column, load_view
from dcmh.methods import fine_space
from dcmh.methods import folder as model_folder
from dcmh.methods.fine_space import FineSpace
from dcmh.util.checks import whole_number

Arrays = dict[str, NDArray[Any]]
Labels = NDArray[np.uint8]  # (items, labels), 0 or 1
Mask = NDArray[np.bool_]  # (items,)
Progress = Callable[[Mapping[str, Any]], None]

_NOT_SAVED = ("device",)  # a model folder may go to a machine without that device


class Hasher(ABC):
    """Learns one hash function for each modality, so that similar items get near codes across modalities.

    The constructor only stores its arguments; what is learned ends in an underscore.
    """

    uses_labels: ClassVar[bool] = True
    needs_complete_items: ClassVar[bool] = True  # training items must have every modality
    needs_fine: ClassVar[bool] = False  # its codes are made from fine vectors

    def __init__(self, bits: int = 64, *, seed: int = 0) -> None:
        self.bits = codes.check_bits(bits)
        self.seed = whole_number("seed", seed, 0)

    # -- what a method implements ----------------------------------------------------------------------------------

    @abstractmethod
    def _fit(self, inputs: dict[str, Any], labels: Labels | None, observed: dict[str, Mask]) -> None:
        """Learn from the views of the training items, {modality: (n, width)}, which of them have it, and labels (n, l)."""

    @abstractmethod
    def _outputs(self, modality: str, values: Any) -> NDArray[Any]:
        """Real-valued outputs (n, bits) of one modality's view."""

    @abstractmethod
    def _state(self) -> Arrays:
        """What was learned, as named arrays."""

    @abstractmethod
    def _restore(self, state: Arrays) -> None:
        """Undo `_state`."""

    def _view(self, kind: Kind) -> View:
        """A new view, which turns a modality of this kind into this method's inputs."""
        views: dict[Kind, type[View]] = {"image": FeatureView, "text": WordView, "vector": VectorView}
        return views[kind]()

    # -- what users call ------------------------------------------------------------------------------------------

    def fit(
        self,
        train: Dataset,
        *,
        progress: Progress | None = None,
        fine: int = fine_space.DEFAULT,
        text_encoder: str | None = None,
    ) -> Self:
        """Learn from training items; returns self.

        Parameters
        ----------
        progress
            Called with a record, usually after each iteration.
        fine
            Dimensions of the space (`dcmh.methods.fine_space`) that ranks the hits of the codes: 64, 128, 256, or 0 for none.
        text_encoder
            The sentence encoder of the fine space. Default: that of the method, or use-multilingual.
        """
        fine = fine_space.check_dimensions(fine) or (fine_space.DEFAULT if self.needs_fine else 0)
        self._progress = progress
        train = self._check(train)
        views = {name: self._view(column.kind).fit(column) for name, column in train.columns.items()}
        inputs = {name: views[name](column) for name, column in train.columns.items()}
        self.views_: dict[str, View] = views
        self.trained_on_: dict[str, Any] = {"name": train.name, "items": len(train), "fingerprint": train.fingerprint()}
        self.history_: list[dict[str, Any]] = []
        observed = {name: train.observed(name) for name in train.modalities}
        try:
            self.fine_: FineSpace | None = self._learn_fine(train, inputs, fine, text_encoder)
            self._fit(inputs, train.labels, observed)
            self._check_finite()
        except BaseException:
            del self.views_  # a model that failed to learn must not encode
            raise
        finally:
            self._progress = None
        return self

    def _check_finite(self) -> None:
        """Refuse a result that holds NaN or infinity: its codes would be the same for every item."""
        state = self._state()
        if self.fine_ is not None:
            state |= {f"{fine_space.PREFIX}{name}": array for name, array in self.fine_.arrays.items()}
        for name, array in state.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DivergedError(
                    f"{type(self).__name__} did not learn anything usable: {name} holds NaN or infinity.",
                    which=name,
                    hint="Are the vectors of the data very large, or all the same? Scale them, or change the settings.",
                )

    def _learn_fine(
        self, train: Dataset, inputs: dict[str, Any], dimensions: int, encoder: str | None
    ) -> FineSpace | None:
        if not dimensions:
            return None
        views = {name: self.fine_view(name) for name in self.views_}
        fine_inputs = {
            name: inputs[name] if view is self.views_[name] else view(train[name]) for name, view in views.items()
        }
        name = encoder or getattr(self, "_text_encoder", None) or encoders.DEFAULT
        settings = getattr(self, "_fine_settings", fine_space.OWN)
        return fine_space.learn(train, views, fine_inputs, dimensions=dimensions, encoder=name, settings=settings)

    def fine_view(self, modality: str) -> View:
        """The view that the fine space takes of a modality: the method's own, but always features for pictures."""
        view = self.views_[modality]
        return FeatureView(device=getattr(self, "device", "auto")) if isinstance(view, PixelView) else view

    @property
    def modalities(self) -> tuple[str, ...]:
        """The names of the modalities that the model can encode."""
        return tuple(self._fitted())

    def outputs(self, **modalities: Any) -> NDArray[np.float64]:
        """Real-valued outputs (n, bits), summed over the modalities given; an item without a modality adds nothing there."""
        if not modalities:
            raise ParameterError(f"Nothing to encode. Give one of: {', '.join(self.modalities)}.")
        columns = {name: self._column(name, values) for name, values in modalities.items()}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1:
            raise DataError(
                f"The modalities differ in length ({', '.join(map(str, sorted(lengths)))}). Give one value per item."
            )
        encoded = np.zeros(lengths.pop(), bool)
        total = np.zeros((len(encoded), self.bits))
        for name, column in columns.items():
            outputs = np.asarray(self._outputs(name, self.views_[name](column)), np.float64)
            total += np.where(column.observed[:, None], outputs, 0)
            encoded |= column.observed
        if not encoded.all():
            raise DataError(f"Item {int(np.argmin(encoded))} has none of: {', '.join(columns)}. Leave it out.")
        return total

    def encode(self, **modalities: Any) -> NDArray[np.int8]:
        """Codes (n, bits) of +1 and -1. One keyword: that modality's hash function; several: the sign of the summed outputs."""
        return codes.sign(self.outputs(**modalities))

    def shortened(self, bits: int) -> Self:
        """A model whose codes are the first `bits` bits of those of this one, if these were trained to be codes."""
        if bits != self.bits:
            raise ParameterError(
                f"The codes of {self.name} have {self.bits} bits, and their first {bits} are not codes of their own.",
                which="bits",
                hint="Train DCMH with --nested, or this method with --bits.",
            )
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, by name, as scikit-learn asks for them; `deep` makes no difference."""
        return self.parameters

    def set_params(self, **parameters: Any) -> Self:
        """Change arguments of the constructor, which checks them as usual; returns self. A fitted model must learn again."""
        current = self.parameters
        for name in parameters:
            if name not in current:
                raise ParameterError(
                    f"{type(self).__name__} has no parameter {name!r}. It has: {', '.join(current)}.", which=name
                )
        checked = type(self)(**current | parameters)
        for name in parameters:
            setattr(self, name, getattr(checked, name))
        if not set(parameters) <= set(_NOT_SAVED) and hasattr(self, "views_"):
            del self.views_
        return self

    def __repr__(self) -> str:
        known = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.parameters.items()
            if name == "bits" or value != known[name].default
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def name(self) -> str:
        """The name under which `dcmh.methods.get` finds this method: that of its entry point, or else of its file.

        A class defined in a script goes by its own name; pass the class to `dcmh.load`.
        """
        method = type(self)
        for point in entry_points(group="dcmh.methods"):
            if point.attr == method.__qualname__ and point.load() is method:
                return point.name
        if method.__module__ == "__main__":
            return method.__name__.lower()
        module = method.__module__
        if module.startswith("dcmh.methods."):  # a file of that package, or a package in it
            return module.split(".")[2].replace("_", "-")
        return module.rpartition(".")[2].replace("_", "-")

    # -- the model folder -----------------------------------------------------------------------------------------

    def save(self, folder: Path | str, *, extra: Mapping[str, str] | None = None) -> None:
        """Write a model folder (see `dcmh.methods.folder`) atomically. `extra` maps names of further files to their text."""
        views = self._fitted()
        record = {
            "method": self.name,
            "bits": self.bits,
            "parameters": {name: _plain(value) for name, value in self.parameters.items() if name not in _NOT_SAVED},
            "trained_on": self.trained_on_,
            "versions": {"dcmh": __version__, "python": platform.python_version(), "numpy": np.__version__},
        }
        state = self._state()
        if self.fine_ is not None:
            record["fine"] = self.fine_.record
            state |= {f"{fine_space.PREFIX}{name}": array for name, array in self.fine_.arrays.items()}
        model_folder.write(Path(folder), record, views, state, self.history_, extra or {})

    @classmethod
    def from_folder(cls, folder: Path, record: Mapping[str, Any]) -> Self:
        """Rebuild a fitted method from an opened model folder. Use `dcmh.load`."""
        model = cls(**{name: value for name, value in record["parameters"].items() if name not in _NOT_SAVED})
        model.views_ = {name: load_view(folder, name, view) for name, view in record["modalities"].items()}
        model.trained_on_ = dict(record["trained_on"])
        model.history_ = model_folder.read_history(folder)
        state = model_folder.read_weights(folder)
        model.fine_ = fine_space.from_state(record, state)
        model._restore({name: array for name, array in state.items() if not name.startswith(fine_space.PREFIX)})
        return model

    # -- checks ---------------------------------------------------------------------------------------------------

    def _needs_labels(self) -> bool:
        return self.uses_labels

    def _learns_alone(self) -> bool:
        """Whether it can learn from one modality alone."""
        return False

    def _fitted(self) -> dict[str, View]:
        if not hasattr(self, "views_"):
            raise NotFittedError(
                f"This {type(self).__name__} is not fitted yet. Call fit(train), or dcmh.load(folder)."
            )
        return self.views_

    def _column(self, modality: str, values: Any) -> Column:
        views = self._fitted()
        if modality not in views:
            raise ParameterError(f"The model has no modality {modality!r}. It has: {', '.join(views)}.")
        return as_column(values, views[modality].kind, modality)

    def _check(self, train: Dataset) -> Dataset:
        if not isinstance(train, Dataset):
            hint = " For a split, pass its .train." if hasattr(train, "train") else ""
            raise ParameterError(f"fit takes a Dataset, not a {type(train).__name__}.{hint}")
        if len(train.modalities) < (1 if self._learns_alone() else 2):
            raise DataError(
                f"Training needs at least two modalities; the data has only {train.modalities[0]!r}. Add another one."
            )
        if self._needs_labels():
            if train.labels is None:
                texts = [name for name, column in train.columns.items() if column.kind == "text"]
                remedy = "learn without any: dcmh.DCMH(similarity='pairing')."
                if texts:
                    name = "" if texts[0] == "text" else repr(texts[0])
                    remedy = f"use frequent words as labels: data.with_labels_from_text({name})."
                raise DataError(
                    f"{type(self).__name__} learns from labels, but the data has none.",
                    hint=f"Give labels, or {remedy}",
                )
            used = train.labels.any(axis=0).sum()
            if used < 2:
                raise DataError(
                    f"Only {used} label is in use among the training items. Give at least two, to tell items apart."
                )
        if self.needs_complete_items and not train.complete().all():
            train = train.take(train.complete())
        for name in train.modalities:
            if not train.observed(name).any():
                raise DataError(f"No training item has the modality {name!r}. Leave it out, or give some.")
        if len(train) < 2:
            raise DataError(
                f"{len(train)} training item with every modality is too few to learn from. Give at least two."
            )
        return train


def _plain(value: Any) -> Any:
    """A constructor argument as JSON stores it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    return value
