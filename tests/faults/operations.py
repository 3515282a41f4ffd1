"""What the fault harnesses do and look at: add, remove, index, rebuild, save and train, each on a small folder of its own.

Items are texts, so that an operation takes milliseconds; the files written are the same kinds as for pictures.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import numpy as np

import dcmh
from dcmh.data.columns import Texts, Vectors
from dcmh.errors import ModelError
from dcmh.methods import folder as model_folder
from dcmh.methods.dcmh import state as training
from dcmh.search import SearchIndex, pipeline, update
from dcmh.stores.local.store import LocalStore

INDEX, NEW, MODEL, CHECKPOINT = "photos.dcmh", "new.dcmh", "model", "model.checkpoint/state.safetensors"


def small(**settings):
    return dcmh.DCMH(bits=16, hidden=8, epochs=2, device="cpu", text_encoder="none", validation=0, **settings)


def prepare(root: Path) -> None:
    """A model in `root`/model, and an index of twelve texts in `root`/photos.dcmh."""
    root.mkdir(parents=True, exist_ok=True)
    for seed in (0, 1):
        model = small(seed=seed)
        model.fit(pairs(60), fine=0)
        model.save(root / (MODEL if seed == 0 else "other.model"))
    SearchIndex.build(root / MODEL, texts(12), root / INDEX).close()


def pairs(count: int) -> dcmh.Dataset:
    """Vectors with texts and labels, to learn from."""
    toy = dcmh.load_dataset("toy").take(np.arange(count))
    vectors = np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)
    return dcmh.Dataset({"vector": Vectors(vectors), "text": toy.text}, labels=toy.labels)


def texts(count: int, start: int = 0) -> dcmh.Dataset:
    words = [str(text) for text in dcmh.load_dataset("toy").text.values[start : start + count]]
    return dcmh.Dataset({"text": Texts(words)}, ids=[f"item {start + row}" for row in range(count)])


def add(root: Path) -> None:
    with SearchIndex.open(root / INDEX) as index:
        index.add(text=[str(dcmh.load_dataset("toy").text.values[20])], ids=["added"])


def remove(root: Path) -> None:
    with SearchIndex.open(root / INDEX) as index:
        index.remove([3])


def index(root: Path) -> None:
    update.COMMIT_SECONDS, pipeline.ENTRIES = 0, 6  # several commits
    SearchIndex.build(root / MODEL, texts(18), root / NEW).close()


def rebuild(root: Path) -> None:
    SearchIndex.build(root / "other.model", texts(9, 5), root / INDEX, rebuild=True).close()


def save(root: Path) -> None:
    dcmh.load(root / "other.model").save(root / MODEL)


def train(root: Path) -> None:
    """Write a checkpoint after each iteration, then the model."""
    training.CHECKPOINT_SECONDS = -1.0
    model = small(seed=5)
    model.fit(pairs(40), fine=0, checkpoint=root / CHECKPOINT)
    model.save(root / MODEL)


OPERATIONS = {"add": add, "remove": remove, "index": index, "rebuild": rebuild, "save": save, "train": train}


def state(root: Path, operation: str) -> str:
    """What the operation changes, as a text to compare. Raises where it is damaged."""
    if operation in ("save", "train"):
        record = model_folder.read_record(root / MODEL)
        model_folder.read_weights(root / MODEL)
        return str(record["fingerprint"])
    return contents(root / (NEW if operation == "index" else INDEX))


def contents(folder: Path) -> str:
    """The items and codes of an index that can be searched; nothing where it does not exist or was only begun."""
    try:
        store = LocalStore.open(folder)
    except ModelError:
        if (folder / "index.json").is_file():
            raise
        return "nothing"
    with contextlib.closing(store):
        items = [(item.id, item.name, item.text) for item in store.items()]
        codes = {
            name: (table.ids.tolist(), table.codes(table.ids).tolist())
            for name, table in store.snapshot.indexes.items()
        }
        assert {name: ids for name, (ids, _) in codes.items()} == {
            name: store.codes(name, 2)[0].tolist() for name in store.coded_modalities()
        }
    return json.dumps([items, codes])


def is_prefix(some: str, whole: str) -> bool:
    """Whether an index holds the first items of another, with the same codes."""
    if some == "nothing":
        return True
    (items, codes), (all_items, all_codes) = json.loads(some), json.loads(whole)
    same = all(
        rows == all_codes[name][1][: len(rows)] and ids == all_codes[name][0][: len(ids)]
        for name, (ids, rows) in codes.items()
    )
    return items == all_items[: len(items)] and same
