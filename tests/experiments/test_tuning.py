"""The search for settings: never the queries, never below the defaults without saying so, and it goes on."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from dcmh.data import Dataset, Images, Texts
from dcmh.data.benchmarks.toy import toy
from dcmh.errors import DataError
from dcmh.experiments.tuning import SEEDS, STAGES, Search, Trial, Trials, describe, divide
from dcmh.experiments.tuning.search import Pace
from dcmh.experiments.tuning.trials import iterations
from dcmh.methods.dcmh import DCMH


def pairs(n=300, seed=0):
    rng = np.random.default_rng(seed)
    which = rng.integers(0, 4, n)
    centre = rng.normal(size=(4, 8))
    return Dataset.from_arrays(
        image=(centre[which] + rng.normal(size=(n, 8))).astype(np.float32),
        text=(centre[which][:, ::-1] + rng.normal(size=(n, 8))).astype(np.float32),
        labels=np.eye(4, dtype=np.uint8)[which],
    )


def search(folder, budget=1000.0, method=None, fixed=(), **settings):
    method = method or DCMH(bits=8, hidden=16, epochs=4, batch_size=32, device="cpu")
    return Search(method, pairs(), folder, budget=budget, fixed=set(fixed), **settings)


class Pretended(Trials):
    """Trials that take no time: `worth` says what each change adds, to the items that select and to those that confirm."""

    worth: dict[str, tuple[float, float]]
    seconds = 1.0

    def perform(self, trial):
        item = 0.1 * np.random.default_rng(0).normal(size=50)  # some are harder than others, for every trial
        noise = item + 0.01 * np.random.default_rng(list(trial.name.encode())).normal(size=50)
        added = np.sum([self.worth.get(describe((one,)), (0, 0)) for one in trial.changes] or [(0, 0)], axis=0)
        epochs = self.epochs(trial)
        record = {"format": 2, "identity": self.identity, "changes": dict(trial.changes), "stage": trial.stage}
        record |= {"seed": trial.seed, "epochs": epochs, "training": self.seconds * epochs / 16, "measuring": 0.0}
        record |= {"iteration": self.seconds / 16, "resting": None, "directions": {"image_to_text": 0.5 + added[0]}}
        record |= {"select": (0.5 + added[0] + noise).tolist(), "confirm": (0.5 + added[1] + noise).tolist()}
        self.file(trial).parent.mkdir(parents=True, exist_ok=True)
        self.file(trial).write_text(json.dumps(record))
        return record


def pretended(folder, worth, budget=1000.0, **settings):
    found = Search(DCMH(bits=8, epochs=16, **settings), pairs(), folder, budget=budget, fixed=set())
    found.trials = Pretended(found.method, found.parts, folder, found.trials.identity)
    found.trials.worth = worth
    return found


def test_parts_are_training_items_apart_from_each_other():
    data = pairs()
    for share in (1.0, 0.5):
        parts = divide(data, share, seed=3)
        select, confirm, learn, database = (
            set(getattr(parts, name).ids) for name in ("select", "confirm", "learn", "database")
        )
        assert not select & confirm
        assert not (select | confirm) & (learn | database)
        assert select | confirm | learn | database <= set(data.ids)
        assert (len(select), len(confirm)) == (30, 30)
    assert len(learn & database) / len(database) == pytest.approx(share, abs=0.02)
    with pytest.raises(DataError, match="too few"):
        divide(pairs(70), 1.0, 0)


def test_what_is_better_is_found_combined_and_confirmed(tmp_path):
    found = pretended(tmp_path, {"gamma 0.3": (0.05, 0.05), "length x2": (0.04, 0.04), "eta 3": (-0.1, -0.1)}).run()
    assert dict(found.chosen) == {"gamma": 0.3, "length": 2.0}
    assert found.epochs == 32
    assert found.gain == pytest.approx(0.09, abs=0.01)
    stages = {one.trial.stage for one in found.results}
    for stage in stages:
        assert any(not one.trial.changes and one.trial.stage == stage for one in found.results)  # the defaults, always
    assert stages == set(STAGES)
    assert {one.trial.seed for one in found.results if one.trial.stage == 1} == set(SEEDS)


@pytest.mark.parametrize(
    ("worth", "said"),
    [
        ({}, "No candidate was better|The defaults stay"),
        ({"gamma 0.3": (0.05, 0.0)}, "The defaults stay: the best candidate, gamma 0.3"),  # luck in selecting
        ({"gamma 0.3": (0.05, -0.2)}, "The defaults stay"),
    ],
)
def test_the_defaults_stay_unless_the_best_is_confirmed(tmp_path, worth, said):
    found = pretended(tmp_path, worth).run()
    assert found.chosen == ()
    assert re.search(said, found.verdict)


def test_the_items_that_confirm_rank_nothing(tmp_path):
    worth = {"gamma 0.3": (0.05, 0.0), "eta 3": (-0.05, 0.4)}
    found = pretended(tmp_path, worth).run()
    first = {describe(one.trial.changes): one for one in found.results if one.trial.stage == STAGES[0]}
    assert max(first.values(), key=lambda one: one.confirmed).trial.changes == (("eta", 3.0),)
    assert first["eta 3"].confirmed == pytest.approx(first["defaults"].confirmed + 0.4, abs=0.02)
    assert first["eta 3"].score == pytest.approx(first["defaults"].score - 0.05, abs=0.02)
    assert not [one for one in found.results if "eta 3" in describe(one.trial.changes) and one.trial.stage > STAGES[0]]


def test_the_budget_is_kept_and_a_short_one_leaves_the_defaults(tmp_path):
    for budget in (0.2, 3.0, 6.0, 12.0, 30.0):
        whole = pretended(tmp_path / str(budget), {"gamma 0.3": (0.05, 0.05)}, budget)
        found = whole.run()
        assert found.spent <= max(budget, 2 * 0.0625 + 1e-9)
        if budget < 1:
            assert found.chosen == ()
            assert "too short" in found.verdict
    assert dict(found.chosen) == {"gamma": 0.3}


def test_iterations_are_those_of_a_training():
    for n in (30, 60):
        model = DCMH(bits=8, hidden=8, batch_size=8, device="cpu", validation=0.0).fit(pairs(n))
        assert iterations(DCMH(**model.parameters), pairs(n)) == len(model.history_)
    assert iterations(DCMH(epochs=7), pairs(60)) == 7
    assert iterations(DCMH(recipe="paper"), pairs(60)) == 500
    photos = Dataset({"image": Images([np.zeros((8, 8, 3), np.uint8)] * 60), "text": Texts(["a word"] * 60)})
    frozen, tuned = (iterations(DCMH(finetune=finetune), photos) for finetune in (False, True))
    assert tuned > frozen


def test_cost_counts_iterations_of_either_part(tmp_path):
    data = toy(n=120, size=32)
    tuned = Search(DCMH(bits=8, epochs=60, finetune=True), data, tmp_path, budget=100.0, fixed=set())
    frozen = Search(DCMH(bits=8, epochs=60), data, tmp_path, budget=100.0, fixed=set())
    tuned._pace = frozen._pace = Pace(frozen=1.0, learning=10.0, overhead=5.0)
    assert tuned._cost(1.0) == 40 * 1 + 20 * 10 + 5
    assert frozen._cost(1.0) == 60 * 10 + 5


def test_a_budget_that_ends_too_soon_is_not_called_a_comparison(tmp_path, monkeypatch):
    found = pretended(tmp_path, {})
    monkeypatch.setattr(found, "_stage_two", lambda first: first[:1])
    assert (
        found.run().verdict == "The budget ended before a candidate could be tried at half length; the defaults stay."
    )


def test_given_settings_are_not_varied(tmp_path):
    found = search(tmp_path, fixed=["gamma", "epochs", "dropout"])
    assert {name for changes in found._candidates() for name, _ in changes} == {"eta", "learning_rate"}
    paper = search(tmp_path, method=DCMH(recipe="paper", epochs=8), fixed=["epochs"])
    assert {name for changes in paper._candidates() for name, _ in changes} == {"gamma", "eta"}


def test_real_trials_go_on_where_they_stopped(tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    calls = []

    def stop_after(count):
        def told(seconds, what):
            calls.append(what)
            if len(calls) > count:
                raise Stop

        return told

    first = search(tmp_path, budget=30.0, fixed=["epochs", "dropout", "learning_rate", "eta"])
    with pytest.raises(Stop):
        first.run(stop_after(4))
    files = {file.name: file.read_bytes() for file in (tmp_path / "trials").iterdir()}
    assert len(files) == 4
    whole = search(tmp_path, budget=30.0, fixed=["epochs", "dropout", "learning_rate", "eta"]).run()
    for name, content in files.items():
        assert (tmp_path / "trials" / name).read_bytes() == content
    assert whole.results[0].select.shape == (30,)
    assert 0.25 < whole.results[0].score < 1

    def refuse(*arguments, **settings):
        raise AssertionError("trained again")

    monkeypatch.setattr(DCMH, "fit", refuse)
    again = search(tmp_path, budget=30.0, fixed=["epochs", "dropout", "learning_rate", "eta"]).run()
    assert (again.chosen, again.verdict, again.spent) == (whole.chosen, whole.verdict, whole.spent)
    other = search(tmp_path, method=DCMH(bits=16, hidden=16, epochs=16, device="cpu"))
    assert other.trials.read(Trial((), 1 / 16)) is None  # of other settings


def test_without_labels_the_pairing_decides(tmp_path):
    data = pairs(200)
    unlabelled = Dataset(data.columns, ids=data.ids)
    method = DCMH(bits=8, hidden=16, epochs=4, batch_size=32, device="cpu", similarity="pairing")
    found = Search(method, unlabelled, tmp_path, budget=60.0, fixed={"epochs", "dropout", "learning_rate", "eta"}).run()
    assert 1 / 200 < found.results[0].score < 1
