"""dcmh encode: the codes of one modality as plain files, for other programs."""

from __future__ import annotations

import contextlib
import json as json_lines
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh import __version__
from dcmh.cli import console
from dcmh.cli.index import load
from dcmh.cli.options import Switch
from dcmh.cli.source import as_table, say_skipped
from dcmh.errors import DataError, ModelError, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dcmh.data import Dataset
    from dcmh.search.encode import Encoders

FORMAT = 1
KIND = "dcmh codes"
HEADER = "codes.json"
STARTED = time.time()


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

    May be stopped or killed at any time: the same command continues. Several machines that share the folders of data,
    model and codes work together: torchrun ... -m dcmh encode ...

    Parameters
    ----------
    data
        As for dcmh index.
    model
        The folder that dcmh train wrote.
    modality
        image, text or another modality of the model.
    out
        The folder for the codes. Default: NAME.MODALITY.codes here.
    text
        Table with the texts, as for dcmh train.
    workers
        Number of processes on this machine that share the work.
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
    encoders = Encoders(model, device=_local_device(device))
    if modality not in encoders.modalities:
        raise ParameterError(f"{model} has no modality {modality!r}. It has: {', '.join(encoders.modalities)}.")
    items = load(data, text, model)
    encoders.check(items)
    if modality not in items.modalities or not items.observed(modality).any():
        raise DataError(f"No item of {data} has the modality {modality!r}. It has: {', '.join(items.modalities)}.")
    out = out or Path(f"{items.name or 'data'}.{modality}.codes")
    check_out(out)
    encoded = _encode(encoders, items, modality, out, workers)
    if encoded is None:  # rank 0 writes
        return 0
    rows, packed, failed = encoded
    skipped = [*items.skipped, *failed]
    about = {"bits": encoders.bits, "modality": modality, "data": items.name}
    about |= {"model": encoders.record["fingerprint"], "method": encoders.record["method"]}
    record = write(out, [items.ids[row] for row in rows], packed, about, skipped=skipped)
    shutil.rmtree(out.with_name(f".{out.name}.shards"), ignore_errors=True)
    say_skipped(skipped, f", listed in {out / 'skipped.tsv'}")
    if json:
        console.result_json({"codes": str(out), **record, "skipped": len(skipped)})
    else:
        console.result(f"{len(rows):,} codes of {encoders.bits} bits in {out}")
    console.say(f"Next: dcmh info {shlex.quote(str(out))}")
    return 3 if strict and skipped else 0


def check_out(out: Path) -> None:
    """Refuse to write codes over something else."""
    if out.exists() and not (out / HEADER).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(
            f"{out} exists but does not hold dcmh codes, so it is not overwritten.", hint="Choose another --out."
        )


def _encode(
    encoders: Encoders, items: Dataset, modality: str, out: Path, workers: int
) -> tuple[list[int], Any, list[tuple[str, str]]] | None:
    """Rows, their packed codes, and what failed; None in a process of rank 1 or more."""
    import numpy as np

    from dcmh import codes
    from dcmh.search.shards import Shards

    shards = Shards(out.with_name(f".{out.name}.shards"), encoders, items[modality], modality)
    rank, size = _rank_and_size()
    if console.follows():
        shards.help(rank * len(shards.parts) // size, lambda: _is_fresh(out / HEADER))
        return None
    shards.open()
    done = shards.count()
    if done:
        console.say(f"{done:,} of {len(shards.rows):,} are encoded already.")
    try:
        with _worker_processes(workers), console.progress("encoding", f"{encoders.kind(modality)}s") as bar:
            shards.work(progress=bar.update)
            packed_rows, failed = shards.finish(bar.update)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. The codes so far are kept. Continue: {console.command()}") from None
    rows = sorted(packed_rows)
    joined = b"".join(packed_rows[row] for row in rows)
    packed = np.frombuffer(joined, np.uint8).reshape(len(rows), codes.bytes_of(encoders.bits))
    return rows, packed, [(items.ids[row], failed[row]) for row in sorted(failed)]


def write(
    out: Path,
    names: Sequence[str],
    packed: NDArray[np.uint8],
    about: Mapping[str, Any],
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    skipped: list[tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """Write a folder of codes atomically; `arrays` are further files. Returns codes.json."""
    import numpy as np

    from dcmh.util import checksums
    from dcmh.util.atomic import whole_folder

    broken = next((name for name in names if len(name.splitlines()) != 1), None)
    if broken is not None:
        raise DataError(f"The id {broken!r} does not fit on one line of ids.txt. Rename the item.")
    record = {"kind": KIND, "format": FORMAT, "version": __version__, "count": len(names), **about}
    with whole_folder(out) as draft:
        for name, array in {"codes.npy": packed, **(arrays or {})}.items():
            np.save(draft / name, array, allow_pickle=False)
        (draft / "ids.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
        (draft / HEADER).write_text(json_lines.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if skipped:
            (draft / "skipped.tsv").write_text(as_table(skipped), encoding="utf-8")
        checksums.write_manifest(draft)
    return record


def _is_fresh(path: Path) -> bool:
    """Whether a file was written since this process started."""
    try:
        return path.stat().st_mtime > STARTED
    except OSError:
        return False


def _rank_and_size() -> tuple[int, int]:
    """The rank of this process and the number of processes, from torchrun; 0 and 1 otherwise."""
    return int(os.environ.get("RANK", "0")), max(1, int(os.environ.get("WORLD_SIZE", "1")))


def _local_device(device: str) -> str:
    """With torchrun and device auto, a GPU for each process of the machine."""
    if device != "auto" or "LOCAL_RANK" not in os.environ:
        return device
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{int(os.environ['LOCAL_RANK']) % count}" if count else device


@contextlib.contextmanager
def _worker_processes(workers: int) -> Iterator[None]:
    """Within the block other processes run the same command, and the cores are divided among all."""
    if workers == 1 or _rank_and_size()[1] > 1:
        yield
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read when torch is loaded
    before = os.environ.get("LOCAL_WORLD_SIZE")
    started: list[subprocess.Popen[bytes]] = []
    try:
        os.environ["LOCAL_WORLD_SIZE"] = str(workers)  # for code that would take all cores
        own = os.environ | {"WORLD_SIZE": str(workers), "OMP_NUM_THREADS": str(threads)}
        for rank in range(1, workers):
            command = [sys.executable, "-m", "dcmh", *console.typed()]
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(
                subprocess.Popen(command, env=own | ranks, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            )
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_WORLD_SIZE"]
        else:
            os.environ["LOCAL_WORLD_SIZE"] = before
        for process in started:
            if process.poll() is None:
                process.terminate()
            process.wait()
