"""What tests of training share."""

from __future__ import annotations

import numpy as np
import torch


def started(model, data):
    """The state of a DCMH before its first iteration, on a CPU."""
    model.views_ = {name: model._view(data[name].kind).fit(data[name]) for name in data.modalities}
    inputs = {name: model.views_[name](data[name]) for name in data.modalities}
    observed = {name: data.observed(name) for name in data.modalities}
    return model._start(model._recipe({}), inputs, data.labels, observed, torch.device("cpu"))


def equal_weights(a, b):
    """Whether two models have the same arrays."""
    x, y = a._state(), b._state()
    return set(x) == set(y) and all(np.array_equal(x[key], y[key]) for key in x)
