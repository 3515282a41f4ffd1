"""A small model, and what an index folder contains, for tests that compare two."""

from __future__ import annotations

import dcmh
from dcmh.search import SearchIndex

COUNT = 48  # photos


def train(data, bits=16, **settings):
    """A model without fine vectors, as in the paper, and its report; test_two_stage.py is about fine vectors."""
    split = data.split(12, seed=0)
    model = dcmh.DCMH(bits=bits, hidden=32, epochs=6, device="cpu", text_encoder="none", **settings)
    model.fit(split.train, fine=0)
    return model, dcmh.evaluate(model, split)


def contents(folder):
    """All items and codes of an index."""
    with SearchIndex.open(folder) as index:
        items = [{**vars(item), "mtime_ns": None} for item in index.store.items()]
        coded = {}
        for name, hamming in index.store.snapshot.indexes.items():
            coded[name] = (hamming.ids.tolist(), hamming.codes(hamming.ids).tolist())
    return items, coded
