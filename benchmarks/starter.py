"""Make the starter model of the package from captioned photos, and measure it on photos that it was not trained on.

    python benchmarks/starter.py coco12k                    # measure: learn from 10,000 items, test on 2,000
    python benchmarks/starter.py coco12k --write            # then learn from all of them, and write the package's files

--write also writes the common words that misspelt words of a query are compared with.

The data is a folder with photos, one caption each and labels: coco12k in docs/data.md.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np

import dcmh
from dcmh.inputs import encoders
from dcmh.inputs.views import NETWORKS
from dcmh.methods import starter
from dcmh.methods.semantic import Semantic

HALF = (
    "weight",
    "classes",
    "basis",
)  # arrays that are kept in half precision: nothing is lost, and the wheel stays small

COMMON = 5  # captions
PACKAGE = Path(dcmh.__file__).parent


def learn(data: dcmh.Dataset, encoder: str, quality: str) -> Semantic:
    model = Semantic(bits=64, text_encoder=encoder, quality=quality, general=True).fit(data)
    assert model.fine_ is not None
    model.fine_.arrays = {
        name: array.astype(np.float16) if name.endswith(HALF) else array for name, array in model.fine_.arrays.items()
    }
    return model


def measure(model: Semantic, data: dcmh.Dataset) -> str:
    """A caption looks for its own photo among held-out ones."""
    fine, view = model.fine_, model.views_["image"]
    assert fine is not None
    pictures = fine.restore(fine.quantise(fine.of_inputs("image", view(data.image), view)))
    scores = fine.of_texts(list(data.text.values)) @ pictures.T
    rank = (scores > np.diag(scores)[:, None]).sum(1)
    shares = ", ".join(f"R@{k} {np.mean(rank < k):.3f}" for k in (1, 5, 10))
    codes = dcmh.codes.hamming(model.encode(text=data.text), model.encode(image=data.image))
    own = np.diag(codes)
    found = np.mean((codes < own[:, None]).sum(1) < len(data) // 20)
    return f"{shares} of {len(data):,} photos; own photo among the nearest 5 % of the codes: {found:.3f}"


def common_words(data: dcmh.Dataset) -> list[str]:
    """The words of at least COMMON captions, the most frequent first, then those of the names of ImageNet's classes."""
    counts = Counter(word for text in data.text.values for word in set(re.findall("[a-z]+", text.lower())))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    names = (PACKAGE / "networks" / "imagenet_classes.txt").read_text(encoding="utf-8").lower()
    words = [word for word in frequent if counts[word] >= COMMON] + re.findall("[a-z]+", names)
    return [word for word in dict.fromkeys(words) if len(word) > 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--write", action="store_true", help="write the files of the package")
    parser.add_argument("--encoders", nargs="+", default=list(encoders.NAMES))
    parser.add_argument("--qualities", nargs="+", default=list(NETWORKS))
    options = parser.parse_args()
    data = dcmh.load_dataset(str(options.data))
    split = data.split(queries=2000, seed=0)
    for encoder, quality in itertools.product(options.encoders, options.qualities):
        print(f"{encoder}, {quality}: {measure(learn(split.train, encoder, quality), split.query)}", flush=True)
        if options.write:
            folder = starter.folder(encoder, quality)
            model = learn(data, encoder, quality)
            model.trained_on_["name"] = starter.SOURCE
            model.save(folder)
            print(f"Wrote {folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes", flush=True)
    if options.write:
        words = PACKAGE / "search" / "common_words.txt"
        words.write_text("\n".join(common_words(data)) + "\n", encoding="utf-8", newline="\n")
        print(f"Wrote {words}")


if __name__ == "__main__":
    main()
