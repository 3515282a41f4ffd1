"""The cache of models for indexes on servers: DCMH_HOME/models/FINGERPRINT."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dcmh.errors import ModelError
from dcmh.methods import folder as model_folder
from dcmh.util.atomic import whole_folder
from dcmh.util.cache import home

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

DRAFT = ".draft"


def add(model: Hasher | Path, report: str | None = None) -> Path:
    """Add a model to the cache; returns its folder there."""
    if not isinstance(model, Path):
        cache = home() / "models"
        cache.mkdir(parents=True, exist_ok=True)
        with whole_folder(cache / DRAFT) as draft:
            model.save(draft / "model", extra={} if report is None else {model_folder.REPORT: report})
            return _copied(draft / "model")
    return _copied(model)


def find(fingerprint: str) -> Path | None:
    """The folder of the model with this fingerprint, if it is in the cache."""
    folder = home() / "models" / fingerprint
    return folder if model_folder.is_model(folder) else None


def files_of(model: Path) -> dict[str, bytes]:
    """The files of a model folder, to be stored in a database."""
    return {file.name: file.read_bytes() for file in sorted(model.iterdir()) if _belongs(file)}


def restore(files: Mapping[str, bytes]) -> Path:
    """Write a model from a database into the cache; returns its folder."""
    cache = home() / "models"
    cache.mkdir(parents=True, exist_ok=True)
    with whole_folder(cache / DRAFT) as draft:
        folder = draft / "model"
        folder.mkdir()
        for name, data in files.items():
            if Path(name).name != name:
                raise ModelError(f"The model that the database keeps has a file {name!r}.", hint="Give --model MODEL.")
            (folder / name).write_bytes(data)
        return _copied(folder)


def _copied(model: Path) -> Path:
    fingerprint = str(model_folder.read_record(model)["fingerprint"])
    target = home() / "models" / fingerprint
    if target.exists() and model.resolve() == target.resolve():
        return target
    model_folder.read_weights(model)  # complete, and consistent with its fingerprint
    report = model / model_folder.REPORT
    if model_folder.is_model(target) and (not report.is_file() or _same(report, target / model_folder.REPORT)):
        return target
    with whole_folder(target) as draft:
        copy_files(model, draft)
    return target


def copy_files(model: Path, folder: Path) -> None:
    """Copy the files of a model into another folder."""
    for file in model.iterdir():
        if _belongs(file):
            shutil.copyfile(file, folder / file.name)


def _same(file: Path, other: Path) -> bool:
    return other.is_file() and file.read_bytes() == other.read_bytes()


def _belongs(file: Path) -> bool:
    return file.is_file() and not file.name.startswith(".")
