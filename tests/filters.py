"""Photos in folders, with dates and further columns, and filters to try on them."""

from __future__ import annotations

import json
import operator
import os
from datetime import datetime
from pathlib import Path

from dcmh.search import Filter
from dcmh.stores.base import Condition, Item
from toy_photos import write_pairs

FILTERS = [
    Filter(labels=["sea"]),
    Filter(labels=["sea", "night"]),
    Filter(labels=["se"]),
    Filter(labels=["no"]),
    Filter(labels=["x", "fire"]),
    Filter(folder="2019"),
    Filter(folder="2020/"),
    Filter(folder="20"),
    Filter(folder="."),
    Filter(since="2019-03", until="2020"),
    Filter(since="2020-06-15"),
    Filter(until="2019-02"),
    Filter(where=["rating >= 3"]),
    Filter(where=["rating != 2", "rating < 4"]),
    Filter(where=["rating = 2.0"]),
    Filter(where=["city = Rome"]),
    Filter(where=["city > Paris"]),
    Filter(where=["city != Rome"]),
    Filter(where=["code > 5"]),
    Filter(where=["code != 7"]),
    Filter(where=["code <= 7b"]),
    Filter(labels=["sea", "sun"], folder="2020", since="2020-02", until="2020-11", where=["rating >= 1"]),
]


def write_described(folder: Path, count: int = 40) -> Path:
    """Photos with pairs.jsonl: half in 2019/, half in 2020/, with file dates, ratings from 0 to 4, cities, and mixed codes."""
    write_pairs(folder, count)
    records = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    for row, record in enumerate(records):
        year = 2019 + row % 2
        (folder / str(year)).mkdir(exist_ok=True)
        image = f"{year}/{record['image']}"
        (folder / record["image"]).rename(folder / image)
        moment = datetime(year, 1 + row % 12, 15, 12).timestamp()
        os.utime(folder / image, (moment, moment))
        record |= {"image": image, "rating": row % 5, "city": ["Rome", "Oslo", "\u00c5lesund", "Quito"][row % 4]}
        if row % 10 == 7:
            record["labels"] += ["no", "x"]  # words that are not indexed beside others
        if row % 3 == 0:
            record["code"] = ["7a", 7, "5", True][row % 4]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def passes(chosen: Filter, item: Item) -> bool:
    """Whether an item passes a filter: the definition, which every store is compared with."""
    first, end = chosen.taken
    return (
        (not chosen.labels or not set(chosen.labels).isdisjoint(item.labels))
        and (chosen.prefix is None or (item.path or "").startswith(chosen.prefix))
        and (first is None or (item.taken is not None and item.taken >= first))
        and (end is None or (item.taken is not None and item.taken < end))
        and all(holds(condition, item) for condition in chosen.conditions)
    )


def holds(condition: Condition, item: Item) -> bool:
    """Whether an item meets a condition. An item without the column does not."""
    cell = item.extra.get(condition.column)
    if cell is None:
        return False
    if isinstance(cell, str) != isinstance(condition.value, str):
        return condition.operator == "!="
    return bool(OPERATORS[condition.operator](cell, condition.value))
