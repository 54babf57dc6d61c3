"""The console script `vlarge VERB …`: a verb is a file or folder here with a `HELP` line and `run(argv) -> exit code`.

Only the verb that runs is imported, and a user's mistake ends in one line, never in a traceback.
Exit codes: 0 good, 1 the answer is no, 2 bad input or usage, 3 undecided, 130 interrupted.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import vlarge

EXAMPLE = "Example: vlarge train recipes/finetune.toml --data.path my_dataset   ·   vlarge VERB --help says more."
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. `argv` leaves out the program's name."""
    try:
        return _guarded(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        _drop_output()
        return 0


def verbs() -> dict[str, str]:
    """Every verb with its one-line help, read without importing it."""
    here = Path(__file__).parent
    files = {path.stem: path for path in here.glob("*.py")} | {p.parent.name: p for p in here.glob("*/__init__.py")}
    found = {verb: _help_line(path) for verb, path in sorted(files.items())}
    return {verb: line for verb, line in found.items() if line}


def _help_line(path: Path) -> str:
    """The text of the module's `HELP = "…"`; empty where there is none: such a file is not a verb."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="HELP")], value=ast.Constant(value=str(text))):
                return text
    return ""


def _help(lines: Mapping[str, str]) -> str:
    width = max(map(len, lines))
    listing = "\n".join(f"  {verb:<{width}}  {line}" for verb, line in lines.items())
    return f"usage: vlarge VERB …\n\n{vlarge.__doc__}\n\n{listing}\n\n{EXAMPLE}"


def _guarded(argv: list[str]) -> int:
    """Runs the command line; a user's mistake and a full disk become one line."""
    try:
        code = _run(*argv) if argv else _run("--help")
        sys.stdout.flush()
        return code
    except ValueError as error:
        from vlarge.contracts import InputError

        if not isinstance(error, InputError):
            raise
        return _fail(str(error))
    except RuntimeError as error:
        from vlarge.data.service.client import ServiceDied

        if not isinstance(error, ServiceDied) or "\n" in str(error):  # our own mistake, with its traceback
            raise
        return _fail(str(error))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _drop_output()
        place = f" while writing {error.filename}" if error.filename else ""
        return _fail(f"the disk is full{place}: free some space and run the same command again")


def _run(verb: str, *argv: str) -> int:
    if verb in ("-h", "--help"):
        print(_help(verbs()))
        return 0
    if verb == "--version":
        print(f"vlarge {vlarge.__version__}")
        return 0
    if verb not in verbs():
        from vlarge.contracts import InputError
        from vlarge.recipe import nearest

        raise InputError(f"unknown verb {verb}{nearest(verb, verbs()) or '; `vlarge --help` lists them'}")
    code: int = importlib.import_module(f"vlarge.cli.{verb}").run(list(argv))
    return code


def _drop_output() -> None:
    """Lets go of what stdout still holds, so that Python does not fail on it again while it shuts down."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _fail(message: str) -> int:
    """One red line on stderr; exit code 2."""
    line = f"error: {' '.join(message.splitlines())}"
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # In one write, so that the lines of several processes do not run into each other.
    sys.stderr.write((f"\033[31m{line}\033[0m" if colour else line) + "\n")
    return 2
