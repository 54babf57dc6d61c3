"""The plugin's policy: LeRobot's padded batches, packed; the same numbers as vlarge's own; saved and loaded whole."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from vlarge.contracts import InputError, PackedBatch, Sample, SampleId
from vlarge.data.pack import pack
from vlarge.data.prompts import encode_prompt
from vlarge.data.tokens import ByteTokenizer
from vlarge.models.pi0 import NAMES, to_lerobot
from vlarge.policy.files import build_model
from vlarge.train import step

# LeRobot takes tens of seconds to import, and its imports are not ours to mend.
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

TOP, WRIST, LOST = (f"observation.images.{name}" for name in ("top", "wrist", "lost"))
HORIZON, STATE_DIM, ACTION_DIM, SIZE = 6, 5, 4, 32
VALID = (6, 2, 4)  # steps of each sample before its episode ends
HAS_WRIST = (True, False, True)
TASKS = ["push the_button", "pick up the cup", "wait"]


@pytest.fixture(params=NAMES)
def policy(modeling: ModuleType, request: pytest.FixtureRequest) -> Any:
    return policy_of(modeling, model=request.param, suffixes_per_prefix=2)


def policy_of(modeling: ModuleType, **settings: Any) -> Any:
    """A small one whose gates are open: at its first weights, the prefix would not show."""
    torch.manual_seed(0)
    policy = modeling.VlargePolicy(config_of(modeling, **settings))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return policy


def config_of(modeling: ModuleType, **settings: Any) -> Any:
    from lerobot.configs import FeatureType, PolicyFeature

    pictures = dict.fromkeys((TOP, WRIST, LOST), PolicyFeature(FeatureType.VISUAL, (3, 48, 64)))
    return modeling.VlargeConfig(
        **{"chunk_size": HORIZON, "n_action_steps": 2, "image_size": SIZE, "device": "cpu", **settings},
        input_features={**pictures, "observation.state": PolicyFeature(FeatureType.STATE, (STATE_DIM,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))},
    )


@pytest.fixture
def samples() -> list[Sample]:
    """Three, of unequal shapes, as vlarge would read them."""
    rng = np.random.default_rng(0)
    made = []
    for i, (length, has_wrist, task) in enumerate(zip(VALID, HAS_WRIST, TASKS, strict=True)):
        state_A = rng.uniform(-1, 1, STATE_DIM).astype(np.float32)
        cameras = [TOP, WRIST] if has_wrist else [TOP]
        made.append(Sample(SampleId(0, 0, i), {key: picture(rng) for key in cameras}, np.zeros(0), state_A,
                           rng.standard_normal((length, ACTION_DIM)).astype(np.float32)))  # fmt: skip
        made[-1] = replace(made[-1], prompt_ids=encode_prompt(ByteTokenizer(), task, state_A, 200, "task_and_state"))
    return made


def picture(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)


def padded(samples: list[Sample], garbage: int) -> dict[str, Any]:
    """The same as LeRobot hands them over: pictures as floats, whole chunks, padding that is anything at all."""
    rng = np.random.default_rng(garbage)
    actions = rng.standard_normal((len(samples), HORIZON, ACTION_DIM)).astype(np.float32)
    for action, sample in zip(actions, samples, strict=True):
        action[: len(sample.actions_SA)] = sample.actions_SA

    def pictures(key: str) -> torch.Tensor:
        images = np.stack([sample.images.get(key, picture(rng)) for sample in samples])
        return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255

    return {
        TOP: pictures(TOP),
        WRIST: pictures(WRIST),
        f"{WRIST}_padding_mask": torch.tensor(HAS_WRIST),
        "observation.state": torch.from_numpy(np.stack([sample.state_A for sample in samples])),
        "action": torch.from_numpy(actions),
        "action_is_pad": torch.arange(HORIZON) >= torch.tensor(VALID)[:, None],
        "task": TASKS,
    }


def read_by(policy: Any, samples: list[Sample]) -> list[Sample]:
    """The samples with the prompts of the policy's model."""
    if policy.config.model == "pi05":
        return samples
    tasks = zip(samples, TASKS, strict=True)
    return [replace(s, prompt_ids=encode_prompt(ByteTokenizer(), t, s.state_A, 200, "task")) for s, t in tasks]


def loss_of(policy: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    torch.manual_seed(7)
    return policy.forward(batch, **options)[0]


def test_the_loss_is_vlarges_own_on_the_packed_samples(
    modeling: ModuleType, policy: Any, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, columns = pack(read_by(policy, samples)), policy.model.config.max_action_dim

    def drawn(*_: Any) -> tuple[np.ndarray, np.ndarray]:
        torch.manual_seed(7)
        times, noise = modeling.drawn(packed, policy.model.flow, columns, 2)
        return times.numpy(), noise.numpy()

    monkeypatch.setattr(step, "keyed_draws", drawn)
    draws = step.draw(packed, policy.model.flow, seed=0, step=0, num_draws=2, action_dim=columns)
    own = draws.errors_of(policy.model, packed, 2).sum() / (sum(VALID) * ACTION_DIM * 2)
    assert loss_of(policy, padded(samples, garbage=1)).item() == own.item()


def test_padding_changes_no_bit_of_loss_and_gradients(policy: Any, samples: list[Sample]) -> None:
    def gradients(garbage: int) -> list[torch.Tensor]:
        loss = loss_of(policy, padded(samples, garbage))
        return [loss, *torch.autograd.grad(loss, list(policy.parameters()))]

    for one, other in zip(gradients(1), gradients(2), strict=True):
        assert torch.equal(one, other)


def test_padding_is_not_computed(policy: Any, samples: list[Sample], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PackedBatch] = []
    lay_out = policy.model.lay_out
    monkeypatch.setattr(policy.model, "lay_out", lambda batch, *rest: seen.append(batch) or lay_out(batch, *rest))
    _, said = policy.forward(padded(samples, garbage=1))
    (batch,) = seen
    assert sorted(batch.num_actions_B) == sorted(VALID)
    assert len(batch.images_NHWC) == len(VALID) + sum(HAS_WRIST)
    assert set(batch.action_dims_B) == {ACTION_DIM}
    assert said == {"real_action_fraction": pytest.approx(sum(VALID) / (3 * HORIZON))}


def test_every_parameter_gets_a_gradient(policy: Any, samples: list[Sample]) -> None:
    loss_of(policy, padded(samples, garbage=1)).backward()
    # The loss does not depend on a key's bias.
    names = [name for name, p in policy.named_parameters() if not name.endswith(".k.bias") and not p.grad.abs().sum()]
    assert not names
    groups = policy.get_optim_params()
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in policy.parameters())


def test_losses_by_sample_are_in_lerobots_order(policy: Any, samples: list[Sample]) -> None:
    batch = padded(samples, garbage=1)
    by_sample = loss_of(policy, batch, reduction="none")
    mean = (by_sample * torch.tensor(VALID)).sum() / sum(VALID)
    torch.testing.assert_close(mean, loss_of(policy, batch))
    batch["action"][1] += 100
    changed = loss_of(policy, batch, reduction="none")
    assert torch.equal(changed[[0, 2]], by_sample[[0, 2]])
    assert changed[1] > by_sample[1] + 100


def test_other_picture_sizes_are_resized_as_vlarge_does(policy: Any, samples: list[Sample]) -> None:
    from vlarge.data.transforms.resize import resize_with_pad

    wide = np.random.default_rng(0).integers(0, 256, (3, 48, 64, 3)).astype(np.uint8)
    batch = padded(samples, garbage=1) | {TOP: torch.from_numpy(wide).permute(0, 3, 1, 2).float() / 255}
    found = policy.packing.demonstrated(batch, policy.stored.tokenizer)
    for image, sample in zip(wide, found, strict=True):
        np.testing.assert_array_equal(sample.images[TOP], resize_with_pad(image, SIZE))


def test_a_chunk_of_many_is_the_chunk_of_one(policy: Any, samples: list[Sample]) -> None:
    """Packing reorders samples; what comes back is in LeRobot's order, and neither camera nor action is padding."""
    batch = {key: value for key, value in padded(samples, garbage=1).items() if not key.startswith("action")}
    noise = torch.randn(3, HORIZON, policy.model.config.max_action_dim)
    chunks = policy.predict_action_chunk(batch, noise)
    assert chunks.shape == (3, HORIZON, ACTION_DIM)
    for i in range(3):
        alone = policy.predict_action_chunk({key: value[i : i + 1] for key, value in batch.items()}, noise[i : i + 1])
        torch.testing.assert_close(chunks[i : i + 1], alone, rtol=1e-5, atol=1e-5)


def test_actions_come_from_the_queue_until_it_is_used_up(policy: Any, samples: list[Sample]) -> None:
    batch = padded(samples, garbage=1)
    noises = torch.randn(2, 3, HORIZON, policy.model.config.max_action_dim)
    first, second = (policy.predict_action_chunk(batch, noise) for noise in noises)
    acted = [policy.select_action(batch, noise) for noise in (noises[0], noises[0], noises[1])]
    for action, expected in zip(acted, (first[:, 0], first[:, 1], second[:, 0]), strict=True):
        assert torch.equal(action, expected)
    policy.reset()
    assert torch.equal(policy.select_action(batch, noises[0]), first[:, 0])


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", "<bos>", "Task", "State", "push", "the", "cup", *map(str, range(-1, 256))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("kind", ["bytes", "tokenizer.json"])
def test_a_saved_policy_acts_alike_wherever_it_is_loaded(
    modeling: ModuleType, samples: list[Sample], tmp_path: Path, tokenizer_file: Path, kind: str
) -> None:
    policy = policy_of(modeling, tokenizer=kind if kind == "bytes" else str(tokenizer_file))
    policy.save_pretrained(tmp_path / "saved")
    tokenizer_file.unlink()
    loaded = modeling.VlargePolicy.from_pretrained(tmp_path / "saved")
    batch, noise = padded(samples, garbage=1), torch.randn(3, HORIZON, ACTION_DIM)
    assert torch.equal(loaded.predict_action_chunk(batch, noise), policy.predict_action_chunk(batch, noise))


def test_init_reads_weights_by_lerobots_names(modeling: ModuleType, tmp_path: Path) -> None:
    sizes = policy_of(modeling).model.config
    torch.manual_seed(1)
    weights = build_model(sizes, torch.device("cpu")).state_dict()
    (tmp_path / "config.json").write_text(json.dumps({"type": "pi05"}))
    save_file({k: v.contiguous() for k, v in to_lerobot(weights, sizes).items()}, tmp_path / "model.safetensors")
    config = config_of(modeling, init=str(tmp_path), freeze=["vision"])
    policy = modeling.VlargePolicy(config)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert parameter.requires_grad != name.startswith(("vision.", "projector."))
    assert config.init == ""  # its checkpoints hold the weights


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_action_steps": HORIZON + 1}, "n_action_steps is 7"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"suffixes_per_prefix": 0}, "suffixes_per_prefix is 0"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2"),
        ({"image_size": -1}, "policy.image_size is -1"),
        ({"model": "pi06"}, "there is no model 'pi06'; known are"),
        ({"preset": "huge"}, "'huge' does not exist"),
        ({"tokenizer": "nowhere.json"}, "cannot read tokenizer nowhere.json"),
        ({"init": "nowhere"}, "nowhere does not exist"),
        ({"freeze": ["hands"]}, "has no part 'hands'"),
    ],
)
def test_a_wrong_setting_is_named(modeling: ModuleType, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        modeling.VlargePolicy(config_of(modeling, **settings))


def count_together(modeling: ModuleType, rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    mean = modeling.mean_over_processes((3, 8)[rank], torch.device("cpu"))
    (folder / str(rank)).write_text(str(mean.item()))
    dist.barrier()


def test_processes_divide_by_the_global_count(modeling: ModuleType, tmp_path: Path) -> None:
    """Averaged by DDP, a loss over the mean count is a sum over the global count."""
    fork = multiprocessing.get_context("fork")  # LeRobot is imported already
    both = [fork.Process(target=count_together, args=(modeling, rank, tmp_path), daemon=True) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["5.5", "5.5"]
