"""dcmh index: build an index of a folder of photos, or update it."""

from __future__ import annotations

import contextlib
import json as json_lines
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dcmh.cli import console
from dcmh.cli.blocks import WorkOptions, dry_run_result, opened_pool, reporter
from dcmh.cli.data_source import Source, say_skipped
from dcmh.cli.options import JsonSwitch, Switch, Texts
from dcmh.errors import DCMHError, ParameterError
from dcmh.stores.address import Address, is_address, parse
from dcmh.util.formats import parse_object

if TYPE_CHECKING:
    from dcmh.data import Dataset
    from dcmh.search import SearchIndex
    from dcmh.search.blocks import Blocks, Pool, Work

Place = Path | Address


def index(
    data: str,
    /,
    *,
    model: Path | None = None,
    encoder: str | None = None,
    bits: int | None = None,
    out: str | None = None,
    text: Texts = None,
    text_encoder: str | None = None,
    quality: Literal["fast", "good"] | None = None,
    codes: Literal["each", "joint"] | None = None,
    only_listed: Switch = False,
    prune: Annotated[bool, Parameter(negative="--keep-gone")] = True,
    rebuild: Switch = False,
    upgrade: Switch = False,
    run: WorkOptions | None = None,
    json: JsonSwitch = False,
) -> int:
    """Build an index of pictures and texts, or update it: only new and changed items are encoded.

    Can be stopped or killed at any time; the same command resumes.

    Parameters
    ----------
    data
        A folder of photos, with or without texts, or anything else that dcmh train takes.
    model
        The folder that dcmh train wrote; the index keeps a copy. Default: the model of the index; for a new index the
        starter model, which works for any pictures without training.
    encoder
        Instead of a model, an encoder of pictures and texts such as CLIP or SigLIP, without training: transformers:FOLDER,
        onnx:FOLDER, either with hf://OWNER/NAME as its folder, or one of another package.
    bits
        Keep only the first bits of the codes: 16, 32, 64, …, for a model with nested codes. Default: all bits.
    out
        The index folder, or a collection on a server: postgresql://user@host/database?collection=photos or
        milvus://host/photos. Default: NAME.dcmh, named after the data, in the working folder.
    text_encoder
        Text encoder of the starter model: use-multilingual (16 languages) or minilm (English). Default: use-multilingual.
    quality
        Starter model: fast, or good with a better image network at half the speed. Default: fast.
    codes
        each: a code for each modality of an item; joint: one code per item, from all its modalities. Default: as in the
        index; each for a new one.
    only_listed
        Leave out pictures of the folder that its table (pairs.jsonl, captions.csv, …) does not list.
    prune
        Remove items that are no longer in the data, or keep them.
    rebuild
        Start from scratch.
    upgrade
        Encode an index again with another --model or --encoder. Its items are kept, also those that are not in the data,
        and pictures whose features are cached are not decoded. The index can be searched meanwhile; the new one replaces it
        at the end.
    """
    from dcmh import stores
    from dcmh.methods import starter

    run = run or WorkOptions()
    if run.device != "auto":
        _resolve(run.device)  # a missing device is an error before the work
    if encoder is not None:
        _check_alone(encoder, {"--model": model, "--text-encoder": text_encoder, "--quality": quality})
    _check_starter(model, text_encoder, quality)
    if bits is not None:
        if model is None:
            raise ParameterError("--bits shortens the codes of a model.", hint="Name the model with --model.")
        with tempfile.TemporaryDirectory(prefix="dcmh-") as folder:
            short = _shortened(model, bits, Path(folder))
            run_again = partial(index, data, model=short, out=out, text=text, codes=codes, run=run, json=json)
            return run_again(only_listed=only_listed, prune=prune, rebuild=rebuild, upgrade=upgrade)
    where = _target(data, out)
    if rebuild and upgrade:
        raise ParameterError("--rebuild and --upgrade are mutually exclusive.", hint="--upgrade keeps all items.")
    if upgrade and where is not None:
        stores.check_upgrade(where)
    again = rebuild or upgrade
    model = None if encoder else _model(where, model, rebuild=again)
    items = load(data, text, model, only_listed=only_listed)
    place = where or Path(f"{items.name or 'data'}.dcmh")
    for note in items.notes:
        console.say(f"{items.name}: {note}")
    choices = {"rebuild": rebuild, "upgrade": upgrade, "keep_gone": not prune, "codes": codes, "device": run.device}
    if encoder is not None:
        with _of_encoder(encoder, items, place, run, again=again) as model:
            return _bring(items, model, place, choices, run, f"the encoder {encoder}", json=json)
    model = model or _model(place, None, rebuild=again)
    _check_starter(model, text_encoder, quality)
    model = model or starter.folder(text_encoder, quality)
    _say_unread(items, data, text, model)
    return _bring(items, model, place, choices, run, _shown(model), json=json)


def _bring(
    items: Dataset, model: Path, place: Place, choices: dict[str, Any], run: WorkOptions, which: str, *, json: bool
) -> int:
    """Bring the index up to date and say what was done; or print the plan. `which` names the model in a sentence."""
    from dcmh.search.blocks import Work

    if run.dry_run:
        blocks = _blocks(items, model, place, Work(model.absolute(), run.device, choices["codes"] == "joint"))
        return dry_run_result(blocks, run.workers, run.ray, json=json)
    began = time.monotonic()
    if run.ray is None and run.workers == 1:
        built = _build(items, model, place, choices, which)
    else:
        with opened_pool(run.workers, run.ray) as pool:
            built = _build(items, model, place, choices, which, pool, run.metrics)
    changes = built.changes
    assert changes is not None
    say_skipped(changes.skipped, f", listed in {place / 'skipped.tsv'}" if isinstance(place, Path) else "")
    if json:
        console.result_json(_record(built, place, time.monotonic() - began, list(items.notes)))
    else:
        kept = " The items that are gone are kept." if changes.gone and choices["keep_gone"] else ""
        console.result(f"{changes}{kept}")
    console.say(_summary(built, place))
    built.close()
    return 3 if run.strict and changes.skipped else 0


def _check_alone(encoder: str, others: dict[str, object]) -> None:
    """Refuse options that choose something else to encode with."""
    for option, value in others.items():
        if value is not None:
            raise ParameterError(
                f"{option} cannot be used with --encoder: {encoder} sees pictures and reads words itself, without a model.",
                which=option,
                hint="Leave out one of them. To train a model with an encoder: dcmh train DATA --encoder ENCODER",
            )


@contextlib.contextmanager
def _of_encoder(encoder: str, items: Dataset, place: Place, run: WorkOptions, *, again: bool) -> Iterator[Path]:
    """The model of the index, which must be of this encoder, or a new one, which exists inside the block."""
    from dcmh.methods import from_encoder
    from dcmh.search.index import encoder_model

    pictures = 2 * from_encoder.FEW if run.dry_run else from_encoder.PICTURES  # the plan does not depend on them
    with console.progress(f"a sample for {encoder}", "pictures") as bar:
        model = encoder_model(
            encoder, items, place, again=again, device=run.device, pictures=pictures, progress=bar.update
        )
    if isinstance(model, Path):
        yield model
        return
    count = model.trained_on_["items"]
    if count < from_encoder.FEW:
        console.say(
            f"The encoder saw only {count} pictures. Once there are some hundred, add --upgrade to this command."
        )
    with tempfile.TemporaryDirectory(prefix="dcmh-") as folder:
        model.save(Path(folder) / "model")
        yield Path(folder) / "model"


def _check_starter(model: Path | None, text_encoder: str | None, quality: str | None) -> None:
    from dcmh.methods import folder, starter

    if model is None or (text_encoder is None and quality is None):
        return
    fingerprints = {folder.read_record(one)["fingerprint"] for one in (model, starter.folder(text_encoder, quality))}
    if len(fingerprints) > 1:
        option = "--text-encoder" if quality is None else "--quality"
        raise ParameterError(f"{option} chooses a starter model, but the model is {model}.", hint="Leave it out.")


def _shortened(model: Path, bits: int, folder: Path) -> Path:
    """Write the model of the first bits of a model's codes to a folder, with what was measured that also holds for them."""
    import dcmh
    from dcmh.methods import folder as model_folder
    from dcmh.util.checksums import read_checked_text

    extra = {}
    for name in (model_folder.SPLIT, model_folder.RUN, model_folder.REPORT):
        if (model / name).is_file():
            extra[name] = read_checked_text(model / name)
    if model_folder.REPORT in extra:
        report = parse_object(extra[model_folder.REPORT])
        general = {name: value for name, value in report.items() if "_to_" not in name}  # the rest is of other codes
        extra[model_folder.REPORT] = json_lines.dumps(general | {"bits": bits}, indent=1) + "\n"
    dcmh.load(model).shortened(bits).save(folder / model.name, extra=extra)
    return folder / model.name


def load(data: str, text: str | None, model: Path | None = None, *, only_listed: bool = False) -> Dataset:
    """All items, also partial ones, in the model's modalities; loaders without these options give what they have."""
    modalities = None if model is None else _columns(model)
    try:
        return Source(data, text, keep_partial=True, modalities=modalities, only_listed=only_listed).load()
    except ParameterError as error:
        if error.which not in ("keep_partial", "modalities"):
            raise
        return Source(data, text).load()


def _columns(model: Path) -> str | None:
    """The columns of a table that a model reads, all optional; None for image and text."""
    from dcmh.methods import folder

    kinds = {name: view["kind"] for name, view in folder.read_record(model)["modalities"].items()}
    if kinds == {"image": "image", "text": "text"}:
        return None
    return ",".join(f"{name}:{kind}?" for name, kind in kinds.items())


def _say_unread(items: Dataset, data: str, text: str | None, model: Path) -> None:
    """Say which texts of the data are left out because the model has other names for its texts."""
    from dcmh.methods import folder

    kinds = {name: view["kind"] for name, view in folder.read_record(model)["modalities"].items()}
    known = [name for name, kind in kinds.items() if kind == "text"]
    if not known or "text" in known or any(name in items.columns for name in known):
        return
    unread = [name for name in _texts(items, data, text) if name not in kinds]
    if unread:
        named, has = ", ".join(unread), "modality" if len(unread) == 1 else "modalities"
        console.say(
            f"{items.name}: {named} left out, because the model has no such {has}; its texts are: {', '.join(known)}."
        )


def _texts(items: Dataset, data: str, text: str | None) -> list[str]:
    """The text modalities of the data, even if only other columns were loaded."""
    if not any(column.kind == "text" for column in items.columns.values()):
        try:
            items = Source(data, text, keep_partial=True).load()
        except DCMHError:
            return []
    return [name for name, column in items.columns.items() if column.kind == "text" and column.observed.any()]


def _target(data: str, out: str | None) -> Place | None:
    """The index folder or address, if it is known before the data is loaded."""
    if out is not None:
        return parse(out) if is_address(out) else Path(out)
    from dcmh.data import named

    known = named(data)
    name = Path(data).expanduser().resolve().name if known is None else known[0]
    return Path(f"{name}.dcmh") if Path(f"{name}.dcmh").exists() else None


def _model(out: Place | None, model: Path | None, *, rebuild: bool) -> Path | None:
    """The model's folder, checked against the index before anything is loaded; by default that of the index."""
    from dcmh import stores

    if model is None:
        return None if out is None else stores.model_of(out)
    if isinstance(out, Address):
        return _model_at(out, model, rebuild=rebuild)
    from dcmh.methods import folder
    from dcmh.stores.base import check_model
    from dcmh.stores.local import layout

    if out is not None:
        layout.check_target(out)
    fingerprint = folder.read_record(model)["fingerprint"]
    if out is not None and layout.is_index(out) and not rebuild:
        check_model(out, layout.read_header(out)["fingerprint"], fingerprint, console.command("--upgrade"))
    return model


def _model_at(out: Address, model: Path, *, rebuild: bool) -> Path:
    from contextlib import closing

    from dcmh import stores
    from dcmh.methods import folder
    from dcmh.stores.base import check_model

    with closing(stores.connect(out)) as store:
        about = store.read_about()
        if about and not rebuild:
            fingerprint = folder.read_record(model)["fingerprint"]
            check_model(store.place, about["fingerprint"], fingerprint, console.command("--rebuild"))
    return model


def _blocks(items: Dataset, model: Path, place: Place, work: Work) -> Blocks:
    """All items in blocks, as for a new index."""
    from dcmh.search.blocks import Blocks
    from dcmh.search.encode import Encoders
    from dcmh.search.index import blocks_folder

    folder = place if isinstance(place, Path) else Path("index")
    return Blocks(blocks_folder(folder), Encoders(model), items, work)


def _build(
    items: Dataset,
    model: Path,
    out: Place,
    choices: dict[str, Any],
    which: str,
    pool: Pool | None = None,
    metrics: Path | None = None,
) -> SearchIndex:
    from dcmh.methods import folder
    from dcmh.search import SearchIndex
    from dcmh.stores.local import layout

    record = folder.read_record(model)
    console.say(
        f"Indexing {len(items):,} items of {items.name or 'the data'} in {out} "
        f"with {which} ({record['method']}, {record['bits']} bits)."
    )
    replaces = (choices["rebuild"] or choices["upgrade"]) and isinstance(out, Path) and layout.is_index(out)
    try:
        with console.progress("encoding", "images" if "image" in record["modalities"] else "items") as bar:
            if pool is not None:
                on_block = reporter(bar, metrics)
                return SearchIndex.build(model, items, out, pool=pool, on_block=on_block, **choices)
            progress = _progress(choices["device"], bar.update)
            return SearchIndex.build(model, items, out, progress=progress, **choices)
    except KeyboardInterrupt:
        if replaces:
            raise KeyboardInterrupt(f"Stopped. {out} is as it was. Start again: {console.command()}") from None
        again = shlex.join(word for word in shlex.split(console.command()) if word != "--rebuild")
        raise KeyboardInterrupt(f"Stopped. The codes so far are kept in {out}. Continue: {again}") from None


def _shown(model: Path) -> str:
    """A model as messages name it."""
    from dcmh.methods import folder, from_encoder, starter

    if model.parent == Path(starter.__file__).parent:
        return f"the starter model, learned from {starter.SOURCE}"
    own = from_encoder.encoder_of(folder.read_record(model))
    return str(model) if own is None else f"the encoder {own['name']}"


def _progress(device: str, update: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """A progress callback that first names the device, if pictures are encoded; otherwise torch is never loaded."""
    announced = False

    def show(done: int, total: int) -> None:
        nonlocal announced
        if not announced and "torch" in sys.modules:
            console.say(f"Encoding on {_resolve(device)}.")
            announced = True
        update(done, total)

    return show


def _resolve(device: str) -> str:
    from dcmh.util import device as devices

    return str(devices.resolve(device))


def _record(index: SearchIndex, out: Place, seconds: float, notes: list[str]) -> dict[str, Any]:
    changes = index.changes
    assert changes is not None
    counts = {name: getattr(changes, name) for name in ("new", "changed", "moved", "gone", "unchanged")}
    return {
        "index": str(out),
        **({"recoded": changes.recoded} if changes.recoded else {}),
        **counts,
        "skipped": [{"file": file, "reason": reason} for file, reason in changes.skipped],
        "items": len(index),
        "codes": index.modalities,
        "bits": index.bits,
        "model": index.fingerprint,
        "notes": notes,
        **({"recall": index.recall} if index.recall else {}),
        "seconds": round(seconds, 2),
    }


def _summary(index: SearchIndex, out: Place) -> str:
    fine = index.encoders.fine
    size = sum(index.modalities.values()) * (-(-index.bits // 8) + (0 if fine is None else fine.dimensions))
    counts = ", ".join(f"{count:,} by {name}" for name, count in index.modalities.items())
    words = index.encoders.words
    query, known = _picture_query(index), ""
    meaning = fine.encoder if fine is not None else None if words is None else words.encoder
    if words is not None and meaning is not None:
        query, known = ["dog on the beach"], f" Any words can be searched for (text encoder {meaning.name})."
    elif words is not None:
        query = [" ".join(words.bag.words_[:2])]
        known = f" It knows {len(words.bag):,} words; others in a query are ignored."
    shown = f"{size / 1000:,.0f} kB" if size >= 1000 else f"{size} bytes"
    if index.recall:
        shares = ", ".join(f"{share:.3f} by {name}" for name, share in index.recall.items())
        known += f" Searches are approximate: on items of the collection they found {shares} of the 10 nearest."
    place = shlex.quote(str(out))
    browser = "" if words is None and index.encoders.picture is None else f"\nor in a browser: dcmh serve {place}"
    return (
        f"Wrote {out}: {len(index):,} items ({counts or 'no codes'}), {shown} of codes.{known}\n"
        f"Next: dcmh search {place} {shlex.join(query)}{browser}"
    )


def _picture_query(index: SearchIndex) -> list[str]:
    """A query for an index that knows no words: a picture of it, or a vector of one of its kinds."""
    if index.encoders.picture is None:
        first, *others = index.encoders.modalities
        return ["vector.npy", *(["--as", first] if others else [])]
    item = next(index.store.items(), None)
    path = None if item is None else index.path_of(item)
    return ["photo.jpg" if path is None else str(path)]
