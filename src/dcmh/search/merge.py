"""Several indexes of the same model as one: equal to indexing all their items into a new index, in this order."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dcmh import stores
from dcmh.errors import BusyError, DataError, ModelError, ModelMismatch, ParameterError
from dcmh.methods.folder import read_record
from dcmh.stores.address import Address, is_address
from dcmh.stores.base import COLUMNS, FINISHED, UNFINISHED, UPDATE, UPLOADED, UPLOADS, Item, Store
from dcmh.util.atomic import whole_folder

BLOCK = 10_000  # items at a time


@dataclass
class Merged:
    """What `merge` did."""

    items: int = 0
    repeated: int = 0  # items that several indexes have, stored once


def merge(sources: Sequence[Path | str | Address], out: Path | str, *, prefix: bool = False) -> Merged:
    """Write one index of all items of several indexes, in their order, to a new folder; all of it, or nothing.

    An item that several indexes have (the same name, content, text and labels) is stored once. The same name with anything
    else is an error, unless `prefix` puts a folder before the names of each index: its data folder, relative to the one that
    contains all, or the name of the index where all have the same data folder.
    """
    if len(sources) < 2:
        raise ParameterError("There must be at least two indexes to merge.")
    target = Path(str(out))
    if is_address(out):
        raise ParameterError("The merged index is written to a folder, not to a server.", hint="Give a folder.")
    if target.exists():
        raise ModelError(f"{target} exists, so it is not overwritten.", hint="Choose another --out.")
    with ExitStack() as opened:
        parts = [opened.enter_context(closing(stores.open_store(source))) for source in sources]
        _check_alike(parts)
        generations = [part.generation for part in parts]
        with whole_folder(target) as draft:
            done = _Merge(parts, draft, prefix=prefix).run()
            for part, generation in zip(parts, generations, strict=True):
                if part.replaced() or part.generation != generation:
                    raise BusyError(f"{part.place} was changed while it was merged.", hint="Merge again.")
    return done


def _check_alike(parts: Sequence[Store]) -> None:
    """Refuse indexes of different models, or with different kinds of codes."""
    first = parts[0]
    model = str(read_record(first.model)["fingerprint"])
    for part in parts[1:]:
        other = str(read_record(part.model)["fingerprint"])
        if other != model:
            raise ModelMismatch(
                f"{first.place} was built with model {model[:8]}, {part.place} with {other[:8]}.",
                hint=f"Upgrade one of them first: dcmh index DATA --model MODEL --out {part.place} --upgrade",
            )
        if (part.about("codes") or "each") != (first.about("codes") or "each"):
            raise ModelMismatch(
                f"{first.place} has codes {first.about('codes')!r}, {part.place} {part.about('codes')!r}.",
                hint="Index one of them again with --codes and --rebuild.",
            )


class _Merge:
    """One run, from open stores to a folder."""

    def __init__(self, parts: Sequence[Store], folder: Path, *, prefix: bool) -> None:
        self.parts = parts
        self.folder = folder
        self.prefix = prefix
        self.done = Merged()
        roots = [part.root for part in parts]
        known = [os.path.abspath(root) for root in roots if root is not None]
        self.root = Path(os.path.commonpath(known)) if known else None

    def run(self) -> Merged:
        """Copy everything."""
        first = self.parts[0]
        codes, prefixes = first.about("codes") or "each", self._prefixes()
        with (
            stores.build_store(self.folder, first.model, rebuild=False, report=None, codes=codes) as store,
            closing(store),
        ):
            store.remember_root(self.root)
            for part, before in zip(self.parts, prefixes, strict=True):
                self._copy(part, store, before)
            finished = all(part.about(UPDATE) != UNFINISHED for part in self.parts)
            columns = dict.fromkeys(name for part in self.parts for name in json.loads(part.about(COLUMNS) or "[]"))
            with store.writing():
                store.note(UPDATE, FINISHED if finished else UNFINISHED)
                if columns:
                    store.note(COLUMNS, json.dumps(list(columns), ensure_ascii=False))
                for part, before in zip(self.parts, prefixes, strict=True):
                    for name, why in part.skipped().items():
                        if store.find(before + name) is None:
                            store.skip(before + name, why)
            store.settle([(name, why.reason) for name, why in store.skipped().items()])
        return self.done

    def _prefixes(self) -> list[str]:
        """The prefix for the names of each index."""
        if not self.prefix:
            return [""] * len(self.parts)
        folders = []
        for part in self.parts:
            inside = None if part.root is None or self.root is None else os.path.relpath(part.root, self.root)
            folders.append(Path(inside or ".").as_posix())
        if len(set(folders)) < len(folders):  # the same data folder, or none
            folders = [Path(str(part.folder)).stem for part in self.parts]
        if len(set(folders)) < len(folders):
            raise ParameterError("Several of the indexes have the same name.", hint="Rename their folders.")
        return ["" if folder == "." else f"{folder}/" for folder in folders]

    def _copy(self, part: Store, store: Store, prefix: str) -> None:
        items = part.items()
        while block := list(islice(items, BLOCK)):
            ids = [item.id for item in block]
            codes = {name: part.codes_of(name, ids) for name in part.modalities()}
            fine = {name: part.fine_of(name, ids) for name in part.modalities()}
            with store.writing():
                for item in block:
                    moved = self._moved(item, part, prefix)
                    if self._is_known(moved, store, part):
                        continue
                    number = store.put(moved)
                    for name in part.modalities():
                        store.set_code(number, name, codes[name].get(item.id))
                        store.set_fine(number, name, fine[name].get(item.id))
                    self.done.items += 1
            self._copy_uploads(part, block)

    def _moved(self, item: Item, part: Store, prefix: str) -> Item:
        """An item as it is in the merged index: with a new id, and its path from the common folder."""
        if item.uploaded:
            return replace(item, id=0)
        path = item.path
        if path is not None and part.root is not None and not os.path.isabs(path):
            path = Path(os.path.relpath(os.path.join(os.path.abspath(part.root), path), self.root)).as_posix()
        return replace(item, id=0, name=prefix + item.name, path=path)

    def _is_known(self, item: Item, store: Store, part: Store) -> bool:
        before = store.find(item.name)
        if before is None:
            return False
        if (before.content, before.text, before.labels) != (item.content, item.text, item.labels):
            raise DataError(
                f"{item.name} of {part.place} is another item in an index before it.",
                which=item.name,
                hint="Remove or rename one of them." if item.uploaded else "Merge with --prefix to keep both.",
            )
        self.done.repeated += 1
        return True

    def _copy_uploads(self, part: Store, items: Sequence[Item]) -> None:
        for item in items:
            if item.uploaded and item.path is not None:
                name = os.path.basename(item.name.removeprefix(UPLOADED))
                (self.folder / UPLOADS).mkdir(exist_ok=True)
                if (part.folder / UPLOADS / name).is_file():
                    shutil.copyfile(part.folder / UPLOADS / name, self.folder / UPLOADS / name)
