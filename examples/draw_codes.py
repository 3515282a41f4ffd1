"""Draw the codes of some items of an index: items that mean the same differ in few bits.

    dcmh demo
    python examples/draw_codes.py demo/openmoji.dcmh codes.png cat dog fruit train car heart

Each word contributes its first hits. A row is an item: its picture, then its code, one square per bit, dark for +1. It needs the
extra `bench` (Matplotlib).
"""

import argparse

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import dcmh

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("index")
parser.add_argument("out")
parser.add_argument("words", nargs="+")
parser.add_argument("-k", type=int, default=3, help="items per word")
options = parser.parse_args()

with dcmh.SearchIndex.open(options.index) as index:
    hits = [hit for words in options.words for hit in index.search(text=words, k=options.k)]
    packed = [np.frombuffer(index.codes_of(hit.id)["image"], np.uint8) for hit in hits]
    codes = dcmh.codes.unpack(np.array(packed), index.bits)

rows, bits = codes.shape
figure = Figure(figsize=(0.95 + bits * 0.11, rows * 0.24), layout="constrained")
axes = figure.subplots()
axes.imshow(codes, cmap="Blues", vmin=-1.5, vmax=1.3, aspect="equal", extent=(0, bits, rows, 0))
axes.set(xlim=(-8, bits), ylim=(rows, 0), xticks=[], yticks=[])
axes.spines[:].set_visible(False)
for row, hit in enumerate(hits):
    picture = np.asarray(Image.open(hit.path).convert("RGBA").resize((64, 64)))
    axes.imshow(picture, extent=(-2.4, -0.6, row + 0.95, row + 0.05), aspect="auto")
    axes.axhline(row, color="white", linewidth=1 if row % options.k else 5)
    if row % options.k == options.k // 2:
        axes.text(-2.9, row + 0.5, options.words[row // options.k], ha="right", va="center", fontsize=9)
figure.savefig(options.out, dpi=150, pil_kwargs={"optimize": True})

distances = dcmh.codes.hamming(codes, codes)
same = np.arange(rows)[:, None] // options.k == np.arange(rows) // options.k
print(f"{rows} items, {bits} bits; on average {distances[same & ~np.eye(rows, dtype=bool)].mean():.1f} bits differ")
print(f"between items of the same words, {distances[~same].mean():.1f} between others")
