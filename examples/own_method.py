"""A method of your own is one class: label means (Rocchio, 1971), then random projections (Charikar, STOC 2002).

    python examples/own_method.py

Each modality is compared with the mean of every label; random combinations of these similarities give the bits.
"""

import tempfile
from pathlib import Path

import numpy as np

import dcmh
from dcmh.methods.base import Hasher
from dcmh.methods.folder import read_record


class LabelMeans(Hasher):
    """The base class provides fit, encode, save and load, features of pictures, and bags of words."""

    def __init__(self, bits=64, *, seed=0, shrink=1.0):
        super().__init__(bits, seed=seed)
        self.shrink = shrink  # constructors only store; learned attributes end in an underscore

    def _fit(self, inputs, labels, observed):  # inputs: {modality: (n, width)}; labels: (n, labels), 0 and 1
        mix = np.random.default_rng(self.seed).standard_normal((labels.shape[1], self.bits))
        self.learned_ = {}
        for modality, values in inputs.items():
            centre = values.mean(axis=0)
            means = labels.T @ (values - centre) / (labels.sum(axis=0)[:, None] + self.shrink)  # (labels, width)
            self.learned_ |= {f"{modality}.centre": centre, f"{modality}.weights": means.T @ mix}  # (width, bits)

    def _outputs(self, modality, values):  # (n, width) -> (n, bits), whose signs are the codes
        return (values - self.learned_[f"{modality}.centre"]) @ self.learned_[f"{modality}.weights"]

    def _state(self):  # the arrays that `save` writes
        return self.learned_

    def _restore(self, state):
        self.learned_ = state


if __name__ == "__main__":
    split = dcmh.load_dataset("toy").split(queries=40, seed=0)
    model = LabelMeans(bits=32).fit(split.train)
    report = dcmh.evaluate(model, split)
    for direction, measured in report.directions.items():
        print(f"MAP {direction.replace('_', ' ')}: {measured.map['stable']:.2f} (by chance {report.chance:.2f})")

    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "model")
        model.save(kept)
        again = LabelMeans.from_folder(kept, read_record(kept))  # dcmh.load(kept), once the method is installed
    same = np.array_equal(again.encode(text=split.query.text), model.encode(text=split.query.text))
    print(f"Saved and read again: {'the same' if same else 'different'} codes.\n")
    print("For `dcmh train --method own-method`, `dcmh bench` and dcmh.load, add to your package's pyproject.toml:")
    print('  [project.entry-points."dcmh.methods"]\n  own-method = "own_method:LabelMeans"')
