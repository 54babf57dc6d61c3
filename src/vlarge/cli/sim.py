"""`vlarge sim`: the environments at hand, and whether one keeps its promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated

import tyro

from vlarge.cli.arguments import Command, choose
from vlarge.cli.show import print_json, print_table, progress
from vlarge.sim.config import SimConfig

HELP = "list the simulated environments at hand; check that one keeps its promises"


@dataclass(frozen=True)
class List:
    """Print the name of every environment, one a line, as `--env` takes it.

    Example: vlarge sim list
    """

    json: bool = False
    """Print JSON."""


@dataclass(frozen=True)
class Check:
    """Try whether an environment keeps what vlarge relies on: keys, orientation, rates, ends, snapshots, memory.

    Exit code 1 where it does not.

    Example: vlarge sim check metaworld/reach-v3
    """

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A name as `vlarge sim list` has it."""
    cycles: int = 50
    """How often one is made and closed."""
    resets: int = 200
    """How many resets its memory is watched over."""
    sim: SimConfig = field(default_factory=SimConfig)
    json: bool = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    return choose("sim", {"list": Command(List, _list), "check": Command(Check, _check)}, argv)


def _list(arguments: List) -> int:
    from vlarge.sim import list_envs

    names = list_envs()
    if arguments.json:
        print_json({"environments": names})
    else:
        print("\n".join(names))
    return 0


def _check(arguments: Check) -> int:
    from vlarge.sim import make_env
    from vlarge.sim.conformance import CHECKS, Trial, check_env

    trial = Trial(partial(make_env, arguments.env, arguments.sim), arguments.cycles, arguments.resets)
    make_env(arguments.env, arguments.sim).close()  # a mistake in the name or the settings is told at once
    with progress("checking", len(CHECKS)) as tell:
        found = check_env(trial, lambda finding: tell(f"{finding.check}: {finding.verdict}", 1))
    ok = all(finding.verdict != "fault" for finding in found)
    if arguments.json:
        print_json({"env": arguments.env, "ok": ok, "checks": [asdict(finding) for finding in found]})
    else:
        rows = [(finding.check, finding.verdict, finding.detail) for finding in found]
        print_table(arguments.env, ["check", "", "what was seen"], rows)
    return 0 if ok else 1
