"""The console script: quick, lazy, and never a traceback for a user's mistake."""

import errno
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from vlarge import recipe as recipes
from vlarge.cli import main as cli
from vlarge.contracts import InputError
from vlarge.data.service.client import ServiceDied

SCRIPT = Path(sys.executable).parent / "vlarge"


def here(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int | str | None, str, str]:
    """Exit code, stdout and stderr of a command line run in this process."""
    code: int | str | None
    try:
        code = cli.main(argv)
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def start_up_s(*command: str | Path) -> float:
    """Processor seconds of the quickest of several runs; what others do on this machine does not count."""

    def spent_s() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def once() -> float:
        before_s = spent_s()
        subprocess.run(command, check=True, capture_output=True)
        return spent_s() - before_s

    return min(once() for _ in range(4))


def test_help_answers_in_half_a_second() -> None:
    assert start_up_s(SCRIPT, "--help") < 0.5


def test_import_takes_less_than_a_third_of_a_second() -> None:
    assert start_up_s(sys.executable, "-c", "import vlarge") < 0.3


def test_help_lists_every_verb_and_imports_none() -> None:
    code = "import sys; from vlarge.cli.main import main; main(['--help']); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(f"  {verb}" in shown for verb in ("data", "eval", "gate", "plan", "sim"))
    assert not {"torch", "numpy", "tyro", "rich", "vlarge.cli.plan"} & set(shown.split())


def test_the_recipe_and_the_planner_import_nothing_heavy() -> None:
    code = "import sys, vlarge.recipe, vlarge.cluster.plan.scrutiny; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pyarrow", "av", "metaworld", "mujoco", "scipy"} & set(loaded)


@pytest.mark.parametrize("verb", sorted(cli.verbs()))
def test_every_verb_helps_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = here(capsys, verb, "--help")
    assert (code, err) == (0, "")
    assert "xample" in out


def test_trains_help_is_a_recipe_that_explains_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = here(capsys, "train", "--help")
    text = out.partition("Settings and their defaults:\n")[2]
    (tmp_path / "recipe.toml").write_text(text)
    assert recipes.load([tmp_path / "recipe.toml"]) == recipes.Recipe()
    tables = text.strip().split("\n\n")
    assert all(re.match(r"\s*\[\w+\]\n# \w", table) for table in tables)
    assert len(tables) == len(fields(recipes.Recipe))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pln"], "error: unknown verb pln; did you mean plan?"),
        (["xyzzy"], "error: unknown verb xyzzy; `vlarge --help` lists them"),
        (["arguments"], "error: unknown verb arguments"),
        (["plan", "claim"], "error: unknown command plan claim; did you mean claims?"),
        (["plan", "xyzzy"], "error: unknown command plan xyzzy; commands: claims"),
        (["plan", "claims", "--before", "3h"], "error: give both --before and --after"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = here(capsys, *argv)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_data_service_that_died_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(*argv: str) -> int:
        raise ServiceDied("the node's data service has ended; continue the run with --resume")

    monkeypatch.setattr(cli, "_run", die)
    code, _, err = here(capsys, "train")
    assert code == 2
    assert err.count("\n") == 1
    assert "continue the run with --resume" in err


def test_the_console_script_passes_the_exit_code_on() -> None:
    shown = subprocess.run([SCRIPT, "pln"], capture_output=True, text=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (2, "error: unknown verb pln; did you mean plan?\n")


def test_an_unknown_option_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = here(capsys, "plan", "claims", "--befor", "3h")
    assert code == 2
    assert "--before" in err


@pytest.mark.parametrize("argv", [["--help"], ["plan"]])
def test_a_reader_that_left_and_a_full_disk_are_no_tracebacks(argv: list[str]) -> None:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    command = f"{SCRIPT} {' '.join(argv)} | true"
    left = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, timeout=60)
    assert not left.stderr
    with Path("/dev/full").open("w") as full:
        shown = subprocess.run([SCRIPT, *argv], env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert shown.returncode == 2
    assert shown.stderr == "error: the disk is full: free some space and run the same command again\n"


def test_claims_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, table, _ = here(capsys, "plan", "claims")
    assert code == 0
    assert max(map(len, table.splitlines())) <= 100
    rows = json.loads(here(capsys, "plan", "claims", "--json")[1])["claims"]
    assert {"claim", "raw", "gives", "verdict", "why", "values"} == set(rows[0])
    assert all(row["claim"] in table for row in rows)


@pytest.mark.parametrize(("claim", "code"), [("40x", 0), ("50x", 1)])
def test_a_claim_that_does_not_follow_is_a_no(claim: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert here(capsys, "plan", "claims", "--before", "15h", "--after", "22min", "--claim", claim)[0] == code


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> type[ModuleType]:
    """A verb `boom` whose run raises the class attribute `error`."""

    class Boom(ModuleType):
        error: BaseException

        @classmethod
        def run(cls, argv: Sequence[str]) -> int:
            raise cls.error

    monkeypatch.setitem(sys.modules, "vlarge.cli.boom", Boom("vlarge.cli.boom"))
    monkeypatch.setattr(cli, "verbs", lambda: {"boom": "raises"})
    return Boom


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("the cat\nsat"), 2, "error: the cat sat\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            OSError(errno.ENOSPC, "No space left on device", "a/file"),
            2,
            "error: the disk is full while writing a/file: free some space and run the same command again\n",
        ),
    ],
)
def test_errors_become_exit_codes(
    raising: type[ModuleType],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    message: str,
) -> None:
    raising.error = error  # type: ignore[attr-defined]
    assert cli.main(["boom"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("ours")])
def test_our_own_mistakes_keep_their_traceback(raising: type[ModuleType], error: Exception) -> None:
    raising.error = error  # type: ignore[attr-defined]
    with pytest.raises(type(error)):
        cli.main(["boom"])


def test_a_batch_of_nothing_cannot_be_timed(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = here(capsys, "data", "bench", "anywhere", "--batch", "0")
    assert (code, told) == (2, "error: batch is 0; give the number of samples in a batch\n")
