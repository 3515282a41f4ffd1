"""dcmh demo: learn from emoji drawings and their names, measure, search in both directions."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.cli import console, report_table
from dcmh.cli.data_source import Source, without_unreadable
from dcmh.cli.options import JsonSwitch
from dcmh.cli.training_run import measure_and_save, show_on

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Report

BITS, QUERIES, HITS = 64, 200, 4
# Nine groups alone do not tell a cloud from a tent; everything else is the default.
SETTINGS: dict[str, Any] = {"similarity": "labels+tags"}
WORDS = ("pizza", "train station", "Katze", "coche rojo", "melancholy")
GROUP = "smileys & emotion"  # the picture query is the first held-out drawing of this group


def demo(*, out: Path = Path("demo"), json: JsonSwitch = False) -> None:
    """Learn, measure and search OpenMoji drawings, start to finish, on a CPU and offline.

    Parameters
    ----------
    out
        The folder for the model and the index.
    """
    from dcmh.methods import folder

    began = time.monotonic()
    model = out / "model"
    folder.check_target(model)
    split, report, data = _learn(model)
    searches = _search(model, data, out / "openmoji.dcmh", _held_out_picture(split.query))
    if json:
        console.result_json({"model": str(model), "report": report.to_json(), "searches": searches})
    else:
        console.result(f"\n{console.table(*report.table())}")
        report_table.say_cautions(report, label_words=False)
        for search in searches:
            console.result(f"\n{_page(search)}")
    console.say("\n" + " ".join(data.notes))
    console.say(f"Wrote {model} and {out / 'openmoji.dcmh'} in {time.monotonic() - began:.0f} s. Next, one of:")
    quoted = shlex.quote(str(model))
    for command in (
        f'search {shlex.quote(str(out / "openmoji.dcmh"))} "birthday party"',
        f"evaluate {quoted}",
        f"info {quoted}",
        "index photos/    (a folder of your photos: no training, no captions)",
        f"serve {shlex.quote(str(out / 'openmoji.dcmh'))}    (search it in a browser)",
    ):
        console.say(f"  dcmh {command}")


def _learn(out: Path) -> tuple[Split, Report, Dataset]:
    """The steps of `dcmh train openmoji`, each explained."""
    from dcmh import DCMH
    from dcmh.util import device as devices

    device = str(devices.resolve())
    model = DCMH(bits=BITS, device=device, **SETTINGS)
    console.say(
        "OpenMoji: emoji drawings, each with a name and tags; drawings of a group or with common words are similar."
    )
    source = Source("openmoji")
    data = source.load()
    console.say(f"1. {len(data):,} drawings are encoded by an image network on {device} (the features are cached).")
    began = time.monotonic()
    loaded = without_unreadable(data, model._view("image"), device)
    split = loaded.data.split(QUERIES, len(loaded.data) - 2 * QUERIES)
    seconds = {"features": round(time.monotonic() - began, 2)}
    console.say(
        f"2. DCMH learns {BITS} bits per item from {len(split.train):,} drawings and their words; "
        f"{len(split.query):,} others are queries, and {len(split.database) - len(split.train):,} are only searched."
    )
    began = time.monotonic()
    with console.progress("dcmh") as bar:
        model.fit(split.train, progress=show_on(bar))
    seconds["training"] = round(time.monotonic() - began, 2)
    console.say(
        "3. The queries search the others; of these, the unseen ones were not learned from. MAP is 1 if every relevant item "
        "comes first."
    )
    record: dict[str, Any] = {"data": source.record(), "device": device, "command": console.command()}
    record |= {"seconds": seconds, "skipped": loaded.skipped}
    return split, measure_and_save(model, split, out, record), loaded.data


def _held_out_picture(queries: Dataset) -> Dataset:
    """The first held-out drawing of a group."""
    assert queries.labels is not None
    assert queries.label_names is not None
    return queries.take([int(queries.labels[:, queries.label_names.index(GROUP)].argmax())])


def _search(model: Path, data: Dataset, folder: Path, picture: Dataset) -> list[dict[str, Any]]:
    """The steps of `dcmh index` and `dcmh search`: the first hits for some words, and for a held-out drawing."""
    from dcmh.search import SearchIndex
    from dcmh.util.text import index_words

    text_words = {word for text in data["text"].values for word in index_words(str(text or ""))}
    searches: list[dict[str, Any]] = []
    with SearchIndex.build(model, data, folder) as index:
        for words in WORDS:
            in_texts = any(word in text_words for word in index_words(words))
            searches.append({"query": {"text": words, "in_texts": in_texts}, "hits": index.search(text=words, k=HITS)})
        own = index.store.find(picture.ids[0])
        assert own is not None
        hits = index.similar(own.id, k=HITS)
        searches.append({"query": {"image": picture.ids[0], "text": own.text}, "hits": hits})
        searched = len(index)
    return [search | {"searched": searched, "hits": [hit.to_json() for hit in search["hits"]]} for search in searches]


def _page(search: dict[str, Any]) -> str:
    query = search["query"]
    if "image" in query:
        title = f"Drawings like {_emoji(query['image'])} ({query['text']}; held out of training):"
    else:
        known = "" if query["in_texts"] else "; no text contains them"
        title = f'The words "{query["text"]}" find, of {search["searched"]:,} drawings{known}:'
    rows = []
    for hit in search["hits"]:
        why = f"contains {', '.join(hit['words'])}" if hit["words"] else "by its drawing and text"
        rows.append(f"  {hit['score']:.2f}  {_emoji(hit['name'])}  {hit['text']}  ({why})")
    return "\n".join([title, *rows])


def _emoji(identity: str) -> str:
    """The characters of an OpenMoji id such as 1F352."""
    return "".join(chr(int(part, 16)) for part in identity.split("-"))
