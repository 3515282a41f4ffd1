"""Items that are given by hand, not by a dataset: pictures and words as data, under names that stay the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcmh.data.columns import Images, Texts
from dcmh.data.dataset import Dataset
from dcmh.search.encode import Encoders
from dcmh.util.text import mended


def as_dataset(
    encoders: Encoders,
    images: Sequence[Any] | None,
    text: Sequence[str | None] | None,
    *,
    root: Path | None,
    labels: Any = None,
    label_names: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> Dataset:
    """The items as data of the model's modalities. `root`: where names that are paths count from."""
    columns: dict[str, Any] = {}
    if images is not None:
        whole = [os.path.abspath(image) if isinstance(image, str | Path) else image for image in images]
        columns[encoders.picture or "image"] = Images(whole)
    if text is not None:
        columns[encoders.text or "text"] = Texts(text)
    names = _names(images, text, root) if ids is None else ids
    return Dataset(columns, labels=labels, label_names=label_names, ids=names)


def _names(images: Sequence[Any] | None, text: Sequence[str | None] | None, root: Path | None) -> list[str]:
    """Paths, from the data's root where they lie in it; a hash for what has no path."""
    names = []
    for row in range(len(images if images is not None else text or ())):
        image = None if images is None else images[row]
        if isinstance(image, str | Path):
            full = Path(os.path.abspath(image))
            inside = root is not None and full.is_relative_to(root)
            names.append((full.relative_to(root) if root is not None and inside else full).as_posix())
        else:
            digest = hashlib.blake2b(b"" if image is None else np.asarray(image).tobytes(), digest_size=8)
            digest.update(mended(str(text[row] if text is not None else "")).encode())
            names.append(f"added {digest.hexdigest()}")
    return names
