"""dcmh encode: the codes of one modality as plain files, for other programs."""

from __future__ import annotations

import json as json_lines
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dcmh import __version__
from dcmh.cli import console
from dcmh.cli.blocks import WorkOptions, dry_run_result, opened_pool, reporter
from dcmh.cli.data_source import say_skipped
from dcmh.cli.index import load
from dcmh.cli.options import JsonSwitch, Texts
from dcmh.errors import DataError, ModelError, ParameterError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dcmh.data import Dataset
    from dcmh.search.blocks import Blocks, Pool, State
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
    text: Texts = None,
    format: Literal["npy", "parquet"] = "npy",  # noqa: A002 - the word for it
    run: WorkOptions | None = None,
    json: JsonSwitch = False,
) -> int:
    """Write the codes of one modality for other programs: codes.npy, ids.txt, codes.json.

    codes.npy holds packed codes, uint8 (items, bytes): bit 0 of a code is the lowest bit of byte 0. Line i of ids.txt
    names row i. With --format parquet: codes and fine vectors in block-000000.parquet, block-000001.parquet, ….

    Can be stopped or killed at any time; the same command resumes.

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
    format
        npy, or parquet.
    """
    from dcmh.search.blocks import Blocks, Work
    from dcmh.search.encode import Encoders

    run = run or WorkOptions()
    encoders = Encoders(model, device=run.device)
    if modality not in encoders.modalities:
        raise ParameterError(f"{model} has no modality {modality!r}. It has: {', '.join(encoders.modalities)}.")
    items = load(data, text, model)
    encoders.check(items)
    if modality not in items.modalities or not items.observed(modality).any():
        raise DataError(f"No item of {data} has the modality {modality!r}. It has: {', '.join(items.modalities)}.")
    out = out or Path(f"{items.name or 'data'}.{modality}.codes")
    check_out(out)
    rows = items.observed(modality).nonzero()[0].tolist()
    work = Work(model.absolute(), run.device)
    folder = out.with_name(f".{out.name}.blocks")
    blocks = Blocks(folder, encoders, items, work, rows=rows, modalities=[modality])
    if run.dry_run:
        return dry_run_result(blocks, run.workers, run.ray, json=json)
    with opened_pool(run.workers, run.ray) as pool:
        state = _encoded(blocks, pool, run.metrics, f"{encoders.kind(modality)}s")
    record, skipped = _write_blocks(out, items, blocks, encoders, modality, format)
    blocks.remove()
    say_skipped(skipped, f", listed in {out / 'skipped.tsv'}")
    if json:
        done = {"encoded": state.encoded, "seconds": round(state.seconds, 2), "bytes": state.written}
        console.result_json({"codes": str(out), **record, "skipped": len(skipped), **done})
    else:
        console.result(f"{record['count']:,} codes of {encoders.bits} bits in {out}")
    console.say(f"Next: dcmh info {shlex.quote(str(out))}")
    return 3 if run.strict and skipped else 0


def check_out(out: Path) -> None:
    """Refuse to write codes over something else."""
    if out.exists() and not (out / HEADER).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ModelError(
            f"{out} exists but does not hold dcmh codes, so it is not overwritten.", hint="Choose another --out."
        )


def _encoded(blocks: Blocks, pool: Pool, metrics: Path | None, unit: str) -> State:
    try:
        with console.progress("encoding", unit) as bar:
            return blocks.encode(pool, reporter(bar, metrics))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. The codes so far are kept. Continue: {console.command()}") from None


def _write_blocks(
    out: Path,
    items: Dataset,
    blocks: Blocks,
    encoders: Encoders,
    modality: str,
    format: str,  # noqa: A002
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Write the folder of codes; returns codes.json, and what was skipped."""
    import numpy as np

    from dcmh import codes

    names: list[str] = []
    skipped = list(items.skipped)
    joined = bytearray()
    for row, item in blocks:
        if item.error is None:
            names.append(items.ids[row])
            joined += item.codes[modality] if format == "npy" else b""
        else:
            skipped.append((items.ids[row], item.error))
    about = {"bits": encoders.bits, "modality": modality, "data": items.name}
    about |= {"model": encoders.record["fingerprint"], "method": encoders.record["method"]}
    if format == "parquet":
        files = [blocks.file(number) for number in blocks.rows]
        return write(out, names, None, about | {"blocks": len(files)}, files=files, skipped=skipped), skipped
    packed = np.frombuffer(joined, np.uint8).reshape(len(names), codes.bytes_of(encoders.bits))
    return write(out, names, packed, about, skipped=skipped), skipped


def write(
    out: Path,
    names: Sequence[str],
    packed: NDArray[np.uint8] | None,
    about: Mapping[str, Any],
    *,
    arrays: Mapping[str, NDArray[Any]] | None = None,
    files: Sequence[Path] = (),
    skipped: list[tuple[str, str]] | None = None,
) -> dict[str, Any]:
    """Write a folder of codes atomically; `files` are copied, and hold names and codes if `packed` is None.

    Returns codes.json.
    """
    import numpy as np

    from dcmh.methods.folder import skipped_tsv
    from dcmh.util import checksums
    from dcmh.util.atomic import whole_folder

    broken = next((name for name in names if len(name.splitlines()) != 1), None)
    if broken is not None and packed is not None:
        raise DataError(
            f"The id {broken!r} does not fit on one line of ids.txt.", hint="Rename the item, or use --format parquet."
        )
    record = {"kind": KIND, "format": FORMAT, "version": __version__, "count": len(names), **about}
    with whole_folder(out) as draft:
        if packed is not None:
            np.save(draft / "codes.npy", packed, allow_pickle=False)
            (draft / "ids.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
        for name, array in (arrays or {}).items():
            np.save(draft / name, array, allow_pickle=False)
        for file in files:
            shutil.copyfile(file, draft / file.name)
        (draft / HEADER).write_text(json_lines.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if skipped:
            (draft / "skipped.tsv").write_text(skipped_tsv(skipped), encoding="utf-8")
        checksums.write_manifest(draft)
    return record
