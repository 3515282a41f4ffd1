"""Tables and figures, made only from the files that `dcmh bench` wrote: `dcmh report`."""

from __future__ import annotations

from dcmh.experiments.tables.figures import FIGURES, Curve, Figure, draw, figures, training
from dcmh.experiments.tables.render import FORMATS, render
from dcmh.experiments.tables.results import Group, Run, groups, read
from dcmh.experiments.tables.tables import Cell, Column, Row, Table, tables

__all__ = [
    "FIGURES",
    "FORMATS",
    "Cell",
    "Column",
    "Curve",
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
    "training",
]
