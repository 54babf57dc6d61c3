"""`vlarge sim`: the environments at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlarge.cli.arguments import Command, choose
from vlarge.cli.show import print_json

HELP = "list the simulated environments at hand"


@dataclass(frozen=True)
class List:
    """Print the name of every environment, one a line, as `--env` takes it.

    Example: vlarge sim list
    """

    json: bool = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    return choose("sim", {"list": Command(List, _list)}, argv)


def _list(arguments: List) -> int:
    from vlarge.sim import list_envs

    names = list_envs()
    if arguments.json:
        print_json({"environments": names})
    else:
        print("\n".join(names))
    return 0
