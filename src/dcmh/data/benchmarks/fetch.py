"""Downloads that go on where they were broken off, from one mirror after the other, checked before they count.

pooch places the file and verifies its checksum; the bytes come through `_Resumable`, which keeps what has arrived in
NAME.part. A record, fetched.json, keeps where each file came from and its SHA-256.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcmh import __version__
from dcmh.data.benchmarks import official
from dcmh.data.benchmarks.official import Archive
from dcmh.data.benchmarks.unpack import unpack
from dcmh.errors import DataError, MissingExtra
from dcmh.util.atomic import write_text

RECORD = "fetched.json"
TRIES = 4  # at one address, as long as bytes arrive or the server is only busy
WAIT = 1.0  # seconds before the second try; twice as long before each further one
TIMEOUT = (10, 60)  # seconds to connect, and to wait for more bytes
_BLOCK = 1 << 18

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Fetched:
    """What `get` did with one file."""

    name: str
    state: str  # "downloaded" or "was there"
    sha256: str
    known: bool  # whether its checksum was known before
    files: int  # unpacked


class _Refused(Exception):
    """This address does not have the file that is wanted: go to the next one."""


def get(
    name: str, folder: Path, *, say: Callable[[str], None], progress: Callable[[str], Progress], anew: bool = False
) -> list[Fetched]:
    """Download and unpack what a data set needs; what is there and right is left alone.

    Parameters
    ----------
    say : told what happens, in sentences
    progress : gives a function for the bytes of a step of this title
    anew : forget what earlier downloads looked like
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {} if anew else read_record(folder)
    done = []
    for archive in official.SOURCES[name].archives:
        target = folder / archive.name
        state, url = "was there", record.get(archive.name, {}).get("url")
        if not target.is_file():
            url, state = _download(archive, target, record.get(archive.name), say, progress), "downloaded"
            sha256 = _digest(target, "sha256")
        else:
            sha256 = verify(archive, target, record.get(archive.name))
        known = archive.md5 is not None or archive.name in record
        place = folder / archive.unpacks_to
        files = unpack(target, place, progress=progress(f"unpacking {archive.name}")) if target.suffix == ".zip" else 0
        record[archive.name] = {
            "url": url,
            "bytes": target.stat().st_size,
            "sha256": sha256,
            "when": record.get(archive.name, {}).get("when") or _now(),
            "files": files,
        }
        write_text(folder / RECORD, json.dumps({"dcmh": __version__, "archives": record}, indent=1) + "\n")
        done.append(Fetched(archive.name, state, sha256, known, files))
    return done


def read_record(folder: Path) -> dict[str, dict[str, Any]]:
    """What was fetched into a folder before, by the name of the file."""
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8"))["archives"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / RECORD} is damaged ({error}). Delete it: it is written anew.") from error


def verify(archive: Archive, path: Path, before: Mapping[str, Any] | None) -> str:
    """The SHA-256 of a file that is there; a DataError where it is not the one that is wanted."""
    size = path.stat().st_size
    if archive.size is not None and size != archive.size:
        raise DataError(f"{path} has {size:,} bytes, not {archive.size:,}. Delete it and get it again.")
    if archive.md5 is not None and _digest(path, "md5") != archive.md5:
        raise DataError(f"{path} does not have the checksum that its publishers give. Delete it and get it again.")
    sha256 = _digest(path, "sha256")
    if archive.md5 is None and before is not None and before["sha256"] != sha256:
        raise DataError(
            f"{path} is not the file that was fetched on {before['when'][:10]}. Delete it and get it again, or accept it "
            "with --anew."
        )
    return sha256


def _download(
    archive: Archive,
    target: Path,
    before: Mapping[str, Any] | None,
    say: Callable[[str], None],
    progress: Callable[[str], Progress],
) -> str:
    """Try the mirrors in turn; returns the address that had the file."""
    try:
        import pooch
    except ImportError as error:
        raise MissingExtra('Downloads need pooch. Install: pip install "dcmh[bench]"') from error
    pooch.get_logger().setLevel("ERROR")
    known = f"md5:{archive.md5}" if archive.md5 else f"sha256:{before['sha256']}" if before else None
    part = target.with_name(target.name + ".part")
    failed = []
    for url in archive.urls:
        say(f"Fetching {archive.name} from {url}")
        loader = _Resumable(part, archive, progress(f"downloading {archive.name}"), say)
        try:
            pooch.retrieve(url, known_hash=known, fname=target.name, path=target.parent, downloader=loader)
            return url
        except _Refused as error:
            failed.append(f"{url}: {error}")
        except DataError:
            raise
        except ValueError:  # pooch: another checksum
            failed.append(f"{url}: another checksum than {'its publishers give' if archive.md5 else 'the first time'}")
        say(f"{failed[-1]}.")
    kept = f" {part.stat().st_size:,} bytes are kept: the same command goes on from there." if part.exists() else ""
    anew = "" if archive.md5 or not before else " To accept a changed file: --anew."
    raise DataError(
        f"{archive.name} could not be fetched ({'; '.join(failed)}).{kept}{anew} Or get it with a browser and put it into "
        f"{target.parent}."
    )


class _Resumable:
    """A downloader for pooch: bytes go to a .part file that outlives failures, and a later call asks only for the rest."""

    def __init__(self, part: Path, archive: Archive, progress: Progress, say: Callable[[str], None]) -> None:
        self.part = part
        self.note = part.with_name(part.name + ".json")  # which version of the file the part is of
        self.size = archive.size
        self.checked = archive.md5 is not None  # so that wrong halves are found out in the end
        self.progress = progress
        self.say = say

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        wait = WAIT
        for left in range(TRIES - 1, -1, -1):
            before = self._have()
            try:
                self._fetch(url)
                break
            except OSError as error:  # requests' own errors are of this kind
                if left == 0:
                    raise _Refused(_reason(error)) from error
                if self._have() == before:
                    time.sleep(wait)
                    wait *= 2
                self.say(f"{_reason(error)}; trying again from byte {self._have():,}.")
        self.part.replace(output_file)
        self.note.unlink(missing_ok=True)

    def _fetch(self, url: str) -> None:
        import requests

        have, tag = self._have(), self._tag()
        headers = {"Accept-Encoding": "identity", "User-Agent": f"dcmh/{__version__}"}
        if have and self.checked:
            headers["Range"] = f"bytes={have}-"
        elif have and tag:  # nothing but the server's own mark says that both halves are of one file
            headers |= {"Range": f"bytes={have}-", "If-Range": tag}
        try:
            answer = requests.get(url, headers=headers, stream=True, timeout=TIMEOUT)
        except requests.TooManyRedirects as error:
            raise _Refused("the server sends in circles") from error
        with answer:
            if answer.status_code == 416:  # what we have is not the beginning of what they have
                self._forget()
                raise OSError("the server has a shorter file")
            if answer.status_code >= 500 or answer.status_code == 429:
                raise OSError(f"the server answered {answer.status_code}")
            if answer.status_code not in (200, 206):
                raise _Refused(f"the server answered {answer.status_code}")
            if answer.status_code == 206 and not _starts_at(answer.headers, have):
                raise _Refused("the server answered with another part than the one asked for")
            have = have if answer.status_code == 206 else 0
            total = self._total(answer.headers, have)
            self._keep_tag(answer.headers)
            _check_space(self.part, (total or 0) - have)
            self._receive(answer, have, total)

    def _receive(self, answer: Any, have: int, total: int | None) -> None:
        with self.part.open("ab" if have else "wb") as file:
            for block in _blocks(answer.raw):
                file.write(block)
                have += len(block)
                if total is not None and have > total:
                    break
                self.progress(have, total or have)
        if total is not None and have < total:
            raise OSError(f"the connection ended after {have:,} of {total:,} bytes")
        if total is not None and have > total:
            self._forget()
            raise _Refused(f"it has more than the {total:,} bytes expected")

    def _total(self, headers: Mapping[str, str], have: int) -> int | None:
        """How large the file will be; one that is not of the size that is wanted is refused before it is fetched."""
        length = headers.get("Content-Length")
        total = have + int(length) if length is not None and length.isdecimal() else None
        if self.size is not None and total is not None and total != self.size:
            self._forget()
            raise _Refused(f"it has {total:,} bytes, not {self.size:,}")
        return self.size or total

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _tag(self) -> str | None:
        try:
            return str(json.loads(self.note.read_text(encoding="utf-8"))["tag"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _keep_tag(self, headers: Mapping[str, str]) -> None:
        tag = headers.get("ETag")
        tag = headers.get("Last-Modified") if tag is None or tag.startswith("W/") else tag
        if tag is None:
            self.note.unlink(missing_ok=True)
        else:
            write_text(self.note, json.dumps({"tag": tag}) + "\n")

    def _forget(self) -> None:
        self.part.unlink(missing_ok=True)
        self.note.unlink(missing_ok=True)


def _blocks(raw: Any) -> Iterator[bytes]:
    """What arrives, up to the end of the connection: whether that was too early is for the caller to say."""
    from urllib3.exceptions import HTTPError

    raw.enforce_content_length = False
    try:
        while block := raw.read(_BLOCK, decode_content=False):
            yield block
    except HTTPError as error:
        raise OSError(f"the connection broke ({error})") from error


def _starts_at(headers: Mapping[str, str], have: int) -> bool:
    return headers.get("Content-Range", "").startswith(f"bytes {have}-")


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise DataError(
            f"{needed / 1e9:.1f} GB are still to come, but {part.parent} has {free / 1e9:.1f} GB left. Make room, or choose "
            "another folder with DCMH_HOME."
        )


def _reason(error: OSError) -> str:
    import requests

    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return str(error) or type(error).__name__


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
