"""The commands of docs/lerobot.md, by LeRobot's own scripts, on a small dataset; and what they leave behind."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from vlarge.contracts import ACTION, STATE, Sample, SampleId
from vlarge.data.accumulate import FeatureStats
from vlarge.data.pack import pack
from vlarge.data.tokens import ByteTokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.models.config import ModelConfig
from vlarge.models.pi0 import resolve, to_lerobot
from vlarge.policy.files import build_model

# LeRobot's own commands take most of a minute to import what they need; its imports are not ours to mend.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs/lerobot.md", ROOT / "plugins/lerobot_policy_vlarge/README.md"
CAMERAS = ("observation.images.top", "observation.images.wrist")
STATE_DIM, ACTION_DIM, HORIZON, SIZE = 5, 4, 6, 32

# Appended to a script's commands, so that they take seconds.
SMALLER = {
    "lerobot-train": f"--steps=4 --batch_size=3 --num_workers=0 --log_freq=1 --policy.device=cpu"
    f" --policy.image_size={SIZE} --policy.chunk_size={HORIZON} --policy.n_action_steps=4",
    "lerobot-eval": "--eval.n_episodes=2 --eval.batch_size=2 --eval.use_async_envs=false"
    " --output_dir=runs/evaluated --policy.device=cpu",
}
AGAIN = (
    "lerobot-train --steps=2 --batch_size=3 --num_workers=0 --policy.push_to_hub=false --dataset.repo_id=me/mine"
    " --dataset.root=PATH --output_dir=runs/again"
)
REPLACED = {
    "--policy.preset=base --policy.init=hf://lerobot/pi05_base": "--policy.preset=tiny --policy.init=WEIGHTS",
    "--env.type=metaworld --env.task=button-press-v3": "--env.type=blank",
}


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def smaller(line: str) -> str:
    for written, run in REPLACED.items():
        line = line.replace(written, run)
    return f"{line} {SMALLER[line.split()[0]]}"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, make_datasets: ModuleType) -> Path:
    """A folder as a reader's might be: a dataset at PATH, weights by LeRobot's names, a tokenizer."""
    folder = tmp_path_factory.mktemp("desk")
    make_datasets.make(
        folder / "PATH",
        make_datasets.Spec(
            "v3.0", episodes=4, length="8:12", size="48x64", images=True, state_dim=STATE_DIM, action_dim=ACTION_DIM
        ),
    )
    sizes = sizes_of_tiny()
    weights = build_model(sizes, torch.device("cpu")).state_dict()
    (folder / "WEIGHTS").mkdir()
    (folder / "WEIGHTS/config.json").write_text(json.dumps({"type": "pi05"}))
    theirs = {name: value.contiguous() for name, value in to_lerobot(weights, sizes).items()}
    save_file(theirs, folder / "WEIGHTS/model.safetensors")
    write_tokenizer(folder / "tokenizer.json")
    return folder


def sizes_of_tiny() -> Any:
    tiny = ModelConfig(action_horizon=HORIZON, image_size=SIZE)
    return resolve(tiny, vocab_size=ByteTokenizer.vocab_size, state_dim=STATE_DIM, action_dim=ACTION_DIM)


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<bos>", "Task:", "State:", *map(str, range(-1, 256))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))


def test_commands_of_the_page_run(desk: Path, run: Callable[[str, Path], None], modeling: ModuleType) -> None:
    """In its order, and then one that starts from a checkpoint which they leave: one test, for they share a run."""
    importlib.import_module("blank_env")
    install, *rest = commands(PAGE)
    assert install == "pip install -e '.[lerobot]' ./plugins/lerobot_policy_vlarge"  # which `installed` has done
    for line in rest:
        run(smaller(line), desk)
    check_what_is_left(desk)
    check_actions(desk, modeling)
    (desk / "tokenizer.json").unlink()  # the checkpoint has its own
    run(f"{AGAIN} --policy.path=runs/finetuned/checkpoints/last/pretrained_model", desk)
    assert (desk / "runs/again/checkpoints/last/pretrained_model/model.safetensors").is_file()


def test_the_plugin_is_found_by_lerobot(modeling: ModuleType, installed: Path) -> None:
    assert Path(modeling.__file__ or "").is_relative_to(installed)
    assert modeling.VlargeConfig.get_choice_class("vlarge") is modeling.VlargeConfig


def test_the_readme_repeats_the_page() -> None:
    assert commands(README) == commands(PAGE)[:2]


def test_replacements_are_still_on_the_page() -> None:
    assert [written for written in REPLACED if written not in PAGE.read_text()] == []


def check_what_is_left(desk: Path) -> None:
    for name in ("lerobot", "finetuned"):
        last = desk / "runs" / name / "checkpoints/last"
        assert (last / "training_state/training_step.json").is_file()
        config = json.loads((last / "pretrained_model/config.json").read_text())
        assert config["type"] == "vlarge"
        assert list(config["input_features"]) == [*CAMERAS, STATE]
    assert config["tokenizer"] == "stored"
    evaluated = json.loads((desk / "runs/evaluated/eval_info.json").read_text())
    assert evaluated["overall"]["n_episodes"] == 2


def check_actions(desk: Path, modeling: ModuleType) -> None:
    """A checkpoint acts alike by LeRobot's loading and processors and by vlarge's own, from raw to raw."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.policies.factory import make_pre_post_processors

    folder = desk / "runs/lerobot/checkpoints/last/pretrained_model"
    policy = modeling.VlargePolicy.from_pretrained(folder)
    before, after = make_pre_post_processors(policy.config, str(folder))
    item = LeRobotDataset("me/mine", root=desk / "PATH")[3]
    observation = {key: item[key] for key in (*CAMERAS, STATE, "task")}
    noise = torch.randn(1, HORIZON, ACTION_DIM)
    theirs = after(policy.predict_action_chunk(before(observation), noise))[0]

    weights = {
        name.removeprefix("model."): value
        for name, value in load_file(folder / "model.safetensors").items()
        if name.startswith("model.")
    }
    own = build_model(sizes_of_tiny(), torch.device("cpu"))
    own.load_state_dict(weights)
    preparation = preparation_of(desk / "PATH/meta/stats.json")
    pictures = {key: (item[key] * 255).round().byte().permute(1, 2, 0).numpy() for key in CAMERAS}
    images, prompt_ids, state_A = preparation.observation(pictures, item[STATE].numpy(), item["task"])
    blank_SA = np.zeros((HORIZON, ACTION_DIM), np.float32)
    sampled = own.sample(pack([Sample(SampleId(0, 0, 0), images, prompt_ids, state_A, blank_SA)]), noise[0])
    np.testing.assert_allclose(theirs, preparation.actions_inverse(sampled.numpy()), rtol=1e-4, atol=1e-4)


def preparation_of(stats_json: Path) -> Preparation:
    stats = json.loads(stats_json.read_text())
    return Preparation(
        image_size=SIZE,
        action_horizon=HORIZON,
        cameras=CAMERAS,
        tokenizer=ByteTokenizer(),
        state_normalizer=Normalizer("quantile", feature_stats(stats[STATE])),
        action_normalizer=Normalizer("quantile", feature_stats(stats[ACTION])),
        max_text_tokens=200,
    )


def feature_stats(stats: dict[str, Any]) -> FeatureStats:
    return FeatureStats.from_json(stats | {"count": stats["count"][0]})
