"""dcmh merge: merge several indexes into one."""

from __future__ import annotations

import shlex
from pathlib import Path

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch, Switch


def merge(index: str, other: str, /, *more: str, out: Path, prefix: Switch = False, json: JsonSwitch = False) -> None:
    """Merge several indexes of the same model into one, as if their items had been indexed together.

    An item that several indexes have is stored once. The indexes themselves are not changed.

    Parameters
    ----------
    index
        An index folder, or the address of a collection.
    other
        Another one.
    more
        More of them.
    out
        The folder to write, which must not exist yet.
    prefix
        Put the name of its folder before the names of each index's items, for indexes that use the same names for
        different items.
    """
    from dcmh.search.merge import merge as merged

    sources = [index, other, *more]
    done = merged(sources, out, prefix=prefix)
    if json:
        console.result_json({"index": str(out), "items": done.items, "repeated": done.repeated, "merged": sources})
    else:
        console.result(f"{done.items:,} items of {len(sources)} indexes, {done.repeated:,} repeated ones left out.")
    console.say(f"Wrote {out}. Next: dcmh info {shlex.quote(str(out))}")
