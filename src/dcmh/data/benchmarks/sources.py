"""The benchmarks that can be downloaded: what they contain, where their files come from, and under which terms.

Checksums and sizes are those that the publishers, or several independent copies, give. `md5` is None where none is
published: then the first download is trusted, its SHA-256 is kept, and later downloads must match it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dcmh.errors import DataError
from dcmh.util.cache import home


@dataclass(frozen=True)
class Archive:
    """One file to download: a zip to unpack in place, or a file to keep as it is."""

    name: str
    urls: tuple[str, ...]
    unpacks_to: str = ""  # folder to unpack into, if the zip has none of its own
    size: int | None = None
    md5: str | None = None
    about: str = ""  # approximate size, if `size` is not known


@dataclass(frozen=True)
class Source:
    """One data set that can be downloaded."""

    title: str
    what: str
    licence: str
    page: str
    archives: tuple[Archive, ...]
    by_hand: tuple[str, ...] = field(default=())  # what the user has to get
    folder: str = ""  # in the dcmh home folder; default: the name of the data set


_LIACS = "press.liacs.nl/mirflickr/mirflickr25k.v3b"
_NUS = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide"
_NEXT = "http://dl.nextcenter.org/public/nuswide"


def _liacs(name: str) -> tuple[str, ...]:
    return f"https://{_LIACS}/{name}", f"http://{_LIACS}/{name}"


def _nus(name: str) -> tuple[str, ...]:
    return f"{_NUS}/{name}", f"{_NEXT}/{name}"


_NUS_SOURCE = {
    "licence": "tags, labels and features: for research, as the publishers say; the photos belong to Flickr users",
    "page": f"{_NUS}/NUS-WIDE.html",
    "folder": "nuswide",
    "archives": (
        Archive("Groundtruth.zip", _nus("Groundtruth.zip"), "Groundtruth"),
        Archive("NUS_WID_Tags.zip", _nus("NUS_WID_Tags.zip"), "NUS_WID_Tags"),
        Archive("ImageList.zip", _nus("ImageList.zip"), "ImageList"),
    ),
    "by_hand": (
        f"500 visual words: {_NUS}/NUS_WID_Low_Level_Features.rar; unpack it (unrar) and put BoW_int.dat into the folder",
        "photos: ask the publishers by the form on the page above; put them as Flickr/CONCEPT/NUMBER.jpg into the folder. "
        "Many of the original addresses no longer answer",
    ),
}

SOURCES: dict[str, Source] = {
    "mirflickr25k": Source(
        title="MIRFLICKR-25K",
        what="20,015 Flickr photos with 1,386 tags and 24 labels, as in the paper; 2,000 queries",
        licence="photos: Creative Commons, each with its own attribution in mirflickr/meta/license; for research",
        page="https://press.liacs.nl/mirflickr/mirdownload.html",
        archives=(
            Archive(
                "mirflickr25k.zip",
                _liacs("mirflickr25k.zip"),
                size=3_069_184_257,
                md5="a23d0a8564ee84cda5622a6c2f947785",
            ),
            Archive(
                "mirflickr25k_annotations_v080.zip",
                _liacs("mirflickr25k_annotations_v080.zip"),
                "mirflickr25k_annotations_v080",
                about="0.2 MB",
            ),
        ),
    ),
    "nuswide": Source(
        title="NUS-WIDE",
        what="186,577 Flickr photos of the 10 most frequent concepts with 1,000 tags, as in the paper; 1 % are queries",
        **_NUS_SOURCE,  # type: ignore[arg-type]
    ),
    "nuswide21": Source(
        title="NUS-WIDE, 21 concepts",
        what="195,834 Flickr photos of the 21 most frequent concepts with 1,000 tags: a later variant of nuswide",
        **_NUS_SOURCE,  # type: ignore[arg-type]
    ),
}


def home_folder(name: str) -> Path:
    """Where `dcmh data get` puts a data set, and where loading looks for it."""
    return home() / (SOURCES[name].folder or name)


def find_folder(name: str, folder: Path | None) -> Path:
    """The folder of a data set: the one given, or the one in the home folder. It must exist."""
    folder = home_folder(name) if folder is None else Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{name} is not in {folder}. {how_to_get(name, folder)}")
    return folder


def incomplete(name: str, folder: Path, missing: Sequence[str]) -> DataError:
    """The error for a data set that lacks these files."""
    mat_file = next(folder.glob("*.mat"), None)
    hint = f" The folder holds .mat files: load those by their path, {mat_file}." if mat_file else ""
    return DataError(
        f"{name} is incomplete in {folder}: missing are {'; '.join(missing)}. {how_to_get(name, folder)}{hint}"
    )


def how_to_get(name: str, folder: Path) -> str:
    """What the user can do to have the data set in a folder."""
    names = ", ".join(archive.name for archive in SOURCES[name].archives)
    return (
        f"Get it: dcmh data get {name_with_folder(name, folder)}, or put {names} into that folder; "
        f"dcmh data {name} says where they come from."
    )


def name_with_folder(name: str, folder: Path) -> str:
    """The data set as a user names it: with its folder if that is not the default one."""
    return name if folder == home_folder(name) else f"{name}:{folder}"


def shortened(names: Sequence[str], count: int = 5) -> str:
    """The first names, and … if there are more."""
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")
