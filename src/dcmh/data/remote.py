"""Data in object stores and on servers, read through fsspec: s3://bucket/photos, gs://…, https://….

A folder of Parquet files or of WebDataset shards is a table, as on a disk; any other folder is its pictures. Pictures are
fetched when they are decoded, by whichever process decodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

from dcmh.data.columns import IMAGE_SUFFIXES, Images, Stored
from dcmh.data.dataset import Dataset
from dcmh.errors import DataError, ImageError, MissingExtra

# What distinguishes the versions of a file, under the names of several file systems; the first that is there counts.
VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "created")


def is_url(source: object) -> bool:
    """Whether a source is the address of a file or folder that fsspec can read."""
    return isinstance(source, str) and "://" in source


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address, with the part of the interface of `Path` that readers of tables use."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.url).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file for reading."""
        with _explained(self.url):
            system, path = _file_system(self.url)
            opened: IO[bytes] = system.open(path, mode)
            return opened


@dataclass(frozen=True)
class _RemotePictures:
    """The pictures of a remote folder; the key of one is its path in the folder, with its size and version."""

    file: str  # the address of the folder

    def read(self, key: tuple[str, object, str]) -> bytes:
        try:
            system, root = _file_system(self.file)
            return bytes(system.cat_file(f"{root.rstrip('/')}/{key[0]}"))
        except Exception as error:  # each file system raises its own
            raise ImageError(f"cannot be fetched ({str(error) or type(error).__name__})") from error


def find(url: str, suffixes: tuple[str, ...]) -> list[RemoteFile]:
    """The address itself if it is such a file, or else the files of its folder with the first suffix that any of them has."""
    if PurePosixPath(url).suffix.lower() in suffixes:
        return [RemoteFile(url)]
    names = [name for name, _ in _listed(url)]
    if any(name.lower().endswith(IMAGE_SUFFIXES) for name in names):
        return []
    for suffix in suffixes:
        if chosen := [name for name in names if name.lower().endswith(suffix) and "/" not in name]:
            return [RemoteFile(f"{url.rstrip('/')}/{name}") for name in chosen]
    return []


def load(url: str, *, keep_partial: bool = False) -> Dataset:
    """The pictures of a remote folder and of the folders in it, named by their paths."""
    pictures = [(name, about) for name, about in _listed(url) if name.lower().endswith(IMAGE_SUFFIXES)]
    if not pictures:
        raise DataError(
            f"{url} has neither pictures nor tables.", hint="Give a folder of pictures, Parquet files or .tar files."
        )
    store = _RemotePictures(url)
    values = [
        Stored(store, (name, about.get("size"), str(next((about[key] for key in VERSION_KEYS if key in about), ""))))
        for name, about in pictures
    ]
    name = PurePosixPath(url.rstrip("/")).name
    return Dataset({"image": Images(values)}, ids=[name for name, _ in pictures], name=name)


def _listed(url: str) -> list[tuple[str, dict[str, Any]]]:
    """The files under an address with what is known about them, in the order of their paths."""
    with _explained(url):
        system, root = _file_system(url)
        files = system.find(root, detail=True)
    prefix = f"{root.strip('/')}/"
    return sorted((path.strip("/").removeprefix(prefix), about) for path, about in files.items())


def _file_system(url: str) -> tuple[Any, str]:
    import fsspec.core

    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turn whatever a file system raises into an error that says what to do."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(f"{url} needs another package: {error}.", hint="Install it with pip.") from error
    except Exception as error:  # each file system raises its own
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise DataError(
            f"Cannot read {url}: {reason}.", which=url, hint="Check the address, and the credentials of this machine."
        ) from error
