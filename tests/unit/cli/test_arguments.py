"""Command lines: recipes with overlays and overrides, LeRobot's names, and the verb's own flags."""

from pathlib import Path

import pytest

from vlarge.cli.arguments import split
from vlarge.contracts import InputError

FLAGS = {"resume": bool, "dry_run": bool, "world_size": int}


def overrides(text: str) -> dict[str, str]:
    return split(text.split(), FLAGS).overrides


def test_paths_overrides_and_flags_are_told_apart() -> None:
    text = "r.toml @o.toml --train.lr=1e-3 --run.dir d --resume --world-size 8 --data.clip-frames 4"
    line = split(text.split(), FLAGS)
    assert line.paths == [Path("r.toml"), Path("o.toml")]
    assert line.overrides == {"train.lr": "1e-3", "run.dir": "d", "data.clip_frames": "4"}
    assert line.flags == {"resume": "true", "world_size": "8"}
    assert line.has("resume")
    assert not line.has("dry_run")


@pytest.mark.parametrize("text", ["--resume", "--resume=true", "--resume true"])
def test_a_switch_is_written_like_lerobots_too(text: str) -> None:
    line = split([*text.split(), "--dry-run=false", "r.toml"], FLAGS)
    assert line.has("resume")
    assert not line.has("dry_run")
    assert line.paths == [Path("r.toml")]


def test_lerobots_names_are_accepted() -> None:
    text = "--batch_size=8 --steps 40 --output_dir out --seed 3 --policy.path=lerobot/smolvla_base"
    assert overrides(text) == {
        "train.batch_size": "8",
        "train.steps": "40",
        "run.dir": "out",
        "run.seed": "3",
        "model.init": "hf://lerobot/smolvla_base",
    }


def test_a_dataset_is_a_folder_before_it_is_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert overrides("--dataset.repo_id lerobot/pusht") == {"data.path": "hf://lerobot/pusht"}
    assert overrides("--dataset.repo_id hf://lerobot/pusht") == {"data.path": "hf://lerobot/pusht"}
    assert overrides("--dataset.root here --dataset.repo_id lerobot/pusht") == {"data.path": "here"}
    assert overrides("--dataset.repo_id lerobot/pusht --dataset.root here") == {"data.path": "here"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lerobot/pusht").mkdir(parents=True)
    assert overrides("--dataset.repo_id lerobot/pusht") == {"data.path": "lerobot/pusht"}


def test_the_last_of_two_wins() -> None:
    assert overrides("--train.steps 4 --steps 5") == {"train.steps": "5"}
    assert overrides("--steps 5 --train.steps 4") == {"train.steps": "4"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--train.step 4", "unknown option --train.step; did you mean --train.steps?"),
        ("--data.clip_norm 4", "unknown option --data.clip_norm; did you mean --train.clip_norm?"),
        ("--train.batch-sizes 4", "unknown option --train.batch-sizes; did you mean --train.batch_size?"),
        ("--stpes 4", "unknown option --stpes; did you mean --steps?"),
        ("--resum", "unknown option --resum; did you mean --resume?"),
        ("--train.steps", "option --train.steps needs a value"),
        ("--train.steps --resume", "option --train.steps needs a value"),
        ("r.toml other.toml", "unexpected argument other.toml"),
        ("-x", "unexpected argument -x"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        split(text.split(), FLAGS)
    assert str(caught.value).startswith(message)


def test_a_command_line_makes_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("[train]\nsteps = 1\n[run]\nseed = 2")
    (tmp_path / "o.toml").write_text("[train]\nsteps = 3")
    recipe = split([f"{tmp_path}/r.toml", f"@{tmp_path}/o.toml", "--batch_size", "7"], FLAGS).recipe()
    assert (recipe.run.seed, recipe.train.steps, recipe.train.batch_size) == (2, 3, 7)
