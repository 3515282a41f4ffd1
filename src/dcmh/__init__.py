"""Deep Cross-Modal Hashing: words find pictures, pictures find words, in a few bytes per item.

The public names are loaded on first use, so that `import dcmh` costs nothing that is not asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dcmh import codes, data, errors, methods, service
    from dcmh.data import Dataset, Images, Split, Texts, Vectors, load_dataset
    from dcmh.evaluation import Report, evaluate, metrics
    from dcmh.index import HammingIndex
    from dcmh.methods import load
    from dcmh.methods.dcmh import DCMH
    from dcmh.search import Filter, SearchIndex

_HOME = {
    "Dataset": "dcmh.data",
    "Images": "dcmh.data",
    "Split": "dcmh.data",
    "Texts": "dcmh.data",
    "Vectors": "dcmh.data",
    "load_dataset": "dcmh.data",
    "Report": "dcmh.evaluation",
    "evaluate": "dcmh.evaluation",
    "HammingIndex": "dcmh.index",
    "DCMH": "dcmh.methods.dcmh",
    "load": "dcmh.methods",
    "Filter": "dcmh.search",
    "SearchIndex": "dcmh.search",
}
_MODULES = {
    **{name: f"dcmh.{name}" for name in ("codes", "data", "errors", "methods", "service")},
    "metrics": "dcmh.evaluation.metrics",
}

__all__ = [
    "DCMH",
    "Dataset",
    "Filter",
    "HammingIndex",
    "Images",
    "Report",
    "SearchIndex",
    "Split",
    "Texts",
    "Vectors",
    "codes",
    "data",
    "errors",
    "evaluate",
    "load",
    "load_dataset",
    "methods",
    "metrics",
    "service",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    raise AttributeError(f"module 'dcmh' has no attribute {name!r}. Public names: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
