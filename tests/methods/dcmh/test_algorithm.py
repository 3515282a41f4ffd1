"""Algorithm 1: the loop against the paper's steps written out, with the paper's gradients instead of back-propagated losses."""

from __future__ import annotations

import copy
import traceback

import numpy as np
import pytest
import torch

from dcmh.methods.dcmh import algorithm, objective
from dcmh.methods.dcmh.recipes import Paper
from dcmh.methods.dcmh.similarity import SharedLabels

GAMMA, ETA, BITS, N, BATCH, EPOCHS = 0.7, 0.3, 6, 50, 16, 3


@pytest.fixture
def data():
    random = np.random.default_rng(0)
    kinds = random.integers(0, 3, N)
    inputs = {name: random.normal(size=(3, 5))[kinds] + random.normal(size=(N, 5)) for name in ("image", "text")}
    labels = np.eye(3, dtype=np.uint8)[kinds]
    observed = {name: np.ones(N, bool) for name in inputs}
    return algorithm.TrainingSet(inputs, observed, SharedLabels.of(labels), labels, np.array([], np.intp))


def start(recipe, data):
    def new_network(name):
        return recipe.network(5, "vectors" if name == "text" else "features", None)

    settings = {"batch_size": BATCH, "epochs": EPOCHS, "seed": 4, "device": torch.device("cpu")}
    return algorithm.initialise(recipe, data, new_network, **settings, precision="float64")


def literal(run, labels):
    """The paper's Algorithm 1 from the same start; returns the networks, F, G and B."""
    L = torch.from_numpy(labels).double()
    S, B = objective.similarity(L, L), run.B.clone()
    networks = [copy.deepcopy(side.network) for side in run.sides]
    outputs = [side.outputs.clone() for side in run.sides]  # F, G
    rates = np.logspace(-1.5, -3, EPOCHS)
    optimisers = [torch.optim.SGD(network.parameters(), lr=1.0, weight_decay=5e-4) for network in networks]
    for iteration in range(EPOCHS):
        for k, (network, optimiser) in enumerate(zip(networks, optimisers, strict=True)):
            optimiser.param_groups[0]["lr"] = rates[iteration]
            algorithm.seed_everything(4, iteration, k)
            order = torch.randperm(N)
            for batch in order[: N // BATCH * BATCH].split(BATCH):
                fresh = network(run.sides[k].inputs[batch])
                outputs[k][batch] = fresh.detach()
                F, G = outputs[k], outputs[1 - k]
                gradient = objective.gradient(F, G, B, S if k == 0 else S.T, gamma=GAMMA, eta=ETA)
                optimiser.zero_grad()
                fresh.backward(gradient[batch] / (BATCH * N))  # over (batch x n), as in the authors' code
                optimiser.step()
        B = torch.where(GAMMA * (outputs[0] + outputs[1]) >= 0, 1.0, -1.0).double()
    return networks, outputs, B


def test_the_loop_is_the_papers(data):
    recipe = Paper(BITS, GAMMA, ETA)
    run = start(recipe, data)
    networks, outputs, B = literal(run, data.labels)
    before = [side.outputs.clone() for side in run.sides]
    algorithm.train(run, recipe)
    assert torch.equal(run.B, B)
    for k, side in enumerate(run.sides):
        assert not torch.equal(side.outputs, before[k])
        torch.testing.assert_close(side.outputs, outputs[k], rtol=1e-9, atol=1e-12)
        for ours, theirs in zip(side.network.parameters(), networks[k].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_each_iteration_is_reported_and_may_stop_the_run(data):
    recipe = Paper(BITS, GAMMA, ETA)
    run = start(recipe, data)
    epochs = []

    def stop_after_two(state):
        epochs.append(state.epoch)
        if state.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        algorithm.train(run, recipe, after_epoch=stop_after_two)
    algorithm.train(run, recipe, after_epoch=lambda state: epochs.append(state.epoch))  # from where it stopped
    unbroken = start(recipe, data)
    algorithm.train(unbroken, recipe)
    assert epochs == [1, 2, 3]
    assert torch.equal(run.sides[0].outputs, unbroken.sides[0].outputs)


def test_mini_batches_visit_each_point_at_most_once(data):
    recipe = Paper(BITS, GAMMA, ETA)
    run = start(recipe, data)
    batches = [batch for _, batch in algorithm.mini_batches(run, recipe, run.sides[0])]
    assert [len(batch) for batch in batches] == [BATCH] * (N // BATCH)
    assert len(torch.cat(batches).unique()) == N // BATCH * BATCH


def test_four_calls_lead_from_the_loop_to_the_equation(data, monkeypatch):
    recipe = Paper(BITS, GAMMA, ETA)
    run = start(recipe, data)
    likelihood, chains = objective.likelihood, []

    def watch(*arguments):
        names = [frame.name for frame in traceback.extract_stack() if "/dcmh/methods/" in frame.filename]
        chains.append(names[names.index("train") :])
        return likelihood(*arguments)

    monkeypatch.setattr(objective, "likelihood", watch)
    algorithm.train(run, recipe)
    called = [name for name in chains[0] if name != "watch"]
    assert called == ["train", "gradient_step", "loss", "batch_likelihood"]  # and then likelihood
