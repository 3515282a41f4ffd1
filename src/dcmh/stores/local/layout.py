"""The index folder: its files, its lock, and how it is created.

index.json           format, bits, the model's fingerprint, and the generation of the catalogue that `codes` was made from
catalogue.sqlite     items and their codes: the source of truth
catalogue.json       its checksum, while it is unchanged since it was saved
codes/MODALITY/      a memory-mapped Hamming index per modality; derived from the catalogue, and rebuilt when stale
model/               a copy of the model
skipped.tsv          what could not be indexed, and why
uploads/             pictures uploaded to the service; their items are named upload:FILE
lock                 held by the process that writes
.rebuild.part/       a new index with which --rebuild or --upgrade will replace this one; until then this one is complete
.rebuild.ready/      the same, complete: its files are moved into their places, also by the next process that opens the index
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.errors import BusyError, ModelError, ModelMismatch, StorageError
from dcmh.methods import folder as model_folder
from dcmh.stores import models
from dcmh.stores.base import UNFINISHED, UPDATE, UPGRADING, UPLOADS, check_model
from dcmh.stores.local.catalogue import Catalogue
from dcmh.stores.local.database import drop_journal
from dcmh.util import checksums
from dcmh.util.atomic import make_folder, recover, storage_errors, sync_folder, sync_tree, whole_folder, write_text
from dcmh.util.formats import check_format, check_types, parse_object, readable
from dcmh.util.locks import locked

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

FORMAT = 1
KIND = "dcmh search index"
HEADER, CATALOGUE, SEAL, CODES, MODEL, SKIPPED, LOCK = (
    "index.json",
    "catalogue.sqlite",
    Catalogue.SEAL,
    "codes",
    model_folder.KEPT,
    "skipped.tsv",
    "lock",
)
REBUILD, READY = ".rebuild.part", ".rebuild.ready"
_REPLACED = "old "  # before the name of a folder that was replaced
SWITCH_SECONDS = 10.0  # to wait for another process that moves a rebuilt index into its place
_OURS = {READY, HEADER, CATALOGUE, SEAL, f"{CATALOGUE}-journal", CODES, MODEL, SKIPPED, UPLOADS, LOCK}


def is_index(folder: Path) -> bool:
    """Whether a folder has the header of an index."""
    return (folder / HEADER).is_file()


def identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode of the catalogue: a rebuilt index has another file."""
    try:
        status = os.stat(folder / CATALOGUE)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_header(folder: Path) -> dict[str, Any]:
    """index.json, checked: ModelError for a folder that is not an index, is damaged, or is newer than this version."""
    if not is_index(folder):
        raise _no_index(folder)
    again = f"Make it again: dcmh index DATA --model MODEL --out {folder} --rebuild"
    what = f"The index {folder} is damaged: {HEADER} ({{reason}})."
    with readable(folder / HEADER, ModelError, what=what, hint=again):
        data = (folder / HEADER).read_bytes()
        header = parse_object(data)
        if header["kind"] != KIND:
            raise _no_index(folder)
        check_format(header["format"], FORMAT, folder, ModelError)
        check_types(header, bits=int, fingerprint=str, generation=int, codes=dict, items=int)
        checksums.check_sealed(data, folder / HEADER)
    return header


def write_header(folder: Path, **record: Any) -> None:
    """Write index.json, replacing it atomically."""
    header = {"kind": KIND, "format": FORMAT, "version": __version__, **record}
    write_text(folder / HEADER, checksums.sealed_json(header, indent=1, ensure_ascii=False))


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[None]:
    """Inside the block this process is the only writer of the folder, which is created if it does not exist."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(storage_errors(folder))
        try:
            make_folder(folder)
            alone = stack.enter_context(locked(folder / LOCK))
        except PermissionError as error:
            raise StorageError(
                f"Cannot write to {folder} ({error.strerror}).",
                state="read-only",
                which=folder,
                hint="Check its permissions, or choose another --out.",
            ) from error
        if not alone:
            raise BusyError(f"Another process is writing {folder}.", hint="Wait for it, or choose another --out.")
        yield


def begin(
    folder: Path,
    model: Hasher | Path,
    *,
    rebuild: bool = False,
    upgrade: bool = False,
    report: str | None = None,
    codes: str | None = None,
) -> Path:
    """Create an empty index where there is none, or with `rebuild`; otherwise check model and codes. Needs `writer`.

    With `upgrade`, another model is accepted: an index with the same items, but without codes, is created.
    Returns the folder of its files. For an index that will replace another, it is inside that one, and `switch` moves its
    files into place.
    A folder without index.json is one whose creation was interrupted; it is created again.
    """
    finish_switch(folder)
    _sweep(folder)
    if is_index(folder) and not rebuild:
        was, given = read_header(folder)["fingerprint"], _fingerprint(folder, model)
        upgrade = upgrade and was != given
        if not upgrade:
            check_model(folder, was, given)
        codes = _check_codes(folder, codes)
        if not upgrade:
            return folder
    else:
        upgrade = False
    return _create(folder, model, upgrade=upgrade, report=report, codes=codes or "each")


def _check_codes(folder: Path, codes: str | None) -> str:
    """Refuse codes other than those of the index, which are returned."""
    with contextlib.closing(Catalogue(folder / CATALOGUE)) as catalogue:
        existing = catalogue.about("codes") or "each"
    if codes not in (None, existing):
        raise ModelMismatch(
            f"{folder} was built with codes {existing!r}, not {codes!r}.", hint="Rebuild it with --rebuild."
        )
    return existing


def _create(folder: Path, model: Hasher | Path, *, upgrade: bool, report: str | None, codes: str) -> Path:
    """Create an empty index, inside the one that it will replace if there is one; with `upgrade`, with its items."""
    replaced = folder
    if is_index(folder):
        folder = folder / REBUILD
        folder.mkdir()
    else:
        shutil.rmtree(folder / CODES, ignore_errors=True)
    (folder / CODES).mkdir()
    _keep_model(folder, model, report)
    record = model_folder.read_record(folder / MODEL)
    model_folder.read_weights(folder / MODEL)  # complete, and consistent with its fingerprint
    about = {"fingerprint": record["fingerprint"], "bits": str(record["bits"]), "codes": codes}
    if upgrade:
        Catalogue.create_from(replaced / CATALOGUE, folder / CATALOGUE, about | {UPDATE: UPGRADING})
    else:
        Catalogue.create(folder / CATALOGUE, about | {UPDATE: UNFINISHED}).close()
    write_header(
        folder, bits=record["bits"], fingerprint=record["fingerprint"], generation=-1, codes={}, items=0, root=None
    )
    return folder


def switch(folder: Path) -> None:
    """Replace an index by the one that was rebuilt inside its folder. Needs `writer`, and a closed catalogue.

    Renaming the new index to .rebuild.ready is the moment of the change: before it, the old index is intact; after it,
    every process that opens the folder first completes the moves.
    """
    if not (folder / REBUILD / SKIPPED).exists():
        (folder / SKIPPED).unlink(missing_ok=True)
    sync_tree(folder / REBUILD)
    os.replace(folder / REBUILD, folder / READY)
    sync_folder(folder)
    finish_switch(folder)


def finish_switch(folder: Path) -> None:
    """Move the files of a rebuilt index into their places; can be interrupted and repeated. Needs `writer`."""
    ready = folder / READY
    if not ready.is_dir():
        return
    if (ready / CATALOGUE).exists():
        drop_journal(folder / CATALOGUE)
        (folder / SEAL).unlink(missing_ok=True)
    last = [CATALOGUE, SEAL, HEADER]
    names = sorted(entry.name for entry in ready.iterdir() if not entry.name.startswith(_REPLACED))
    for name in sorted(names, key=lambda name: last.index(name) if name in last else -1):
        if (ready / name).is_dir() and (folder / name).exists():
            os.replace(folder / name, ready / f"{_REPLACED}{name}")
        os.replace(ready / name, folder / name)
    sync_folder(ready)
    sync_folder(folder)
    shutil.rmtree(ready)


def await_switch(folder: Path) -> None:
    """Return when no rebuilt index is being moved into its place; complete the moves if their process was killed."""
    end = time.monotonic() + SWITCH_SECONDS
    while (folder / READY).is_dir():
        try:
            with writer(folder):
                finish_switch(folder)
        except BusyError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        except (ModelError, OSError) as error:
            raise StorageError(
                f"{folder} was being replaced when its process or machine stopped, and cannot be completed ({error}).",
                state=error.state if isinstance(error, StorageError) else "read-only",
                which=folder,
                hint="Copy the whole folder to a place that can be written and open it there, or make it writable.",
            ) from error


def check_target(folder: Path) -> None:
    """Refuse a folder or file that exists but is not an index."""
    if is_index(folder) or not folder.exists():
        return
    ours = folder.is_dir() and all(entry.name in _OURS or _is_draft(entry.name) for entry in folder.iterdir())
    if not ours:
        raise ModelError(
            f"{folder} exists but is not a dcmh index, so it is not overwritten.", hint="Choose another --out."
        )


def write_skipped(folder: Path, skipped: Sequence[tuple[str, str]]) -> None:
    """Write skipped.tsv, or remove it if nothing was skipped."""
    if not skipped:
        (folder / SKIPPED).unlink(missing_ok=True)
        return
    write_text(folder / SKIPPED, model_folder.skipped_tsv(skipped))


def skipped_checksum(folder: Path) -> dict[str, Any] | None:
    """Size and SHA-256 of skipped.tsv; None if there is none."""
    path = folder / SKIPPED
    return {"size": path.stat().st_size, "sha256": checksums.sha256(path)} if path.is_file() else None


def _keep_model(folder: Path, model: Hasher | Path, report: str | None) -> None:
    copy = folder / MODEL
    if not isinstance(model, Path):
        model.save(copy, extra={} if report is None else {model_folder.REPORT: report})
        return
    model_folder.read_record(model)
    if copy.exists() and model.resolve() == copy.resolve():
        return
    with whole_folder(copy) as draft:
        models.copy_files(model, draft)


def _fingerprint(folder: Path, model: Hasher | Path) -> str:
    """The fingerprint of a model. A model in memory has to be written to have one."""
    if isinstance(model, Path):
        return str(model_folder.read_record(model)["fingerprint"])
    draft = folder / ".fingerprint.part"
    model.save(draft)
    try:
        return str(model_folder.read_record(draft)["fingerprint"])
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _is_draft(name: str) -> bool:
    return name.startswith(".") and name.endswith((".part", ".part-journal", ".old"))


def _sweep(folder: Path) -> None:
    """Remove drafts left by a killed process, and restore a model that was being replaced."""
    recover(folder / MODEL)
    for entry in folder.iterdir():
        if _is_draft(entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink(missing_ok=True)


def _no_index(folder: Path) -> ModelError:
    if not folder.exists():
        return ModelError(
            f"There is no index {folder}.", hint=f"Make one: dcmh index DATA --out {shlex.quote(str(folder))}"
        )
    if (folder / CATALOGUE).is_file() and folder.is_dir():
        return ModelError(
            f"The creation of the index {folder} was interrupted.", hint="Run the same dcmh index command again."
        )
    what = f"{folder} is not a dcmh index (no {HEADER})."
    if model_folder.is_model(folder):
        return ModelError(
            f"{what} It is a model.", hint=f"Make an index with it: dcmh index DATA --model {shlex.quote(str(folder))}"
        )
    if (folder / "codes.json").is_file():
        what = f"{what} It is a folder of codes that dcmh encode wrote."
        return ModelError(what, hint="Make an index of the data: dcmh index DATA --model MODEL")
    if not folder.is_dir():
        return ModelError(f"{folder} is a file, not a dcmh index.", hint="Give the folder that dcmh index wrote.")
    beside = Path(f"{folder.resolve().name}.dcmh")  # what dcmh index makes of it unless told otherwise
    if is_index(beside):
        return ModelError(what, hint=f"Did you mean {beside}?")
    return ModelError(what, hint=f"Make one: dcmh index {shlex.quote(str(folder))}")
