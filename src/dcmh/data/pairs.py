"""Files of pairs of items that are similar or not, by their ids."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from dcmh.errors import DataError
from dcmh.util.formats import parse_json

_SIMILAR, _DISSIMILAR = ("1", "true", "yes", "similar", "+1"), ("0", "false", "no", "dissimilar", "-1")


def read_pairs(file: Path, ids: Container[str]) -> Iterator[tuple[int, str, str, bool]]:
    """Line number, two ids, and whether they are similar: CSV, TSV or JSON lines; similar if there is no third column.

    The first line is a header if its third cell is "similar" and the other two are not ids.
    """
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            for number, cells in enumerate(_cells(file, lines), 1):
                header = number == 1 and len(cells) > 2 and str(cells[2]).lower() == "similar"
                if not cells or (header and cells[0] not in ids and cells[1] not in ids):
                    continue
                answer = str(cells[2]).strip().lower() if len(cells) > 2 else "1"
                if len(cells) not in (2, 3) or answer not in (*_SIMILAR, *_DISSIMILAR):
                    raise DataError(f"{file.name} line {number}: expected two ids and 1 or 0, such as a.jpg,b.jpg,1.")
                yield number, str(cells[0]).strip(), str(cells[1]).strip(), answer in _SIMILAR
    except DataError:
        raise
    except OSError as error:
        raise DataError(
            f"Cannot read the pairs {file}: {error.strerror}. Give a file with two ids and 1 or 0 per line."
        ) from error
    except (ValueError, csv.Error) as error:
        raise DataError(f"{file.name} cannot be read: {error}. Write two ids and 1 or 0 per line.") from error


def _cells(file: Path, lines: Any) -> Iterator[list[Any]]:
    if file.suffix == ".jsonl":
        for line in lines:
            record = parse_json(line) if line.strip() else []
            if not isinstance(record, dict | list):
                raise ValueError(f"{line.strip()[:40]} is not a list of two ids")
            yield list(record.values()) if isinstance(record, dict) else list(record)
    else:
        yield from csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
