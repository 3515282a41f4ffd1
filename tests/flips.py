"""Single flipped bytes in stored files, and who notices them.

    python -m tests.flips --flips 2000

Builds a small model, index, codes folder and checkpoint, damages one byte at a time, and counts which are noticed by
`dcmh check`, and which by opening and one search (or loading, or resuming). Half of the bytes are drawn from all bytes, half
from a file that is drawn first, so that small files get their share.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

import dcmh
from dcmh.cli import main
from dcmh.cli.check import verify
from dcmh.errors import DCMHError, TrainingStopped
from dcmh.search import SearchIndex
from dcmh.search.check import Check
from dcmh.stores.local import layout
from dcmh.stores.local.store import LocalStore
from toy_photos import cheap, load, write_photos

KINDS = ("model", "index.dcmh", "codes", "state.safetensors")
SETTINGS = {"bits": 16, "hidden": 32, "device": "cpu", "text_encoder": "none"}


def build(folder: Path) -> Path:
    """A model, an index with fine vectors, a codes folder and a checkpoint; and the data of the index beside them."""
    kept = folder / "kept"
    photos = write_photos(folder / "photos", 24)
    data = load(photos)
    split = dcmh.load_dataset("toy").split(12, seed=0)
    model = dcmh.DCMH(**SETTINGS, epochs=4).fit(split.train, fine=0)
    model.save(kept / "model", extra={"report.json": "{}\n"})
    SearchIndex.build(kept / "model", data, kept / "index.dcmh").close()
    with layout.writer(kept / "index.dcmh"), contextlib.closing(LocalStore(kept / "index.dcmh")) as store:
        with store.writing():
            generator = np.random.default_rng(0)
            for item in list(store.items()):
                for name in ("image", "text"):
                    store.set_fine(item.id, name, generator.integers(-40, 41, 64, np.int8).tobytes())
        store.settle([("broken.png", "truncated")])
    assert (
        main(
            ["encode", str(photos), "--model", str(kept / "model"), "--modality", "text", "--out", str(kept / "codes")]
        )
        == 0
    )
    resume(kept, stop=True)
    return kept


def resume(kept: Path, *, stop: bool = False) -> object:
    """Train a little further from the checkpoint."""
    train = dcmh.load_dataset("toy").split(12, seed=0).train.take(np.arange(64))
    model = dcmh.DCMH(**SETTINGS, epochs=2)
    with contextlib.suppress(TrainingStopped):
        model.fit(train, fine=0, checkpoint=kept / "state.safetensors", stop=lambda: stop)
    return model.encode(text=["sunny yellow"]).tolist() if not stop else None


def used(kept: Path, kind: str) -> object:
    """The result of opening a thing and using it once."""
    if kind == "model":
        return dcmh.load(kept / kind).encode(text=["sunny yellow"]).tolist()
    if kind == "index.dcmh":
        with SearchIndex.open(kept / kind) as index:
            return [(hit.id, hit.distance, hit.text, hit.path) for hit in index.search(text="sunny yellow", k=24)]
    return resume(kept) if kind == "state.safetensors" else None  # codes are read by other programs


class Warnings(logging.Handler):
    """Counts the warnings of dcmh."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        self.count += 1


def positions(kept: Path, flips: int, seed: int) -> list[tuple[Path, int, int]]:
    """Files, offsets, and the values that the bytes there are changed by."""
    files = {path: path.stat().st_size for path in sorted(kept.rglob("*")) if path.is_file() and path.stat().st_size}
    generator = random.Random(seed)
    chosen = []
    for number in range(flips):
        weights = list(files.values()) if number % 2 else None
        (path,) = generator.choices(list(files), weights)
        chosen.append((path, generator.randrange(files[path]), generator.randrange(1, 256)))
    return chosen


def run(kept: Path, flips: int, *, seed: int = 0, use: bool = True) -> dict[str, Counter[str]]:
    """Damage one byte at a time; returns what happened, by kind of thing."""
    shutil.copytree(kept, whole := kept.with_name("whole"))
    expected = {kind: used(kept, kind) for kind in KINDS} if use else {}
    outcomes: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    log = logging.getLogger("dcmh")
    warnings = Warnings()
    log.addHandler(warnings)
    log.propagate, before = False, log.propagate
    for path, offset, change in positions(whole, flips, seed):
        inside = path.relative_to(whole)
        kind = inside.parts[0]
        _copy(whole / kind, kept / kind)
        content = bytearray(path.read_bytes())
        content[offset] ^= change
        (kept / inside).write_bytes(content)
        outcome = outcomes[kind]
        outcome["flips"] += 1
        check = Check()
        try:
            verify(check, str(kept / kind))
        except DCMHError:
            noticed = True
        else:
            noticed = not check.is_intact
        outcome["check"] += noticed
        if not noticed:
            outcome[f"missed by check: {inside} at {offset}"] += 1
        if use:
            warnings.count = 0
            try:
                result = used(kept, kind)
            except DCMHError:
                outcome["use: noticed"] += 1
            else:
                same = result == expected[kind]
                outcome["use: noticed" if warnings.count else "use: same result" if same else "use: OTHER result"] += 1
                if not same:
                    outcome[f"other result: {inside} at {offset}, noticed: {bool(warnings.count)}"] += 1
        _copy(whole / kind, kept / kind)
    log.removeHandler(warnings)
    log.propagate = before
    shutil.rmtree(whole)
    return outcomes


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copyfile(source, target)
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cheap(Path(folder) / "home"):
        for kind, outcome in run(build(Path(folder)), chosen.flips, seed=chosen.seed).items():
            sys.stdout.write(f"{kind}: {dict(outcome)}\n")
