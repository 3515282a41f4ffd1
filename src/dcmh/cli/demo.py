"""dcmh demo: learn from emoji drawings and their names, measure, search both ways."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.cli import console, measures
from dcmh.cli.learning import measure_and_save, shown
from dcmh.cli.options import Switch
from dcmh.cli.source import Source, readable

if TYPE_CHECKING:
    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Report

BITS, QUERIES, HITS = 64, 200, 4
# Nine groups alone do not tell a cloud from a tent; all else is as a user gets it.
SETTINGS: dict[str, Any] = {"similarity": "labels+tags"}
WORDS = ("pizza", "train station", "Katze", "coche rojo", "melancholy")
GROUP = "smileys & emotion"  # the picture query is the first held-out drawing of this group


def demo(*, out: Path = Path("demo"), json: Switch = False) -> None:
    """The whole story on OpenMoji drawings: learn, measure, search. On a CPU, offline.

    Parameters
    ----------
    out
        The folder for the model.
    json
        Print the result as JSON.
    """
    from dcmh.methods import folder

    began = time.monotonic()
    place = out / "model"
    folder.check_target(place)
    split, report, whole = _learn(place)
    searches = _search(place, whole, out / "openmoji.dcmh", _held_out_picture(split.query))
    if json:
        console.result_json({"model": str(place), "report": report.to_json(), "searches": searches})
    else:
        console.result(f"\n{measures.table(report)}")
        for search in searches:
            console.result(f"\n{_page(search)}")
    console.say("\n" + " ".join(whole.notes))
    console.say(f"Wrote {place} and {out / 'openmoji.dcmh'} in {time.monotonic() - began:.0f} s. Next, one of:")
    shown_place = shlex.quote(str(place))
    for command in (
        f'search {shlex.quote(str(out / "openmoji.dcmh"))} "birthday party"',
        f"evaluate {shown_place}",
        f"info {shown_place}",
        "index photos/    (a folder of your photos: no training, no captions)",
        f"serve {shlex.quote(str(out / 'openmoji.dcmh'))}    (search it in a browser)",
    ):
        console.say(f"  dcmh {command}")


def _learn(place: Path) -> tuple[Split, Report, Dataset]:
    """What `dcmh train openmoji` does, with a word on each step."""
    from dcmh import DCMH
    from dcmh.util import device as devices

    device = str(devices.resolve())
    model = DCMH(bits=BITS, device=device, **SETTINGS)
    console.say(
        "OpenMoji: emoji drawings, each with its name and tags; groups and shared words say which belong together."
    )
    source = Source("openmoji")
    data = source.load()
    console.say(f"1. {len(data):,} drawings become features of an image network (kept for next time), on {device}.")
    began = time.monotonic()
    found = readable(data, model._view("image"), device)
    split = found.data.split(QUERIES)
    seconds = {"features": round(time.monotonic() - began, 2)}
    console.say(
        f"2. DCMH learns {BITS} bits per item from {len(split.train):,} drawings and their words; "
        f"{len(split.query):,} others are held out."
    )
    began = time.monotonic()
    with console.progress("dcmh") as bar:
        model.fit(split.train, progress=shown(bar))
    seconds["training"] = round(time.monotonic() - began, 2)
    console.say(
        "3. The held-out drawings and words search the others. MAP is 1 where all that is relevant comes first."
    )
    record: dict[str, Any] = {"data": source.record(), "device": device, "command": console.command()}
    record |= {"seconds": seconds, "skipped": found.skipped}
    return split, measure_and_save(model, split, place, record), found.data


def _held_out_picture(queries: Dataset) -> Dataset:
    """The first held-out drawing of a group."""
    assert queries.labels is not None
    assert queries.label_names is not None
    return queries.take([int(queries.labels[:, queries.label_names.index(GROUP)].argmax())])


def _search(model: Path, data: Dataset, folder: Path, picture: Dataset) -> list[dict[str, Any]]:
    """What `dcmh index` and `dcmh search` do: the first hits of some words, and of a held-out drawing."""
    from dcmh.search import SearchIndex
    from dcmh.util.text import index_words

    held = {word for text in data["text"].values for word in index_words(str(text or ""))}
    found: list[dict[str, Any]] = []
    with SearchIndex.build(model, data, folder) as index:
        for words in WORDS:
            heard = any(word in held for word in index_words(words))
            found.append({"query": {"text": words, "in_texts": heard}, "hits": index.search(text=words, k=HITS)})
        own = index.store.find(picture.ids[0])
        assert own is not None
        hits = index.similar(own.id, k=HITS)
        found.append({"query": {"image": picture.ids[0], "text": own.text}, "hits": hits})
        searched = len(index)
    return [one | {"searched": searched, "hits": [hit.to_json() for hit in one["hits"]]} for one in found]


def _page(search: dict[str, Any]) -> str:
    query = search["query"]
    if "image" in query:
        title = f"Drawings like {_emoji(query['image'])} ({query['text']}; held out of training):"
    else:
        known = "" if query["in_texts"] else "; no text of a drawing holds them"
        title = f'The words "{query["text"]}" find, of {search["searched"]:,} drawings{known}:'
    rows = []
    for hit in search["hits"]:
        why = f"says {', '.join(hit['words'])}" if hit["words"] else "by its drawing and text"
        rows.append(f"  {hit['score']:.2f}  {_emoji(hit['name'])}  {hit['text']}  ({why})")
    return "\n".join([title, *rows])


def _emoji(identity: str) -> str:
    """The characters of an OpenMoji id such as 1F352."""
    return "".join(chr(int(part, 16)) for part in identity.split("-"))
