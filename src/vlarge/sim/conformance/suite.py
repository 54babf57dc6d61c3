"""Every check of an environment in turn."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlarge.sim.conformance import episode, keys, left_behind, seen
from vlarge.sim.conformance.playing import Broken, Skipped, Trial

OK, FAULT, SKIPPED = "ok", "fault", "skipped"

CHECKS: dict[str, Callable[[Trial], None]] = {
    "same start": keys.same_start,
    "same in another process": keys.same_in_another_process,
    "same actions, same episode": keys.same_actions_same_episode,
    "keys differ": keys.keys_differ,
    "as declared": seen.as_declared,
    "upright": seen.upright,
    "looking changes nothing": seen.looking_changes_nothing,
    "ends at the horizon": episode.ends_at_the_horizon,
    "one reset an episode": episode.one_reset_an_episode,
    "keeps its rate": episode.keeps_its_rate,
    "actions are checked": episode.actions_are_checked,
    "success at reset is told": episode.success_at_reset_is_told,
    "snapshots replay": episode.snapshots_replay,
    "opens and closes": left_behind.opens_and_closes,
    "memory stays": left_behind.memory_stays,
}


@dataclass(frozen=True)
class Finding:
    """verdict: "ok", "fault" or "skipped"; detail: what was seen, or why nothing was."""

    check: str
    verdict: str
    detail: str = ""


def check_env(
    trial: Trial, tell: Callable[[Finding], None] = lambda finding: None, *, only: Sequence[str] = tuple(CHECKS)
) -> list[Finding]:
    """Each check in turn; tell: hears of each as it ends."""
    found = []
    for name in only:
        found.append(_tried(name, CHECKS[name], trial))
        tell(found[-1])
    return found


def _tried(name: str, check: Callable[[Trial], None], trial: Trial) -> Finding:
    try:
        check(trial)
    except Broken as broken:
        return Finding(name, FAULT, str(broken))
    except Skipped as skipped:
        return Finding(name, SKIPPED, str(skipped))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Finding(
            name, FAULT, f"{type(error).__name__} at {place}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    return Finding(name, OK)
