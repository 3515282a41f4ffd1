"""An image network of two layers, and pictures with vectors of three classes, for tests that learn from pixels."""

import numpy as np
import torch
from torch import nn

from dcmh.data import Dataset, Images, Vectors


class Small(nn.Module):
    size = 224

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 9, stride=8)
        self.full = nn.Linear(6, 10)

    def forward(self, pixels):
        return torch.relu(self.full(torch.relu(self.conv(pixels.to(self.full.weight.dtype) / 128 - 1)).mean((2, 3))))


def small(name, weights=None):
    torch.manual_seed(5)
    return Small(), 10


def photos(n=48):
    random = np.random.default_rng(0)
    classes = random.integers(0, 3, n)
    pixels = (random.integers(0, 120, (n, 224, 224, 3)) + 60 * classes[:, None, None, None]).astype(np.uint8)
    text = random.normal(size=(n, 12)).astype(np.float32) + classes[:, None]
    labels = np.eye(3, dtype=np.uint8)[classes]
    return Dataset({"image": Images(list(pixels)), "text": Vectors(text)}, labels=labels)
