"""How much a mean over queries depends on which queries were drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.errors import ParameterError

DRAWS = 1000
_BLOCK = 1 << 20  # resampled values at a time


def prediction_interval(values: ArrayLike, *, level: float = 0.95, seed: int = 0) -> NDArray[np.float64]:
    """Bounds of the mean that another draw of as many queries would show, from measures per query between 0 and 1.

    Both means vary, that of these queries and that of the others, so the interval is wider by √2 than a confidence interval of
    the mean. By bootstrap: the differences between the means of two resamples, symmetric about the mean of the values.

    Parameters
    ----------
    values : (n,) or (n, measures)
        NaN bounds for fewer than two queries.

    Returns
    -------
    (2,) or (2, measures): the lower and the upper bound, within 0 and 1.
    """
    if not 0 < level < 1:
        raise ParameterError(f"level must lie between 0 and 1, not {level!r}.")
    values = np.asarray(values, np.float64)
    n, mean = len(values), values.mean(axis=0)
    if n < 2:
        return np.full((2, *mean.shape), np.nan)
    random = np.random.default_rng(seed)
    step = max(1, _BLOCK // n)
    differences = np.concatenate(
        [
            _resampled(random, values, min(step, DRAWS - start)) - _resampled(random, values, min(step, DRAWS - start))
            for start in range(0, DRAWS, step)
        ]
    )
    # Resamples vary less than new draws, by (n - 1) / n.
    width = np.quantile(np.abs(differences), level, axis=0) * np.sqrt(n / (n - 1))
    return np.asarray(np.clip(np.stack([mean - width, mean + width]), 0, 1))


def _resampled(random: np.random.Generator, values: NDArray[np.float64], draws: int) -> NDArray[np.float64]:
    """Means of resamples, (draws,) or (draws, measures)."""
    n = len(values)
    rows = random.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
    times = np.bincount(rows.ravel(), minlength=draws * n).reshape(draws, n)
    return np.asarray(times.astype(np.float64) @ values / n)
