"""dcmh train: from data to a model folder, measured on held-out queries."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from dcmh.cli import console, data_source, options, report_table
from dcmh.cli.options import DataOptions, DCMHOptions, JsonSwitch, MethodOptions, Switch
from dcmh.cli.training_run import follow, learn
from dcmh.errors import DataError, ParameterError

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.methods.base import Hasher

MIN_WORDS, MIN_PER_LABEL = 100, 5  # with fewer words, or training items of a label, a caution is printed


@Parameter(name="*", group="Run")
@dataclass
class RunOptions:
    """Where to write the model, and how to run."""

    out: Path | None = None
    """The model folder. Default: NAME.model, named after the data, in the working folder."""
    config: Path | None = None
    """A TOML file with any of these settings; flags override it."""
    resume: Switch = False
    """Continue an interrupted training."""
    strict: Switch = False
    """Stop with exit code 3, before training, if any picture is missing or cannot be read."""
    json: JsonSwitch = False


def train(
    data: str,
    /,
    *,
    items: DataOptions | None = None,
    method: MethodOptions | None = None,
    dcmh: DCMHOptions | None = None,
    run: RunOptions | None = None,
) -> int:
    """Learn codes from pictures with words, or from any data in two modalities.

    Parameters
    ----------
    data
        A folder of photos with texts, a file pairs.jsonl, .csv or .tsv or its folder, a .mat file, or a name from dcmh data.
    """
    from dcmh.methods import folder

    run = run or RunOptions()
    items, method, dcmh = with_config(run.config, items, method, dcmh)
    model = options.build(method, dcmh)
    device = device_of(method.device)
    where = source_of(data, items, dcmh)
    whole, words = where.labelled()
    if len(whole.modalities) < 2:
        raise DataError(
            f"dcmh train needs at least two modalities; {whole.name or 'the data'} has only {whole.modalities[0]!r}.",
            hint="Add another one; for codes of vectors alone: dcmh compress",
        )
    fine = options.fine_options(method)
    where = dataclasses.replace(where, label_words=words)  # for later evaluation
    out = run.out or Path(f"{whole.name or 'data'}.model")
    _check_out(out)
    seed = method.seed or 0
    leave_unseen = leaves_unseen(model)
    split = split_of(whole, items.queries, items.train_size, seed, leave_unseen=leave_unseen)
    _build_similarity(model, split)  # refuses what cannot be learned from, before an hour of reading pictures
    began = time.monotonic()
    readable = data_source.without_unreadable(whole, model._view("image"), device)
    data_source.say_skipped(readable.skipped, "" if run.strict else f", listed in {out / folder.SKIPPED}")
    if run.strict and readable.skipped:
        console.error("Stopped because of --strict; nothing was trained or written. Repair or remove those files.")
        return 3
    if readable.data is not whole:  # some pictures cannot be read
        split = split_of(readable.data, items.queries, items.train_size, seed, say=False, leave_unseen=leave_unseen)
    words_of = _vocabularies(split.train)
    console.say(_intention(model, readable.data, split, device, words_of))
    _say_cautions(split.train, words_of)
    if getattr(model, "quality", "") == "best":
        console.say(f"The image network is fine-tuned to the labels first.{_slow_on_cpu(device, len(split.train))}")
    _say_similarity(model, split)
    seconds = {"features": round(time.monotonic() - began, 2)}
    record: dict[str, Any] = {"data": where.record(), "device": device, "command": console.command()}
    record |= {"seconds": seconds, "skipped": readable.skipped}  # learn adds its own seconds
    if console.follows():
        follow(model, split, out, fine)
        return 0
    report = learn(model, split, out, resume=run.resume, record=record, fine=fine)
    if run.json:
        said = {"model": str(out), "method": model.name, "data": whole.name, "skipped": len(readable.skipped)}
        console.result_json(said | {"seconds": seconds, "report": report.to_json()})
    else:
        console.say(report_table.summary(report))
        report_table.say_cautions(report, label_words=bool(words))
        console.result(console.table(*report.table()))
    text = "" if items.text is None else f" --text {shlex.quote(items.text)}"
    console.say(f"Wrote {out}. Next: dcmh index {shlex.quote(data)} --model {shlex.quote(str(out))}{text}")
    return 0


def split_of(
    data: Dataset,
    queries: int | None,
    train_size: int | Literal["all"] | None,
    seed: int,
    *,
    say: bool = True,
    leave_unseen: bool = True,
) -> Split:
    """The split of the data, unless `queries` is given; otherwise a random split.

    Without a training size, and with `leave_unseen`, some items of the database are not trained on.
    """
    from dcmh.data import split_given

    if data.parts is not None and queries is None:
        if train_size is not None:
            raise ParameterError(
                "The data has its own split.", hint="Give --queries as well as --train-size to draw another."
            )
        if say:
            console.say("Using the split of the data; --queries draws another.")
        return split_given(data)
    if queries is None:
        queries = default_queries(len(data))
    if train_size is None and leave_unseen and (apart := default_unseen(len(data), queries)):
        train_size = len(data) - queries - apart
    return data.split(queries, train_size if isinstance(train_size, int) else None, seed)


def leaves_unseen(model: Hasher) -> bool:
    """Whether some items are kept out of training by default; not with the paper's recipe, which keeps its protocol."""
    return getattr(model, "recipe", None) != "paper"


def default_queries(items: int) -> int:
    """5 % of the items, at least 50 and at most 2,000, but never more than a fifth of them."""
    return max(1, min(max(50, round(0.05 * items)), 2000, items // 5))


def default_unseen(items: int, queries: int) -> int:
    """Database items to keep out of training: as many as `default_queries`; none if that is over a tenth of the rest."""
    apart = default_queries(items)
    return apart if 9 * apart <= items - queries else 0


def with_config(
    file: Path | None, items: DataOptions | None, method: MethodOptions | None, dcmh: DCMHOptions | None
) -> tuple[DataOptions, MethodOptions, DCMHOptions]:
    """The flags, completed from the file of --config."""
    flags = items or DataOptions(), method or MethodOptions(), dcmh or DCMHOptions()
    if file is None:
        return flags
    file_settings = options.read_config(file)
    return (
        options.merged(flags[0], file_settings[0]),
        options.merged(flags[1], file_settings[1]),
        options.merged(flags[2], file_settings[2]),
    )


def source_of(data: str, items: DataOptions, dcmh: DCMHOptions) -> data_source.Source:
    """The source that DATA and the flags describe."""
    return data_source.Source(
        data, items.text, bool(items.keep_partial), items.min_tag_count, items.modalities, dcmh.similarity
    )


def device_of(name: str | None) -> str:
    """The device that --device names."""
    from dcmh.util import device as devices

    return str(devices.resolve(name or "auto"))


def _slow_on_cpu(device: str, items: int) -> str:
    """What to expect of fine-tuning on a CPU: about a second of CPU time per picture."""
    from dcmh.inputs.decoding import cores

    if device != "cpu":
        return ""
    return f" Without a GPU this may take {max(1, round(items / cores() / 60)):,} minutes; --quality good takes none."


def _check_out(out: Path) -> None:
    from dcmh.methods import folder

    folder.check_target(out)
    if folder.is_model(out):
        console.say(f"{out} is already a model; it is replaced when the new one is finished.")
    above = out.resolve().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise ParameterError(f"--out {out}: {above} is a file, not a folder.", hint="Choose another --out.")
    if not os.access(above, os.W_OK):
        raise ParameterError(f"--out {out}: permission denied to write in {above}.", hint="Choose another --out.")


def _build_similarity(model: Hasher, split: Split) -> str | None:
    """Describe what counts as similar among the training items; None for a method without such a setting."""
    from dcmh.methods.dcmh import DCMH

    return model.similarity_of(split.train).description if isinstance(model, DCMH) else None


def _say_similarity(model: Hasher, split: Split) -> None:
    """Print what counts as similar, for a method with such a setting, and what counts as relevant if that differs."""
    description = _build_similarity(model, split)
    if description is None:
        return
    from dcmh.methods.dcmh.similarity import kind_of

    console.say(description)
    if split.query.labels is None:
        console.say(
            "There are no labels to measure by: a query's own item, in the other modality, is what it should find."
        )
    elif kind_of(getattr(model, "similarity", "")) not in ("labels", "folders", "labels+tags"):
        console.say("It is measured by the labels of the data, which it does not learn from.")


def _vocabularies(train: Dataset) -> list[int]:
    """The number of words of each modality that is text."""
    from dcmh.data import Texts
    from dcmh.util.text import BagOfWords

    return [len(BagOfWords().fit(column.values)) for column in train.columns.values() if isinstance(column, Texts)]


def _say_cautions(train: Dataset, words: list[int]) -> None:
    """Caution against too few words or training items per label."""
    if words and max(words) < MIN_WORDS:
        console.say(
            f"Caution: the training texts have only {max(words):,} different words, so there is little to learn about others."
        )
    if train.labels is not None:
        items = train.labels.sum(axis=0, dtype=int)
        if (few := int((items < MIN_PER_LABEL).sum())) > len(items) / 10:
            console.say(
                f"Caution: {few:,} of {len(items):,} labels have fewer than {MIN_PER_LABEL} training items, "
                "too few to learn them."
            )


def _intention(model: Hasher, data: Dataset, split: Split, device: str, vocabularies: list[int]) -> str:
    """What is about to be trained, in one line."""
    words = [f"{number:,} words" for number in vocabularies]
    labels = [] if data.labels is None else [f"{data.labels.shape[1]:,} labels"]
    what = ", ".join([*data.modalities, *words, *labels])
    unseen = len(split.database) - len(split.train)
    apart = f", {unseen:,} of them not trained on, to measure how new items are found" if unseen else ""
    return (
        f"Learning {model.bits}-bit codes with {model.name} on {device} from {len(split.train):,} of {len(data):,} "
        f"items of {data.name or 'the data'} ({what}); {len(split.query):,} held out as queries, "
        f"{len(split.database):,} in the database{apart}."
    )
