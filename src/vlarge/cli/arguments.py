"""How a command line becomes a frozen dataclass, a recipe, or the choice of a command inside a verb."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vlarge.contracts import InputError
from vlarge.recipe import Recipe, keys, load, nearest, nearest_key

# What everybody types, mostly for LeRobot, and the setting it is here.
ALIASES = {
    "dataset.repo_id": "data.path",
    "dataset.root": "data.path",
    "policy.path": "model.init",
    "batch_size": "train.batch_size",
    "steps": "train.steps",
    "output_dir": "run.dir",
    "seed": "run.seed",
    "train.mbs": "train.micro_batch_tokens",
}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def parse[T](arguments: type[T], argv: Sequence[str], program: str) -> T:
    """`argv` as the dataclass `arguments`, whose docstrings are the help. Exits with code 2 on a usage error."""
    import tyro

    return tyro.cli(arguments, args=list(argv), prog=program, config=(tyro.conf.FlagCreatePairsOff,))


class Command(NamedTuple):
    """One command of a verb: the dataclass of its options, and what runs it and returns the exit code."""

    arguments: type[Any]
    run: Callable[[Any], int]


def choose(verb: str, commands: Mapping[str, Command], argv: Sequence[str]) -> int:
    """Run `vlarge VERB COMMAND …`."""
    name, *rest = list(argv) or ["--help"]
    if name in ("-h", "--help"):
        width = max(map(len, commands))
        firsts = {key: inspect.getdoc(command.arguments) or "" for key, command in commands.items()}
        lines = [f"  {key:<{width}}  {text.splitlines()[0]}" for key, text in firsts.items()]
        print("\n".join([f"usage: vlarge {verb} COMMAND …\n", *lines]))
        print(f"\n`vlarge {verb} COMMAND --help` shows an example.")
        return 0
    if name not in commands:
        hint = nearest(name, commands) or f"; commands: {', '.join(commands)}"
        raise InputError(f"unknown command {verb} {name}{hint}")
    return commands[name].run(parse(commands[name].arguments, rest, f"vlarge {verb} {name}"))


class CommandLine(NamedTuple):
    """A recipe's command line, taken apart.

    paths: the recipe file and its overlays, in order. overrides: setting -> text. flags: the verb's own -> text.
    """

    paths: list[Path]
    overrides: dict[str, str]
    flags: dict[str, str]

    def recipe(self) -> Recipe:
        return load(self.paths, self.overrides)

    def has(self, flag: str) -> bool:
        """Whether a switch is on."""
        return self.flags.get(flag) == "true"


def split(argv: Sequence[str], flags: Mapping[str, type]) -> CommandLine:
    """Take apart `RECIPE [@overlay.toml …] [--a.b value …]`, LeRobot's aliases, and the verb's own `flags`.

    flags: names with `_`, and bool (a switch: `--resume`, or LeRobot's `--resume=true`) or a type, which takes a value.
    `--a.b value` and `--a.b=value` are the same, and so are `-` and `_` in a name.
    """
    switches = {name for name, kind in {**keys(), **flags}.items() if kind is bool}
    known = {*keys(), *ALIASES, *flags}
    paths: list[Path] = []
    options: list[tuple[str, str]] = []
    tokens = list(argv)
    while tokens:
        token = tokens.pop(0)
        if token.startswith("--"):
            options.append(_option(token[2:], tokens, known, switches))
        elif token.startswith("@"):
            paths.append(Path(token[1:]))
        elif paths or token.startswith("-"):
            raise InputError(f"unexpected argument {token}: write RECIPE, @OVERLAY.toml or --name value")
        else:
            paths.append(Path(token))
    settings = [option for option in options if option[0] not in flags]
    return CommandLine(paths, _overrides(settings), {name: value for name, value in options if name in flags})


def _option(text: str, tokens: list[str], known: set[str], switches: set[str]) -> tuple[str, str]:
    """Name and value of the option `--text`, taking the value from `tokens` where it stands apart."""
    typed, equals, value = text.partition("=")
    name = typed.replace("-", "_")
    if name not in known:
        raise InputError(f"unknown option --{typed}{nearest_key(name, known, '--')}")
    if equals:
        return name, value
    if name in switches and not (tokens and tokens[0].lower() in ("true", "false")):
        return name, "true"
    if not tokens or tokens[0].startswith("--"):
        raise InputError(f"option --{typed} needs a value")
    return name, tokens.pop(0)


def _overrides(options: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Settings by their own names; the last of two wins, but a dataset's folder always wins over its hub id."""
    has_root = any(name == "dataset.root" for name, _ in options)
    overrides = {}
    for name, value in options:
        if name == "dataset.repo_id" and has_root:
            continue
        is_hub_id = name in ("dataset.repo_id", "policy.path") and HUB_ID.fullmatch(value) and not Path(value).exists()
        overrides[ALIASES.get(name, name)] = f"hf://{value}" if is_hub_id else value
    return overrides
