"""What every index can do, wherever its codes are: in this process, on Milvus, or on PostgreSQL."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcmh.index.results import Results


class Index(Protocol):
    """Packed codes of `bits` bits under integer ids, to be searched.

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

    def search(self, codes: NDArray[np.uint8], k: int, *, allowed: Any = None) -> Results: ...

    def within(self, codes: NDArray[np.uint8], radius: int, *, allowed: Any = None) -> Results: ...
