"""Compare hashing methods on the same splits: MAP in both directions, its mean and spread.

    python examples/compare_methods.py            the toy pictures that come with the package
    python examples/compare_methods.py photos/    a folder of your own

`dcmh bench` does this at full scale and stores the results (docs/bench.md).
"""

import sys
import textwrap

import numpy as np

import dcmh

BITS, SEEDS, DIRECTIONS = 32, (0, 1, 2), ("image_to_text", "text_to_image")
own = len(sys.argv) > 1
# Settings other than the defaults. CCA needs a large ridge when there are more features than items.
METHODS = {"ridge": {}, "cca": {"ridge": 100}, "scm": {}, "dcmh": {} if own else {"hidden": 512, "epochs": 60}}

data = dcmh.load_dataset(sys.argv[1] if own else "toy")
if data.labels is None:
    data = data.with_labels_from_text()
splits = [data.split(queries=min(len(data) // 5, 1000), seed=seed) for seed in SEEDS]

print(f"{len(data):,} items, {BITS} bits, MAP over {len(splits)} splits with {len(splits[0].query):,} queries each")
print(f"{'method':8} {'image → text':>14} {'text → image':>14}   what it is")
for name, settings in METHODS.items():
    scores = []
    for seed, split in zip(SEEDS, splits, strict=True):
        model = dcmh.methods.get(name)(bits=BITS, seed=seed, **settings).fit(split.train)
        report = dcmh.evaluate(model, split)
        scores.append([report[direction].map["stable"] for direction in DIRECTIONS])
    means, spreads = np.mean(scores, axis=0), np.std(scores, axis=0)
    cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(means, spreads, strict=True)]
    paper = textwrap.shorten(dcmh.methods.available()[name].partition(": ")[2], 70, placeholder=" …")
    print(f"{name:8} {cells[0]:>14} {cells[1]:>14}   {paper}")
print(f"{'chance':8} {report.chance:6.3f} {report.chance:14.3f}")
if not own:
    print("200 toy items are too few to show what a deep method can do: docs/measurements/results.md has real data.")
