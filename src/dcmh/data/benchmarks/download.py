"""Downloading the benchmarks: pooch fetches each archive from the first mirror that has it; then it is unpacked.

The record fetched.json keeps where each archive came from and its SHA-256, so that later downloads can be compared.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcmh import __version__
from dcmh.data.benchmarks.release import BROKEN
from dcmh.data.benchmarks.sources import SOURCES, Archive
from dcmh.errors import DataError, needs
from dcmh.util.atomic import write_text
from dcmh.util.formats import read_json, readable

RECORD = "fetched.json"
CHUNK = 1 << 18  # bytes
TIMEOUT = (10, 60)  # seconds to connect, and to wait for more bytes

Progress = Callable[[int, int], None]  # bytes done, bytes in total


@dataclass(frozen=True)
class Fetched:
    """What `get` did with one archive."""

    name: str
    state: str  # "downloaded" or "was there"
    sha256: str
    known: bool  # whether its checksum was known before
    files: int  # unpacked


def get(
    name: str,
    folder: Path,
    *,
    say: Callable[[str], None],
    progress: Callable[[str], Progress],
    accept_changed: bool = False,
) -> list[Fetched]:
    """Download and unpack what a data set needs. Archives that are there are verified, not fetched again.

    Parameters
    ----------
    say : called with a sentence at each step
    progress : called with the title of a download; gives the function that is called with its bytes
    accept_changed : ignore the checksums of earlier downloads
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {} if accept_changed else read_record(folder)
    fetched = []
    for archive in SOURCES[name].archives:
        target = folder / archive.name
        earlier = record.get(archive.name)
        state, url = "was there", (earlier or {}).get("url")
        if not target.is_file():
            url, state = _download(archive, target, earlier, say, progress), "downloaded"
            sha256 = _digest(target, "sha256")
        else:
            sha256 = verify(archive, target, earlier)
        files = _unpack(target, folder / archive.unpacks_to) if target.suffix == ".zip" else 0
        record[archive.name] = {
            "url": url,
            "bytes": target.stat().st_size,
            "sha256": sha256,
            "when": (earlier or {}).get("when") or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "files": files,
        }
        write_text(folder / RECORD, json.dumps({"dcmh": __version__, "archives": record}, indent=1) + "\n")
        known = archive.md5 is not None or earlier is not None
        fetched.append(Fetched(archive.name, state, sha256, known, files))
    return fetched


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """What was fetched into a folder before, by the name of the archive."""
    if not (folder / RECORD).exists():
        return {}
    with readable(folder / RECORD, hint="Delete it; it will be written again."):
        return dict(read_json(folder / RECORD)["archives"])


def verify(archive: Archive, path: Path, earlier: Mapping[str, Any] | None) -> str:
    """The SHA-256 of a local archive; a DataError if size or checksum are not those expected."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        raise DataError(f"{path} has {size:,} bytes, not {archive.size:,}. Delete it and get it again.")
    if archive.md5 is not None and _digest(path, "md5") != archive.md5:
        raise DataError(f"{path} does not have the checksum that its publishers give. Delete it and get it again.")
    sha256 = _digest(path, "sha256")
    if archive.md5 is None and earlier is not None and earlier["sha256"] != sha256:
        raise DataError(
            f"{path} is not the file that was fetched on {earlier['when'][:10]}. Delete it and get it again, or accept "
            "it with --accept-changed."
        )
    return sha256


def _download(
    archive: Archive,
    target: Path,
    earlier: Mapping[str, Any] | None,
    say: Callable[[str], None],
    progress: Callable[[str], Progress],
) -> str:
    """Try the mirrors in order; returns the address that had the file."""
    with needs("Downloads need pooch", "dcmh[bench]"):
        import pooch
        import requests
    pooch.get_logger().setLevel("ERROR")
    _check_space(target.parent, archive.size or 0, archive.name)
    known = f"md5:{archive.md5}" if archive.md5 else f"sha256:{earlier['sha256']}" if earlier else None
    headers = {"Accept-Encoding": "identity", "User-Agent": f"dcmh/{__version__}"}
    failures = []
    for url in archive.urls:
        say(f"Fetching {archive.name} from {url}")
        bar = _Bar(progress(f"downloading {archive.name}"))
        downloader = pooch.HTTPDownloader(bar, CHUNK, headers=headers, timeout=TIMEOUT)
        try:
            pooch.retrieve(url, known_hash=known, fname=target.name, path=target.parent, downloader=downloader)
            return url
        except requests.RequestException as error:
            failures.append(f"{url}: {_reason(error)}")
        except ValueError:  # what pooch raises if the checksum differs
            expected = "its publishers give" if archive.md5 else "the first time"
            failures.append(f"{url}: another checksum than {expected}")
        say(f"{failures[-1]}.")
    changed = "" if archive.md5 or not earlier else " To accept a changed file: --accept-changed."
    raise DataError(
        f"{archive.name} could not be fetched ({'; '.join(failures)}). Try again later.{changed} Or get it with a browser "
        f"and put it into {target.parent}."
    )


class _Bar:
    """The progress bar that pooch updates: it counts bytes and reports them."""

    def __init__(self, report: Progress) -> None:
        self.report = report
        self.total = 0
        self.done = 0

    def update(self, count: int) -> None:
        self.done = min(self.done + count, self.total) if self.total else self.done + count
        self.report(self.done, self.total or self.done)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing to close."""


def _reason(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the connection broke off"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__


def _unpack(archive: Path, folder: Path) -> int:
    """Unpack the files of a zip that are not in the folder at their size; returns the number of files in the zip.

    They are written to a draft folder first, so that every file in its place is complete.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            files = [info for info in opened.infolist() if not info.is_dir()]
            missing = [info for info in files if not _is_unpacked(folder / info.filename, info.file_size)]
            folder.mkdir(parents=True, exist_ok=True)
            _check_space(folder, sum(info.file_size for info in missing), f"what {archive.name} unpacks to")
            with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack.", suffix=".part") as draft:
                opened.extractall(draft, missing)  # never outside of the draft, whatever the names in the zip
                _move_files(Path(draft), folder)
    except BROKEN as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # of the disk, not of the zip
        raise DataError(f"{archive} is damaged ({error}). Delete it and get it again.") from error
    return len(files)


def _move_files(source: Path, target: Path) -> None:
    for folder, _, names in os.walk(source):
        parent = target / Path(folder).relative_to(source)
        parent.mkdir(exist_ok=True)
        for name in names:
            os.replace(Path(folder, name), parent / name)


def _is_unpacked(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _check_space(folder: Path, needed: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder} has {free / 1e9:.1f} GB left, but {what} needs {needed / 1e9:.1f} GB. Make room, or choose "
            "another folder with DCMH_HOME."
        )


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
