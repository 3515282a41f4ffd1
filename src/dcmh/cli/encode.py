"""dcmh encode: the codes of one modality as plain files, for other programs."""

from __future__ import annotations

import json as json_lines
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.cli import console, processes
from dcmh.cli.index import load
from dcmh.cli.options import Switch
from dcmh.cli.source import as_table, say_skipped
from dcmh.errors import DataError, ModelError, ParameterError

if TYPE_CHECKING:
    from dcmh.data import Dataset
    from dcmh.search.encode import Encoders

FORMAT = 1
KIND = "dcmh codes"
HEADER = "codes.json"


def encode(
    data: str,
    /,
    *,
    model: Path,
    modality: str,
    out: Path | None = None,
    text: str | None = None,
    workers: int = 1,
    strict: Switch = False,
    device: str = "auto",
    json: Switch = False,
) -> int:
    """Write the codes of one modality for other programs: codes.npy, ids.txt, codes.json.

    codes.npy holds packed codes, uint8 (items, bytes): bit 0 of a code is the lowest bit of byte 0. Line i of ids.txt
    names row i.

    May be stopped or killed at any time: run the same command again, and it goes on. Several machines that share the
    folders of data, model and codes work together: torchrun ... -m dcmh encode ...

    Parameters
    ----------
    data
        As for dcmh index.
    model
        The folder that dcmh train wrote.
    modality
        image or text, or whatever the model calls it.
    out
        The folder for the codes. Default: NAME.MODALITY.codes here.
    text
        Table with the words, as for dcmh train.
    workers
        Processes on this machine that share the work.
    strict
        Exit code 3 if anything was skipped.
    device
        auto, cpu, cuda, cuda:1 or mps.
    json
        Print the result as JSON.
    """
    from dcmh.search.encode import Encoders

    if workers < 1:
        raise ParameterError(f"--workers must be at least 1, not {workers}.")
    encoders = Encoders(model, device=processes.device_of(device))
    if modality not in encoders.modalities:
        raise ParameterError(f"{model} knows no modality {modality!r}. It has: {', '.join(encoders.modalities)}.")
    items = load(data, text, model)
    encoders.check(items)
    if modality not in items.modalities or not items.observed(modality).any():
        raise DataError(f"No item of {data} has the modality {modality!r}. It has: {', '.join(items.modalities)}.")
    out = out or Path(f"{items.name or 'data'}.{modality}.codes")
    _check_out(out)
    found = _encoded(encoders, items, modality, out, workers)
    if found is None:  # the first process writes
        return 0
    rows, packed, failed = found
    skipped = [*items.skipped, *failed]
    record = _write(out, items, rows, packed, encoders, modality, skipped)
    shutil.rmtree(out.with_name(f".{out.name}.shards"), ignore_errors=True)
    say_skipped(skipped, f", listed in {out / 'skipped.tsv'}")
    if json:
        console.result_json({"codes": str(out), **record, "skipped": len(skipped)})
    else:
        console.result(f"{len(rows):,} codes of {encoders.bits} bits in {out}")
    console.say(f"Next: dcmh info {shlex.quote(str(out))}")
    return 3 if strict and skipped else 0


def _check_out(out: Path) -> None:
    if out.exists() and not (out / HEADER).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(f"{out} exists and holds no dcmh codes, so it is not overwritten. Choose another --out.")


def _encoded(
    encoders: Encoders, items: Dataset, modality: str, out: Path, workers: int
) -> tuple[list[int], Any, list[tuple[str, str]]] | None:
    """Rows, their packed codes, and what failed; None in a process that only helps."""
    import numpy as np

    from dcmh import codes
    from dcmh.search.shards import Shards

    shards = Shards(out.with_name(f".{out.name}.shards"), encoders, items[modality], modality)
    rank, size = processes.place()
    if console.follows():
        shards.help(rank * len(shards.parts) // size, lambda: processes.is_fresh(out / HEADER))
        return None
    shards.open()
    done = shards.count()
    if done:
        console.say(f"{done:,} of {len(shards.rows):,} are encoded already.")
    try:
        with processes.helpers(workers), console.progress("encoding", f"{encoders.kind(modality)}s") as bar:
            shards.work(progress=bar.update)
            found, failed = shards.finish(bar.update)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. What was encoded is kept. Go on: {console.command()}") from None
    rows = sorted(found)
    joined = b"".join(found[row] for row in rows)
    packed = np.frombuffer(joined, np.uint8).reshape(len(rows), codes.bytes_of(encoders.bits))
    return rows, packed, [(items.ids[row], failed[row]) for row in sorted(failed)]


def _write(
    out: Path,
    items: Dataset,
    rows: list[int],
    packed: Any,
    encoders: Encoders,
    modality: str,
    skipped: list[tuple[str, str]],
) -> dict[str, Any]:
    """The folder, whole or not at all."""
    import numpy as np

    from dcmh.util.atomic import whole_folder

    names = [items.ids[row] for row in rows]
    broken = next((name for name in names if len(name.splitlines()) != 1), None)
    if broken is not None:
        raise DataError(f"The id {broken!r} does not fit on one line of ids.txt. Rename the item.")
    record = {
        "kind": KIND,
        "format": FORMAT,
        "version": __version__,
        "bits": encoders.bits,
        "count": len(rows),
        "modality": modality,
        "data": items.name,
        "model": encoders.record["fingerprint"],
        "method": encoders.record["method"],
    }
    with whole_folder(out) as draft:
        np.save(draft / "codes.npy", packed, allow_pickle=False)
        (draft / "ids.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
        (draft / HEADER).write_text(json_lines.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if skipped:
            (draft / "skipped.tsv").write_text(as_table(skipped), encoding="utf-8")
    return record
