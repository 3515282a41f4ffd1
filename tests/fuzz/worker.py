"""The process that runs cases: a line with reader and seed comes in; "ready", then the outcome, go out."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from dcmh.cli.check import verify
from dcmh.errors import DCMHError
from dcmh.search.check import Check
from fuzz.mutate import mutate
from fuzz.readers import READERS, Reader

MEMORY = 1 << 30  # bytes beyond what the process has before a case


def main() -> None:
    """Run cases until the input ends."""
    root = Path(sys.argv[1]) / str(os.getpid())
    os.environ["DCMH_HOME"] = str(root / "home")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints must not be taken for an answer
    prepared: dict[str, Any] = {}
    for line in sys.stdin.buffer:
        name, seed = json.loads(line)
        reader, valid = READERS[name], root / "valid" / name
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if name not in prepared:
            valid.mkdir(parents=True)
            reader.make(valid)
            shutil.copytree(valid, root / "case")
            with contextlib.suppress(*[DCMHError] * reader.refused):
                prepared[name] = None
                prepared[name] = reader.read(root / "case")  # also imports what it needs
            shutil.rmtree(root / "case")
        shutil.copytree(valid, root / "case")
        file = damage(reader, root / "case", random.Random(f"{name} {seed}"))
        _limit_memory()
        answers.write(b"{}\n")
        began = time.perf_counter()
        outcome = run(reader, root / "case", prepared[name])
        outcome |= {"seconds": round(time.perf_counter() - began, 3), "file": file}
        answers.write(json.dumps(outcome).encode() + b"\n")
        shutil.rmtree(root / "case", ignore_errors=True)


def damage(reader: Reader, folder: Path, chance: random.Random) -> str:
    """Mutate one file of the case; returns its name."""
    files = sorted(path for pattern in reader.files for path in folder.glob(pattern) if path.is_file())
    file = chance.choice(files)
    file.write_bytes(mutate(file.read_bytes(), chance, name=file.name))
    return file.relative_to(folder).as_posix()


def run(reader: Reader, folder: Path, before: Any) -> dict[str, Any]:
    """The outcome of reading a folder."""
    try:
        value = reader.read(folder)
    except DCMHError as error:
        if not str(error).strip():
            return {"kind": "bug", "detail": f"{type(error).__name__} without a message"}
        return {"kind": "error", "detail": f"{type(error).__name__}: {error}"[:300]}
    except BaseException as error:
        trace = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(trace) if "/dcmh/" in frame.filename), trace[-1])
        if "DCMH_FUZZ_STDERR" in os.environ:
            traceback.print_exc()
        return {"kind": "bug", "detail": f"{type(error).__name__}: {error}"[:200] + f" ({last.filename}:{last.lineno})"}
    if not reader.compared:
        return {"kind": "loaded"}
    if value == before:
        return {"kind": "same"}
    return {"kind": "checked" if reader.check is not None and is_damaged(folder / reader.check) else "changed"}


def is_damaged(path: Path) -> bool:
    """Whether `dcmh check` notices damage."""
    check = Check()
    try:
        verify(check, str(path))
    except DCMHError:
        return True
    return not check.is_intact


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))
