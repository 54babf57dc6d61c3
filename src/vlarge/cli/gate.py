"""`vlarge gate`: is the candidate better than the baseline, on the very same episodes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vlarge.cli.arguments import parse
from vlarge.cli.show import console, print_json, print_table, rate_cells

HELP = "promote a candidate over a baseline, reject it, or ask for more episodes"

EXIT_CODES = {"promote": 0, "reject": 1, "undecided": 3}
STYLES = {"promote": "bold green", "reject": "bold red", "undecided": "bold yellow"}


@dataclass(frozen=True)
class Gate:
    """Compare two evaluations on the same episodes by a paired test.

    Exit code 0: promote; 1: reject; 3: undecided, so more episodes are needed.

    Example: vlarge gate runs/before/eval/0 runs/after/eval/1000
    """

    baseline: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="BASELINE")]
    """The results of `vlarge eval` to beat."""
    candidate: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="CANDIDATE")]
    """Results on the same plan."""
    alpha: float = 0.05
    """How often a verdict may be wrong when there is no difference."""
    test: Literal["mcnemar", "sequential"] = "mcnemar"
    """mcnemar: for a number of episodes that was fixed before. sequential: one may stop, or go on, at any time."""
    max_infra: float = 0.1
    """The share of infra errors above which nothing is judged."""
    json: bool = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    from vlarge.evaluate import verdict

    arguments = parse(Gate, argv, "vlarge gate")
    answer = verdict.gate(
        arguments.baseline, arguments.candidate, arguments.alpha, test=arguments.test, max_infra=arguments.max_infra
    )
    if arguments.json:
        print_json(answer)
    else:
        rows = [(side, answer[side]["policy"], *rate_cells(answer[side])) for side in ("baseline", "candidate")]
        print_table(str(answer["metric"]), ("", "policy", "successes", "rate", "95% interval"), rows)
        candidate_only, baseline_only = answer["discordant"]
        strength = f"p = {answer['p_value']:.3g}" if "p_value" in answer else f"e = {answer['e_value']:.3g}"
        console().print(
            f"Of {answer.get('num_pairs_needed', answer['num_pairs'])} episodes, {candidate_only} went to the candidate"
            f" alone, {baseline_only} to the baseline alone. Test: {answer['test']}, {strength},"
            f" alpha = {answer['alpha']:g}."
        )
        console().print(answer["verdict"], style=STYLES[answer["verdict"]])
    return EXIT_CODES[answer["verdict"]]
