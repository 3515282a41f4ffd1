"""Matrix products of NumPy whose results do not depend on the number of threads or rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARD = 8  # rows before and after those of a block
UNIT = 16  # rows of a block are a multiple of it: what kernels compute at a time
LARGEST = 320  # rows of a block: OpenBLAS divides larger matrices itself
ROWS = LARGEST - 2 * GUARD  # of them are those of x


class OneThread:
    """A context that may be entered by several threads at once: the last one to leave restores what the first one found.

    The setting belongs to the process. All code of dcmh that changes it does so here, so that one caller does not restore two
    threads while another still relies on one: the last digits of a product depend on their number.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._controller: Any = None
        self._limit: Any = None

    def __enter__(self) -> None:
        from threadpoolctl import ThreadpoolController

        with self._lock:
            self._controller = self._controller or ThreadpoolController().select(user_api="blas")
            # Looked at each time: other libraries change it as well.
            if not self._inside or any(library.num_threads != 1 for library in self._controller.lib_controllers):
                with in_control():
                    limit = self._controller.limit(limits=1)
                if not self._inside:
                    self._limit = limit
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                with in_control():
                    self._limit.restore_original_limits()


@contextlib.contextmanager
def in_control() -> Iterator[None]:
    """Within the block this thread can change the setting.

    threadpoolctl 3.8 ignores all threads but the first that changed it, without a word, until that one ends.
    """
    from threadpoolctl import OpenBLASController

    release = getattr(OpenBLASController, "clear_controlling_thread", None)
    if release:
        release(force=True)
    try:
        yield
    finally:
        if release:
            release(force=True)


_one_thread = OneThread()


def one_blas_thread() -> OneThread:
    """Within the block, NumPy's matrix products take one thread."""
    return _one_thread


def product(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float32]:
    """x @ weight, where no row depends on the other rows, their order or their number, down to the last digit.

    BLAS libraries compute the edges of a matrix with other kernels, which add up in another order. OpenBLAS does so even for
    matrices of whole blocks: on AMD's processors, and on Intel's with AVX2, digits depend on the position of a row of x in
    groups of 12. As columns of the transposed product, all rows but the first and the last eight are computed alike.
    """
    out = np.empty((len(x), weight.shape[1]), np.float32)
    with one_blas_thread():
        for start in range(0, len(x), ROWS):
            block = x[start : start + ROWS]
            padded = np.zeros((-(-(len(block) + 2 * GUARD) // UNIT) * UNIT, x.shape[1]), np.float32)
            padded[GUARD : GUARD + len(block)] = block
            out[start : start + ROWS] = (weight.T @ padded.T)[:, GUARD : GUARD + len(block)].T
    return out
