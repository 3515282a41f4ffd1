"""What the runs of a bench share: the data, its features and its splits, computed once per process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from dcmh.data import Dataset, Images, Split, Texts, Vectors, load_dataset, split_given
from dcmh.errors import DataError
from dcmh.experiments.bench.config import Config
from dcmh.experiments.bench.plan import NETWORKS, Task, has_network
from dcmh.inputs import features as networks
from dcmh.inputs.views import FeatureView
from dcmh.methods.base import Hasher


class Workbench:
    """The data of a bench in each of its feature sets."""

    def __init__(self, config: Config, device: str = "auto") -> None:
        self.config = config
        self.device = device
        self.progress: Callable[[int, int], None] | None = None
        self._data: Dataset | None = None
        self._splits: dict[tuple[str, int], Split] = {}
        self._columns: dict[tuple[str, str], Vectors] = {}
        self._extracted: set[tuple[str, str | None]] = set()

    @property
    def data(self) -> Dataset:
        """All items, with frequent words as labels if the source has none."""
        if self._data is None:
            data = load_dataset(self.config.data)
            if data.labels is None:
                texts = [name for name, column in data.columns.items() if isinstance(column, Texts)]
                data = data.with_labels_from_text(*texts[:1])
            self._data = data
        return self._data

    def notes(self, tasks: Iterable[Task]) -> list[str]:
        """What the user should know about the data."""
        notes = [f"{self.config.name}: {note}" for note in self.data.notes]
        named = sorted({task.features for task in tasks} - {"given"})
        for name, column in self.data.columns.items():
            if isinstance(column, Images) and column.bags is not None:
                words = column.bags.values.shape[1]
                notes.append(
                    f"{self.config.name}: sift-{words} is the bags of visual words that the {name}s came with."
                )
        vectors = [name for name, column in self.data.columns.items() if isinstance(column, Vectors)]
        if named and not any(isinstance(column, Images) for column in self.data.columns.values()):
            notes.append(
                f"{self.config.name} comes with vectors ({', '.join(vectors)}): they are used as they are, "
                f"under the name {', '.join(named)}."
            )
        return notes

    def split(self, task: Task, model: Hasher) -> Split:
        """The split in the features of the run."""
        pictures = {name: column for name, column in self.data.columns.items() if isinstance(column, Images)}
        if task.features == "given" and pictures:
            raise DataError(
                f"{self.config.name} holds pictures, not vectors, so there are no features 'given'. "
                "Take cnn, sift or pixels."
            )
        # A method with an image network of its own gets the pictures.
        takes_pictures = task.features == "pixels" or (task.features in NETWORKS and has_network(task.method))
        features = "pixels" if takes_pictures else task.features
        if takes_pictures:
            for column in pictures.values():
                self._extract_in_advance(model, column)
        planned = self.config.split
        seed = task.seed if planned.seed is None else planned.seed
        key = features, seed
        if key not in self._splits:
            data, queries = self.data, planned.queries
            split = split_given(data) if queries is None else data.split(queries, planned.train, seed)
            for name, column in pictures.items():
                if not takes_pictures:
                    split = _with_column(split, name, self._vectors(features, name, column, split))
            self._splits[key] = split
        return self._splits[key]

    def _vectors(self, features: str, name: str, column: Images, split: Split) -> Vectors:
        if features in NETWORKS:
            key = features, name
            if key not in self._columns:
                values = networks.extract(
                    column,
                    NETWORKS[features],
                    weights=self._weights(features),
                    device=self.device,
                    progress=self.progress,
                )
                self._columns[key] = Vectors(values, observed=column.observed)
            return self._columns[key]
        from dcmh.inputs.sift import bag_of_visual_words

        words = int(features.partition("-")[2] or 500)
        if column.bags is not None and column.bags.values.shape[1] == words:  # those of the data set
            return column.bags
        bags = bag_of_visual_words(column, split.train_rows, words=words, progress=self.progress)
        return Vectors(bags, observed=column.observed)

    def _weights(self, features: str) -> Any:
        if features == "cnn-f" and self.config.weights is None:
            raise DataError(
                'The features cnn-f need MatConvNet\'s imagenet-vgg-f.mat: write weights = "imagenet-vgg-f.mat" into '
                f"{self.config.file}."
            )
        return self.config.weights if features == "cnn-f" else None

    def _extract_in_advance(self, model: Hasher, column: Images) -> None:
        """Compute the features that the method will use, so that training time is that of learning only."""
        view = model._view("image")
        key = (view.network, str(view.weights)) if isinstance(view, FeatureView) else None
        if isinstance(view, FeatureView) and key is not None and key not in self._extracted:
            networks.extract(column, view.network, weights=view.weights, device=self.device, progress=self.progress)
            self._extracted.add(key)


def _with_column(split: Split, name: str, column: Vectors) -> Split:
    def replaced(items: Dataset, rows: Any) -> Dataset:
        return Dataset(
            {**items.columns, name: column.take(rows)},
            labels=items.labels,
            label_names=items.label_names,
            ids=items.ids,
            name=items.name,
        )

    return replace(
        split,
        query=replaced(split.query, split.query_rows),
        database=replaced(split.database, split.database_rows),
        train=replaced(split.train, split.train_rows),
    )
