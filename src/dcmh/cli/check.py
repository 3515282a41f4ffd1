"""dcmh check: verify stored files completely, and repair what can be derived."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dcmh.cli import console
from dcmh.cli.info import checkpoint_file, kind_of
from dcmh.cli.options import JsonSwitch, Switch
from dcmh.errors import DataError
from dcmh.stores.address import is_address, parse

if TYPE_CHECKING:
    from dcmh.search.check import Check


def check(path: str | None = None, /, *, repair: Switch = False, json: JsonSwitch = False) -> int:
    """Verify a model, an index, codes, a checkpoint, a collection or the cache completely. Exit code 1: damaged.

    Parameters
    ----------
    path
        A folder or file that dcmh wrote, or the address of a collection. Default: the cache folder.
    repair
        Derive again what can be derived, and add checksums that an older version did not write.
    """
    from dcmh.search.check import Check
    from dcmh.util.cache import home

    checked = Check(repair=repair)
    kind = verify(checked, path)
    shown = str(home()) if path is None else str(parse(path)) if is_address(path) else path
    if json:
        findings = [vars(finding) for finding in checked.findings]
        console.result_json({"path": shown, "kind": kind, "intact": checked.is_intact, "findings": findings})
    else:
        rows = [[finding.what, finding.result, finding.detail] for finding in checked.findings]
        console.result(console.table(["checked", "result", "detail"], rows) if rows else "Nothing to check.")
        for hint in dict.fromkeys(finding.hint for finding in checked.findings if finding.hint):
            console.say(hint.replace("--repair", f"dcmh check {shlex.quote(shown)} --repair"))
    return 0 if checked.is_intact else 1


def verify(checked: Check, path: str | None) -> str:
    """Check what is at a path; returns its kind."""
    if path is None:
        checked.cache()
        return "cache"
    if is_address(path):
        checked.collection(path)
        return "collection"
    folder = Path(path).expanduser()
    kind = kind_of(folder)
    if kind is None:
        raise DataError(
            f"{folder} is not a model, an index, codes or a checkpoint of dcmh."
            if folder.exists()
            else f"There is no {folder}.",
            hint="Give the path of a folder or file that dcmh wrote.",
        )
    checks: dict[str, Callable[[Path], object]] = {
        "model": checked.model,
        "search index": checked.index,
        "codes": checked.codes,
        "Hamming index": checked.hamming,
        "checkpoint": lambda folder: checked.checkpoint(checkpoint_file(folder)),
    }
    checks[kind](folder)
    return kind
