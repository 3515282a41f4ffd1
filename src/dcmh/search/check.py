"""Complete verification of what dcmh stored, and repair of what can be derived from the rest."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh import codes, stores
from dcmh.errors import DamagedError, DataError, DCMHError, ImageError
from dcmh.index import HammingIndex
from dcmh.index.fine import HEADER as FINE
from dcmh.index.fine import FineIndex
from dcmh.index.storage import HEADER as HAMMING
from dcmh.index.storage import NPY_ERRORS
from dcmh.inputs.images import content_hash
from dcmh.methods import folder as model_folder
from dcmh.stores.base import UPLOADED, UPLOADS, Store
from dcmh.stores.local import layout
from dcmh.stores.local.catalogue import Catalogue
from dcmh.stores.local.store import LocalStore
from dcmh.util import checksums
from dcmh.util.cache import VectorStore, home

OK, DAMAGED, UNVERIFIED, REPAIRED = "ok", "damaged", "not verified", "repaired"
CODES = "codes.json"  # the header of a folder that dcmh encode wrote
VECTORS = ("features", "sentences", "signatures")  # folders of the cache
_ITEMS_AT_ONCE = 10_000


@dataclass
class Finding:
    """The result of one check: what was checked, OK, DAMAGED, UNVERIFIED or REPAIRED, details, and what to do."""

    what: str
    result: str
    detail: str = ""
    hint: str = ""


class Check:
    """The findings of `dcmh check`, in order. With `repair`, what can be derived is derived again."""

    def __init__(self, *, repair: bool = False) -> None:
        self.repair = repair
        self.findings: list[Finding] = []

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged any more."""
        return all(finding.result != DAMAGED for finding in self.findings)

    def add(self, what: str, result: str, detail: str = "", hint: str = "") -> Finding:
        """Record a finding."""
        self.findings.append(Finding(what, result, detail, hint))
        return self.findings[-1]

    @contextlib.contextmanager
    def step(self, what: str, hint: str = "") -> Iterator[Finding]:
        """Record one check; an error in the block makes it DAMAGED."""
        finding = self.add(what, OK)
        try:
            yield finding
        except (DCMHError, OSError, KeyError, TypeError, RecursionError, sqlite3.Error, *NPY_ERRORS) as error:
            finding.result = DAMAGED
            finding.detail = error.what if isinstance(error, DCMHError) else f"{type(error).__name__}: {error}"
            finding.hint = hint or (error.hint if isinstance(error, DCMHError) else "")

    def repaired(self, findings: Iterable[Finding], work: Callable[[], object], detail: str) -> None:
        """Repair some findings, if that is wanted: they are REPAIRED, or say why they cannot be."""
        findings = [finding for finding in findings if finding.result in (DAMAGED, UNVERIFIED)]
        if not findings or not self.repair:
            return
        try:
            work()
        except (DCMHError, OSError) as error:
            for finding in findings:
                finding.detail += f" Not repaired: {error}"
        else:
            for finding in findings:
                finding.result, finding.detail, finding.hint = REPAIRED, detail, ""

    # -- folders with a manifest ------------------------------------------------------------------------------------

    def manifest(self, folder: Path, name: str, hint: str, *, in_blocks: tuple[str, ...] = ()) -> list[Finding]:
        """Check all files of a folder against its checksums.json."""
        first = len(self.findings)
        try:
            entries = checksums.read_manifest(folder)
        except DamagedError as error:
            finding = self.add(f"{name}{checksums.MANIFEST}", DAMAGED, error.what, hint)
            if _files_match(folder):
                self.repaired([finding], lambda: rewrite_manifest(folder, in_blocks), "written again")
            return self.findings[first:]
        if entries is None:
            detail = "there are no checksums: an older version of dcmh wrote this folder"
            self.add(f"{name}{checksums.MANIFEST}", UNVERIFIED, detail, "Add them: --repair")
            return self.findings[first:]
        self.add(f"{name}{checksums.MANIFEST}", OK, f"{len(entries)} files")
        for file, entry in entries.items():
            with self.step(f"{name}{file}", hint):
                checksums.check_file(folder / file, entry)
        unlisted = sorted(
            file.name
            for file in folder.iterdir()
            if file.is_file() and file.name not in entries and file.name != checksums.MANIFEST
        )
        if unlisted:
            self.add(f"{name}*", UNVERIFIED, f"not listed in {checksums.MANIFEST}: {', '.join(unlisted)}")
        return self.findings[first:]

    def model(self, folder: Path, name: str = "") -> str | None:
        """Check a model folder; returns its fingerprint, or None if model.json is not readable."""
        hint = "It cannot be derived. Copy the model again, or train it again."
        manifest = self.manifest(folder, name, hint, in_blocks=(model_folder.WEIGHTS,))
        fingerprint = None
        with self.step(f"{name}record, weights and history", hint) as finding:
            fingerprint = str(model_folder.read_record(folder)["fingerprint"])
            model_folder.read_weights(folder)
            model_folder.read_history(folder)
            for file in folder.glob("*.json"):
                json.loads(file.read_bytes())
            finding.detail = f"fingerprint {fingerprint}"
        if manifest[0].result == UNVERIFIED and finding.result == OK:
            self.repaired(manifest[:1], lambda: rewrite_manifest(folder, (model_folder.WEIGHTS,)), "checksums added")
        return fingerprint

    def codes(self, folder: Path) -> None:
        """Check a folder that dcmh encode wrote."""
        hint = "It cannot be derived. Run dcmh encode again."
        manifest = self.manifest(folder, "", hint)
        with self.step("codes, ids and record", hint) as finding:
            record = json.loads((folder / CODES).read_bytes())
            names, packed = _encoded_blocks(folder, record) if "blocks" in record else _encoded_arrays(folder)
            if packed.shape != (record["count"], codes.bytes_of(record["bits"])) or len(names) != len(packed):
                raise DataError(f"{folder} holds {len(packed)} codes and {len(names)} ids, not {record['count']}.")
            if len(set(names)) != len(names):
                raise DataError(f"The ids in {folder} are not unique.")
            finding.detail = f"{len(packed):,} codes"
        if manifest[0].result == UNVERIFIED and finding.result == OK:
            self.repaired(manifest[:1], lambda: rewrite_manifest(folder), "checksums added")

    def checkpoint(self, file: Path) -> None:
        """Check the checkpoint of a training."""
        from safetensors import SafetensorError, safe_open

        hint = "It cannot be derived. Start the training over, without --resume."
        with self.step(file.name, hint) as finding:
            if not checksums.check_sealed_file(file):
                finding.result, finding.detail = UNVERIFIED, "it has no checksum: an older version of dcmh wrote it"
            try:
                with safe_open(file, framework="numpy") as opened:
                    metadata = opened.metadata() or {}
                    json.loads(metadata["identity"]), json.loads(metadata["record"])
            except SafetensorError as error:
                raise DataError(f"{file} is damaged ({error}).") from error

    def hamming(self, folder: Path, name: str = "") -> list[Finding]:
        """Check the files of a Hamming index, and of the fine vectors beside it if there are any."""
        first = len(self.findings)
        with self.step(f"{name}{HAMMING}, codes and ids", "Save the index again.") as finding:
            index = HammingIndex.load(folder)
            index.check()
            finding.detail = f"{len(index):,} codes"
            _unsealed(folder / HAMMING, finding)
        if (folder / FINE).is_file():
            with self.step(f"{name}{FINE}, fine vectors and ids") as finding:
                header = checksums.read_sealed_json(folder / FINE)
                vectors = FineIndex.load(folder, header["generation"])
                vectors.check()
                for kind, crc32 in header.get("crc32", {}).items():
                    if checksums.crc32(folder / header[kind]) != crc32:
                        raise checksums.mismatch(folder / header[kind])
                finding.detail = f"{len(vectors):,} vectors"
                _unsealed(folder / FINE, finding)
        return self.findings[first:]

    # -- an index in a folder ---------------------------------------------------------------------------------------

    def index(self, folder: Path) -> None:
        """Check an index folder: its header, model, catalogue, codes and uploads, and that they belong together."""
        again = f"It cannot be derived. Make the index again: dcmh index DATA --model MODEL --out {folder} --rebuild"
        fingerprint = self.model(folder / layout.MODEL, f"{layout.MODEL}/")
        model_intact = self.is_intact
        header: dict[str, Any] = {}
        with self.step(layout.HEADER, "Derive it from the catalogue: --repair") as head:
            header = layout.read_header(folder)
            _unsealed(folder / layout.HEADER, head)
        derived = [head]
        before = len(self.findings)
        catalogue = self._catalogue(folder, again)
        if catalogue is None:
            return
        with contextlib.closing(catalogue):
            with self.step("index and model belong together", again):
                names = {
                    str(header.get("fingerprint", fingerprint)),
                    str(fingerprint),
                    str(catalogue.about("fingerprint")),
                }
                if len(names) > 1:
                    raise DataError(f"Their fingerprints differ: {', '.join(sorted(names))}.")
            with self.step("items and codes", again) as finding:
                finding.detail = _check_rows(catalogue)
            sound = model_intact and all(
                finding.result != DAMAGED for finding in self.findings[before:] if finding.what != layout.SEAL
            )
            if finding.result == OK:
                self._uploads(folder, catalogue)
            current = header.get("generation") == catalogue.generation
            if header and not current:
                detail = "older than the catalogue: the next opening derives them"
                derived.append(self.add(f"{layout.CODES}/", UNVERIFIED, detail, "Derive them now: --repair"))
            elif header:
                derived += self._derived(folder, header, catalogue)
        seal = next((finding for finding in self.findings if finding.what == layout.SEAL), None)
        if sound:
            self.repaired([*derived, *([seal] if seal else [])], lambda: _derive(folder), "derived from the catalogue")

    def _catalogue(self, folder: Path, hint: str) -> Catalogue | None:
        path = folder / layout.CATALOGUE
        seal = path.with_name(layout.SEAL)
        entry = None
        if seal.is_file():
            with self.step(layout.SEAL, "Write it again: --repair") as finding:
                record = checksums.read_sealed_json(seal)
                if not _unsealed(seal, finding):
                    entry = record
        else:
            detail = "changed since it was last saved, or by an older version: only its structure can be checked"
            self.add(layout.SEAL, UNVERIFIED, detail, "Add a checksum: --repair")
        with self.step(layout.CATALOGUE, hint) as whole:
            if entry is not None:
                checksums.check_file(path, entry)
                whole.detail = "whole file"
        with self.step(f"{layout.CATALOGUE}, structure", hint):
            catalogue = Catalogue(path)
            try:
                if problem := catalogue.problem():
                    raise DataError(problem)
            except BaseException:
                catalogue.close()
                raise
            return catalogue
        return None

    def _derived(self, folder: Path, header: dict[str, Any], catalogue: Catalogue) -> list[Finding]:
        """The files that repeat the catalogue: whole, and equal to it."""
        first = len(self.findings)
        for name, count in header["codes"].items():
            place = folder / layout.CODES / name
            self.hamming(place, f"{layout.CODES}/{name}/")
            with self.step(f"{layout.CODES}/{name}/, compared with the catalogue"):
                ids, packed = catalogue.codes(name, codes.bytes_of(header["bits"]))
                index = HammingIndex.load(place)
                if (
                    len(ids) != count
                    or not np.array_equal(index.ids, ids)
                    or not np.array_equal(index.codes(ids), packed)
                ):
                    raise DataError(f"The codes in {place} are not those of the catalogue.")
                if name in header.get("fine", ()):
                    ids, vectors = FineIndex.load(place, header["generation"]).live()
                    expected = catalogue.fine(name)
                    if not np.array_equal(ids, expected[0]) or not np.array_equal(vectors, expected[1]):
                        raise DataError(f"The fine vectors in {place} are not those of the catalogue.")
        if header.get("skipped") is not None:
            with self.step(layout.SKIPPED):
                checksums.check_file(folder / layout.SKIPPED, header["skipped"])
        return self.findings[first:]

    def _uploads(self, folder: Path, catalogue: Catalogue) -> None:
        """Uploaded pictures have the content that the catalogue recorded."""
        count, missing = 0, []
        for item in catalogue.items():
            if item.name.startswith(UPLOADED) and item.path is not None:
                count += 1
                try:
                    intact = content_hash(folder / UPLOADS / item.name.removeprefix(UPLOADED)) == item.content
                except (ImageError, OSError):
                    intact = False
                if not intact:
                    missing.append(item.name)
        if missing:
            self.add(f"{UPLOADS}/", DAMAGED, f"missing or changed: {', '.join(missing[:5])}", "Upload them again.")
        elif count:
            self.add(f"{UPLOADS}/", OK, f"{count:,} pictures")

    # -- a collection on a server, and the cache ------------------------------------------------------------------------

    def collection(self, address: str) -> None:
        """Check a collection on a server: its model on this machine, and that its items and codes fit together."""
        with contextlib.closing(stores.open_store(address)) as store:
            self.model(store.model, "model/")
            with self.step(
                "items and codes", "Make the collection again: dcmh index DATA --out ADDRESS --rebuild"
            ) as finding:
                finding.detail = _check_store(store)

    def cache(self) -> None:
        """Check the cache folder: models, sentence encoders, features and signatures."""
        for folder in sorted((home() / "models").glob("*/")):
            self.model(folder, f"models/{folder.name}/")
        for folder in sorted((home() / "encoders").glob("*/")):
            self.manifest(folder, f"encoders/{folder.name}/", "Delete the folder: it is only a cache.")
        for path in sorted(path for kind in VECTORS for path in home().glob(f"{kind}/*.sqlite")):
            with self.step(f"{path.parent.name}/{path.name}", "Delete the file: it is only a cache.") as finding:
                store = VectorStore(path.parent.name, path.stem)
                count, damaged = store.damaged()
                finding.detail = f"{count:,} entries"
                if damaged:
                    finding.result, finding.detail = DAMAGED, f"{len(damaged):,} of {count:,} entries"
                    self.repaired([finding], lambda store=store, keys=damaged: store.drop(keys), "entries deleted")  # type: ignore[misc]


def rewrite_manifest(folder: Path, in_blocks: tuple[str, ...] = ()) -> None:
    """Write checksums.json for a folder as it is now."""
    (folder / checksums.MANIFEST).unlink(missing_ok=True)
    checksums.write_manifest(folder, in_blocks=in_blocks)


def _files_match(folder: Path) -> bool:
    """Whether a damaged checksums.json is still readable and all files match it."""
    try:
        files = json.loads((folder / checksums.MANIFEST).read_bytes())["files"]
        for name, entry in files.items():
            checksums.check_file(folder / name, entry)
    except (DamagedError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _unsealed(path: Path, finding: Finding) -> bool:
    """Mark the finding of a file that contains no checksum, as older versions wrote it; returns whether it is one."""
    if checksums.check_sealed(path.read_bytes(), path):
        return False
    finding.result, finding.detail = UNVERIFIED, "it has no checksum: an older version of dcmh wrote it"
    finding.hint = "Add one: --repair"
    return True


def _derive(folder: Path) -> None:
    with layout.writer(folder), contextlib.closing(LocalStore(folder)) as store:
        store.rederive()


def _check_rows(catalogue: Catalogue) -> str:
    """Every code, fine vector and entry of the word index belongs to an item, and every item has a code."""
    known = np.fromiter((item.id for item in catalogue.items()), np.int64)
    bits = int(catalogue.about("bits") or 0)
    coded = [np.empty(0, np.int64)]
    for name in catalogue.coded_modalities():
        ids, _ = catalogue.codes(name, codes.bytes_of(bits))
        coded.append(ids)
        for kind, numbers in (("codes", ids), ("fine vectors", catalogue.fine(name)[0])):
            if orphans := len(np.setdiff1d(numbers, known)):
                raise DataError(f"{orphans:,} {kind} of {name} belong to no item.")
    if without := len(np.setdiff1d(known, np.concatenate(coded))):
        raise DataError(f"{without:,} items have no code.")
    return f"{len(known):,} items"


def _check_store(store: Store) -> str:
    """The same through the protocol of stores."""
    count = without = 0
    names: set[str] = set()
    width = codes.bytes_of(int(model_folder.read_record(store.model)["bits"]))
    items = store.items()
    while block := list(islice(items, _ITEMS_AT_ONCE)):
        for item in block:
            if item.name in names:
                raise DataError(f"The name {item.name!r} occurs twice.")
            names.add(item.name)
        ids = [item.id for item in block]
        coded = [store.codes_of(name, ids) for name in store.modalities()]
        if any(len(code) != width for by_id in coded for code in by_id.values()):
            raise DataError(f"Some codes are not {width} bytes long.")
        count += len(ids)
        without += len(set(ids).difference(*coded))
    if without:
        raise DataError(f"{without:,} of {count:,} items have no code.")
    return f"{count:,} items"


def _encoded_arrays(folder: Path) -> tuple[list[str], NDArray[np.uint8]]:
    """The ids and codes that dcmh encode wrote."""
    packed = np.load(folder / "codes.npy", allow_pickle=False)
    return (folder / "ids.txt").read_text(encoding="utf-8").splitlines(), packed


def _encoded_blocks(folder: Path, record: Mapping[str, Any]) -> tuple[list[str], NDArray[np.uint8]]:
    """The same of dcmh encode --format parquet."""
    from dcmh.search.block_files import read_block

    names, joined = [], bytearray()
    for file in sorted(folder.glob("block-*.parquet")):
        for (name, _), item in zip(*read_block(file), strict=True):
            if item.error is None:
                names.append(name)
                joined += item.codes[record["modality"]]
    width = codes.bytes_of(record["bits"])
    return names, np.frombuffer(joined, np.uint8).reshape(-1, width)
