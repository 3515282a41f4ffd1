"""dcmh report: tables and figures from the files of dcmh bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dcmh.cli import console
from dcmh.cli.options import JsonSwitch

if TYPE_CHECKING:
    from dcmh.experiments.tables import Group, Table


def report(
    results: Path,
    /,
    *,
    against: Literal["paper"] | None = None,
    figure: Literal["pr", "radius", "gamma", "eta", "all"] | None = None,
    format: Literal["md", "csv", "tex"] = "md",  # noqa: A002 - the option's name
    measure: Literal[
        "map", "map@50", "map@5000", "ndcg@10", "ndcg@100", "ndcg@1000", "own@1", "own@10", "ramap"
    ] = "map",
    ties: Literal["stable", "expected", "best", "worst"] | None = None,
    out: Path | None = None,
    json: JsonSwitch = False,
) -> None:
    """Make tables and figures from the results of dcmh bench, next to the paper's numbers.

    Computed from the result files alone: MAP of Hamming ranking, and hash lookup within radius 0, 1 and 2 at 16 bits, for each
    data set, split and feature set. Of a model, it draws the training curves.

    Parameters
    ----------
    results
        The folder of results, any folder in it, or a model.
    against
        Show the numbers of the paper, and the differences, below each method.
    figure
        Precision-recall curves, precision over the Hamming radius, MAP over gamma, MAP over eta, or all of them, as SVG, PNG
        and CSV.
    format
        Format of the tables on stdout: Markdown, CSV or LaTeX.
    measure
        Instead of these tables, one of a measure that other papers print: MAP or NDCG over the first ranks, queries that
        find their own item, or radius-aware MAP.
    ties
        How items at equal distance count. Default: as in the bench file, else in database order.
    out
        Write the tables in all formats, and the figures, into this folder. Default for figures: report.
    """
    from dcmh.experiments import tables as report
    from dcmh.experiments.tables.render import to_json
    from dcmh.methods import folder

    if folder.is_model(results):
        files = _draw_training(results, out or Path("report"))
        if json:
            console.result_json({"tables": [], "files": [str(file) for file in files]})
        console.say(f"Wrote {len(files):,} files into {files[0].parent}.")
        return
    groups = report.groups(report.read(results))
    tables = report.tables(groups, ties=ties, against_paper=against == "paper", measure=measure)
    files = []
    if out is not None:
        files += _write_tables(tables, out)
    if figure is not None:
        files += _draw(groups, figure, out or Path("report"), ties or "stable")
    if json:
        console.result_json({"tables": [to_json(table) for table in tables], "files": [str(file) for file in files]})
    else:
        console.result("\n".join(report.render(table, format) for table in tables).rstrip("\n"))
    if files:
        console.say(f"Wrote {len(files):,} files into {files[0].parent}.")
    elif not json:
        console.say(f"Files and figures: dcmh report {results} --figure all --out report")


def _write_tables(tables: list[Table], folder: Path) -> list[Path]:
    from dcmh.experiments import tables as report
    from dcmh.util.atomic import write_text

    files = []
    for table in tables:
        for form in report.FORMATS:
            files.append(folder / f"{table.name}.{form}")
            write_text(files[-1], report.render(table, form))
    return files


def _draw(groups: list[Group], figure: str, folder: Path, ties: str) -> list[Path]:
    from dcmh.errors import DataError
    from dcmh.experiments import tables

    files = []
    for kind in tables.FIGURES if figure == "all" else (figure,):
        try:
            drawn = tables.figures(groups, kind, ties=ties)  # type: ignore[arg-type]
        except DataError as error:
            if figure != "all":
                raise
            console.say(str(error))
            continue
        for plot in drawn:
            files += tables.draw(plot, folder)
    return files


def _draw_training(model: Path, out: Path) -> list[Path]:
    from dcmh.errors import DataError
    from dcmh.experiments import tables
    from dcmh.methods import folder

    history = folder.read_history(model)
    if not history:
        raise DataError(f"{model} has no history: its method does not learn in iterations, so there are no curves.")
    return tables.draw(tables.training(history), out)
