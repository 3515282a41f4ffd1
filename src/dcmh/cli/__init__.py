"""The command table, and the way from a command line to an exit code. Imports nothing heavy."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError

from dcmh import __version__
from dcmh.cli import console
from dcmh.cli.help import HelpPage
from dcmh.errors import DCMHError, TrainingStopped

DONE, FAILED, USAGE, SKIPPED, INTERRUPTED = 0, 1, 2, 3, 130

# Name, help and an example: a command's module is loaded only when the command is used.
COMMANDS = {
    "demo": ("The whole story on OpenMoji drawings: learn, measure, search. On a CPU, offline.", "dcmh demo"),
    "train": (
        "Learn codes from pictures with words, or from any data in two modalities.",
        "dcmh train photos/ --bits 64 --out photos.model",
    ),
    "tune": (
        "Choose gamma, eta, learning rate, length and dropout on a part of the training items, within a budget of time.",
        "dcmh tune photos/ --budget 10m",
    ),
    "evaluate": (
        "Measure a model on its held-out queries: MAP, precision, hash lookup, beside chance.",
        "dcmh evaluate photos.model --json",
    ),
    "index": (
        "Make an index of pictures and words, or bring it up to date.",
        "dcmh index photos/ --model photos.model",
    ),
    "search": ("Find by words or by a picture.", 'dcmh search photos.dcmh "dog beach"'),
    "serve": ("A page and an API over an index.", "dcmh serve photos.dcmh"),
    "encode": (
        "Write the codes of one modality for other programs.",
        "dcmh encode photos/ --model photos.model --modality image",
    ),
    "bench": (
        "Run methods on feature sets at several lengths with several seeds, as a TOML file says.",
        "dcmh bench configs/openmoji.toml --dry-run",
    ),
    "report": (
        "Tables and figures from the results of dcmh bench, beside the paper's numbers.",
        "dcmh report results/openmoji --against paper",
    ),
    "data": (
        "List the data sets, say what is in one or in a folder or file, or fetch (get NAME) or verify (check NAME) one.",
        "dcmh data get mirflickr25k",
    ),
    "methods": ("List the hashing methods, or describe one.", "dcmh methods dcmh"),
    "info": (
        "Say what a model, an index, codes, a checkpoint, results or a data folder is, and how it was made.",
        "dcmh info photos.model",
    ),
}

app = App(
    name="dcmh",
    help="Binary codes in which words find pictures and pictures find words (Deep Cross-Modal Hashing).",
    version=__version__,
    help_format="plaintext",
    help_formatter=HelpPage(),
    help_epilogue="Start here: dcmh demo. Each command has --help with an example, and --json.",
    result_action="return_value",
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
)
for _place, (_name, (_help, _example)) in enumerate(COMMANDS.items()):
    app.command(
        f"dcmh.cli.{_name}:{_name}",
        name=_name,
        help=_help,
        help_formatter=HelpPage(_name),
        help_epilogue=f"Example: {_example}",
        sort_key=_place,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    0 done; 1 could not do it, one line says why; 2 wrong usage; 3 inputs were skipped and --strict was given;
    130 interrupted.
    """
    if arguments is None:
        _settle_process()
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    console.set_up(tokens)
    try:
        code = _run(tokens)
        console.flush()
    except BrokenPipeError:  # the reader has seen enough, as in dcmh data | head -1
        console.forget_output()
        code = DONE
    return code


def _settle_process() -> None:
    """What only a process of our own may set."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # what libraries warn about is for developers
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody has decided otherwise
        signal.signal(signal.SIGINT, _interrupted)
    # Read when torch is loaded. Threads that spin while they wait make training several times slower where other
    # programs want the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. In the middle of an import an exception can leave a lock behind that others then wait for, for ever; so the
    process ends there at once. What is written is written whole or in steps, so that nothing breaks."""
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
        console.error(f"{_one_line(error)} Try: {_help_for(tokens)}")
        return USAGE
    except TrainingStopped as error:
        console.error(_one_line(error))
        return INTERRUPTED
    except DCMHError as error:
        console.error(_one_line(error))
        return FAILED
    except KeyboardInterrupt as error:
        console.error(_one_line(error) or "Interrupted. Nothing was written.")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (OSError, MemoryError) as error:
        if (said := _of_the_machine(error)) is None:
            console.bug()
        else:
            console.error(said)
        return FAILED
    except Exception:
        console.bug()
        return FAILED
    return code if isinstance(code, int) else DONE


def _of_the_machine(error: OSError | MemoryError) -> str | None:
    """A sentence for what the machine refuses: space, rights, memory. None where it looks like a bug of ours."""
    if isinstance(error, MemoryError):
        return f"Out of memory. {_one_line(error)} Use fewer items, or a machine with more of it."
    if error.filename is None or error.strerror is None:
        return None
    return f"{error.filename}: {error.strerror}. Check the path, its rights and the free space."


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _help_for(tokens: list[str]) -> str:
    return shlex.join(["dcmh", *[token for token in tokens[:1] if token in COMMANDS], "--help"])
