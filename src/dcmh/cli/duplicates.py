"""dcmh duplicates: list copies of pictures, with the one to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch, ServerModel, Switch
from dcmh.cli.search import shown_file
from dcmh.errors import ParameterError
from dcmh.util.tables import csv_table

if TYPE_CHECKING:
    from dcmh.search import SearchIndex
    from dcmh.search.duplicates import Duplicates, Group


def duplicates(
    index: str,
    /,
    *,
    kind: Literal["exact", "near"] | None = None,
    similarity: float | None = None,
    model: ServerModel = None,
    paths: Switch = False,
    csv: Switch = False,
    json: JsonSwitch = False,
) -> None:
    """List duplicate pictures in groups, exact and near, with the one to keep.

    Near copies are resized, recompressed, slightly cropped, grey or mirrored. The first run decodes pictures that were
    indexed by an older version. Nothing is deleted.

    Parameters
    ----------
    index
        The folder that dcmh index wrote, or the address of a collection.
    kind
        exact: files with the same content; near: pictures that are nearly the same. Default: both.
    similarity
        Minimum similarity of near copies, above 0 and at most 1. Default: 0.77; a higher one finds fewer cropped copies.
    paths
        Print only the paths of the copies that are not the one to keep, one per line.
    csv
        Print the result as CSV.
    """
    from dcmh.search import SearchIndex

    if paths + csv + json > 1:
        raise ParameterError("--paths, --csv and --json are mutually exclusive.", hint="Give one of them.")
    with SearchIndex.open(index, model=model) as opened:
        with console.progress("comparing", "images") as bar:
            result = opened.duplicates(kind, similarity=similarity, progress=bar.update)
        if json:
            console.result_json(result.to_json())
        elif csv:
            console.result(_as_csv(result.groups))
        elif paths:
            for path in dict.fromkeys(copy.path for group in result.groups for copy in group.copies[1:]):
                if path is not None:
                    console.result(str(path))
        elif result.groups:
            console.result(_as_table(opened, result.groups))
        console.say(_summary(result))


def _as_table(index: SearchIndex, groups: list[Group]) -> str:
    rows = [
        [
            number,
            group.kind,
            "keep" if copy is group.copies[0] else "",
            shown_file(index, copy.path, copy.item.name),
            "" if copy.width is None else f"{copy.width} x {copy.height}",
            "" if copy.item.size is None else f"{copy.item.size:,}",
            copy.distance,
            group.reason if copy is group.copies[0] else "",
        ]
        for number, group in enumerate(groups, 1)
        for copy in group.copies
    ]
    return console.table(["group", "kind", "keep", "file", "pixels", "bytes", "distance", "reason"], rows)


def _as_csv(groups: list[Group]) -> str:
    rows: list[list[object]] = []
    for number, group in enumerate(groups, 1):
        for copy in group.copies:
            first = copy is group.copies[0]
            about = [copy.item.id, copy.item.name, copy.path, copy.width, copy.height, copy.item.size, copy.distance]
            rows.append([number, group.kind, int(first), *about, group.reason if first else ""])
    header = ["group", "kind", "keep", "id", "name", "path", "width", "height", "bytes", "distance", "reason"]
    return csv_table(header, rows)


def _summary(result: Duplicates) -> str:
    exact = sum(group.kind == "exact" for group in result.groups)
    others = {copy.item.id: copy.item.size or 0 for group in result.groups for copy in group.copies[1:]}
    text = (
        f"{exact:,} groups of exact copies and {len(result.groups) - exact:,} of near copies in {result.items:,} items, "
        f"found in {result.took:.1f} s."
    )
    if others:
        text += f" Without the {len(others):,} copies that need not be kept: {sum(others.values()) / 1e6:,.1f} MB less."
    if result.missing:
        name, reason = result.missing[0]
        text += f" Not compared for near copies: {len(result.missing):,} pictures, such as {name} ({reason})."
    return text
