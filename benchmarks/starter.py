"""Make the starter model of the package from captioned photos, and measure it on photos that it was not trained on.

    python benchmarks/starter.py coco12k                    # measure: learn from 10,000 items, test on 2,000
    python benchmarks/starter.py coco12k --write            # then learn from all of them, and write the package's files

--write also writes the common words that misspelt words of a query are compared with.

A thousand of the photos are not learned from: their vectors are kept in the model, as the reference that tells whether a query
finds less than usual. How often a search then says that probably nothing matches is measured on some of the held-out photos, with
label names and other words for them (of those that work: a third of the first ten hits, or of the relevant ones if there are
fewer, is relevant), with the same words after the photos that they stand for were removed, and with things that photos of MS-COCO
hardly ever show.

The data is a folder with photos, one caption each and labels: coco12k in docs/data.md.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
from queries import SYNONYMS

import dcmh
from dcmh.index import HammingIndex
from dcmh.index.fine import FineIndex
from dcmh.inputs import encoders
from dcmh.inputs.views import NETWORKS
from dcmh.methods import starter
from dcmh.methods.fine_space import REFERENCE
from dcmh.methods.semantic import Semantic
from dcmh.search import rank
from dcmh.search.calibration import Calibration

HALF = (
    "weight",
    "classes",
    "basis",
)  # arrays that are kept in half precision: nothing is lost, and the wheel stays small

COMMON = 5  # captions
KEPT = 1000  # reference photos
SIZES = (150, 400, 1000, 1900)  # photos in which "probably nothing matches" is measured
DRAWS = 3  # of these photos
WORKS = 1 / 3
ELSEWHERE = [
    "dinosaur", "microscope", "violin", "castle", "penguin", "tiger", "lion", "camel", "Eiffel tower", "Christmas tree",
    "fireworks", "surgery", "x-ray", "chess", "submarine", "helicopter", "ballet dancer", "volcano",
    "waterfall", "spider", "butterfly", "snake", "whale", "dolphin", "octopus", "jellyfish", "mushroom", "tractor",
    "space station", "astronaut", "skeleton", "pyramid", "lighthouse", "drums", "piano", "trumpet", "boxing match",
    "crown", "dragon", "robot", "spreadsheet", "passport", "cathedral", "judge in court", "wrestling", "golf",
    "bowling", "archery", "graffiti", "solar panel", "tornado", "lightning", "rainbow", "aurora", "galaxy",
    "Halloween pumpkin", "mosque", "samurai", "kangaroo", "panda", "crocodile", "gorilla", "flamingo", "lobster",
    "crab", "cactus", "oil rig", "race car", "bulldozer",
]  # fmt: skip
PACKAGE = Path(dcmh.__file__).parent


def learn(data: dcmh.Dataset, encoder: str, quality: str) -> Semantic:
    split = data.split(queries=KEPT, seed=1)
    model = Semantic(bits=64, text_encoder=encoder, quality=quality, general=True).fit(split.train)
    fine, view = model.fine_, model.views_["image"]
    assert fine is not None
    fine.arrays = {
        name: array.astype(np.float16) if name.endswith(HALF) else array for name, array in fine.arrays.items()
    }
    fine.arrays[REFERENCE] = fine.quantise(fine.of_inputs("image", view(split.query.image), view))
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


def unlikely(model: Semantic, data: dcmh.Dataset) -> str:
    """How often a search says that probably nothing matches, by the number of photos: a Markdown table."""
    fine, view = model.fine_, model.views_["image"]
    assert fine is not None
    assert data.labels is not None
    assert data.label_names is not None
    pictures, labels = fine.quantise(fine.of_inputs("image", view(data.image), view)), np.asarray(data.labels, bool)
    words = {name: name for name in data.label_names} | {
        word: name for word, name in SYNONYMS.items() if name in data.label_names
    }
    column = {word: data.label_names.index(name) for word, name in words.items()}
    vectors = dict(zip([*words, *ELSEWHERE], fine.as_query(fine.of_texts([*words, *ELSEWHERE])), strict=True))

    def search(word: str, rows: np.ndarray) -> tuple[np.ndarray, bool]:
        ids = rows + 1
        codes = HammingIndex(8)
        codes.add(ids, np.zeros((len(ids), 1), np.uint8))
        collection = rank.Collection({"image": codes}, {"image": FineIndex.of(ids, pictures[rows])}, None, len(ids))
        ranking = rank.search(collection, rank.Request(b"\0", "text", True, vectors[word]), rank.Wanted(10))
        says = Calibration({}).is_unlikely("word", ranking, [], lambda: fine.reference_scores(vectors[word]))
        return np.array([match.id - 1 for match in ranking.matches]), says

    lines = ["| photos | something matches | it was removed | things not there |", "|---|---|---|---|"]
    random = np.random.default_rng(0)
    for size in SIZES:
        said: dict[str, list[bool]] = {"there": [], "removed": [], "elsewhere": []}
        for _ in range(DRAWS):
            for word, label in column.items():
                rows = np.sort(random.permutation(len(data))[:size])
                relevant = labels[rows, label]
                hits, says = search(word, rows)
                if relevant.any() and labels[hits, label][: relevant.sum()].mean() >= WORKS:
                    said["there"].append(says)
                    said["removed"].append(search(word, rows[~relevant])[1])
            said["elsewhere"] += [search(word, rows)[1] for word in ELSEWHERE]
        lines.append(f"| {size:,} | " + " | ".join(f"{np.mean(seen):.2f}" for seen in said.values()) + " |")
    return "\n".join(lines)


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
        model = learn(split.train, encoder, quality)
        print(f"{encoder}, {quality}: {measure(model, split.query)}\n\n{unlikely(model, split.query)}\n", flush=True)
        if options.write:
            folder = starter.folder(encoder, quality)
            model = learn(data, encoder, quality)
            model.trained_on_["name"] = starter.SOURCE
            model.save(folder)
            print(f"Wrote {folder}: {sum(file.stat().st_size for file in folder.iterdir()):,} bytes", flush=True)
    if options.write:
        words = PACKAGE / "util" / "common_words.txt"
        words.write_text("\n".join(common_words(data)) + "\n", encoding="utf-8", newline="\n")
        print(f"Wrote {words}")


if __name__ == "__main__":
    main()
