"""dcmh export: a model to publish, with a model card, and as ONNX files."""

from __future__ import annotations

import os
from pathlib import Path

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch, Switch


def export(model: Path, /, *, out: Path | None = None, onnx: Switch = False, json: JsonSwitch = False) -> int:
    """Write a copy of a model to publish: with a model card (README.md), and without the names of your items.

    The card says what the model learned from, what was measured on held-out queries, and which weights it needs, in the
    format of Hugging Face: upload the folder with hf upload, and load it with dcmh.load("hf://OWNER/NAME").
    model.json keeps the path of weights or an encoder that you trained with as a file.

    Parameters
    ----------
    model
        The folder that dcmh train wrote.
    out
        The folder to write. Default: MODEL.export.
    onnx
        Also write the hash function of each modality as an ONNX file (DCMH models; needs the extra onnx).
    """
    from dcmh.methods import export as exporting

    target = Path(f"{os.path.normpath(model)}.export") if out is None else out
    files = exporting.export(model, target, onnx=onnx)
    if json:
        console.result_json({"folder": str(target), "files": files})
    else:
        console.result(f"Wrote {target}: {', '.join(files)}.")
    return 0
