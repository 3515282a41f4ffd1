"""dcmh search: search by words, by a picture, by examples."""

from __future__ import annotations

import contextlib
import difflib
import json as json_lines
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch, Repeatable, Switch
from dcmh.errors import DCMHError, ParameterError, QueryError
from dcmh.util.tables import csv_table

if TYPE_CHECKING:
    from dcmh.search import Hits, SearchIndex

TEXT_WIDTH = 70  # characters of a text in the table
SHARE = "share of relevant items among such hits"
SHARE_OF_PARTS = "share of such hits that match at least in part (by one label)"
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")  # first bytes of picture files


@Parameter(name="*", group="Filters")
@dataclass
class FilterOptions:
    """Which items may be hits."""

    label: Repeatable = None
    """Only items with this label; may be repeated, for any of several."""
    folder: str | None = None
    """Only items whose file is in this folder of the indexed data, or in a subfolder of it."""
    since: str | None = None
    """Only items of this date or later, such as 2019, 2019-07 or 2019-07-14: when the photo was taken, or else when its
    file was written."""
    until: str | None = None
    """Only items of this date or earlier."""
    where: Repeatable = None
    """Only items that meet a condition on a column of their table, such as "rating >= 4", with =, !=, <, <=, > or >=; may be
    repeated, for all of several."""


def search(
    index: str,
    query: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *more: Annotated[str, Parameter(allow_leading_hyphen=True)],
    image: str | None = None,
    like: Repeatable = None,
    unlike: Repeatable = None,
    k: Annotated[int | None, Parameter(alias="-k")] = None,
    radius: int | None = None,
    in_: Annotated[str | None, Parameter(name="--in")] = None,
    as_: Annotated[str | None, Parameter(name="--as")] = None,
    at_least: float | None = None,
    filters: FilterOptions | None = None,
    model: Path | None = None,
    paths: Switch = False,
    null: Annotated[Switch, Parameter(alias="-0")] = False,
    csv: Switch = False,
    json: JsonSwitch = False,
) -> int:
    """Search by words, by a picture, by examples, or by several of them.

    Parameters
    ----------
    index
        The folder that dcmh index wrote, or the address of a collection, as for dcmh index --out.
    query
        Words, a picture file, or a .npy file with a vector; text:WORDS and image:FILE say which. Words after a minus, and
        after "no" or "without", are excluded: dog -beach. - reads one query per line from stdin and prints one line of
        JSON for each.
    more
        More words.
    image
        A picture file, which with words makes one query: "at night" --image photo.jpg.
    like
        Name or id of an item that hits should resemble; may be repeated. --csv shows ids.
    unlike
        Name or id of an item that hits should not resemble; may be repeated.
    k
        Maximum number of hits. Default: 10; with --radius, all within it.
    radius
        Maximum Hamming distance of hits, in bits.
    in_
        Modality to search: image or text. Default: for words, pictures, texts and labels; for a picture, pictures and
        texts.
    as_
        Modality of the query, such as title or tags. Default: text or image, or else the first of its kind.
    at_least
        Minimum precision of hits, from 0 to 1, as measured on items that the model did not learn from; there may be
        none.
    model
        The model of a collection on a server, if this machine has not used it before. An index folder has its own.
    paths
        Print only the paths of the hits, one per line; items without a picture file have none.
    null
        Print only the paths, each followed by a null character, for xargs -0.
    csv
        Print the hits as CSV.
    """
    from dcmh.search import Filter, SearchIndex

    _refuse_options([query or "", *more])
    options = filters or FilterOptions()
    chosen = Filter(options.label or (), options.folder, options.since, options.until, options.where or ())
    settings: dict[str, Any] = {"k": k, "radius": radius, "modality": in_, "query_modality": as_, "at_least": at_least}
    settings["filter"] = chosen
    with SearchIndex.open(index, model=model) as opened:
        settings |= {"like": _ids(opened, like), "unlike": _ids(opened, unlike)}
        if query == "-" and not more:
            return _answer_lines(opened, image, **settings)
        if query is None and image is None and not like and not unlike:
            raise ParameterError("Say what to search for: words, a picture, --image or --like.")
        arguments = {} if query is None else _query(opened, " ".join([query, *more]), _kind(opened, as_))
        hits = opened.search(**_with_image(arguments, image), **settings)
        if json:
            console.result_json(hits.to_json())
        elif csv:
            console.result(_as_csv(opened, hits))
        else:
            _show(opened, hits, paths=paths, null=null)
    return 0


def _refuse_options(words: list[str]) -> None:
    """A word after one minus is excluded; after two, it is a misspelt option."""
    for word in words:
        if word.startswith("--"):
            names = [
                f"--{name.strip('_').replace('_', '-')}" for name in (*search.__annotations__, *vars(FilterOptions()))
            ]
            close = difflib.get_close_matches(word, names, 1)
            offered = f" Did you mean {close[0]}?" if close else ""
            raise CycloptsError(msg=f"Unknown option: {word}.{offered}")


def _ids(index: SearchIndex, named: list[str] | None) -> list[int]:
    """The ids of items that are given by name or by id."""
    ids = []
    for name in named or ():
        item = index.store.find(name)
        if item is None and not name.isdecimal():
            raise QueryError(f"There is no item {name} in {index.place}.", hint="Give an id, which --csv shows.")
        ids.append(int(name) if item is None else item.id)
    return ids


def _with_image(arguments: dict[str, Any], image: str | None) -> dict[str, Any]:
    """The arguments of a query with the picture of --image."""
    if image is not None and "image" in arguments:
        raise ParameterError("Give one picture: as the query, or with --image.")
    return arguments if image is None else {**arguments, "image": image}


def _kind(index: SearchIndex, modality: str | None) -> str | None:
    """The kind of a query modality: text, image or vector."""
    if modality is None:
        return None
    if modality not in index.encoders.modalities:
        raise ParameterError(
            f"--as {modality}: the model has no such modality. It has: {', '.join(index.encoders.modalities)}."
        )
    return index.encoders.kind(modality)


def _query(index: SearchIndex, query: str, kind: str | None = None) -> dict[str, Any]:
    """The argument of `SearchIndex.search` for a query: text, image or vector."""
    from dcmh.data.columns import IMAGE_SUFFIXES

    for prefix in ("text", "image"):
        if query.startswith(f"{prefix}:"):
            return {prefix: query.removeprefix(f"{prefix}:")}
    if kind is not None:
        return {kind: query}
    if os.path.isfile(query) and query.lower().endswith(".npy"):
        return {"vector": query}
    if os.path.isfile(query) and (query.lower().endswith(IMAGE_SUFFIXES) or os.sep in query or _is_picture(query)):
        return {"image": query}
    if query.lower().endswith(IMAGE_SUFFIXES):
        hint = f"If these are words, write 'text:{query}'."
        if index.store.find(query) is not None:
            hint = f"To find more like the item of this name in the index, write --like '{query}'."
        raise QueryError(f"There is no picture {query}.", hint=hint)
    return {"text": query}


def _is_picture(path: str) -> bool:
    """By its first bytes: a file may just happen to have the name of a word."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        head = file.read(8)
        return head.startswith(SIGNATURES) or head[4:] == b"ftyp"  # AVIF and HEIC
    return False


def _answer_lines(index: SearchIndex, image: str | None, **wanted: Any) -> int:
    """Print a line of JSON for each line of stdin, with an error where a query fails; 1 if all of them do."""
    count = failed = 0
    kind = _kind(index, wanted["query_modality"])
    for line in sys.stdin:
        query = line.strip()
        count += 1
        try:
            if not query:
                raise QueryError("The query is empty.", hint="Write words, or the path of a picture.")
            record = index.search(**_with_image(_query(index, query, kind), image), **wanted).to_json()
        except ParameterError:
            raise
        except DCMHError as error:
            record = {"query": {"text": query}, "error": str(error)}
            failed += 1
        console.result(json_lines.dumps(record, ensure_ascii=False))
        console.flush()
    return 1 if count and failed == count else 0


def shown_file(index: SearchIndex, path: Path | None, name: str) -> str:
    """The path of an item in its data folder; its name if it has no picture file."""
    root = index.root
    if path is None:
        return name
    return str(path.relative_to(root) if root is not None and path.is_relative_to(root) else path)


def _as_csv(index: SearchIndex, hits: Hits) -> str:
    """One line per hit, after a line of names."""
    rows = []
    for hit in hits:
        record = hit.to_json()
        row = [record[name] for name in ("id", "score", "distance", "precision")]
        row += [" ".join(hit.words), shown_file(index, hit.path, hit.name), record["path"]]
        rows.append([*row, ";".join(hit.labels), hit.text])
    return csv_table(["id", "score", "distance", "precision", "words", "file", "path", "labels", "text"], rows)


def _show(index: SearchIndex, hits: Hits, *, paths: bool, null: bool) -> None:
    from dcmh.search import spelling

    if meant := hits.query.corrected:
        typed = spelling.corrected(hits.query.text or "", {word: f'"{word}"' for word in meant})
        console.say(f"Searched for {', '.join(meant.values())} instead of {', '.join(meant)}. As typed: '{typed}'")
    if hits.query.text is not None and hits.query.ignored:
        console.say(_words(hits))
    if hits.query.without:
        console.say(f"without: {', '.join(hits.query.without)}")
    if not hits:
        console.say(_why_empty(index, hits))
        return
    if paths or null:
        files = [str(hit.path) for hit in hits if hit.path is not None]
        for file in files:
            console.result(file, end="\0" if null else "\n")
        if lacking := len(hits) - len(files):
            console.say(f"Left out because they have no picture file: {lacking:,} of {len(hits):,} hits.")
        return
    columns = {
        "precision": ["" if hit.precision is None else f"{hit.precision:.2f}" for hit in hits],
        "score": ["" if hit.score is None else f"{hit.score:.2f}" for hit in hits],
        "distance": [f"{hit.distance:>{len(str(hit.bits))}} / {hit.bits}" for hit in hits],
        "words": [" ".join(hit.words) for hit in hits],
        "file": [shown_file(index, hit.path, hit.name) for hit in hits],
        "text": [_shortened(hit.text) for hit in hits],
    }
    shown = {name: column for name, column in columns.items() if name in ("distance", "file") or any(column)}
    console.result(console.table(list(shown), [list(row) for row in zip(*shown.values(), strict=True)]))
    if "precision" in shown:
        share = SHARE if hits.query.kind == "word" else SHARE_OF_PARTS
        console.say(f"precision: {share}, measured on items that the model did not learn from")
    if hits.unlikely:
        best = max((hit.precision for hit in hits if hit.precision is not None), default=None)
        why = "such low scores are seldom right" if best is None else f"the best hit has a precision of only {best:.2f}"
        console.say(f"Probably nothing matches: {why}.")
    if hits.below:
        console.say(f"Left out because their precision is lower or was not measured: {hits.below:,}.")
    console.say(f"{hits.searched:,} searched in {hits.took_ms:.1f} ms{_how_well(index, hits)}")


def _how_well(index: SearchIndex, hits: Hits) -> str:
    """How many items were scored, if not all; the measured recall of an approximate search."""
    if not index.recall:
        return "" if hits.candidates is None else f"; the {hits.candidates:,} nearest codes were scored"
    shares = ", ".join(f"{share:.3f} by {name}" for name, share in index.recall.items())
    return f"; approximate, with a measured recall of the 10 nearest: {shares}"


def _words(hits: Hits) -> str:
    query = hits.query
    offered = [
        f"{word} (known: {', '.join(query.nearest[word])})" if word in query.nearest else word for word in query.ignored
    ]
    ignored = f"   ignored: {' '.join(offered)}" if offered else ""
    return f"used: {' '.join(query.used)}{ignored}"


def _why_empty(index: SearchIndex, hits: Hits) -> str:
    if hits.at_least is not None and hits.below:
        best = max((hit.precision for hit in [hits.nearest] if hit and hit.precision is not None), default=None)
        reached = "" if best is None else f" The best hit has {best:.2f} ({hits.nearest.name if hits.nearest else ''})."
        return f"No hit reaches a precision of {hits.at_least:g}.{reached}"
    if hits.query.filter and not hits.searched:
        absent = _no_such_label(index, hits) + _no_such_folder(index, hits)
        return f"None of the {len(index):,} items of {index.place} passes the filter.{absent}"
    if hits.nearest is None and len(index):
        why = "no item has a code in the modality that is searched"
        if hits.query.like or hits.query.unlike:
            why = "examples are no hits themselves"
        if hits.query.without:
            why = "the text or labels of all of them contain what is excluded"
        return f"Of {hits.searched:,} items, none remains: {why}."
    if hits.nearest is None:
        return f"{index.place} has nothing to search: it holds {len(index):,} items."
    near = hits.nearest
    return (
        f"Nothing within radius {hits.radius}. Nearest is at {near.distance} ({near.name}). "
        f"Try --radius {near.distance}."
    )


def _no_such_label(index: SearchIndex, hits: Hits) -> str:
    """The labels of the filter that no item has."""
    from dcmh.search import Filter

    unused = [label for label in hits.query.filter.labels if not len(index.store.matching(Filter([label])))]
    return f" No item has the label {' or '.join(unused)}." if unused else ""


def _no_such_folder(index: SearchIndex, hits: Hits) -> str:
    """That the folder of the filter does not exist: it is easily given relative to the current folder."""
    root, folder = index.root, hits.query.filter.folder
    if folder is None or root is None or not root.is_dir() or (root / folder).is_dir():
        return ""
    return f" There is no folder {folder} in {root}."


def _shortened(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= TEXT_WIDTH else f"{line[: TEXT_WIDTH - 1]}…"
