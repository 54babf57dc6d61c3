"""Every command in README and docs runs, as written but for its size."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vlarge.data.formats.write import LeRobotWriter

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/finetune.md",
    "docs/models.md",
    "docs/evaluation.md",
    "docs/tracking.md",
)  # read in this order
FRONT = "observation.images.close"
ELSEWHERE = ("git clone", "make demo")  # .ci/run starts from a clone; test_demo.py runs the loop

# Appended to a verb's commands, so that they take seconds.
SMALLER = {
    "train": "--train.steps 2 --train.batch_size 3 --train.num_threads 1 --model.image_size 32"
    " --track.tensorboard=false",
    "sim": "--cycles 2 --resets 8 --sim.image_size 32",
    "eval": "--sim.horizon 6 --sim.image_size 32 --videos 0",
}
REPLACED = {"--episodes 20": "--episodes 1", "vlarge eval runs/other --plan": "vlarge eval runs/mine --plan"}


def commands(page: str) -> list[str]:
    """The lines of a page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith(ELSEWHERE)]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder as a reader's might be: the recipes, a dataset at PATH whose robot is Meta-World's, an overlay."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "recipes").symlink_to(ROOT / "recipes")
    (folder / "mine.toml").write_text('[data]\npath = "PATH"\n[run]\ndir = "runs/overlaid"\n')
    (folder / ".venv").mkdir()
    (folder / ".venv/bin").symlink_to(Path(sys.executable).parent)
    rng = np.random.default_rng(0)
    names = ("x", "y", "z", "gripper")
    with LeRobotWriter(
        folder / "PATH", fps=10, cameras={FRONT: (32, 32)}, state_names=names, action_names=names, robot_type="arm"
    ) as writer:
        for _ in range(20):
            states, actions = rng.uniform(-1, 1, (2, 12, 4)).astype(np.float32)
            images = rng.integers(0, 255, (12, 32, 32, 3)).astype(np.uint8)
            writer.add_episode("go there", states, actions, {FRONT: images})
        writer.finish()
    return folder


def test_commands_of_the_pages_run(desk: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    assert all(map(commands, PAGES))
    lines: dict[str, str] = {}  # what two pages say runs once
    for line in (smaller(line) for page in PAGES for line in commands(page)):
        lines.setdefault(line.removeprefix(".venv/bin/"), line)
    for line in lines.values():
        done = subprocess.run(
            shlex.split(line), cwd=desk, env=os.environ | {"PATH": path}, capture_output=True, text=True,
            timeout=240, check=False,
        )  # fmt: skip
        # 3: the gate's "undecided", all that two episodes allow
        assert done.returncode in ((0, 3) if " gate " in line else (0,)), f"{line}\n{done.stdout}{done.stderr}"


def smaller(line: str) -> str:
    for written, run in REPLACED.items():
        line = line.replace(written, run)
    match = re.search(r"vlarge (\w+)", line)
    assert match, f"not a command of ours: {line}"
    # a plan holds the simulator's settings already
    more = "--videos 0" if "--plan" in line else SMALLER.get(match[1], "")
    return f"{line} {more}".replace("runs/demo", "runs/mine")


def test_replacements_are_still_on_the_pages() -> None:
    everything = "\n".join(line for page in PAGES for line in commands(page))
    assert [written for written in REPLACED if written not in everything] == []
