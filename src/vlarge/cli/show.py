"""How verbs answer: tables for people, JSON for machines."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPED_WIDTH = 100


def console() -> Console:
    """Where people read: as wide as the terminal, or 100 columns in a pipe or file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, highlight=False)


def print_json(answer: object) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table whose cells are shown as they are: text of a dataset is never read as markup or terminal codes."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console().print(Text(" ".join(printable(title).split()), style="bold"))  # a table's own is as narrow as the table
    console().print(table)


def printable(text: str) -> str:
    """Control characters but newlines as their escapes: a terminal obeys them otherwise."""
    return "".join(c if c == "\n" or not unicodedata.category(c).startswith("C") else ascii(c)[1:-1] for c in text)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[str, int], None]]:
    """Yields what to call as things are done, with a line on the latest and how far it takes us: `tell("reach 3", 1)`.

    On stderr, so that answers stay clean: a bar in a terminal, every line in a log.
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)

        def tell(line: str, advance: int) -> None:
            bar.update(task, advance=advance)
            if bar.disable:
                print(line, file=sys.stderr, flush=True)

        yield tell


def rate_cells(rates: dict[str, Any]) -> tuple[str, str, str]:
    """Successes, success rate and its Wilson interval, for a table."""
    judged = rates["num_success"] + rates["num_failure"]
    rate = "" if rates["success_rate"] is None else f"{rates['success_rate']:.1%}"
    low, high = rates["wilson95"]
    return f"{rates['num_success']} of {judged}", rate, f"{low:.1%} – {high:.1%}"
