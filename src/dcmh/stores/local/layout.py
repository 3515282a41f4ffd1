"""The index folder: what lies in it, who may write it, and how it is begun.

index.json           format, bits, the model's fingerprint, and the generation of the catalogue that `codes` was made from
catalogue.sqlite     items and their codes: the truth
codes/MODALITY/      a Hamming index for each modality, memory-mapped; made from the catalogue, and made anew when stale
model/               a copy of the model
skipped.tsv          what could not be indexed, and why
uploads/             pictures that the service was given; their items are named upload:FILE
lock                 held by the one process that writes
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.errors import BusyError, DataError, ModelError, ModelMismatch, ParameterError
from dcmh.methods import folder as model_folder
from dcmh.stores.local.catalogue import UNFINISHED, UPDATE, Catalogue, Item
from dcmh.util.atomic import whole_folder, write_text
from dcmh.util.locks import locked

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

FORMAT = 1
KIND = "dcmh search index"
HEADER, CATALOGUE, CODES, MODEL, SKIPPED, LOCK = (
    "index.json",
    "catalogue.sqlite",
    "codes",
    model_folder.KEPT,
    "skipped.tsv",
    "lock",
)
UPLOADS, UPLOADED = "uploads", "upload:"  # the folder, and how the names of its items begin
_OURS = {HEADER, CATALOGUE, f"{CATALOGUE}-journal", CODES, MODEL, SKIPPED, UPLOADS, LOCK}


def is_index(folder: Path) -> bool:
    return (folder / HEADER).is_file()


def identity(folder: Path) -> tuple[int, int] | None:
    """Which file the catalogue is: one begun anew is another."""
    try:
        status = os.stat(folder / CATALOGUE)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_header(folder: Path) -> dict[str, Any]:
    """index.json, checked: a folder that is no index, is damaged, or is newer gives a sentence."""
    if not is_index(folder):
        raise ModelError(_no_index(folder))
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        kind, version = header["kind"], header["format"]
        _ = header["bits"], header["fingerprint"], header["generation"], header["codes"], header["items"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"The index {folder} is damaged: {HEADER} ({error}). "
            f"Make it again: dcmh index DATA --model MODEL --out {folder} --rebuild"
        ) from error
    if kind != KIND:
        raise ModelError(_no_index(folder))
    if not isinstance(version, int) or version > FORMAT:
        raise ModelError(
            f"{folder} has format {version}; this dcmh ({__version__}) reads up to {FORMAT}. "
            "Upgrade: pip install -U dcmh"
        )
    return dict(header)


def write_header(folder: Path, **record: Any) -> None:
    whole = {"kind": KIND, "format": FORMAT, "version": __version__, **record}
    write_text(folder / HEADER, json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[None]:
    """Within the block this process is the only one that writes the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        try:
            alone = held.enter_context(locked(folder / LOCK))
        except PermissionError as error:
            raise ModelError(
                f"{folder} may not be written ({error.strerror}). Check its rights, or choose another --out."
            ) from error
        if not alone:
            raise BusyError(f"Another process is writing {folder}. Wait for it, or choose another --out.")
        yield


def begin(
    folder: Path,
    model: Hasher | Path,
    *,
    rebuild: bool = False,
    report: str | None = None,
    codes: str | None = None,
) -> Catalogue:
    """The catalogue to write into; the index is begun where there is none, or anew with `rebuild`. Needs `writer`.

    Without index.json a folder is one whose beginning was interrupted; it is begun again.
    """
    if codes not in (None, "each", "joint"):
        raise ParameterError(f"codes must be 'each' or 'joint', not {codes!r}.")
    _sweep(folder)
    if is_index(folder) and not rebuild:
        header = read_header(folder)
        with _fingerprint(folder, model) as given:
            check_model(folder, header["fingerprint"], given)
        catalogue = Catalogue(folder / CATALOGUE)
        has = catalogue.about("codes") or "each"
        if codes not in (None, has):
            catalogue.close()
            raise ModelMismatch(f"{folder} was built with codes {has!r}, not {codes!r}. Rebuild it with --rebuild.")
        return catalogue
    (folder / HEADER).unlink(missing_ok=True)
    shutil.rmtree(folder / CODES, ignore_errors=True)
    _keep_model(folder, model, report)
    record = model_folder.read_record(folder / MODEL)
    model_folder.read_weights(folder / MODEL)  # whole, and what its fingerprint says
    about = {"fingerprint": record["fingerprint"], "bits": str(record["bits"]), "codes": codes or "each"}
    about[UPDATE] = UNFINISHED
    catalogue = Catalogue.create(folder / CATALOGUE, about)
    write_header(
        folder, bits=record["bits"], fingerprint=record["fingerprint"], generation=-1, codes={}, items=0, root=None
    )
    return catalogue


def check_target(folder: Path) -> None:
    """Refuse a place where an index must not be written: a folder or file that holds something else."""
    if is_index(folder) or not folder.exists():
        return
    ours = folder.is_dir() and all(entry.name in _OURS or _is_draft(entry.name) for entry in folder.iterdir())
    if not ours:
        raise ModelError(f"{folder} exists and is no dcmh index, so it is not overwritten. Choose another --out.")


def check_model(folder: Path, was: str, given: str, command: str | None = None) -> None:
    """Refuse another model than the index was built with."""
    if was == given:
        return
    shown = 4 if was[:4] != given[:4] else len(was)
    again = command or f"dcmh index DATA --model MODEL --out {folder} --rebuild"
    raise ModelMismatch(f"{folder} was built with model {was[:shown]}, not {given[:shown]}. Rebuild: {again}")


def remember_root(folder: Path, catalogue: Catalogue, root: Path | None) -> None:
    """Note where the data lies, and where from the index, so that both can move together or alone."""
    if root is None:
        return
    said = {"root": os.path.abspath(root)}
    with contextlib.suppress(ValueError):  # on another drive
        said["root_beside"] = os.path.relpath(root.resolve(), folder.resolve())
    if any(catalogue.about(key) != value for key, value in said.items()):
        with catalogue.writing():
            for key, value in said.items():
                catalogue.note(key, value)


def noted_roots(folder: Path, catalogue: Catalogue) -> list[Path]:
    """Where the data may lie: beside the index as it was, then where it was."""
    beside, absolute = catalogue.about("root_beside"), catalogue.about("root")
    there = [] if beside is None else [Path(os.path.normpath(folder.absolute() / beside))]
    return there if absolute is None else [*there, Path(absolute)]


def known_root(folder: Path, catalogue: Catalogue) -> Path | None:
    """Where the data lies: the first noted place that is there, or else where it was."""
    noted = noted_roots(folder, catalogue)
    return next((root for root in noted if root.is_dir()), noted[-1] if noted else None)


def check_root(named: str, noted: Sequence[Path], root: Path | None) -> None:
    """Refuse another folder than an index is of, as long as that one is there; where it is gone, it may have moved."""
    there = [was for was in noted if was.is_dir()]
    if root is None or not there or any(_same(was, root) for was in there):
        return
    raise DataError(
        f"{named} is an index of {there[0]}, and {root} is another folder. To add photos, put them into {there[0]} and "
        "index that again; for an index of their own choose another --out; to replace the collection add --rebuild."
    )


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def path_of(folder: Path, item: Item, root: Path | None) -> Path | None:
    """Where an item's picture lies."""
    if item.path is not None and item.name.startswith(UPLOADED):
        return folder / UPLOADS / item.name.removeprefix(UPLOADED)
    return None if item.path is None else Path(item.path) if root is None else root / item.path


def write_skipped(folder: Path, skipped: Sequence[tuple[str, str]]) -> None:
    """skipped.tsv, where there is anything to list."""
    if not skipped:
        (folder / SKIPPED).unlink(missing_ok=True)
        return
    clean = [[" ".join(cell.split()) for cell in row] for row in [("file", "reason"), *skipped]]
    write_text(folder / SKIPPED, "".join("\t".join(row) + "\n" for row in clean))


def _keep_model(folder: Path, model: Hasher | Path, report: str | None) -> None:
    kept = folder / MODEL
    if not isinstance(model, Path):
        model.save(kept, extra={} if report is None else {model_folder.REPORT: report})
        return
    model_folder.read_record(model)
    if kept.exists() and model.resolve() == kept.resolve():
        return
    with whole_folder(kept) as draft:
        for file in model.iterdir():
            if file.is_file() and not file.name.startswith("."):
                shutil.copyfile(file, draft / file.name)


@contextlib.contextmanager
def _fingerprint(folder: Path, model: Hasher | Path) -> Iterator[str]:
    """The fingerprint of a model; one in memory has it once it is written."""
    if isinstance(model, Path):
        yield str(model_folder.read_record(model)["fingerprint"])
        return
    draft = folder / ".fingerprint.part"
    model.save(draft)
    try:
        yield str(model_folder.read_record(draft)["fingerprint"])
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_draft(name: str) -> bool:
    return name.startswith(".") and name.endswith((".part", ".part-journal", ".old"))


def _sweep(folder: Path) -> None:
    """Remove drafts that a killed process left. A model that was just being replaced comes back."""
    for entry in folder.iterdir():
        if _is_draft(entry.name):
            was = entry / "was"
            if entry.name.endswith(".old") and was.is_dir() and not (folder / MODEL).exists():
                os.replace(was, folder / MODEL)
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


def _no_index(folder: Path) -> str:
    if not folder.exists():
        return f"There is no index {folder}. Make one: dcmh index DATA --model MODEL --out {folder}"
    if (folder / CATALOGUE).is_file() and folder.is_dir():
        return f"The index {folder} was only begun. Run the dcmh index command again that makes it."
    said = f"{folder} is not a dcmh index (no {HEADER})."
    if model_folder.is_model(folder):
        return f"{said} It is a model: make an index with it, dcmh index DATA --model {folder}"
    if (folder / "codes.json").is_file():
        codes = "It is a folder of codes that dcmh encode wrote"
        return f"{said} {codes}: make an index of the data, dcmh index DATA --model MODEL"
    return f"{said} Make one: dcmh index {folder} --model MODEL"
