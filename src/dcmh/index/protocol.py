"""What every index can do, wherever its codes lie: in this process, on Milvus, or on PostgreSQL."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.index.results import Results


class Index(Protocol):
    """Packed codes of `bits` bits under integer ids.

    Hits come nearest first, and a radius includes its end. At equal distance the smaller id comes first; in the
    embedded index the item that was added first, which is the same where ids grow.

    `allowed` limits what may be found: ids (unknown ones do no harm), or booleans by id.
    """

    bits: int

    def __len__(self) -> int: ...

    def __contains__(self, item: object) -> bool: ...

    @property
    def count(self) -> int: ...

    @property
    def ids(self) -> NDArray[np.int64]: ...

    def codes(self, ids: ArrayLike) -> NDArray[np.uint8]: ...

    def codes_there(self, ids: ArrayLike) -> dict[int, bytes]: ...

    def add(self, ids: ArrayLike, codes: NDArray[np.uint8]) -> None: ...

    def remove(self, ids: ArrayLike, *, missing_ok: bool = False) -> int: ...

    def search(self, codes: NDArray[np.uint8], k: int, *, allowed: Any = None) -> Results: ...

    def within(self, codes: NDArray[np.uint8], radius: int, *, allowed: Any = None) -> Results: ...
