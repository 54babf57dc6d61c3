"""Does fine-tuning learn actions that hold on an episode it never saw?

    python benchmarks/finetune.py --data PATH --hold-out 4 --steps 400

Trains recipes/finetune.toml on all episodes but one, then predicts chunks along the held-out episode and prints the
mean absolute error of the un-normalised actions beside that of the training episodes' mean action. Writes its result
as JSON and Markdown to --out (beside this file).
"""

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

from vlarge import recipe as recipes
from vlarge.contracts import Observation
from vlarge.data.config import DataConfig
from vlarge.data.index import Dataset, open_dataset
from vlarge.policy.load import CheckpointPolicy, load_policy
from vlarge.train.trainer import Trainer

HERE = Path(__file__).parent
RECIPE = HERE.parent / "recipes" / "finetune.toml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--hold-out", type=int, default=4)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--stride", type=int, default=8, help="predict at every n-th frame")
    parser.add_argument("--out", type=Path, default=HERE)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        overrides = {
            "data.path": arguments.data,
            "data.exclude_episodes": str(arguments.hold_out),
            "train.steps": str(arguments.steps),
            "train.save_every": "0",
            "run.dir": f"{folder}/run",
        }
        start_s = time.perf_counter()
        trainer = Trainer(recipes.load([RECIPE], overrides))
        checkpoint = trainer.train()
        train_s = time.perf_counter() - start_s
        policy = load_policy(checkpoint)
    whole = open_dataset(DataConfig(path=arguments.data))
    error, error_of_mean = errors(policy, whole, trainer.datasets[0], arguments.hold_out, arguments.stride)
    report(arguments, error, error_of_mean, train_s)


def errors(
    policy: CheckpointPolicy, whole: Dataset, trained_on: Dataset, hold_out: int, stride: int
) -> tuple[float, float]:
    """Mean absolute errors over (frame, step of its chunk, dimension) of the policy and of the mean action."""
    mean_A = np.concatenate([trained_on.read_table(e).action_TA for e in trained_on.episodes]).mean(0)
    episode = next(e for e in whole.episodes if e.index == hold_out)
    table = whole.read_table(episode)
    frames = list(range(0, episode.length, stride))
    size = policy.preparation.image_size
    cameras = {key: whole.read_frames(episode, key, frames, size) for key in policy.preparation.cameras}
    ours, means = [], []
    for i, frame in enumerate(frames):
        images = {key: pictures[i] for key, pictures in cameras.items()}
        chunk = policy.infer(Observation(images, table.state_TA[frame], table.tasks[frame]), (frame,))
        truth = table.action_TA[frame : frame + len(chunk)]
        ours.append(np.abs(chunk[: len(truth)] - truth).mean())
        means.append(np.abs(mean_A - truth).mean())
    return float(np.mean(ours)), float(np.mean(means))


def report(arguments: argparse.Namespace, error: float, error_of_mean: float, train_s: float) -> None:
    result = {
        "command": f"python benchmarks/finetune.py --data {Path(arguments.data).name} --hold-out {arguments.hold_out}"
        f" --steps {arguments.steps}",
        "hardware": f"{platform.machine()}, CPU only",
        "train_s": round(train_s),
        "held_out_mae": error,
        "mean_action_mae": error_of_mean,
        "ratio": error / error_of_mean,
    }
    (arguments.out / "finetune.json").write_text(json.dumps(result, indent=2) + "\n")
    rows = "".join(f"| {key} | {value} |\n" for key, value in result.items())
    (arguments.out / "finetune.md").write_text(f"# Fine-tuning on a held-out episode\n\n| | |\n|---|---|\n{rows}")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
