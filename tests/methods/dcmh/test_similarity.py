"""What makes items similar: each way against brute force, and its effect on learning."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import dcmh
from dcmh.data import Dataset, Images, Texts, Vectors
from dcmh.errors import DataError, ParameterError
from dcmh.methods.dcmh import DCMH, objective, similarity
from dcmh.methods.dcmh.likelihood import batch_likelihood, share_of_similar
from dcmh.util.text import BagOfWords

CPU = torch.device("cpu")
FAST = {
    "bits": 16,
    "hidden": 32,
    "epochs": 20,
    "batch_size": 32,
    "learning_rate": 0.01,
    "dropout": 0.1,
    "device": "cpu",
}


def items(n=120, seed=0):
    """Two views of four kinds of items; their words tell the kind, and common ones do not."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 4, n)
    named = ["kiwi plum", "boat sail", "owl wren", "iron zinc"]
    texts = [
        f"thing {named[kind].split()[rng.integers(2)]} {'nice' if row % 2 else 'good'}"
        for row, kind in enumerate(which)
    ]
    centre = rng.normal(size=(4, 10))
    vectors = (centre[which] + 0.4 * rng.normal(size=(n, 10))).astype(np.float32)
    return Dataset(
        {"sound": Vectors(vectors), "text": Texts(texts)},
        labels=np.eye(4, dtype=np.uint8)[which],
        ids=[f"kind{kind}/{row}" for row, kind in enumerate(which)],
    )


def whole(known, n):
    """S and W of all pairs, in odd blocks."""
    found = known.to(CPU, torch.float32)
    S, W = np.zeros((n, n)), np.ones((n, n))
    for rows in torch.randperm(n).split(17):
        for start in range(0, n, 23):
            stop = min(n, start + 23)
            part = found.S(rows, start, stop)
            weight = found.W(part, rows, start, stop)
            S[rows.numpy(), start:stop] = part.numpy()
            if weight is not None:
                W[rows.numpy(), start:stop] = weight.numpy()
    return S, W


def test_labels_are_the_papers():
    data = items()
    S, W = whole(similarity.build("labels", data), len(data))
    np.testing.assert_array_equal(S, data.labels @ data.labels.T > 0)
    assert (W == 1).all()


def test_tags_are_shared_words_weighed_by_rarity():
    rng = np.random.default_rng(3)
    words = [f"word{i}" for i in range(40)]
    chance = 1 / np.arange(2, 42)
    texts = [" ".join(w for w, p in zip(words, chance, strict=True) if rng.random() < p) or None for _ in range(90)]
    data = Dataset({"tags": Texts(texts), "x": Vectors(rng.normal(size=(90, 3)))})
    known = similarity.build("tags", data)
    bag = BagOfWords().fit(texts)
    has = bag.transform(texts) > 0
    given = sum(text is not None for text in texts)
    expected = np.eye(90)
    for a in range(90):
        for b in range(90):
            rarity = sum(-math.log(bag.counts_[w] / given) for w in np.flatnonzero(has[a] & has[b]))
            expected[a, b] = max(expected[a, b], rarity >= -math.log(similarity.RARE_SHARE) - 1e-4)
    S, _ = whole(known, 90)
    np.testing.assert_array_equal(S, expected)
    assert 0.05 < S.mean() < 0.9  # it tells pairs apart
    assert known.share == pytest.approx(S.mean())
    assert "words of 'tags'" in known.description


def test_tags_of_a_named_modality():
    data = items()
    both = Dataset({**data.columns, "title": Texts(["same words here"] * len(data))})
    assert similarity.build("tags", both).modality == "text"
    assert similarity.build("tags:title", both).modality == "title"
    with pytest.raises(DataError, match=r"no text modality 'sound' to take tags from. There are: text, title"):
        similarity.build("tags:sound", both)
    with pytest.raises(DataError, match="needs words"):
        similarity.build("tags", Dataset({"sound": data["sound"], "x": data["sound"]}))


def test_labels_and_tags_are_graded():
    data = items()
    labels, _ = whole(similarity.build("labels", data), len(data))
    tags, _ = whole(similarity.build("tags", data), len(data))
    known = similarity.build("labels+tags:text", data)
    S, W = whole(known, len(data))
    np.testing.assert_allclose(S, (1 - similarity.TAG_WEIGHT) * labels + similarity.TAG_WEIGHT * tags, rtol=1e-6)
    assert len(np.unique(S.round(4))) > 2  # words say more than labels alone
    assert (W == 1).all()
    assert "the more so if they also share rare words of 'text'" in known.description
    with pytest.raises(DataError, match="no labels"):
        similarity.build("labels+tags", Dataset(data.columns))


def test_folders():
    data = items()
    S, _ = whole(similarity.build("folders", data), len(data))
    np.testing.assert_array_equal(S, data.labels @ data.labels.T)
    photos = Dataset({"image": Images(["a/1.jpg", "a/2.jpg", "b/c/3.jpg", "4.jpg", "5.jpg"])})
    assert photos.with_labels_from_folders().label_names == [".", "a", "b/c"]
    assert photos.with_labels_from_folders().labels.tolist() == [[0, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0], [1, 0, 0]]
    with pytest.raises(DataError, match="not in two or more folders"):
        Dataset({"image": Images(["a.jpg", "b.jpg"])}).with_labels_from_folders()


def test_pairing_alone():
    S, W = whole(similarity.build("pairing", items(50)), 50)
    np.testing.assert_array_equal(S, np.eye(50))
    assert W.mean() == pytest.approx(1)
    assert (W * S).sum() / W.sum() == pytest.approx(similarity.SIMILAR_WEIGHT)  # they do not drown


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("p.csv", ["a,b,similar", "kind,0,1", "{0},{1},1", "{2},{0},0", "nobody,{1},1"]),
        ("p.tsv", ["{0}\t{1}\tyes", "{2}\t{0}\tno", "{1}\tnobody\tno"]),
        ("p.jsonl", ['{{"a": "{0}", "b": "{1}", "similar": true}}', '["{2}", "{0}", 0]', ""]),
    ],
)
def test_given_pairs_others_are_unknown(tmp_path, name, lines):
    data = items(30)
    file = tmp_path / name
    file.write_text("\n".join(line.format(*data.ids) for line in lines) + "\n")
    known = similarity.build(f"pairs:{file}", data)
    S, W = whole(known, 30)
    expected = np.eye(30)
    expected[0, 1] = expected[1, 0] = 1
    np.testing.assert_array_equal(S, expected)
    named = np.eye(30, dtype=bool)
    named[[0, 1, 0, 2], [1, 0, 2, 0]] = True
    np.testing.assert_array_equal(W > 0, named)
    assert W.mean() == pytest.approx(1)
    assert "others are unknown" in known.description
    assert "2 of the" in known.description


def test_only_similar_pairs_make_the_others_dissimilar(tmp_path):
    data = items(30)
    (tmp_path / "p.csv").write_text(f"{data.ids[0]},{data.ids[1]}\n")
    known = similarity.build(f"pairs:{tmp_path / 'p.csv'}", data)
    S, W = whole(known, 30)
    assert S.sum() == 32
    assert (W > 0).all()
    assert W.mean() == pytest.approx(1)
    assert "all others are dissimilar" in known.description


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,maybe\n", "line 1: expected two ids and 1 or 0"),
        ("x,y,1\n", "None of the 1 pairs"),
        ("{0},{1},1\n{1},{0},0\n", "line 2: .* are both similar and not"),
        ("", "None of the 0 pairs"),
    ],
)
def test_mistakes_in_the_file_of_pairs_are_named(tmp_path, text, message):
    data = items(10)
    (tmp_path / "p.csv").write_text(text.format(*data.ids))
    with pytest.raises(DataError, match=message):
        similarity.build(f"pairs:{tmp_path / 'p.csv'}", data)
    with pytest.raises(DataError, match="Cannot read the pairs"):
        similarity.build("pairs:none.csv", data)


def test_a_pair_outside_the_training_items_still_says_that_others_are_unknown(tmp_path):
    data = items(30)
    file = tmp_path / "p.csv"
    file.write_text(f"{data.ids[0]},{data.ids[1]},similar\nnobody,{data.ids[2]},dissimilar\n")
    known = similarity.build(f"pairs:{file}", data)
    S, W = whole(known, 30)
    assert S[0, 1] == 1, "the first line is a pair, not one of names"
    assert W[0, 2] == 0
    assert "1 of the 2 pairs" in known.description
    assert "others are unknown" in known.description


@pytest.mark.parametrize("spec", ["label", "pairs", "tags:", "labels+tags:", "labels+folders", "folders:a", ""])
def test_settings_that_are_not_known_are_refused(spec):
    with pytest.raises(ParameterError, match="similarity"):
        DCMH(similarity=spec)


def test_weights_reach_value_and_gradient():
    torch.manual_seed(0)
    n, bits = 40, 8
    known = similarity.build("pairing", items(n)).to(CPU, torch.float64)
    batch = torch.tensor([3, 8, 30])
    F = torch.randn(3, bits, dtype=torch.float64, requires_grad=True)
    G = torch.randn(n, bits, dtype=torch.float64)
    value = batch_likelihood(F, G, known, batch)
    S = known.S(batch, 0, n)
    W = known.W(S, batch, 0, n)
    expected = objective.likelihood(objective.theta(F, G), S, W)
    torch.testing.assert_close(value, expected)
    (found,) = torch.autograd.grad(value, F)
    (wanted,) = torch.autograd.grad(expected, F)
    torch.testing.assert_close(found, wanted)


def test_share_of_similar_pairs():
    data = items(50)
    labels = similarity.build("labels", data).to(CPU, torch.float32)
    assert share_of_similar(labels, 50, CPU) == pytest.approx((data.labels @ data.labels.T > 0).mean())
    pairing = similarity.build("pairing", data).to(CPU, torch.float32)
    assert share_of_similar(pairing, 50, CPU) == pytest.approx(similarity.SIMILAR_WEIGHT)


@pytest.mark.parametrize("spec", ["tags", "folders", "pairs", "pairing"])
def test_codes_are_learned_without_labels_and_the_model_says_how(spec, tmp_path):
    data = items(240)
    if spec == "pairs":
        rng = np.random.default_rng(0)
        lines = []
        for a, b in rng.integers(0, 240, (4000, 2)):
            lines.append(f"{data.ids[a]},{data.ids[b]},{int(data.labels[a].argmax() == data.labels[b].argmax())}")
        (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
        spec = f"pairs:{tmp_path / 'p.csv'}"
    split = data.split(queries=60)
    unlabelled = Dataset(split.train.columns, ids=split.train.ids)
    model = DCMH(**FAST, similarity=spec).fit(unlabelled)
    report = dcmh.evaluate(model, split)
    assert min(direction.map["expected"] for direction in report.directions.values()) > 1.8 * report.chance
    model.save(tmp_path / "model")
    record = json.loads((tmp_path / "model" / "model.json").read_text())
    assert record["parameters"]["similarity"] == spec
    assert record["trained_on"]["similarity"].startswith("Similarity from")
    assert dcmh.load(tmp_path / "model").similarity == spec


@pytest.mark.slow
def test_labels_and_tags_tell_apart_what_shares_a_label():
    rng = np.random.default_rng(0)
    words = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:24]]  # each in 4 % of the items, 8 to a label
    which = np.arange(480) % 24
    vectors = (rng.normal(size=(24, 10))[which] + 0.3 * rng.normal(size=(480, 10))).astype(np.float32)
    labels = np.eye(3, dtype=np.uint8)[which // 8]
    train = Dataset({"sound": Vectors(vectors), "text": Texts([words[w] for w in which])}, labels=labels)
    alike = np.arange(24)[:, None] // 8 == np.arange(24) // 8
    distances = {}
    for spec in ("labels", "labels+tags"):
        found = DCMH(**FAST, similarity=spec).fit(train).encode(text=words).astype(int)  # (24, bits)
        apart = (found[:, None] != found[None]).sum(-1)  # (24, 24)
        distances[spec] = apart[alike].mean()
        assert distances[spec] < apart[~alike].mean() / 2, "labels still say most"
    assert distances["labels+tags"] > distances["labels"] + 0.5
