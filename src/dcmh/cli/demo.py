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
    import numpy as np
    from numpy.typing import NDArray

    from dcmh.data import Dataset, Split
    from dcmh.evaluation import Report
    from dcmh.methods.base import Hasher

BITS, QUERIES, HITS = 64, 200, 4
# Nine groups alone do not tell a cloud from a tent; all else is as a user gets it.
SETTINGS: dict[str, Any] = {"similarity": "labels+tags"}
WORDS = ("heart", "rain cloud", "train station")
GROUP = "food & drink"  # the picture query is the first held-out drawing of this group


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
    model, split, report, whole = _learn(place)
    _index(place, whole, out / "openmoji.dcmh")
    searches = [_search(model, whole, "image", text=words) for words in WORDS]
    searches.append(_search(model, split.database, "text", picture=_held_out_picture(split.query)))
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
        f'search {shlex.quote(str(out / "openmoji.dcmh"))} "rain cloud"',
        f"evaluate {shown_place}",
        f"info {shown_place}",
        "train photos/    (a folder of yours)",
        f"serve {shlex.quote(str(out / 'openmoji.dcmh'))}    (search it in a browser)",
    ):
        console.say(f"  dcmh {command}")


def _learn(place: Path) -> tuple[Hasher, Split, Report, Dataset]:
    """What `dcmh train openmoji` does, with a word on each step."""
    from dcmh import DCMH
    from dcmh import device as devices

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
        f"2. DCMH learns {BITS} bits an item from {len(split.train):,} drawings and their words; "
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
    return model, split, measure_and_save(model, split, place, record), found.data


def _index(place: Path, data: Dataset, folder: Path) -> None:
    """What `dcmh index openmoji` does, so that the demo's words can be searched from the command line."""
    from dcmh.search import SearchIndex

    SearchIndex.build(place, data, folder).close()


def _held_out_picture(queries: Dataset) -> Dataset:
    """The first held-out drawing of a group."""
    assert queries.labels is not None
    assert queries.label_names is not None
    return queries.take([int(queries.labels[:, queries.label_names.index(GROUP)].argmax())])


def _search(model: Hasher, data: Dataset, modality: str, **query: Any) -> dict[str, Any]:
    """The nearest items by Hamming distance, as `dcmh search` ranks them."""
    import numpy as np

    from dcmh import codes

    if "text" in query:
        asked, said = model.encode(text=[query["text"]]), {"text": query["text"]}
    else:
        picture: Dataset = query["picture"]
        asked, said = model.encode(image=picture.image), {"image": picture.ids[0], "text": picture["text"].values[0]}
    distance = codes.hamming(codes.pack(asked), codes.pack(model.encode(**{modality: data[modality]})))[0]
    order: NDArray[np.intp] = np.argsort(distance, kind="stable")[:HITS]
    texts = data["text"].values
    hits = [{"id": data.ids[row], "distance": int(distance[row]), "text": texts[row]} for row in order]
    return {"query": said, "finds": modality, "searched": len(data), "hits": hits}


def _page(search: dict[str, Any]) -> str:
    query = search["query"]
    if search["finds"] == "image":
        title = f'The words "{query["text"]}" find, of {search["searched"]:,} drawings:'
    else:
        title = (
            f"The drawing {_emoji(query['image'])} ({query['text']}; held out, its words were not shown) finds, "
            f"of {search['searched']:,} texts:"
        )
    rows = [
        f"  {hit['distance']:>2} of {BITS} bits differ  {_emoji(hit['id'])}  {hit['text']}" for hit in search["hits"]
    ]
    return "\n".join([title, *rows])


def _emoji(identity: str) -> str:
    """The characters of an OpenMoji id such as 1F352."""
    return "".join(chr(int(part, 16)) for part in identity.split("-"))
