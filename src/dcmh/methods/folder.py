"""The model folder: JSON, safetensors and text files, never pickle.

model.json              format, method, parameters, modalities and their views, versions, fingerprint
weights.safetensors     what was learned, as named arrays
NAME.vocabulary.txt     the words of a text modality, one per line
history.jsonl           one line per iteration of the training
split.json, report.json written by `dcmh train`: the held-out queries, and what was measured on them
run.json, skipped.tsv   written by it too: the data, the words used as labels, the command, versions; unreadable pictures
checksums.json          size and SHA-256 of each file; weights.safetensors.crc32: of the blocks that a query maps
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcmh.data.columns import IMAGE_SUFFIXES
from dcmh.errors import ModelError
from dcmh.inputs.views import View
from dcmh.util import checksums
from dcmh.util.atomic import recover, whole_folder
from dcmh.util.formats import check_format, check_types, parse_json_lines, parse_object, readable

FORMAT = 1
MODEL, WEIGHTS, HISTORY = "model.json", "weights.safetensors", "history.jsonl"
SPLIT, REPORT, RUN, SKIPPED = "split.json", "report.json", "run.json", "skipped.tsv"
STATE = "state.safetensors"  # of an unfinished training, in NAME.checkpoint
KEPT = "model"  # the folder of a search index that holds a copy of its model


def write(
    folder: Path,
    record: Mapping[str, Any],
    views: Mapping[str, View],
    state: Mapping[str, NDArray[Any]],
    history: Sequence[Mapping[str, Any]],
    extra: Mapping[str, str],
) -> None:
    """Write a model folder atomically. A folder that holds something else is not touched."""
    from safetensors.numpy import save_file

    check_target(folder)
    with whole_folder(folder) as draft:
        save_file({name: np.ascontiguousarray(value) for name, value in state.items()}, draft / WEIGHTS)
        modalities = {name: view.save(draft, name) for name, view in views.items()}
        fingerprint = _fingerprint(draft, modalities, record.get("fine"))
        record = {"format": FORMAT, "fingerprint": fingerprint, **record, "modalities": modalities}
        (draft / MODEL).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        lines = "".join(json.dumps(row) + "\n" for row in history)
        (draft / HISTORY).write_text(lines, encoding="utf-8")
        for name, text in extra.items():
            (draft / name).write_text(text, encoding="utf-8")
        checksums.write_manifest(draft, in_blocks=[WEIGHTS])


def check_target(folder: Path) -> None:
    """Refuse to write a model over a file, or over a folder that holds something else."""
    if folder.exists() and not is_model(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} exists but is not a dcmh model, so it is not overwritten. Choose another --out.")


def is_model(folder: Path) -> bool:
    """Whether this is a model folder."""
    return (folder / MODEL).is_file()


def read_record(folder: Path) -> dict[str, Any]:
    """The content of model.json; refuses a folder that is not a model, is damaged, or was written by a newer version."""
    recover(folder)
    if not folder.exists():
        raise ModelError(f"There is no model {folder}. Train one: dcmh train DATA --out {folder}")
    if not is_model(folder):
        raise ModelError(f"{folder} is not a dcmh model (no {MODEL}). {_describe(folder)}")
    with readable(folder / MODEL, ModelError, hint="Train the model again, or copy the folder again."):
        data = (folder / MODEL).read_bytes()
        record = parse_object(data)
        check_format(record["format"], FORMAT, folder, ModelError)
        check_types(record, method=str, parameters=dict, modalities=dict, bits=int, fingerprint=str)
        checksums.check_content(data, folder / MODEL)
    return record


def read_weights(folder: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a model, checked against its fingerprint."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    record = read_record(folder)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        if (folder / WEIGHTS).is_file() and not os.access(folder / WEIGHTS, os.R_OK):
            raise ModelError(f"Permission denied: {folder / WEIGHTS}. Check the file permissions.") from error
        raise ModelError(
            f"{folder / WEIGHTS} is missing or damaged ({error}). Train again, or copy the folder again."
        ) from error
    if record["fingerprint"] != _fingerprint(folder, record["modalities"], record.get("fine")):
        raise ModelError(
            f"{folder} is damaged: {WEIGHTS} does not belong to {MODEL}. Train again, or copy the folder again."
        )
    return dict(weights)


def skipped_tsv(skipped: Sequence[tuple[str, str]]) -> str:
    """The text of skipped.tsv: files and reasons."""
    clean = [[" ".join(cell.split()) for cell in row] for row in [("file", "reason"), *skipped]]
    return "".join("\t".join(row) + "\n" for row in clean)


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The records of history.jsonl, one per iteration."""
    path = folder / HISTORY
    if not path.is_file():
        return []
    with readable(path, ModelError, hint="Delete it, or copy the folder again: it only shows how the training went."):
        return parse_json_lines(checksums.read_checked_text(path))


def _fingerprint(folder: Path, modalities: Mapping[str, Any], fine: Mapping[str, Any] | None) -> str:
    """A short hash of weights and views: two models with the same fingerprint give the same codes."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update((folder / WEIGHTS).read_bytes())
    digest.update(json.dumps(modalities, sort_keys=True).encode())
    if fine is not None:
        digest.update(json.dumps(fine, sort_keys=True).encode())
    return digest.hexdigest()


def _describe(folder: Path) -> str:
    """What a folder without a model holds, as a hint."""
    if not folder.is_dir():
        return "It is a file. Give the folder that dcmh train wrote."
    if is_model(copy := folder / KEPT):
        is_index = (folder / "index.json").is_file()
        return f"It is a search index; its model is {copy}" if is_index else f"Did you mean {copy} ?"
    names = sorted(entry.name for entry in folder.iterdir())
    if any(
        name.lower().endswith(IMAGE_SUFFIXES) or name in ("pairs.jsonl", "pairs.csv", "pairs.tsv") for name in names
    ):
        return f"It holds images or pairs: did you mean dcmh train {folder} ?"
    return f"It holds: {', '.join(names[:5]) or 'nothing'}{', …' if len(names) > 5 else ''}."
