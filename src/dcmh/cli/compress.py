"""dcmh compress: codes for existing vectors."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.cli import console, encode
from dcmh.cli.options import JsonSwitch
from dcmh.errors import ParameterError

if TYPE_CHECKING:
    from dcmh.data import Dataset

SUFFIX = ".model"


def compress(
    vectors: str,
    /,
    *,
    bits: int = 64,
    out: Path | None = None,
    column: str | None = None,
    similarity: str | None = None,
    train_size: int | None = None,
    fine: int = 128,
    seed: int = 0,
    json: JsonSwitch = False,
) -> int:
    """Learn codes for existing vectors of any encoder, write the codes, and measure the loss.

    Writes CODES, a folder as dcmh encode writes it, with fine.npy for the second stage, and CODES.model, the hash function
    for later vectors and for dcmh index. Of several columns, each has its own folder, CODES.NAME.

    The share of the ten nearest neighbours (by cosine) that is found is measured with vectors that were not learned from.

    Parameters
    ----------
    vectors
        A .npy file; a .npz file of one or more matrices, perhaps with labels and ids; a Parquet or Arrow file with columns of
        vectors; or a table of PostgreSQL with pgvector: postgresql://user@host/database?collection=TABLE
    bits
        Length of the codes, 1 to 1024.
    out
        The folder for the codes. Default: NAME.codes here.
    column
        The column or columns of vectors in a table, separated by commas. Default: all there are.
    similarity
        What makes two items similar: neighbours, labels, pairing, or another of dcmh train. Default: labels where there are
        some, pairing for several columns, else neighbours.
    train_size
        Number of vectors to learn from. Default: at most 20,000.
    fine
        Bytes per vector of the second stage: 64, 128 or 256, or 0 for none.
    seed
        Random seed.
    """
    from dcmh.methods import folder
    from dcmh.search import compress as compression

    data = _load(vectors, column)
    place = out or Path(f"{data.name or 'vectors'}.codes")
    targets = {name: place if len(data.modalities) == 1 else Path(f"{place}.{name}") for name in data.modalities}
    model_folder = Path(f"{os.path.normpath(place)}{SUFFIX}")
    for target in targets.values():
        encode.check_out(target)
    folder.check_target(model_folder)
    with console.progress("learning") as bar:
        done = compression.compress(
            data,
            bits,
            similarity=similarity,
            train_size=compression.TRAIN if train_size is None else train_size,
            fine=fine,
            seed=seed,
            progress=lambda row: bar.update(row["epoch"], row["epochs"]),
        )
    done.model.save(model_folder)
    fingerprint = folder.read_record(model_folder)["fingerprint"]
    for name, target in targets.items():
        values = data[name].values
        about = {"bits": bits, "modality": name, "data": data.name, "model": fingerprint, "method": done.model.name}
        about["recall"] = done.measured["recall"].get(name)
        fine_vectors = done.fine(name, values)
        arrays = {} if fine_vectors is None else {"fine.npy": fine_vectors}
        encode.write(target, data.ids, done.codes(name, values), about, arrays=arrays)
    written: dict[str, Any] = {"codes": {name: str(target) for name, target in targets.items()}}
    written |= {"model": str(model_folder), "count": len(data), "bits": bits, **done.measured}
    if json:
        console.result_json(written)
        return 0
    for name, target in targets.items():
        console.result(f"{len(data):,} codes of {bits} bits in {target}{_loss(done.measured, name)}")
    console.say(f"Next: dcmh index {shlex.quote(vectors)} --model {shlex.quote(str(model_folder))}")
    return 0


def _loss(measured: dict[str, Any], name: str) -> str:
    """What was measured, in words."""
    recall = measured["recall"].get(name)
    if recall is None:
        return "."
    first = f"; of the 10 nearest neighbours, the codes alone find {recall['codes']:.0%}"
    candidates = f", their first 200 candidates hold {recall['candidates']:.0%}"
    second = f", and the second stage finds {recall['rescored']:.0%}" if "rescored" in recall else ""
    return f"{first}{candidates}{second} ({measured['queries']:,} held-out vectors)."


def _load(vectors: str, column: str | None) -> Dataset:
    from dcmh.data import load_dataset
    from dcmh.data.frames import ARROW_SUFFIXES, vector_columns
    from dcmh.stores.address import is_address, parse

    if is_address(vectors):
        from dcmh.stores.postgres.vectors import read_vectors

        return read_vectors(parse(vectors), column)
    names = None if column is None else [name.strip() for name in column.split(",")]
    path = Path(vectors).expanduser()
    if path.suffix.lower() in ARROW_SUFFIXES and path.is_file():
        names = names or vector_columns(path)
        data: Dataset = load_dataset(path, modalities=",".join(f"{name}:vector" for name in names))
        return data
    data = load_dataset(vectors)
    if names is None:
        return data
    for name in names:
        if name not in data.modalities:
            raise ParameterError(
                f"{vectors} has no vectors {name!r}. It has: {', '.join(data.modalities)}.", which=name
            )
    return data.select(names)
