"""LeRobot loads our policy folders and acts the same; we load its folders, and openpi's and Isaac-GR00T's."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vlarge.contracts import InputError, Observation
from vlarge.data.stats import FeatureStats
from vlarge.data.tokens import load_tokenizer
from vlarge.data.transforms import Normalizer, Preparation
from vlarge.models.pi0.config import PRESETS, Pi0Config
from vlarge.models.pi0.model import Pi0
from vlarge.policy.card import Origin, licence_of
from vlarge.policy.files import read_policy, write_policy
from vlarge.policy.load import load_policy

# LeRobot has eight query heads and one key head built in, and sixteen heads of vision.
SIZES = replace(
    PRESETS["tiny"], vocab_size=300, width=32, depth=2, mlp=48, heads=8, kv_heads=1, head_dim=8, expert_width=16,
    expert_mlp=24, vision_width=64, vision_depth=1, vision_mlp=32, vision_heads=16, patch=8, image_size=16,
    action_horizon=4, max_action_dim=8, denoise_steps=3,
)  # fmt: skip
CAMERA = "observation.images.top"


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Characters as tokens, and BOS before every text, as PaliGemma's has it."""
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *(chr(i) for i in range(10, 127))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.add_special_tokens(names[:3])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def statistics(dim: int, seed: int) -> FeatureStats:
    low = np.sort(np.random.default_rng(seed).normal(size=(4, dim)), 0) * 3
    return FeatureStats(low[0], low[3], low[1:3].mean(0), low.std(0), low[1], low[2], count=9)


def preparation(tokenizer_file: Path, prompt: str = "task_and_state") -> Preparation:
    state, action = ("quantile", "mean_std") if prompt == "task_and_state" else ("mean_std", "quantile")
    return Preparation(
        image_size=16,
        action_horizon=4,
        cameras=(CAMERA,),
        tokenizer=load_tokenizer(str(tokenizer_file)),
        state_normalizer=Normalizer(state, statistics(3, 0)),
        action_normalizer=Normalizer(action, statistics(5, 1)),
        max_text_tokens=64,
        prompt=prompt,
    )


@pytest.fixture(scope="module", params=["pi05", "pi0"])
def ours(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    name, sizes = request.param, SIZES
    if name == "pi0":
        sizes = replace(SIZES, max_state_dim=6)
    torch.manual_seed(0)
    model = Pi0(sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    folder = tmp_path_factory.mktemp(name) / "policy"
    write_policy(
        folder, sizes=sizes, weights=model.state_dict(), recipe={}, step=3,
        preparations={"arm": preparation(tokenizer_file, "task" if name == "pi0" else "task_and_state")},
        origin=Origin("hf://somebody/base@abc", "gemma"),
    )  # fmt: skip
    return folder


def observation() -> Observation:
    rng = np.random.default_rng(5)
    image = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
    return Observation({CAMERA: image}, rng.normal(size=3).astype(np.float32), "pick up the cube")


@pytest.fixture
def lerobot(shared: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """LeRobot's modules, with the two variants of each part that it knows in sizes of ours."""
    monkeypatch.syspath_prepend(str(shared / "oracle"))
    return importlib.import_module("gold_pi")


def their_policy(gold: ModuleType, folder: Path, name: str, sizes: Pi0Config) -> Any:
    vision = {
        "width": sizes.vision_width, "depth": sizes.vision_depth, "heads": sizes.vision_heads,
        "mlp": sizes.vision_mlp, "patch": sizes.patch, "image": sizes.image_size,
    }  # fmt: skip
    gold.build(name, {
        "width": sizes.width, "depth": sizes.depth, "mlp": sizes.mlp, "heads": 8, "head_dim": sizes.head_dim,
        "expert_width": sizes.expert_width, "expert_mlp": sizes.expert_mlp, "vocab": sizes.vocab_size,
        "vision": vision, "chunk": 4, "max_action": 8, "max_state": 6, "steps": 3, "action_dim": 5,
    })  # fmt: skip
    module = importlib.import_module(f"lerobot.policies.{name}.modeling_{name}")
    return getattr(module, {"pi05": "PI05Policy", "pi0": "PI0Policy"}[name]).from_pretrained(folder, strict=True)


@pytest.mark.long
def test_lerobot_acts_as_we_do(lerobot: ModuleType, ours: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    """Its own loading, its own processors from our folder: the same actions from the same noise."""
    from lerobot.policies.factory import make_pre_post_processors

    name, sizes = read_policy(ours).model_name, read_policy(ours).sizes
    policy = their_policy(lerobot, ours, name, sizes)
    shutil.copy(tokenizer_file, tmp_path / "tokenizer.json")
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **special})
    )
    before, after = make_pre_post_processors(
        policy.config, str(ours), preprocessor_overrides={"tokenizer_processor": {"tokenizer_name": str(tmp_path)}}
    )
    seen = observation()
    picture = torch.from_numpy(seen.images[CAMERA]).permute(2, 0, 1).float() / 255
    batch = before({CAMERA: picture, "observation.state": torch.from_numpy(seen.state), "task": seen.task})
    drawn = []

    def noise(shape: Any, device: Any) -> torch.Tensor:
        drawn.append(torch.from_numpy(np.random.Generator(np.random.Philox(np.random.SeedSequence((7,)))).standard_normal(
            tuple(shape), dtype=np.float32)))  # fmt: skip
        return drawn[0]

    policy.model.sample_noise = noise
    theirs = after(policy.predict_action_chunk(batch))[0].numpy()
    assert drawn
    np.testing.assert_allclose(load_policy(ours).infer(seen, (7,)), theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())


def test_we_act_as_lerobot_does_on_its_own_folder(ours: Path, tokenizer_file: Path, tmp_path: Path) -> None:
    """Without our own file the folder is one of LeRobot's: sizes, statistics and cameras are read from that."""
    theirs = tmp_path / "theirs"
    shutil.copytree(ours, theirs)
    (theirs / "vlarge.json").unlink()
    files = read_policy(theirs)
    assert files.sizes == read_policy(ours).sizes
    with pytest.raises(InputError, match=r"no tokenizer\.json beside them"):
        load_policy(theirs)
    shutil.copy(tokenizer_file, theirs / "tokenizer.json")
    seen = observation()
    found, expected = (load_policy(folder).infer(seen, (3,)) for folder in (theirs, ours))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert files.origin == Origin("theirs", "gemma")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda steps: steps[0].update(state_file="../other.safetensors"), "which is no file beside it"),
        (lambda steps: steps[0].update(state_file="gone.safetensors"), r"cannot read .*gone\.safetensors"),
        (lambda steps: steps.append("normalise"), "should hold a list of steps"),
    ],
)
def test_damaged_statistics_of_lerobots_are_named(
    ours: Path, tmp_path: Path, change: Callable[[list[Any]], None], message: str
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(ours, folder)
    (folder / "vlarge.json").unlink()
    path = folder / "policy_preprocessor.json"
    pipeline = json.loads(path.read_text())
    pipeline["steps"].sort(key=lambda step: step["registry_name"] != "normalizer_processor")
    change(pipeline["steps"])
    path.write_text(json.dumps(pipeline))
    with pytest.raises(InputError, match=message):
        read_policy(folder)


def test_sharded_and_unrooted_weights_are_read(ours: Path, tmp_path: Path) -> None:
    """Isaac-GR00T's and large LeRobot folders come in parts; openpi's names have no beginning."""
    folder = tmp_path / "parts"
    folder.mkdir()
    weights = {name.removeprefix("model."): value for name, value in load_file(ours / "model.safetensors").items()}
    names = sorted(weights)
    shards = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps({"action_horizon": 4, "action_dim": 8}))
    with pytest.raises(InputError, match=r"does not say which model it is: set model\.name"):
        read_policy(folder)
    files, whole = read_policy(folder, read_policy(ours).model_name), read_policy(ours)
    assert replace(files.sizes, denoise_steps=3) == whole.sizes
    assert files.preparations == {}
    state, expected = files.build(torch.device("cpu")).state_dict(), whole.build(torch.device("cpu")).state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    for wrong in ("../outside.safetensors", "", 3):
        index["weight_map"][names[0]] = wrong
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(InputError, match=r"which is no file beside it|cannot read .*index\.json"):
            read_policy(folder, whole.model_name)


def foreign_copy(ours: Path, folder: Path) -> dict[str, torch.Tensor]:
    shutil.copytree(ours, folder)
    (folder / "vlarge.json").unlink()
    return load_file(ours / "model.safetensors")


def test_weights_of_the_other_model_are_told_apart(ours: Path, tmp_path: Path) -> None:
    """openpi's config.json does not say whether it is π0 or π0.5; LeRobot's may be wrong."""
    folder, config = tmp_path / "theirs", tmp_path / "theirs" / "config.json"
    foreign_copy(ours, folder)
    name = read_policy(ours).model_name
    other = {"pi0": "pi05", "pi05": "pi0"}[name]
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"type": other}))
    with pytest.raises(InputError, match=f"has the weights of '{name}', config.json says '{other}'"):
        read_policy(folder)
    config.write_text(json.dumps({key: value for key, value in said.items() if key != "type"}))
    with pytest.raises(InputError, match=f"has the weights of '{name}', model.name says '{other}': set that"):
        read_policy(folder, other)
    assert read_policy(folder, name).model_name == name


@pytest.mark.parametrize(
    "change",
    [{"chunk_size": "a"}, {"chunk_size": None}, {"chunk_size": 0}, {"num_inference_steps": -1}, {"vision_heads": 0}],
)
def test_settings_that_are_no_sizes_are_told(ours: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    foreign_copy(ours, tmp_path / "theirs")
    config = tmp_path / "theirs" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(InputError):
        read_policy(tmp_path / "theirs")


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "key", ["k_proj.weight", "patch_embedding.weight", "lm_head.weight", "position_embedding.weight"]
)
@pytest.mark.parametrize("damage", ["flat", "one more dimension", "empty", "reversed"])
def test_weights_of_other_shapes_are_told(ours: Path, tmp_path: Path, key: str, damage: str, own: bool) -> None:
    weights = foreign_copy(ours, tmp_path / "theirs")
    if own:
        shutil.copy(ours / "vlarge.json", tmp_path / "theirs")
    name = next(
        name for name in weights if name.endswith(key) and "layers.1" not in name and "gemma_expert" not in name
    )
    changed = {
        "flat": weights[name].flatten(), "one more dimension": weights[name][None], "empty": weights[name][:0],
        "reversed": weights[name].permute(*reversed(range(weights[name].ndim))).contiguous(),
    }  # fmt: skip
    save_file(weights | {name: changed[damage]}, tmp_path / "theirs" / "model.safetensors")
    with pytest.raises(InputError):
        read_policy(tmp_path / "theirs").build(torch.device("cpu"))


def test_weights_that_are_no_numbers_with_a_fraction_are_told(ours: Path, tmp_path: Path) -> None:
    weights = foreign_copy(ours, tmp_path / "theirs")
    name, file = (
        next(name for name in weights if name.endswith("action_out_proj.bias")),
        tmp_path / "theirs" / "model.safetensors",
    )
    save_file(weights | {name: weights[name].to(torch.int8)}, file)
    with pytest.raises(InputError, match=r"action_out_proj.bias is \(8,\) of torch.int8, the model's is \(8,\)"):
        read_policy(tmp_path / "theirs").build(torch.device("cpu"))
    save_file(weights | {name: weights[name] * torch.nan}, file)
    with pytest.raises(InputError, match=r"has weights that are not finite: action_out\.bias"):
        read_policy(tmp_path / "theirs").build(torch.device("cpu"))


def test_half_precision_weights_become_fp32_masters(ours: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    shutil.copytree(ours, folder)
    save_file({k: v.bfloat16() for k, v in load_file(ours / "model.safetensors").items()}, folder / "model.safetensors")
    model = read_policy(folder).build(torch.device("cpu"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("base", "base"),
        ("base/pretrained_model", "base"),
        ("runs/mine/checkpoints/005000/pretrained_model", "mine/checkpoints/005000"),
        ("models--somebody--base/snapshots/abc", "hf://somebody/base@abc"),
    ],
)
def test_a_source_is_named_by_what_tells_it_apart(ours: Path, tmp_path: Path, place: str, source: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    foreign_copy(ours, tmp_path / place)
    found = read_policy(tmp_path / place).origin
    assert found is not None
    assert found.source == source


def test_the_card_carries_licence_and_source(ours: Path, tmp_path: Path) -> None:
    assert licence_of(ours) == "gemma"
    assert "First weights: hf://somebody/base@abc, under the licence gemma" in (ours / "README.md").read_text()
    assert licence_of(tmp_path) == "unknown"
    (tmp_path / "README.md").write_text("no head at all")
    assert licence_of(tmp_path) == "unknown"
    (tmp_path / "README.md").write_text('---\ntags: [a]\nlicense: "apache-2.0"\n---\ntext\n')
    assert licence_of(tmp_path) == "apache-2.0"
