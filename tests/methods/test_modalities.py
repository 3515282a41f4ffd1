"""Any number of modalities, of any names and kinds, some items without some: one path for all."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

import dcmh
from dcmh.data import Dataset, Texts, Vectors
from dcmh.errors import DataError
from dcmh.methods.dcmh import DCMH, algorithm
from training import equal_weights, started

FAST = {"bits": 8, "hidden": 16, "epochs": 3, "batch_size": 16, "device": "cpu"}


def three(n=90, seed=0, hide=True):
    """Vectors, words and more words of four kinds of items; a fifth of the items lack each of the first two."""
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 4, n)
    centre = rng.normal(size=(4, 6))
    sound = (centre[which] + 0.3 * rng.normal(size=(n, 6))).astype(np.float32)
    title = [
        ["red apple", "blue boat", "grey owl", "iron nail"][kind] + f" a{row % 3}x" for row, kind in enumerate(which)
    ]
    tags = [["fruit", "ship", "bird", "metal"][kind] + " thing" for kind in which]
    observed = np.ones((3, n), bool)
    if hide:
        order = rng.permutation(n)
        observed[0, order[: n // 5]] = False
        observed[1, order[n // 5 : 2 * n // 5]] = False
    return Dataset(
        {
            "sound": Vectors(np.where(observed[0][:, None], sound, 0), observed=observed[0]),
            "title": Texts([text if there else None for text, there in zip(title, observed[1], strict=True)]),
            "tags": Texts(tags),
        },
        labels=np.eye(4, dtype=np.uint8)[which],
    )


def test_the_objective_is_summed_over_all_ordered_pairs_of_what_is_observed():
    data = three()
    model = DCMH(**FAST, recipe="paper", validation=0.0, gamma=0.7, eta=0.3)
    recipe, run = model._recipe({}), started(model, data)
    n, bits = len(data), 8
    S = torch.from_numpy((data.labels @ data.labels.T > 0).astype(np.float32))
    for side in run.sides:
        batch = side.rows[:10]
        inputs = side.inputs[batch]
        outputs = side.forward(inputs)
        side.store(batch, outputs.detach())
        loss, _ = recipe.loss(run, side, outputs, batch)
        F = side.network(inputs.float()).detach()
        likelihood = pairs = 0.0
        for other in run.sides:
            if other is side:
                continue
            rows = np.flatnonzero(data.observed(other.name))
            Theta = F @ other.outputs[rows].T / 2
            likelihood += float((softplus(Theta) - S[batch][:, rows] * Theta).sum())
            pairs += len(batch) * len(rows)
        points = pairs / (len(batch) * 2)
        quantisation = 0.7 * float((run.B[batch] - F).square().sum())
        balance = 0.3 * float(side.outputs[data.observed(side.name)].sum(0).square().sum())
        expected = 2 * likelihood / pairs + quantisation / (len(batch) * points)
        expected += balance * points / (len(batch) * len(side.rows) ** 2)
        assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)
        assert (n, bits) == tuple(side.outputs.shape)


def test_a_missing_modality_stays_zero_and_codes_come_from_the_others():
    data = three()
    model = DCMH(**FAST, validation=0.0)
    recipe, run = model._recipe({}), started(model, data)
    for _ in range(2):
        for side in run.sides:
            for inputs, batch in algorithm.mini_batches(run, recipe, side):
                algorithm.gradient_step(run, recipe, side, inputs, batch)
        algorithm.update_codes(run)
    total = torch.zeros(len(data), 8)
    for side in run.sides:
        there = torch.from_numpy(data.observed(side.name))
        assert not side.outputs[~there].any()
        assert side.outputs[there].any(dim=1).all()
        torch.testing.assert_close(side.total, side.outputs[there].sum(0), rtol=1e-4, atol=1e-4)
        total += torch.where(there[:, None], side.outputs, 0)
    assert torch.equal(run.B, torch.where(total >= 0, 1.0, -1.0))


@pytest.mark.parametrize("recipe", ["stable", "paper"])
def test_what_is_not_observed_has_no_influence(recipe):
    data = three()
    settings = {**FAST, "recipe": recipe}
    sound = data["sound"]
    garbage = np.where(sound.observed[:, None], sound.values, np.nan)
    other = Dataset({**data.columns, "sound": Vectors(garbage, observed=sound.observed)}, labels=data.labels)
    assert equal_weights(DCMH(**settings).fit(data), DCMH(**settings).fit(other))


def test_words_of_items_that_lack_the_text_are_not_in_the_vocabulary():
    data = three()
    model = DCMH(**FAST).fit(data)
    said = [text for text in data["title"].values if text is not None]
    assert model.views_["title"].bag.documents_ == len(said)


def test_names_do_not_matter():
    data = three()
    renamed = Dataset({"a": data["sound"], "a-b": data["title"], "größe": data["tags"]}, labels=data.labels)
    first, second = DCMH(**FAST).fit(data), DCMH(**FAST).fit(renamed)
    assert all(np.array_equal(a, b) for a, b in zip(first._state().values(), second._state().values(), strict=True))
    for old, new in zip(data.modalities, renamed.modalities, strict=True):
        rows = np.flatnonzero(data.observed(old))
        assert np.array_equal(
            first.encode(**{old: data[old].take(rows)}), second.encode(**{new: renamed[new].take(rows)})
        )


def test_names_that_begin_alike_survive_saving(tmp_path):
    data = three(hide=False)
    data = Dataset({"a": data["sound"], "a-b": data["title"], "ab": data["tags"]}, labels=data.labels)
    model = DCMH(**FAST).fit(data)
    model.save(tmp_path / "model")
    again = dcmh.load(tmp_path / "model")
    assert again.modalities == ("a", "a-b", "ab")
    for name in data.modalities:
        assert np.array_equal(again.encode(**{name: data[name]}), model.encode(**{name: data[name]}))


@pytest.mark.parametrize("name", ["a_to_b", "joint", "labels", "two words", "1st", "a/b", "a.b", ""])
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(DataError, match="modality"):
        Dataset({name: Texts(["x"])})


def test_every_direction_and_the_joint_codes_are_measured():
    split = three(300).split(queries=40)
    model = DCMH(bits=16, hidden=32, epochs=15, batch_size=32, learning_rate=0.01, dropout=0.1, device="cpu").fit(
        split.train
    )
    report = dcmh.evaluate(model, split, joint=True)
    pairs = [f"{a}_to_{b}" for a, b in permutations(("sound", "title", "tags"), 2)]
    assert list(report.directions) == [*pairs, "sound_to_joint", "title_to_joint", "tags_to_joint"]
    assert min(found.map["expected"] for found in report.directions.values()) > 1.8 * report.chance
    assert report["sound_to_joint"].database == len(split.database)  # each item has something
    assert report["tags_to_title"].database == split.database.observed("title").sum()


def test_joint_codes_of_partial_items_are_those_of_what_they_have():
    data = three()
    model = DCMH(**FAST).fit(data)
    joint = model.encode(**data.columns)
    lacks = ~data.observed("sound")
    without = {name: data[name].take(np.flatnonzero(lacks)) for name in ("title", "tags")}
    assert np.array_equal(joint[lacks], model.encode(**without))
