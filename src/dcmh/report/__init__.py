"""Tables and figures from the files that `dcmh bench` wrote, and from nothing else: `dcmh report`."""

from __future__ import annotations

from dcmh.report.figures import FIGURES, Figure, draw, figures
from dcmh.report.render import FORMATS, render
from dcmh.report.results import Group, Run, groups, read
from dcmh.report.tables import Cell, Column, Row, Table, tables

__all__ = [
    "FIGURES",
    "FORMATS",
    "Cell",
    "Column",
    "Figure",
    "Group",
    "Row",
    "Run",
    "Table",
    "draw",
    "figures",
    "groups",
    "read",
    "render",
    "tables",
]
