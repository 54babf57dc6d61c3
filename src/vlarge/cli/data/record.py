"""`vlarge data record`: demonstrations of a simulator's scripted experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from vlarge.cli.show import console, print_json, progress
from vlarge.sim.config import SimConfig


@dataclass(frozen=True)
class Record:
    """Record demonstrations of a simulator's scripted experts as a LeRobot v3.0 dataset.

    Example: vlarge data record --env metaworld/reach-v3 --env metaworld/door-open-v3 --episodes 20 --out demos
    """

    out: Path
    """The new dataset's folder; it must not exist."""
    env: tyro.conf.UseAppendAction[tuple[str, ...]]
    """A task, as `vlarge sim list` names it. Repeat the option for several."""
    episodes: int = 10
    """Successful episodes per task."""
    seed: int = 0
    first_init_id: int = 1000
    """The number of each task's first episode. Evaluations start at 0: a policy is not judged on what it has seen."""
    workers: int = 2
    """Processes. The dataset does not depend on it."""
    tail_steps: int = 4
    """Steps recorded after the first success."""
    action_noise: float = 0.0
    """Standard deviation of the noise on executed actions; what is recorded is the expert's action without it."""
    noise_hold_steps: int = 1
    """Steps for which one draw of that noise is held."""
    sim: SimConfig = field(default_factory=SimConfig)
    json: bool = False
    """Print JSON."""


def record(arguments: Record) -> int:
    from vlarge.loop.record import RecordedEpisode
    from vlarge.loop.record import record as record_dataset

    num_frames = 0
    num_episodes = arguments.episodes * len(arguments.env)
    with progress("recording", num_episodes) as tell:

        def on_episode(episode: RecordedEpisode) -> None:
            nonlocal num_frames
            num_frames += len(episode.actions)
            tell(f"{episode.key.task} {episode.key.init_id}: {len(episode.actions)} steps", 1)

        record_dataset(
            arguments.env,
            arguments.sim,
            arguments.out,
            episodes_per_task=arguments.episodes,
            seed=arguments.seed,
            first_init_id=arguments.first_init_id,
            workers=arguments.workers,
            tail_steps=arguments.tail_steps,
            action_noise=arguments.action_noise,
            noise_hold_steps=arguments.noise_hold_steps,
            on_episode=on_episode,
        )
    if arguments.json:
        print_json({"path": str(arguments.out), "num_episodes": num_episodes, "num_frames": num_frames})
    else:
        console().print(f"{arguments.out}: {num_episodes} episodes, {num_frames} frames", markup=False)
    return 0
