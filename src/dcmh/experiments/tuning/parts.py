"""The training items divided for a search: some to learn from and to be found, some to select by, some to confirm by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcmh.data.dataset import Dataset
from dcmh.errors import DataError

FEWEST = 20  # queries in each of the two parts


@dataclass(frozen=True)
class Parts:
    """The training items, divided. `database` is what the two sets of queries search."""

    learn: Dataset
    database: Dataset
    select: Dataset
    confirm: Dataset


def divide(train: Dataset, trained_share: float, seed: int) -> Parts:
    """A tenth to select, a tenth to confirm, the others to learn from and to be found.

    `trained_share` is the share of training items in the real database. Below 1, some items are kept from learning, so
    that the database here is made up alike.
    """
    each = max(FEWEST, min(1000, len(train) // 10))
    outer = train.split(2 * each, None, seed)
    order = np.random.default_rng(seed).permutation(len(outer.query))
    rest = outer.database
    learn = database = rest
    if trained_share < 0.99:
        mixed = np.random.default_rng(seed + 1).permutation(len(rest))
        unseen = mixed[: round(0.15 * len(train))]
        learned = mixed[len(unseen) :]
        beside = learned[: round(len(unseen) * trained_share / (1 - trained_share))]
        learn, database = rest.take(np.sort(learned)), rest.take(np.sort(np.concatenate([unseen, beside])))
    if len(learn) < 2 * FEWEST:
        raise DataError(f"{len(train):,} training items are too few to choose settings by. Train with the defaults.")
    return Parts(learn, database, outer.query.take(np.sort(order[:each])), outer.query.take(np.sort(order[each:])))
