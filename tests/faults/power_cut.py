"""A simulator of power cuts: the system calls of a real run are replayed, and what was not synced gets lost.

The run is recorded with strace, so it includes what SQLite and safetensors do. The model of the disk is stricter than any
file system we know: a write reaches the disk only when its file is synced; a name (from creating, renaming or removing) only
when its folder is synced; until then each single write and each single change of a name may or may not have reached the disk,
independently of all others. A rename, and an exchange of two names, is one change.

Not simulated: writes torn within one system call, disks that lose what they have acknowledged as synced, writes through
memory maps (nothing here writes so), permissions, and metadata other than sizes and names.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,write,pwrite64,writev,pwritev,lseek,ftruncate,fsync,fdatasync,rename,"
    "renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,sendfile,copy_file_range,fallocate,link,linkat"
)
MARK = b"DONE"  # the run writes this somewhere when the operation has returned

_LINE = re.compile(r"^(\d+)\s+(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\)\s*=\s*(-?\d+)")
_TOKEN = re.compile(r'"((?:\\x[0-9a-f]{2})*)"|([^,"<\[{]+)(?:<((?:\\x[0-9a-f]{2})*)>)?|[\[{][^\]}]*[\]}]')


def options(log: Path) -> tuple[str, ...]:
    """Options for strace to record into a file."""
    return ("-y", "-xx", "-s", "100000000", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log))


@dataclass(eq=False)
class Change:
    """One write or truncation of a file, or one change of names."""

    file: int | None = None
    offset: int = 0
    data: bytes | None = None  # None: truncation to `offset`
    names: tuple[tuple[int, str, int | None], ...] = ()  # folder, name, node

    def touches(self, node: int) -> bool:
        return self.file == node or any(folder == node for folder, _, _ in self.names)


class Disk:
    """What processes see (`now`), what is on the disk for certain (`synced`), and the changes between them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.is_folder: list[bool] = []
        self.now: list[bytearray | dict[str, int]] = []
        self.synced: list[bytearray | dict[str, int]] = []
        self.pending: list[Change] = []
        self.handles: dict[int, tuple[int, int]] = {}  # descriptor: node, position
        self._load(root)

    def _load(self, path: Path) -> int:
        node = self._new(path.is_dir())
        if path.is_dir():
            entries = {entry.name: self._load(entry) for entry in sorted(path.iterdir())}
            self.now[node], self.synced[node] = dict(entries), dict(entries)
        else:
            self.now[node], self.synced[node] = bytearray(path.read_bytes()), bytearray(path.read_bytes())
        return node

    def _new(self, is_folder: bool) -> int:
        self.is_folder.append(is_folder)
        self.now.append({} if is_folder else bytearray())
        self.synced.append({} if is_folder else bytearray())
        return len(self.now) - 1

    # -- replay -----------------------------------------------------------------------------------------------------

    def inside(self, path: str) -> bool:
        return path == str(self.root) or path.startswith(f"{self.root}/")

    def find(self, path: str) -> int | None:
        node: int | None = 0
        for name in Path(path).relative_to(self.root).parts:
            node = None if node is None or not self.is_folder[node] else self.now[node].get(name)  # type: ignore[union-attr]
        return node

    def _change(self, change: Change) -> None:
        apply(change, self.now)
        self.pending.append(change)

    def _place(self, path: str) -> tuple[int, str]:
        folder = self.find(str(Path(path).parent))
        assert folder is not None, path
        return folder, Path(path).name

    def call(self, name: str, arguments: list[str], result: int, text: str) -> bool:
        """Replay a system call; returns whether it changed anything or synced something."""
        if result < 0:
            return False
        if name in ("open", "openat", "creat"):
            path = arguments[0] if name != "openat" else absolute(arguments[0], arguments[1])
            if not self.inside(path):
                self.handles.pop(result, None)
                return False
            node, before = self.find(path), len(self.pending)
            if node is None:
                node = self._new(False)
                self._change(Change(names=((*self._place(path), node),)))
            elif "O_TRUNC" in text and self.now[node]:
                self._change(Change(node, 0))
            self.handles[result] = (node, len(self.now[node]) if "O_APPEND" in text else 0)
            return len(self.pending) > before
        if name in ("rename", "renameat", "renameat2"):
            old, new = paths(name, arguments)
            if not self.inside(new):
                return False
            a, b = self._place(old), self._place(new)
            moved, other = self.find(old), self.find(new)
            self._change(Change(names=((*a, other if "RENAME_EXCHANGE" in text else None), (*b, moved))))
            return True
        if name in ("unlink", "rmdir", "unlinkat"):
            path = arguments[0] if name != "unlinkat" else absolute(arguments[0], arguments[1])
            if self.inside(path):
                self._change(Change(names=((*self._place(path), None),)))
            return self.inside(path)
        if name in ("mkdir", "mkdirat"):
            path = arguments[0] if name == "mkdir" else absolute(arguments[0], arguments[1])
            if self.inside(path):
                self._change(Change(names=((*self._place(path), self._new(True)),)))
            return self.inside(path)
        if name in ("link", "linkat"):
            raise NotImplementedError(text[:200])
        return self._on_handle(name, arguments, result, text)

    def _on_handle(self, name: str, arguments: list[str], result: int, text: str) -> bool:
        number = int(arguments[0].split("<")[0])
        if name == "sendfile" or name == "copy_file_range":
            return self._copy(name, arguments, result)
        if number not in self.handles:
            return False
        node, position = self.handles[number]
        if name == "close":
            del self.handles[number]
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in text):
            self.handles[result] = self.handles[number]
        elif name == "lseek":
            self.handles[number] = node, result
        elif name == "write":
            self._change(Change(node, position, arguments[1].encode("latin-1")[:result]))
            self.handles[number] = node, position + result
            return True
        elif name == "pwrite64":
            self._change(Change(node, int(arguments[3]), arguments[1].encode("latin-1")[:result]))
            return True
        elif name == "ftruncate":
            self._change(Change(node, int(arguments[1])))
            return True
        elif name in ("fsync", "fdatasync"):
            self._sync(node)
            return True
        elif name in ("writev", "pwritev", "fallocate"):
            raise NotImplementedError(text[:200])
        return False

    def _copy(self, name: str, arguments: list[str], result: int) -> bool:
        first, second = arguments[0], arguments[1 if name == "sendfile" else 2]
        target, source = (first, second) if name == "sendfile" else (second, first)
        number = int(target.split("<")[0])
        if number not in self.handles or not result:
            return False
        node, position = self.handles[number]
        path = source.partition("<")[2].rstrip(">")
        origin = self.find(path) if self.inside(path) else None
        content = bytes(self.now[origin]) if origin is not None else Path(path).read_bytes()
        self._change(Change(node, position, content[position : position + result]))
        self.handles[number] = node, position + result
        return True

    def _sync(self, node: int) -> None:
        """Everything about a file or folder is on the disk, with earlier changes of the same names."""
        wanted = {id(change) for change in self.pending if change.touches(node)}
        keys = {entry[:2] for change in self.pending if id(change) in wanted for entry in change.names}
        rest = []
        for change in self.pending:
            if id(change) in wanted or any(entry[:2] in keys for entry in change.names):
                apply(change, self.synced)
            else:
                rest.append(change)
        self.pending = rest

    # -- after the power cut ----------------------------------------------------------------------------------------

    def write(self, folder: Path, keep: Callable[[Change], bool]) -> None:
        """Write what the disk holds if of the changes that were not synced only these have reached it."""
        nodes: list[bytearray | dict[str, int]] = [node.copy() for node in self.synced]
        for change in self.pending:
            if keep(change):
                apply(change, nodes)
        shutil.rmtree(folder, ignore_errors=True)
        self._write(folder, 0, nodes)

    def _write(self, path: Path, node: int, nodes: list[bytearray | dict[str, int]]) -> None:
        content = nodes[node]
        if isinstance(content, dict):
            path.mkdir()
            for name, child in content.items():
                self._write(path / name, child, nodes)
        else:
            path.write_bytes(content)


def apply(change: Change, nodes: list[bytearray | dict[str, int]]) -> None:
    if change.file is not None:
        data = nodes[change.file]
        assert isinstance(data, bytearray)
        if change.data is None:
            del data[change.offset :]
            data.extend(bytes(change.offset - len(data)))
        else:
            data.extend(bytes(max(0, change.offset - len(data))))
            data[change.offset : change.offset + len(change.data)] = change.data
    for folder, name, node in change.names:
        names = nodes[folder]
        assert isinstance(names, dict)
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


# -- the log ------------------------------------------------------------------------------------------------------------


def calls(log: Path) -> Iterator[tuple[str, list[str], int, str]]:
    """Name, arguments, result and line of each finished call; of strings and descriptors, the plain text."""
    unfinished: dict[str, str] = {}
    for line in _lines(log):
        matched = _LINE.match(line)
        if matched is None:
            continue
        process, text = matched.groups()
        if text.endswith("<unfinished ...>"):
            unfinished[process] = text.removesuffix("<unfinished ...>").rstrip()
            continue
        if text.startswith("<... "):
            text = unfinished.pop(process, "") + text.partition("resumed>")[2]
        call = _CALL.match(text)
        if call:
            yield call[1], list(_arguments(call[2])), int(call[3]), text


def _lines(log: Path) -> Iterable[str]:
    with log.open(encoding="latin-1") as file:
        yield from (line.rstrip("\n") for line in file)


def _arguments(text: str) -> Iterator[str]:
    for quoted, plain, path in _TOKEN.findall(text):
        if quoted:
            yield _text(quoted)
        elif plain.strip():
            yield f"{plain.strip()}<{_text(path)}>" if path else plain.strip()


def _text(escaped: str) -> str:
    return bytes.fromhex(escaped.replace("\\x", "")).decode("latin-1")


def absolute(folder: str, path: str) -> str:
    return path if path.startswith("/") else f"{folder.partition('<')[2].rstrip('>')}/{path}"


def paths(name: str, arguments: list[str]) -> tuple[str, str]:
    if name == "rename":
        return arguments[0], arguments[1]
    return absolute(arguments[0], arguments[1]), absolute(arguments[2], arguments[3])
