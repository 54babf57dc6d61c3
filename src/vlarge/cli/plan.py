"""`vlarge plan`: what can be said about a large run before it is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vlarge.cli.arguments import Command, choose
from vlarge.cli.show import console, print_json
from vlarge.cluster.plan import claims, scrutiny
from vlarge.contracts import InputError

HELP = "check scaling claims: published ones, or your own before and after"

STYLES = {
    claims.HOLDS: "green",
    "faster": "green",
    claims.HOLDS_AS_RATIO: "yellow",
    claims.RATIO_AT_BEST: "yellow",
    claims.BEYOND_LINEAR: "yellow",
}


@dataclass(frozen=True)
class Claims:
    """Recompute published headline figures, or check your own numbers.

    Without options: the thousand-GPU recipe's figures from their own raw numbers.
    Exit code 1 when your --claim does not follow from your numbers.

    Example: vlarge plan claims --before 2.55h --after 0.73h --claim 3.5x --gpus-before 256 --gpus-after 1024
    """

    before: str = ""
    """A time (15h, 22min, 2.85s, 1h30min) or a rate (74 samples/s)."""
    after: str = ""
    """The same kind of measurement, after the change."""
    claim: str = ""
    """What is said of it: 40x, 97.5%, +65% or -40%."""
    gpus_before: int = 0
    gpus_after: int = 0
    json: bool = False
    """Print JSON."""


def run(argv: Sequence[str]) -> int:
    return choose("plan", {"claims": Command(Claims, _claims)}, argv)


def _claims(arguments: Claims) -> int:
    rows = _rows(arguments)
    if arguments.json:
        print_json({"claims": [asdict(row) for row in rows]})
    else:
        _print(rows)
    return int(bool(arguments.claim) and any(row.verdict == claims.DOES_NOT_FOLLOW for row in rows))


def _rows(arguments: Claims) -> list[claims.Check]:
    gpus = (arguments.gpus_before, arguments.gpus_after)
    if not (arguments.before or arguments.after or arguments.claim or any(gpus)):
        return claims.check_published()
    if not (arguments.before and arguments.after):
        raise InputError("give both --before and --after, for instance --before 15h --after 22min")
    return scrutiny.check_own(arguments.before, arguments.after, arguments.claim, gpus if any(gpus) else None)


def _print(rows: Sequence[claims.Check]) -> None:
    """A table of four columns, each row's reason below it at full width."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table

    paper = console()
    columns = {"claim": 24, "raw numbers": 25, "they give": 25, "verdict": 18}
    for place, row in enumerate(rows):
        table = Table(box=box.SIMPLE_HEAD, show_header=place == 0, show_edge=False, padding=(0, 1, 0, 0))
        for name, width in columns.items():
            table.add_column(name, width=width, header_style="bold")
        style = STYLES.get(row.verdict, "red")
        table.add_row(f"[bold]{row.claim}[/]", row.raw, f"[cyan]{row.gives}[/]", f"[bold {style}]{row.verdict}[/]")
        paper.print(table)
        paper.print(Padding(f"[dim]{row.why}[/]", (0, 0, 1, 2), expand=False))
