"""dcmh evaluate: measure a model on the queries held out in training."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from dcmh.cli import console, report_table
from dcmh.cli.data_source import Source, say_skipped, without_unreadable
from dcmh.cli.options import Device, JsonSwitch, Switch, Texts
from dcmh.cli.train import split_of
from dcmh.errors import DataError, ModelError
from dcmh.util.checksums import read_checked_text
from dcmh.util.formats import parse_object, readable

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Relevance
    from dcmh.methods.base import Hasher


def evaluate(
    model: Path,
    data: str | None = None,
    /,
    *,
    ties: Literal["stable", "expected", "best", "worst"] | None = None,
    k: int | None = None,
    more: Switch = False,
    bits: int | None = None,
    text: Texts = None,
    device: Device = "auto",
    json: JsonSwitch = False,
) -> None:
    """Measure a model on its held-out queries: MAP, precision and hash lookup, compared with chance.

    Parameters
    ----------
    model
        The folder that dcmh train wrote.
    data
        Default: the data the model was trained on. In other data, training items are left out. Without labels, the
        words that served as labels in training serve again.
    ties
        How MAP ranks items at equal distance: in database order, averaged over all orders, relevant ones first, or
        last. Default: the first two. JSON always has all four.
    k
        Maximum rank that counts in MAP. Default: all.
    more
        Also show the measures of other papers: MAP@50, MAP@5000, NDCG, RAMAP, and how many queries find their own item.
    bits
        Measure only the first bits of the codes: 16, 32, 64, …, for a model with nested codes. Default: all bits.
    """
    import dcmh
    from dcmh.util import device as devices

    hasher = dcmh.load(model)
    if bits is not None:
        hasher = hasher.shortened(bits)
    where = str(devices.resolve(device))
    if hasattr(hasher, "device"):
        hasher.device = where
    source = _source(model, data, text)
    whole, words = source.labelled()
    loaded = without_unreadable(whole, _image_view(hasher), where)
    say_skipped(loaded.skipped)
    split, trained = _split(model, loaded.data, data)
    if words and not source.label_words and split.notes:
        console.say(
            "The words that serve as labels are chosen anew: the model does not record the ones it was trained with."
        )
    console.say(
        f"Measuring {model} ({hasher.name}, {hasher.bits} bits) on {len(split.query):,} queries of "
        f"{whole.name or 'the data'}, {len(split.database):,} in the database, on {where}."
    )
    relevance: Relevance = "pairing" if split.query.labels is None else "labels"
    report = dcmh.evaluate(hasher, split, k=k, joint=True, relevance=relevance, trained=trained)
    if json:
        console.result_json(report.to_json())
    else:
        console.say(report_table.summary(report))
        report_table.say_cautions(report, label_words=bool(words))
        console.result(console.table(*report.table([ties] if ties else ["stable", "expected"])))
        if more:
            console.result("\n" + report_table.more(report, ties or "expected"))


def _source(model: Path, data: str | None, text: str | None) -> Source:
    """DATA, or the data recorded in the model folder."""
    from dcmh.methods import folder

    record = _read(model, folder.RUN)
    if data is None and record is None:
        raise ModelError(f"{model} does not record its training data.", hint=f"Name it: dcmh evaluate {model} DATA")
    recorded = record["data"] if record else {}
    if data is None:
        return Source.from_record(recorded)
    same = Source(data).record()["data"] == recorded.get("data")
    if same and text is None:
        return Source.from_record(recorded)
    return Source(
        data,
        text,
        min_tag_count=recorded.get("min_tag_count") if same else None,
        modalities=recorded.get("modalities"),
        similarity=recorded.get("similarity"),
        label_words=recorded.get("label_words"),
    )


def _split(model: Path, data: Dataset, named: str | None) -> tuple[Split, Collection[str]]:
    """The recorded split and the ids of the training items; for other data, a split of the items not trained on."""
    from dcmh.data import Split
    from dcmh.methods import folder

    record = _read(model, folder.SPLIT)
    if record is None:
        raise ModelError(
            f"{model} has no {folder.SPLIT}, so its training items are unknown.",
            hint="Train it with dcmh train, or measure it in Python with dcmh.evaluate(model, split).",
        )
    trained, queries = set(record["train"]), set(record["query"])
    if named is None or (trained | queries) <= set(data.ids):
        split = Split.load(model / folder.SPLIT, data, without_gone=True)
        for note in split.notes:
            console.say(note)
        return split, split.train.ids
    fresh = [row for row, name in enumerate(data.ids) if name not in trained]
    if not fresh:
        raise DataError(
            f"All {len(data):,} items of {named} have ids that the model was trained on, so none can be a query.",
            hint="Give all the data it was trained on, or items it has not seen.",
        )
    console.say(
        f"{named} is not the training data: {len(data) - len(fresh):,} of its {len(data):,} items have ids of training "
        f"items and are left out; queries are drawn from the others."
    )
    names = {PurePath(name).name for name in trained if PurePath(name).suffix}
    if alike := sum(PurePath(data.ids[row]).name in names for row in fresh):
        console.say(
            f"{alike:,} of the others have the file name of a training item. If they are the same pictures under other ids, "
            "these numbers are too good: give the training data."
        )
    return split_of(data.take(fresh), None, None, 0, leave_unseen=False), trained


def _image_view(model: Hasher) -> Any:
    return next((view for view in model.views_.values() if view.kind == "image"), None)


def _read(model: Path, name: str) -> dict[str, Any] | None:
    """The record in a file of a model; None if there is no such file."""
    path = model / name
    if not path.is_file():
        return None
    with readable(path, ModelError, hint="Train the model again, or copy the folder again."):
        record = parse_object(read_checked_text(path))
        _ = record["format"]
    return record
