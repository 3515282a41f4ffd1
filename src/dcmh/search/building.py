"""Making an index in a folder, opening it, and bringing it up to date with data; and the choices there are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.methods.folder import read_record
from dcmh.search.calibration import HELD
from dcmh.search.encode import Encoders, shared_modalities
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue

if TYPE_CHECKING:
    from dcmh.data.dataset import Dataset
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher
    from dcmh.search.compare import Changes

Progress = Callable[[int, int], None]  # items done, items to do


@dataclass(frozen=True)
class Choices:
    """What `SearchIndex.build` is told beside model, data and place."""

    rebuild: bool = False
    keep_gone: bool = False
    report: Report | None = None
    device: str | None = None
    codes: str | None = None
    held_out: dict[str, Any] | None = None

    @property
    def report_text(self) -> str | None:
        """The report as it is kept with a model."""
        if self.report is None and self.held_out is None:
            return None
        report = {} if self.report is None else self.report.to_json()
        return json.dumps(report | {HELD: self.held_out}, indent=1) + "\n"


def check_data(model: Hasher | Path, data: Dataset) -> None:
    """Refuse data that the model cannot encode, before anything is written."""
    if isinstance(model, Path):
        Encoders(model).check(data)
    else:
        shared_modalities({name: model.views_[name].kind for name in model.modalities}, data)


def begin(folder: Path, model: Hasher | Path, choices: Choices) -> tuple[Catalogue, Encoders]:
    """The catalogue of a folder and the hash functions for it; begun where there is none. Needs `layout.writer`."""
    catalogue = layout.begin(folder, model, rebuild=choices.rebuild, report=choices.report_text, codes=choices.codes)
    in_memory = None if isinstance(model, Path) else model
    return catalogue, Encoders(folder / layout.MODEL, in_memory, device=choices.device)


def opened(folder: Path, model: Path | None = None) -> tuple[Catalogue, Encoders]:
    """The catalogue of a folder and its hash functions; another model than it was built with is refused."""
    was = layout.read_header(folder)["fingerprint"]
    if model is not None:
        layout.check_model(folder, was, str(read_record(model)["fingerprint"]))
    encoders = Encoders(folder / layout.MODEL)
    layout.check_model(folder, was, str(encoders.record["fingerprint"]))
    return Catalogue(folder / layout.CATALOGUE), encoders


def bring(
    folder: Path,
    catalogue: Catalogue,
    encoders: Encoders,
    data: Dataset,
    keep_gone: bool,
    progress: Progress | None,
) -> Changes:
    """Bring the catalogue of a folder up to date with the data. Needs `layout.writer`.

    Where the data lies is noted before the first item, so that what an interrupted run leaves has whole paths.
    """
    from dcmh.search.compare import data_root
    from dcmh.search.update import Update

    root = data_root(data)
    layout.check_root(catalogue.place, layout.noted_roots(folder, catalogue), root)
    update = Update(catalogue, encoders, data, root=root, keep=keep_gone, progress=progress)
    update.check()
    layout.remember_root(folder, catalogue, root)
    changes = update.run()
    layout.write_skipped(folder, changes.skipped)
    return changes
