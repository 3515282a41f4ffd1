"""Search quality as users see it: words, other words, other languages and sentences, on photos with and without captions.

    python benchmarks/queries.py coco12k                               # trains a model first
    python benchmarks/queries.py coco12k --model coco12k.model         # or uses one that dcmh train wrote
    python benchmarks/queries.py coco12k --starter                     # the starter model of the package

The data is a folder of photos with one caption each and with labels (coco12k in docs/data.md). Labels are never
indexed: they determine which hits are relevant. Every number comes from SearchIndex.search. Prints Markdown.

P@10 is the share of the first ten hits that carry the label a word stands for, over labels with ten photos or more; R@10 the
share of captions that find their own photo among the first ten. A query of the last table has an answer if five of the first
ten hits are relevant by their captions and labels, which are read by the rules beside each query.

Excluded words are measured by `X -Y` for the 40 ordered pairs of labels that share the most photos, of those with at least 20
photos of X without Y: the shares of the first ten hits that carry X and Y, photos alone, with captions, and with the labels
indexed as well. A word with an example, `Y --like PHOTO`, is measured by pairs of labels in the same way: the photo carries X and
not Y, and hits should carry both. So should those of `X and Y`; the precision that they show is printed beside.

    python benchmarks/queries.py coco12k --model coco12k.model --only parts     # only these two

Queries as people type them are words with a capital letter, in capitals, or with one letter that is missing, twice there, another
one, or changes places with the next one, in the longest word of label names, of five letters or more.

    python benchmarks/queries.py coco12k --starter --only typing
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import dcmh
from dcmh.errors import UnknownWords
from dcmh.search import SearchIndex, calibration
from dcmh.util.text import index_words

QUERIES, TRAIN, SEED = 2000, 5000, 0
DRAWS = 5  # of the halves on which precision is measured and shown

SYNONYMS = {
    "puppy": "dog", "hound": "dog", "kitten": "cat", "kitty": "cat", "sofa": "couch", "settee": "couch",
    "automobile": "car", "sedan": "car", "bike": "bicycle", "cyclist": "bicycle", "motorbike": "motorcycle",
    "aircraft": "airplane", "jet plane": "airplane", "locomotive": "train", "railway": "train", "lorry": "truck",
    "pickup": "truck", "ship": "boat", "canoe": "boat", "traffic signal": "traffic light", "stallion": "horse",
    "pony": "horse", "lamb": "sheep", "flock": "sheep", "cattle": "cow", "calf": "cow", "grizzly": "bear",
    "rucksack": "backpack", "parasol": "umbrella", "luggage": "suitcase", "necktie": "tie", "skier": "skis",
    "snowboarder": "snowboard", "surfer": "surfboard", "skateboarder": "skateboard", "racquet": "tennis racket",
    "batter": "baseball bat", "mug": "cup", "burger": "sandwich", "frankfurter": "hot dog", "doughnut": "donut",
    "birthday cake": "cake", "armchair": "chair", "houseplant": "potted plant", "mattress": "bed", "lavatory": "toilet",
    "television": "tv", "notebook computer": "laptop", "smartphone": "cell phone", "stove": "oven",
    "fridge": "refrigerator", "washbasin": "sink", "stuffed animal": "teddy bear", "seagull": "bird", "parrot": "bird",
    "coach": "bus", "human": "person", "wineglass": "wine glass", "tulips": "vase", "timepiece": "clock",
}  # fmt: skip
LANGUAGES = {
    "Hund": "dog", "perro": "dog", "собака": "dog", "犬": "dog", "Katze": "cat", "chat": "cat", "gatto": "cat",
    "кошка": "cat", "Fahrrad": "bicycle", "vélo": "bicycle", "bicicleta": "bicycle", "Flugzeug": "airplane",
    "avion": "airplane", "самолёт": "airplane", "飛行機": "airplane", "Zug": "train", "treno": "train", "поезд": "train",
    "Boot": "boat", "bateau": "boat", "barco": "boat", "Pferd": "horse", "cheval": "horse", "лошадь": "horse", "马": "horse",
    "Schaf": "sheep", "mouton": "sheep", "vaca": "cow", "Elefant": "elephant", "слон": "elephant", "girafe": "giraffe",
    "jirafa": "giraffe", "Regenschirm": "umbrella", "parapluie": "umbrella", "paraguas": "umbrella", "Surfbrett": "surfboard",
    "Bett": "bed", "lit": "bed", "cama": "bed", "Kuchen": "cake", "gâteau": "cake", "торт": "cake", "пицца": "pizza",
    "披萨": "pizza", "Toilette": "toilet", "baño": "toilet", "orologio": "clock", "ordenador portátil": "laptop",
    "автобус": "bus", "kuş": "bird", "자전거": "bicycle", "기차": "train",
}  # fmt: skip
# What was asked, and groups of words: a photo is relevant if its caption or its labels hold one word of each group.
NATURAL: Sequence[tuple[str, str]] = (
    ("a dog on the beach", "dog puppy; beach sand ocean shore sea"),
    ("kids playing soccer", "kid child boy girl; soccer ball football"),
    ("red bus", "red; bus"),
    ("people skiing down a mountain", "ski skier skiing skis"),
    ("cat sleeping on a couch", "cat kitten; couch sofa bed chair"),
    ("birthday party", "birthday cake candle party"),
    ("a bowl of fruit", "fruit banana apple orange strawberry"),
    ("someone riding a wave", "surf surfer surfing surfboard wave"),
    ("a train at the station", "train; station platform track"),
    ("vegetables on a plate", "vegetable broccoli carrot salad"),
    ("airplane taking off", "airplane plane jet"),
    ("bathroom with a bathtub", "bathroom tub bathtub shower toilet"),
    ("woman with an umbrella in the rain", "umbrella"),
    ("man eating pizza", "pizza"),
    ("giraffes at the zoo", "giraffe"),
    ("bedroom with a window", "bedroom bed"),
    ("a street at night", "street city road; night light dark"),
    ("motorcycles parked in a row", "motorcycle motorbike"),
    ("laptop on a desk", "laptop computer; desk table"),
    ("a herd of animals grazing", "sheep cow zebra elephant horse cattle; grass field grazing pasture"),
    ("wedding", "wedding bride groom"),
    ("baseball player swinging", "baseball bat batter"),
    ("tennis match", "tennis"),
    ("kitchen with wooden cabinets", "kitchen"),
    ("boats in the harbor", "boat ship"),
    ("child holding a teddy bear", "teddy bear"),
    ("fire hydrant on the sidewalk", "hydrant"),
    ("skateboard trick", "skateboard skateboarder skateboarding"),
    ("clock tower", "clock; tower building"),
    ("flowers in a vase", "flower vase rose"),
    ("snow covered street", "snow; street road car"),
    ("cup of coffee and a donut", "coffee donut doughnut"),
    ("polar bear", "bear"),
    ("kite in the sky", "kite"),
    ("man in a suit", "suit tie"),
    ("living room", "living couch sofa room"),
    ("horse race", "horse"),
    ("talking on the phone", "phone cell"),
    ("traffic in the city", "traffic car bus street"),
    ("picnic in the park", "park picnic frisbee"),
)


def bare(data: dcmh.Dataset, *, texts: bool, labels: bool = False) -> dcmh.Dataset:
    """Photos, with captions or without, and without labels unless they are wanted."""
    columns: dict[str, Any] = {"image": data.image}
    if texts:
        columns["text"] = data.text
    named = {"labels": data.labels, "label_names": data.label_names} if labels else {}
    return dcmh.Dataset(columns, ids=data.ids, name="photos", **named)


class Searched:
    """An index of some photos, in a folder of its own, and their labels."""

    def __init__(self, model: Path | None, data: dcmh.Dataset, *, texts: bool, labels: bool = False) -> None:
        self._folder = tempfile.TemporaryDirectory()
        photos = bare(data, texts=texts, labels=labels)
        self.index = SearchIndex.build(model, photos, Path(self._folder.name) / "photos.dcmh")
        self.rows = {name: row for row, name in enumerate(data.ids)}
        self.data = data

    def first(self, text: str, k: int = 10, **more: Any) -> list[int]:
        """The first rows; none for a word that the encoder cannot read."""
        with contextlib.suppress(UnknownWords):
            return [self.rows[hit.name] for hit in self.index.search(text=text, k=k, **more)]
        return []

    def precision(self, words: dict[str, str]) -> float:
        """Mean P@10 of words, each with the label that it stands for."""
        names, labels = self.data.label_names, self.data.labels
        found = []
        for word, label in words.items():
            column = labels[:, names.index(label)] if label in names else np.zeros(0)
            if column.sum() >= 10:
                found.append(float(column[self.first(word)].sum() / 10))
        return float(np.mean(found))


def own_photo(searched: Searched, captions: Sequence[str], ids: Sequence[str], k: int = 10) -> float:
    return float(
        np.mean([searched.rows[name] in searched.first(text, k) for text, name in zip(captions, ids, strict=True)])
    )


def shown_against_true(
    model: Path, unseen: dcmh.Dataset, *, texts: bool, k: int = 50
) -> list[tuple[str, float, float, float, float]]:
    """For each tenth of shown precision: hits per draw, mean shown, share that is relevant, and its deviation over draws.

    The model learned from none of these photos. Precision is measured on one half of them and shown for searches of the
    other half by the names of labels, then the other way round; this for several draws of the halves.
    """
    learned = dcmh.load(model)
    hits = []  # draw, shown, relevant
    for draw in range(DRAWS):
        order = np.random.default_rng(draw + 1).permutation(len(unseen))
        halves = [unseen.take(np.sort(rows)) for rows in np.array_split(order, 2)]
        for measured, searched in (halves, halves[::-1]):
            held_out = calibration.measure(learned, SimpleNamespace(query=measured, database=measured, train=measured))
            photos = Searched(model, searched, texts=texts)
            photos.index.calibration = calibration.Calibration({calibration.HELD: held_out})
            for column, name in enumerate(searched.label_names):
                for hit in photos.index.search(text=name, k=k):
                    if hit.precision is not None:
                        hits.append((draw, hit.precision, searched.labels[photos.rows[hit.name], column]))
    draws, shown, true = np.array(hits, np.float64).T
    tenth = np.minimum((shown * 10).astype(int), 9)
    table = []
    for low in np.unique(tenth).tolist():
        part = tenth == low
        deviation = np.std([true[part & (draws == draw)].mean() for draw in np.unique(draws[part])])
        values = (part.sum() / DRAWS, shown[part].mean(), true[part].mean(), deviation)
        table.append((f"{low / 10:.1f}–{low / 10 + 0.1:.1f}", *map(float, values)))
    return table


def label_pairs(labels: Any, count: int = 40, least: int = 20) -> list[tuple[int, int]]:
    """The ordered pairs of labels that share the most photos, where at least so many photos carry the first alone."""
    shared = labels.T.astype(int) @ labels.astype(int)
    total = labels.sum(0)
    columns = range(labels.shape[1])
    pairs = [(x, y) for x in columns for y in columns if x != y and total[x] - shared[x, y] >= least]
    return sorted(pairs, key=lambda pair: (-shared[pair], pair))[:count]


def without(searched: Searched, *, excluded: bool = True) -> tuple[float, float]:
    """The shares of the first ten hits of `X -Y` that carry X and Y; of `X` alone unless `excluded`."""
    data, found = searched.data, []
    for x, y in label_pairs(data.labels):
        names = [f'"{name}"' if " " in name else name for name in (data.label_names[x], data.label_names[y])]
        rows = searched.first(f"{names[0]} -{names[1]}" if excluded else names[0])
        found.append((data.labels[rows, x].mean(), data.labels[rows, y].mean()))
    return float(np.mean([x for x, _ in found])), float(np.mean([y for _, y in found]))


def with_example(searched: Searched, *, word: bool = True, example: bool = True) -> float:
    """The share of the first ten hits of `Y --like PHOTO`, with a photo of X without Y, that carry X and Y."""
    data, found = searched.data, []
    ids = {item.name: item.id for item in searched.index.store.items()}
    for x, y in label_pairs(data.labels, 400)[::4]:
        alone = np.flatnonzero((data.labels[:, x] > 0) & (data.labels[:, y] == 0))
        photo = ids[data.ids[int(np.random.default_rng(80 * x + y).choice(alone))]]
        rows = searched.first(data.label_names[y] if word else None, like=[photo] if example else ())
        found.append(float((data.labels[rows, x] & data.labels[rows, y]).mean()))
    return float(np.mean(found))


def both(searched: Searched) -> tuple[float, float]:
    """The share of the first ten hits of `X and Y` that carry both, and the mean precision that is shown for them."""
    data, found = searched.data, []
    for x, y in label_pairs(data.labels, 80):
        if x < y:
            for hit in searched.index.search(text=f"{data.label_names[x]} and {data.label_names[y]}", k=10):
                row = searched.rows[hit.name]
                found.append(
                    (data.labels[row, x] & data.labels[row, y], np.nan if hit.precision is None else hit.precision)
                )
    right, shown = np.array(found, np.float64).T
    return float(right.mean()), float(np.nanmean(shown)) if np.isfinite(shown).any() else float("nan")


def report_parts(model: Path, database: dcmh.Dataset, unseen: dcmh.Dataset) -> None:
    print("| query | hits carry | photos alone | with captions | with labels as well |\n|---|---|---|---|---|")
    kinds = ({"texts": False}, {"texts": True}, {"texts": True, "labels": True})
    for title, data in (("", database), (", unseen photos", unseen)):
        indexes = [Searched(model, data, **kind) for kind in kinds]
        for excluded in (False, True):
            shares = [without(searched, excluded=excluded) for searched in indexes]
            for row, name in enumerate("XY"):
                cells = " | ".join(f"{share[row]:.3f}" for share in shares)
                print(f"| `{'X -Y' if excluded else 'X'}`{title} | {name} | {cells} |", flush=True)
        for query, given in (("Y", {"example": False}), ("--like PHOTO", {"word": False}), ("Y --like PHOTO", {})):
            cells = " | ".join(f"{with_example(searched, **given):.3f}" for searched in indexes[:2])
            print(f"| `{query}`{title} | X and Y | {cells} | |", flush=True)
        cells = " | ".join(f"{share:.3f} (shown: {shown:.2f})" for share, shown in map(both, indexes[:2]))
        print(f"| `X and Y`{title} | X and Y | {cells} | |", flush=True)


def relevant(data: dcmh.Dataset, row: int, rule: str) -> bool:
    said = {*index_words(data.text.values[row])}
    said |= {w for column in np.flatnonzero(data.labels[row]) for w in index_words(data.label_names[column])}
    return all(said & {word for one in group.split() for word in index_words(one)} for group in rule.split(";"))


def keyword_search(data: dcmh.Dataset, text: str, k: int = 10) -> list[int]:
    """Plain keyword search over captions: by the rarity of the words that a caption holds."""
    holders: dict[str, list[int]] = {word: [] for word in index_words(text)}
    for row, caption in enumerate(data.text.values):
        for word in set(index_words(caption)) & set(holders):
            holders[word].append(row)
    score = np.zeros(len(data))
    for rows in holders.values():
        score[rows] += np.log(len(data) / max(1, len(rows))) + 0.1
    order = np.argsort(-score, kind="stable")[:k]
    return [int(row) for row in order if score[row] > 0]


def natural(searched: Searched) -> list[tuple[str, int, int, list[tuple[float, bool]]]]:
    """Relevant hits of ten for each query, those by keywords, and shown precision and relevance of the hits that have one."""
    rows = []
    for text, rule in NATURAL:
        hits = searched.index.search(text=text, k=10)
        ours = [relevant(searched.data, searched.rows[hit.name], rule) for hit in hits]
        theirs = sum(relevant(searched.data, row, rule) for row in keyword_search(searched.data, text))
        shown = [
            (hit.precision, is_right) for hit, is_right in zip(hits, ours, strict=True) if hit.precision is not None
        ]
        rows.append((text, sum(ours), theirs, shown))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, help="of 2,000 queries and 5,000 training items, seed 0")
    parser.add_argument("--starter", action="store_true")
    parser.add_argument("--only", choices=["parts", "typing"], help="queries that exclude or combine; typed words")
    parser.add_argument("--text-encoder", default="use-multilingual")
    options = parser.parse_args()
    data = dcmh.load_dataset(str(options.data))
    split = data.split(queries=QUERIES, train=TRAIN, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        model = (
            dcmh.methods.starter.folder(options.text_encoder)
            if options.starter
            else options.model or Path(folder) / "model"
        )
        if not options.starter and options.model is None:
            learned = dcmh.DCMH(bits=64, seed=SEED, text_encoder=options.text_encoder).fit(split.train)
            held_out = calibration.measure(learned, split)
            report = dcmh.evaluate(learned, split).to_json() | {calibration.HELD: held_out}
            learned.save(model, extra={"report.json": dcmh.methods.folder.json.dumps(report)})
        unseen = split.database.take(~np.isin(split.database.ids, split.train.ids))
        if options.only == "typing":
            report_typing(model, split.database)
            return
        if options.only is None:
            report_all(model, data, split)
            print()
        report_parts(model, split.database, unseen)


def misspelt(words: Sequence[str], kind: str, seed: int = 5) -> dict[str, str]:
    """Words with one wrong letter, each with the right one."""
    generator = np.random.default_rng(seed)
    found = {}
    for right in words:
        longest = max(right.split(), key=len)
        at = int(generator.integers(1, max(2, len(longest) - 1)))
        head, letter, tail = longest[:at], longest[at], longest[at + 1 :]
        other = chr(ord("a") + int(generator.integers(26)))
        wrong = {"missing": "", "twice": letter * 2, "other": other, "swapped": tail[:1] + letter}[kind]
        rest = tail[1:] if kind == "swapped" else tail
        if len(longest) >= 5:
            found[right.replace(longest, head + wrong + rest, 1)] = right
    return found


def report_typing(model: Path, database: dcmh.Dataset) -> None:
    names = list(database.label_names or ())
    pictures, captioned = Searched(model, database, texts=False), Searched(model, database, texts=True)
    lists: dict[str, dict[str, str]] = {}
    for title, words in (
        ("label names", dict(zip(names, names, strict=True))),
        ("other words", SYNONYMS),
        ("other languages", LANGUAGES),
    ):
        lists[title] = words
        lists[f"{title}, First Letter"] = {word.title(): label for word, label in words.items()}
        lists[f"{title}, CAPITALS"] = {word.upper(): label for word, label in words.items()}
    for kind in ("missing", "twice", "other", "swapped"):
        wrong = misspelt(names, kind)
        lists[f"label names, one letter {kind}"] = wrong
    lists["the same, spelt right"] = {label: label for label in wrong.values()}
    print("| typed | photos alone | with captions |\n|---|---|---|")
    for title, words in lists.items():
        print(f"| {title} | {pictures.precision(words):.3f} | {captioned.precision(words):.3f} |", flush=True)


def report_all(model: Path, data: dcmh.Dataset, split: dcmh.Split) -> None:
    names = {name: name for name in data.label_names or ()}
    pictures, captioned = Searched(model, split.database, texts=False), Searched(model, split.database, texts=True)
    unseen = split.database.take(~np.isin(split.database.ids, split.train.ids))
    fresh, fresh_captioned = Searched(model, unseen, texts=False), Searched(model, unseen, texts=True)
    print(
        "| queries | photos alone | with captions | unseen photos alone | unseen, with captions |\n|---|---|---|---|---|"
    )
    for title, words in (("label names", names), ("other words", SYNONYMS), ("other languages", LANGUAGES)):
        found = [searched.precision(words) for searched in (pictures, captioned, fresh, fresh_captioned)]
        print(f"| {title}, P@10 | " + " | ".join(f"{value:.3f}" for value in found) + " |", flush=True)
    everything = Searched(model, data, texts=False)
    print(f"\nown photo of a held-out caption among {len(data):,}, R@10: "
          f"{own_photo(everything, split.query.text.values, split.query.ids):.3f}", flush=True)  # fmt: skip
    everything_unseen = data.take(~np.isin(data.ids, split.train.ids))
    for title, texts in (("photos alone", False), ("with captions", True)):
        if fresh.index.calibration.is_measured:
            print(f"\n| shown precision, unseen {title} | hits per draw | shown | true |\n|---|---|---|---|")
            for low, count, shown, true, deviation in shown_against_true(model, everything_unseen, texts=texts):
                print(f"| {low} | {count:,.0f} | {shown:.3f} | {true:.3f} ±{deviation:.3f} |")
    rows = natural(Searched(model, split.query, texts=True))
    print("\n| natural query, 2,000 captioned photos | relevant of ten | by keywords |\n|---|---|---|")
    for text, ours, theirs, _ in rows:
        print(f"| {text} | {ours} | {theirs} |")
    enough = [sum(row[column] >= 5 for row in rows) for column in (1, 2)]
    print(f"| **five or more of ten** | **{enough[0]}** | **{enough[1]}** |\n")
    for title, found in (("with captions", rows), ("photos alone", natural(Searched(model, split.query, texts=False)))):
        if seen := [pair for *_, pairs in found for pair in pairs]:
            shown, true = np.mean(np.array(seen, float), axis=0)
            print(
                f"natural queries, {title}: {len(seen)} hits show a precision of {shown:.3f}; {true:.3f} are relevant"
            )


if __name__ == "__main__":
    main()
