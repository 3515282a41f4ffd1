"""The data of a command: loaded, labelled, without unreadable pictures; and recorded in the model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcmh.cli import console
from dcmh.errors import DataError
from dcmh.util.atomic import check_spelling
from dcmh.util.tables import printable

if TYPE_CHECKING:
    from dcmh.data import Dataset, Images
    from dcmh.inputs.views import View


@dataclass(frozen=True)
class Source:
    """A name or path, and how to read it."""

    data: str
    text: str | None = None
    keep_partial: bool = False
    min_tag_count: int | None = None
    modalities: str | None = None
    similarity: str | None = None
    label_words: Sequence[str] | None = None  # the words that served as labels in training
    only_listed: bool = False  # no effect in training, where items without text are left out anyway

    def load(self) -> Dataset:
        """Load the items."""
        from dcmh.data import load_dataset

        for file in (self.text, (self.similarity or "").partition(":")[2]):  # run.json records them
            if file:
                check_spelling(file)
        options: dict[str, Any] = {"keep_partial": True} if self.keep_partial else {}
        if self.modalities is not None:
            options["modalities"] = self.modalities
        if self.only_listed and Path(self.data).expanduser().is_dir():  # a table lists all of its items
            options["only_listed"] = True
        if self.text is None:
            return load_dataset(self.data, **options)
        folder = self._folder()
        return load_dataset(folder if folder.is_dir() else self.data, text=_from_folder(self.text, folder), **options)

    def labelled(self) -> tuple[Dataset, list[str] | None]:
        """The items, with labels to evaluate by where there are some, and the words that serve as labels.

        Without labels in the source, folders serve as labels if they define similarity; words do if labels define it:
        those that a model learned from, or else the most frequent ones. Otherwise the items have no labels.
        """
        data = self.load()
        kind = (self.similarity or "labels").partition(":")[0]
        words: list[str] | None = None
        if data.labels is None and kind == "folders":
            data = data.with_labels_from_folders()
        elif data.labels is None and kind in ("labels", "labels+tags"):
            data = self._with_words(data)
            words = data.label_names
        elif self.min_tag_count is not None:
            console.say("--min-tag-count is not used: words do not serve as labels here.")
        for note in data.notes:
            console.say(f"{data.name}: {note}")
        return data, words

    def _with_words(self, data: Dataset) -> Dataset:
        modality = next((name for name, column in data.columns.items() if column.kind == "text"), None)
        if modality is None:
            kinds = ", ".join(f"{name} ({column.kind}s)" for name, column in data.columns.items())
            raise DataError(
                f"{data.name} has no labels, and no texts whose words could serve as labels. It has: {kinds}.",
                hint="Add labels; or learn from the pairs alone (method dcmh): --similarity pairing",
            )
        if self.label_words:
            from dcmh.data.labels import tell_apart

            labelled = data.with_labels_from_words(self.label_words, modality)
            first = ", ".join(self.label_words[:5])
            words = f"the {len(self.label_words)} words that served as labels in training ({first}, …)"
            if tell_apart(labelled.labels):
                console.say(f"{data.name}: No labels given: {words} serve again.")
                return labelled
            console.say(f"{data.name}: No labels given, and {words} do not tell these items apart.")
        return data.with_labels_from_text(modality, min_count=self.min_tag_count)

    def _folder(self) -> Path:
        """The folder of the table of --text; DATA may also be the table of that folder."""
        path = Path(self.data).expanduser()
        return path.parent if path.is_file() else path

    def record(self) -> dict[str, Any]:
        """For run.json, with absolute paths."""
        from dcmh.data import named

        known = named(self.data)
        data = str(Path(self.data).expanduser().resolve())
        if known is not None:
            data = known[0] if known[1] is None else f"{known[0]}:{known[1].resolve()}"
        text = None if self.text is None else _from_folder(self.text, self._folder())
        record = vars(self) | {"data": data, "text": text}
        del record["only_listed"]
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Source:
        """The source that run.json records."""
        from dcmh.data import named

        source = cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})
        if named(source.data) is None and not Path(source.data).exists():
            raise DataError(
                f"The data that the model was trained on, {source.data}, does not exist.",
                hint="Name it: dcmh evaluate MODEL DATA",
            )
        return source


@dataclass
class Readable:
    """Data without the items whose pictures cannot be read, and what was skipped: (file, reason)."""

    data: Dataset
    skipped: list[tuple[str, str]] = field(default_factory=list)


def without_unreadable(data: Dataset, view: View, device: str) -> Readable:
    """Read every picture once: compute its features where the view takes features, else decode it."""
    from dcmh.data import Images

    failed: dict[int, str] = {}
    for name, column in data.columns.items():
        if isinstance(column, Images):
            failed |= _unreadable(column, view, device, name)
    if not failed:
        return Readable(data, list(data.skipped))
    names = [(_file_name(data, row), failed[row]) for row in sorted(failed)]
    if len(failed) == len(data):
        raise DataError(f"None of the {len(data):,} pictures can be read; the first, {names[0][0]}: {names[0][1]}.")
    return Readable(data.drop(sorted(failed)), [*data.skipped, *names])


def say_skipped(skipped: list[tuple[str, str]], where: str = "", *, every: bool = False) -> None:
    """Print the first few skipped files, or every one, and their number."""
    for name, reason in skipped if every else skipped[:3]:
        console.say(f"skipped {printable(name)}: {reason}")
    if skipped:
        console.say(f"{len(skipped):,} skipped{where}.")


def _unreadable(column: Images, view: View, device: str, name: str) -> dict[int, str]:
    from dcmh.inputs.views import FeatureView

    failed: dict[int, str] = {}
    if isinstance(view, FeatureView):
        from dcmh.inputs import features

        with console.progress(f"features of {name}s ({view.network})", "pictures") as bar:
            features.extract(
                column,
                view.network,
                weights=view.weights,
                device=device,
                progress=bar.update,
                on_error=failed.__setitem__,
            )
    else:
        from dcmh.inputs.images import unreadable

        with console.progress(f"reading {name}s", "pictures") as bar:
            failed |= dict(unreadable(column, progress=bar.update))
    return failed


def _file_name(data: Dataset, row: int) -> str:
    from dcmh.data import Images

    for column in data.columns.values():
        if isinstance(column, Images) and isinstance(column.values[row], str | Path):
            return str(column.values[row])
    return data.ids[row]


def _from_folder(text: str, folder: Path) -> str:
    """The table as the loader takes it: relative to the folder, or absolute if it is only in the working folder."""
    name, colon, columns = text.rpartition(":")
    if not (colon and columns.count(",") == 1):
        name, colon, columns = text, "", ""
    if not (folder / name).is_file() and Path(name).is_file():
        name = str(Path(name).resolve())
    return f"{name}{colon}{columns}"
