"""From ids to rows, without a dictionary: at most 4 bytes an item, nothing where ids grow with rows.

Rows sorted by id form runs. New rows are a new run, and a run that is not much smaller than the next joins it, so there
are few runs and adding little by little stays cheap. A run whose ids already grow with its rows is a `range`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dcmh.index.table import Table

Run = range | NDArray[np.uint32]
Ids = NDArray[np.int64]


def _run(ids: Ids, start: int, stop: int) -> Run:
    """The rows start to stop, sorted by id."""
    part = ids[start:stop]
    if bool(np.all(part[1:] > part[:-1])):
        return range(start, stop)
    return (np.argsort(part, kind="stable") + start).astype(np.uint32)


def _rows(run: Run) -> NDArray[np.uint32]:
    return np.arange(run.start, run.stop, dtype=np.uint32) if isinstance(run, range) else run


def _joined(table: Table, a: Run, b: Run) -> Run:
    """One run of both; removed rows are left out, so that no id is there twice."""
    if isinstance(a, range) and isinstance(b, range) and table.ids[a.stop - 1] < table.ids[b.start]:
        return range(a.start, b.stop)
    rows = np.concatenate([_rows(a), _rows(b)])
    rows = rows[table.alive(rows.astype(np.int64))]
    return rows[np.argsort(table.ids[rows], kind="stable")]  # two sorted halves: a merge


def _search(ids: Ids, run: Run, wanted: Ids) -> NDArray[np.int64]:
    """For each wanted id the first row of the run whose id is not smaller; the last row where there is none."""
    if isinstance(run, range):
        return np.minimum(run.start + np.searchsorted(ids[run.start : run.stop], wanted), run.stop - 1)
    position = np.zeros(len(wanted), np.int64)
    step = 1 << (len(run).bit_length() - 1)
    while step:
        ahead = np.minimum(position + step, len(run))
        position = np.where(ids[run[ahead - 1]] < wanted, ahead, position)
        step >>= 1
    return run[np.minimum(position, len(run) - 1)].astype(np.int64)


class Finder:
    """Finds the live rows of ids in one table, and follows it as it grows."""

    def __init__(self, table: Table) -> None:
        self.count = table.count
        self.runs: list[Run] = [_run(table.ids, 0, table.count)] if table.count else []

    def grow(self, table: Table) -> None:
        """Take in the rows that the table has gained."""
        if table.count > self.count:
            self.runs.append(_run(table.ids, self.count, table.count))
            self.count = table.count
        while len(self.runs) > 1 and (self._follows(table) or 2 * len(self.runs[-1]) >= len(self.runs[-2])):
            b, a = self.runs.pop(), self.runs.pop()
            self.runs.append(_joined(table, a, b))

    def _follows(self, table: Table) -> bool:
        """Whether the last two runs are ranges that can be one."""
        a, b = self.runs[-2:]
        return isinstance(a, range) and isinstance(b, range) and bool(table.ids[a.stop - 1] < table.ids[b.start])

    def find(self, table: Table, wanted: Ids) -> NDArray[np.int64]:
        """The live row of each wanted id, -1 where there is none."""
        found = np.full(len(wanted), -1, np.int64)
        for run in self.runs:
            if len(run):
                rows = _search(table.ids, run, wanted)
                found = np.where((table.ids[rows] == wanted) & table.alive(rows), rows, found)
        return found
