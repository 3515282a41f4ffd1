"""python -m tests.fuzz: run any number of cases, and print how they ended."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.readers import READERS
from fuzz.runner import Outcome, run


def main() -> int:
    """Run the cases that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, help="number of cases; default 500, or 1 with --seed")
    parser.add_argument("--seed", type=int, help="seed of the first case; default 0")
    parser.add_argument("--only", action="append", choices=sorted(READERS), help="a reader; may be given several times")
    given = parser.parse_args()
    if given.seed is not None and given.cases is None:
        os.environ["DCMH_FUZZ_STDERR"] = "1"
    names = given.only or list(READERS)
    first, count = given.seed or 0, given.cases or (500 if given.seed is None else len(names))
    cases = ((name, first + row) for row in itertools.count() for name in names)

    def report(outcome: Outcome) -> None:
        if outcome.failed or count <= len(names):
            sys.stdout.write(f"{outcome}\n")
            sys.stdout.flush()

    tally = run(itertools.islice(cases, count), report)
    sys.stdout.write(f"{tally.table()}\n")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
