"""Data sets: `load_dataset` takes the name of a built-in one, or a path."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dcmh.data.benchmarks import sources
from dcmh.data.columns import IMAGE_SUFFIXES, Column, Images, Texts, Vectors
from dcmh.data.dataset import Dataset, similarity
from dcmh.data.labels import labels_from_text
from dcmh.data.remote import RemoteFile, is_url
from dcmh.data.splits import Split, make_split, split_given
from dcmh.errors import DataError, ParameterError
from dcmh.util.atomic import check_spelling

__all__ = [
    "Column",
    "Dataset",
    "Images",
    "Split",
    "Texts",
    "Vectors",
    "available",
    "labels_from_text",
    "load_dataset",
    "make_split",
    "named",
    "similarity",
    "split_given",
]

_BUILT_IN = {
    **{name: source.what for name, source in sources.SOURCES.items()},
    "openmoji": "about 1,900 emoji drawings with names and tags; 9 groups are the labels; CC BY-SA 4.0",
    "toy": "200 synthetic pictures and texts with 8 labels, for tests and first steps",
}
_LOADERS = {  # module of dcmh.data.benchmarks, function
    "mirflickr25k": ("mirflickr", "load"),
    "nuswide": ("nuswide", "load"),
    "nuswide21": ("nuswide", "load_21"),
    "openmoji": ("openmoji", "load"),
    "toy": ("toy", "toy"),
}
_READ = "a folder of photos, a table (pairs.jsonl, .csv, .tsv or Parquet), a WebDataset .tar, a .npy or .npz file, or a .mat file"


def available() -> dict[str, str]:
    """The built-in data sets: name to one-line description."""
    return dict(_BUILT_IN)


def load_dataset(source: Any, **options: Any) -> Dataset:
    """Load a built-in data set by name, a folder or file by path, or a table in memory.

    Tables are pandas and polars DataFrames, Arrow tables, Hugging Face data sets, and dictionaries of columns; as files,
    Parquet, Arrow and WebDataset shards. Folders of pictures and of such files may be in an object store, such as
    s3://bucket/photos, that fsspec can read. See `dcmh.data.tables.load_frame` for their options. Vectors alone are .npy or
    .npz files (`dcmh.data.vectors`).

    A name takes precedence over a folder of the same name: write ./toy for the folder. A benchmark that is not in the
    dcmh home folder is given with its folder, as mirflickr25k:/data/mir. Options are those of the loader, such as
    keep_partial=True for a folder, or n=500 for toy.
    """
    from dcmh.data import frames, shards, tables, vectors

    if not isinstance(source, str | Path):
        frame = frames.open_object(source)
        return _call(partial(tables.load_frame, frame), f"The {frame.name}", (), options)
    name = str(source)
    built_in = named(name) if isinstance(source, str) else None
    if built_in is not None:
        module, function = _LOADERS[built_in[0]]
        load = getattr(importlib.import_module(f"dcmh.data.benchmarks.{module}"), function)
        return _call(load, name, () if built_in[1] is None else (built_in[1],), options)
    if is_url(source):
        return _load_remote(name, options)
    path = Path(source).expanduser()
    if name == "" or not path.exists():
        raise DataError(_unknown(name, path))
    check_spelling(path)
    if path.is_dir():
        return _load_folder(path, options)
    if path.suffix.lower() == ".mat":
        from dcmh.data import mat

        return _call(mat.load, name, (path,), options)
    if path.suffix.lower() in vectors.SUFFIXES:
        return _call(vectors.load, name, (path,), options)
    if path.suffix.lower() in shards.SUFFIXES:
        return _load_shards([path], path.parent, path.stem, options)
    if path.suffix.lower() in tables.SUFFIXES:
        return _call(tables.load, name, (path,), options)
    hint = ""
    if path.suffix.lower() in IMAGE_SUFFIXES:
        hint = f" It is a picture: give its folder, {path.parent}/."
    raise DataError(f"Cannot read data from {name}.{hint} Give {_READ}; or a name: {', '.join(_BUILT_IN)}.")


def named(source: str) -> tuple[str, Path | None] | None:
    """The built-in name and the folder in a source such as mirflickr25k:/data/mir; None if the source is a path."""
    if source in _BUILT_IN:
        return source, None
    name, colon, folder = source.partition(":")
    if colon and folder and name in sources.SOURCES:
        return name, Path(folder).expanduser()
    return None


def tables_in(path: Path) -> list[Path]:
    """The files that hold the items of a folder without pictures: .mat files, or else shards of one kind."""
    from dcmh.data import folder, shards, tables

    if any((path / name).is_file() for name in (*tables.PAIRS, *tables.CAPTIONS)):
        return []
    by_suffix = (sorted(path.glob(f"*{suffix}")) for suffix in (".mat", *shards.SHARDS))
    files = next(filter(None, by_suffix), [])
    return files if files and not folder.scan(path).images else []


def _load_folder(path: Path, options: dict[str, Any]) -> Dataset:
    from dcmh.data import folder, mat

    files = tables_in(path)
    if files and files[0].suffix == ".mat":
        return _call(mat.load, str(path), (path,), options)
    if files:
        return _load_shards(files, path, path.resolve().name, options)
    return _call(folder.load, str(path), (path,), options)


def _load_remote(url: str, options: dict[str, Any]) -> Dataset:
    from dcmh.data import remote, shards

    files = remote.find(url, shards.SHARDS)
    if files:
        return _load_shards(files, ".", Path(url.rstrip("/")).name, options)
    return _call(remote.load, url, (url,), options)


def _load_shards(files: Sequence[Path | RemoteFile], root: Path | str, name: str, options: dict[str, Any]) -> Dataset:
    from dcmh.data import shards, tables

    load = partial(tables.load_frame, shards.open_files(files))
    return _call(load, files[0].name, (), {"root": root, "name": name, **options})


def _call(load: Any, name: str, arguments: tuple[Path | str, ...], options: dict[str, Any]) -> Dataset:
    known = list(inspect.signature(load).parameters)[len(arguments) :]
    for option in options:
        if option not in known:
            raise ParameterError(
                f"{name} has no option {option!r}. It has: {', '.join(known) or 'none'}.", which=option
            )
    data: Dataset = load(*arguments, **options)
    return data


def _unknown(name: str, path: Path) -> str:
    siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(name, list(_BUILT_IN), 1)
    if not close:
        close = [str(path.parent / entry) for entry in difflib.get_close_matches(path.name, siblings, 1)]
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"No data set or folder {name!r}.{hint} Give {_READ}; or a name: {', '.join(_BUILT_IN)}."
