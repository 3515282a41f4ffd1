"""The command table, and `main`: from a command line to an exit code. Imports nothing heavy."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError, UnusedCliTokensError

from dcmh import __version__
from dcmh.cli import console
from dcmh.cli.help import HelpPage
from dcmh.errors import DCMHError, StorageError, TrainingStopped

DONE, FAILED, USAGE, SKIPPED, STORAGE, INTERRUPTED = 0, 1, 2, 3, 4, 130

# Name, help and an example: a command's module is loaded only when the command is used.
COMMANDS = {
    "demo": ("Learn, measure and search OpenMoji drawings, start to finish, on a CPU and offline.", "dcmh demo"),
    "train": (
        "Learn codes from pictures with words, or from any data in two modalities.",
        "dcmh train photos/ --bits 64 --out photos.model",
    ),
    "tune": (
        "Choose gamma, eta, learning rate, training length and dropout on part of the training items, in limited time.",
        "dcmh tune photos/ --budget 10m",
    ),
    "evaluate": (
        "Measure a model on its held-out queries: MAP, precision and hash lookup, compared with chance.",
        "dcmh evaluate photos.model --json",
    ),
    "index": (
        "Build an index of pictures and texts, or update it.",
        "dcmh index photos/ --model photos.model",
    ),
    "search": ("Search by words, by a picture, or by examples.", 'dcmh search photos.dcmh "dog beach"'),
    "serve": ("Serve a search page and an HTTP API for an index.", "dcmh serve photos.dcmh"),
    "duplicates": (
        "List duplicate pictures, exact and near, with the one to keep.",
        "dcmh duplicates photos.dcmh",
    ),
    "merge": ("Merge several indexes of the same model into one.", "dcmh merge a.dcmh b.dcmh --out both.dcmh"),
    "mcp": ("Offer an index to language models as tools (Model Context Protocol).", "dcmh mcp photos.dcmh"),
    "encode": (
        "Write the codes of one modality for other programs.",
        "dcmh encode photos/ --model photos.model --modality image",
    ),
    "compress": (
        "Learn codes for existing vectors of any encoder, and measure the loss.",
        "dcmh compress vectors.npy --bits 64 --out vectors.codes",
    ),
    "export": (
        "Write a copy of a model to publish, with a model card, and as ONNX files.",
        "dcmh export photos.model --onnx",
    ),
    "bench": (
        "Run methods on feature sets, with several code lengths and seeds, as specified in a TOML file.",
        "dcmh bench configs/openmoji.toml --dry-run",
    ),
    "report": (
        "Make tables and figures from the results of dcmh bench, next to the paper's numbers.",
        "dcmh report results/openmoji --against paper",
    ),
    "data": (
        "List the data sets, describe one (or a folder or file), download one (get NAME) or verify it (check NAME).",
        "dcmh data get mirflickr25k",
    ),
    "methods": ("List the hashing methods, or describe one.", "dcmh methods dcmh"),
    "info": (
        "Show what a model, an index, codes, a checkpoint, results or a data folder is, and how it was made.",
        "dcmh info photos.model",
    ),
    "check": (
        "Verify a model, an index, codes, a checkpoint, a collection or the cache completely, and repair what can be derived.",
        "dcmh check photos.dcmh --repair",
    ),
}

app = App(
    name="dcmh",
    help="Search pictures with words, and words with pictures, by short binary codes (Deep Cross-Modal Hashing).",
    version=__version__,
    help_format="markdown",
    help_epilogue="Start here: dcmh demo. Each command has --help with an example, and --json.",
    result_action="return_value",
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
)
for _position, (_name, (_help, _example)) in enumerate(COMMANDS.items()):
    app.command(
        f"dcmh.cli.{_name}:{_name}",
        name=_name,
        help=_help,
        help_formatter=HelpPage(_name),
        help_epilogue=f"Example: {_example}",
        sort_key=_position,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0 success; 1 failure, explained in one line; 2 wrong usage; 3 inputs were skipped and --strict was given; 4 a disk is
    full, read-only or failing; 130 interrupted.
    """
    if arguments is None:
        _configure_process()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    console.set_up(tokens)
    try:
        code = _run(tokens)
        console.flush()
    except BrokenPipeError:  # as in dcmh data | head -1
        console.discard_output()
        code = DONE
    return code


def _configure_process() -> None:
    """Settings that only the command itself may change, not a program that calls `main`."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings of libraries are for developers
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else another handler is installed on purpose
        signal.signal(signal.SIGINT, _on_interrupt)
    # Read when torch is loaded. Threads that spin while they wait make training several times slower on a machine
    # with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. An exception during an import can leave a lock that others wait for forever, so the process exits at once.

    All files are written atomically or in steps, so nothing breaks.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            console.error("Interrupted.")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _run(tokens: list[str]) -> int:
    try:
        code = app(tokens)
    except CycloptsError as error:
        command = [token for token in tokens[:1] if token in COMMANDS]
        console.error(f"{_usage(error)} Try: {shlex.join(['dcmh', *command, '--help'])}")
        return USAGE
    except TrainingStopped as error:
        console.error(_one_line(error))
        return INTERRUPTED
    except StorageError as error:
        console.error(_one_line(error))
        return STORAGE
    except DCMHError as error:
        console.error(_one_line(error))
        return FAILED
    except KeyboardInterrupt as error:
        console.error(_one_line(error) or "Interrupted. Nothing was written.")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        if (storage := StorageError.of(error)) is not None:
            console.error(_one_line(storage))
            return STORAGE
        if (message := _system_error(error)) is None:
            console.bug()
        else:
            console.error(message)
        return FAILED
    return code if isinstance(code, int) else DONE


def _system_error(error: Exception) -> str | None:
    """The message for missing files, permissions or memory; None where it looks like a bug."""
    if isinstance(error, MemoryError):
        return f"Out of memory. {_one_line(error)} Use fewer items, or a machine with more memory."
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    if isinstance(error, PermissionError):
        return f"Permission denied: {error.filename}. Check the file permissions."
    return f"{error.filename}: {error.strerror}. Check the path."


def _usage(error: CycloptsError) -> str:
    if isinstance(error, UnusedCliTokensError):
        return f"Too many arguments: {shlex.join(error.unused_tokens or [])}."
    return _one_line(error)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
