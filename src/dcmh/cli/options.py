"""The settings of `dcmh train`: flags, a TOML file with the same names, and the method they configure.

Every setting is None unless given: a flag overrides the file, and the file overrides the method's default.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import App, CycloptsError, Parameter

from dcmh.errors import ParameterError
from dcmh.util.formats import read_toml

if TYPE_CHECKING:
    from dcmh.methods.base import Hasher

Flag = Annotated[bool | None, Parameter(negative="")]
Repeatable = Annotated[list[str] | None, Parameter(negative="")]
Switch = Annotated[bool, Parameter(negative="", show_default=False)]
JsonSwitch = Annotated[Switch, Parameter(help="Print the result as JSON.")]
Device = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1 or mps.")]
Texts = Annotated[str | None, Parameter(help="Table with the texts, as for dcmh train.")]
ServerModel = Annotated[
    Path | None,
    Parameter(help="The model of a collection on a server, if this machine has not used it before."),
]


@Parameter(name="*", group="Data")
@dataclass
class DataOptions:
    """Which items to load, and how to split them."""

    text: str | None = None
    """Table with the texts: FILE, or FILE:image column,text column. Default: what the folder holds."""
    modalities: str | None = None
    """Columns of the table that are modalities, such as image,title,tags,audio. Default: image,text."""
    keep_partial: Flag = None
    """Keep items that lack a modality, such as photos without text, for methods that learn from them."""
    min_tag_count: int | None = None
    """Without labels, words that occur in at least this many texts serve as labels. Default: 0.5 % of the texts, at least 5."""
    queries: int | None = None
    """Number of held-out queries. Default: the split of the data, or 5 % of the items (50 to 2,000, at most a fifth)."""
    train_size: int | Literal["all"] | None = None
    """Number of training items, or all for every item that is not a query. Default: all but the queries; with 500 items or
    more, another 5 % (50 to 2,000) are held out as unseen items. With the paper's recipe, all."""


@Parameter(name="*", group="Method")
@dataclass
class MethodOptions:
    """Which method to use, and its settings."""

    method: str | None = None
    """A method listed by dcmh methods. Default: dcmh."""
    bits: int | None = None
    """Length of the codes, 1 to 1024. Default: 64."""
    seed: int | None = None
    """Random seed of the split and of the method. Default: 0."""
    device: str | None = None
    """auto, cpu, cuda, cuda:1 or mps. Default: auto, a GPU if there is one."""
    text_encoder: str | None = None
    """Encoder of texts: use-multilingual, minilm, a folder with model.onnx and tokenizer.json, or none for a bag of
    words only. Default: use-multilingual; for the paper's recipe the bag of words."""
    encoder: str | None = None
    """Encoder of pictures, texts or both, for the methods dcmh and semantic: transformers:FOLDER (CLIP, SigLIP), onnx:FOLDER,
    or one of another package. Default: an image network, and the encoder of texts."""
    fine: int | None = None
    """Bytes per item of the vectors that rank what the codes find: 64, 128 or 256, or 0 for none. Default: 128."""
    option: Repeatable = None
    """Any setting of the method, as NAME=VALUE; may be repeated. dcmh methods NAME lists them."""


@Parameter(name="*", group="Settings of DCMH")
@dataclass
class DCMHOptions:
    """The parameters of DCMH's constructor, by the same names."""

    recipe: Literal["stable", "paper"] | None = None
    """stable, or paper for the paper's literal recipe. Default: stable."""
    gamma: float | None = None
    """Weight of the quantisation term. Default: 1."""
    eta: float | None = None
    """Weight of the balance term. Default: 1."""
    ranking: float | None = None
    """Weight of the average precision of the codes, where similar items share a label or a folder; 0 leaves it out, as in the
    paper. Default: 1."""
    epochs: int | None = None
    """Number of outer iterations. Default: 40, more for few items, half as many again to fine-tune; 500 for paper."""
    batch_size: int | None = None
    """Items per step. Default: 128; 256 for 4,000 items or more, except with the paper's recipe."""
    nested: bool | None = None
    """Train nested codes, whose first 16, 32, … bits can be used alone: dcmh index --bits, dcmh evaluate --bits. Default: with
    labels or folders, except with --quality good or best and with the paper's recipe."""
    learning_rate: float | None = None
    """Learning rate of the stable recipe. Default: 0.001."""
    hidden: int | None = None
    """Width of the hash networks. Default: 4096."""
    dropout: float | None = None
    """Dropout of the hash networks. Default: 0.4."""
    quality: Literal["fast", "good", "best"] | None = None
    """Image features: fast, good (a larger network, half as fast) or best (that network, first fine-tuned to the labels; meant
    for a GPU). Default: fast."""
    network: str | None = None
    """Image network: efficientnet-lite0, efficientnet-lite2 or cnn-f. Default: that of the quality."""
    finetune: bool | None = None
    """Also train the image network, after the hash layers, in the last third of the run. Meant for a GPU."""
    weights: Path | None = None
    """MatConvNet's imagenet-vgg-f.mat, for cnn-f."""
    similarity: str | None = None
    """What makes items similar: labels, folders, tags, tags:MODALITY, labels+tags, labels+tags:MODALITY,
    pairs:FILE, pairing, neighbours or neighbours:MODALITY. Default: labels."""
    validation: float | None = None
    """Share of the training items held out to show MAP during training. Default: 0.04."""
    precision: str | None = None
    """bfloat16, tf32, float32 or float64. Default: bfloat16 in image networks on a GPU, float32 on a CPU."""


Options = TypeVar("Options", DataOptions, MethodOptions, DCMHOptions)


def read_config(file: Path) -> tuple[DataOptions, MethodOptions, DCMHOptions]:
    """The settings of a TOML file: the names of the flags, with - or _; other settings of the method in [option]."""
    try:
        record = read_toml(file)
    except OSError as error:
        raise ParameterError(f"Cannot read the settings {file}: {error.strerror}.", hint="Give a TOML file.") from error
    except ValueError as error:
        raise ParameterError(f"{file} is not TOML: {error}.", hint="Write lines such as bits = 64.") from error

    def take(
        *, data: DataOptions | None = None, method: MethodOptions | None = None, dcmh: DCMHOptions | None = None
    ) -> tuple[DataOptions, MethodOptions, DCMHOptions]:
        return data or DataOptions(), method or MethodOptions(), dcmh or DCMHOptions()

    reader = App(default_command=take, print_error=False, exit_on_error=False, help_flags=(), version_flags=())
    try:
        settings: tuple[DataOptions, MethodOptions, DCMHOptions] = reader(
            _as_flags(record), result_action="return_value"
        )
    except CycloptsError as error:
        message = " ".join(str(error).split())
        raise ParameterError(f"{file}: {message}", hint="It takes the settings of dcmh train --help.") from error
    return settings


def merged(first: Options, second: Options) -> Options:
    """The settings of the first, and those of the second where the first has none."""
    values = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
    return dataclasses.replace(second, **{name: value for name, value in values.items() if value is not None})


def build(method: MethodOptions, dcmh: DCMHOptions) -> Hasher:
    """The method with its settings, not fitted. The error for an unknown setting lists the known ones."""
    from dcmh import methods

    name = method.method or "dcmh"
    kind = methods.get(name)
    known = {key: value for key, value in inspect.signature(kind).parameters.items() if key != "self"}
    settings: dict[str, Any] = {
        field.name: value for field in dataclasses.fields(dcmh) if (value := getattr(dcmh, field.name)) is not None
    }
    for setting in settings:
        if setting not in known:
            raise ParameterError(f"--{setting.replace('_', '-')}: {_no_such(name, setting, list(known))}")
    settings |= _parse_options(method.option or [], name, kind)
    if settings.get("recipe") == "paper":
        for setting in ("ranking", "learning_rate", "hidden", "dropout"):
            if setting in settings:
                raise ParameterError(
                    f"--{setting.replace('_', '-')} belongs to the stable recipe; the paper's has its own. "
                    "Leave it out, or leave out --recipe paper."
                )
    # Passed to methods that take them; features of pictures are computed on the device in any case.
    common = {"bits": 64 if method.bits is None else method.bits, "seed": method.seed or 0, "device": method.device}
    common["text_encoder"] = method.text_encoder
    common["encoder"] = method.encoder
    if method.encoder is not None and "encoder" not in known:
        raise ParameterError(f"--encoder: {_no_such(name, 'encoder', list(known))}", hint="Choose dcmh or semantic.")
    settings |= {
        key: value for key, value in common.items() if key in known and value is not None and key not in settings
    }
    return kind(**settings)


def fine_options(method: MethodOptions) -> dict[str, Any]:
    """The arguments of `fit` for the fine vectors. A missing encoder is an error here, before any work."""
    from dcmh.inputs import encoders
    from dcmh.methods import fine_space

    dimensions = fine_space.check_dimensions(fine_space.DEFAULT if method.fine is None else method.fine)
    encoder = None if method.text_encoder in (None, "none", "auto") else method.text_encoder
    if method.encoder is not None and encoders.reads(encoders.open_encoder(method.encoder)):
        encoder = method.encoder
    if dimensions or encoder:
        encoders.text_encoder(encoder or encoders.DEFAULT)
    return {"fine": dimensions, "text_encoder": encoder}


def _as_flags(record: dict[str, Any]) -> list[str]:
    flags = []
    for name, value in record.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            flags += [f"{flag}={key}={_as_word(part)}" for key, part in value.items()]
        elif isinstance(value, bool):
            flags.append(f"{flag}={str(value).lower()}")
        else:
            flags += [f"{flag}={_as_word(part)}" for part in (value if isinstance(value, list) else [value])]
    return flags


def _as_word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parse_options(options: list[str], name: str, kind: type[Hasher]) -> dict[str, Any]:
    """The settings of --option NAME=VALUE, each value parsed by the annotation of the constructor."""
    hints = typing.get_type_hints(kind.__init__)
    hints.pop("return", None)
    settings: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise ParameterError(f"--option {option}: expected NAME=VALUE, such as --option ridge=0.1.")
        if key not in hints:
            raise ParameterError(f"--option {option}: {_no_such(name, key, list(hints))}")
        settings[key] = _parse(value.strip(), hints[key], option)
    return settings


def _parse(text: str, hint: Any, option: str) -> Any:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in sorted(kinds, key=lambda kind: kind in (str, Path)):  # a string takes anything, so it comes last
        try:
            if kind is types.NoneType and text.lower() == "none":
                return None
            if kind is bool and text.lower() in ("true", "false"):
                return text.lower() == "true"
            if typing.get_origin(kind) is Literal and text in typing.get_args(kind):
                return text
            if kind in (int, float, str, Path):
                return kind(text)
        except ValueError:
            continue
    raise ParameterError(f"--option {option}: {text!r} is not of type {_type_name(hint)}.")


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("pathlib.", "").replace("typing.", "")


def _no_such(method: str, setting: str, known: list[str]) -> str:
    close = difflib.get_close_matches(setting, known, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"the method {method} has no setting {setting!r}.{hint} It has: {', '.join(known)}."
