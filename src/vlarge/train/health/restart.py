"""Whether a run begins or goes on, where nobody is there to say `--resume`.

torchrun repeats the same command line when a process has died. What it began goes on from its last checkpoint then; a
run that something else began is never continued by accident.
"""

from __future__ import annotations

from pathlib import Path

from vlarge.contracts import InputError
from vlarge.train.parallel.world import World
from vlarge.train.run_dir import holds_run

MARK = ".launch"


def decide_resume(asked: str, run_dir: Path, world: World) -> bool:
    """Whether to continue the run in `run_dir`. The main process decides, from what it sees there, for all.

    asked: "true" or "false" as the command line says; "auto": continue what is there, or begin. Raises InputError for
    anything else.
    """
    if asked not in ("true", "false", "auto"):
        raise InputError(f"--resume={asked}: use --resume, or --resume=auto to continue a run only where there is one")
    begun = holds_run(run_dir) and (asked == "auto" or _is_ours(run_dir, world.launch))
    answers = world.texts(str(asked == "true" or begun))
    return answers[0] == "True"


def mark(run_dir: Path, world: World) -> None:
    """Note in the run directory which launch works on it, before anything else of the run is written. For all
    processes; raises InputError where it cannot be written.
    """
    world.together(lambda: _write_mark(run_dir, world.launch if world.is_main else ""))


def _write_mark(run_dir: Path, launch: str) -> None:
    if not launch:
        return
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / MARK).write_text(launch)
    except OSError as error:
        raise InputError(f"cannot write to the run directory {run_dir}: {error.strerror}") from error


def _is_ours(run_dir: Path, launch: str) -> bool:
    path = run_dir / MARK
    return bool(launch) and path.is_file() and path.read_text() == launch
