"""A run is a function of its recipe: it resumes bit for bit, refuses what does not fit, leaves no half file."""

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vlarge import recipe as recipes
from vlarge.cli import train
from vlarge.contracts import InputError, Observation, PackedBatch
from vlarge.policy.files import read_policy
from vlarge.policy.load import load_policy
from vlarge.recipe import Recipe
from vlarge.train import trainer as training
from vlarge.train.feeding import Share
from vlarge.train.replaced import say
from vlarge.train.track.jsonl import read_lines
from vlarge.train.trainer import Trainer


def steps_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[tuple[int, float, float]]:
    return [(s["step"], s["loss"], s["grad_norm"]) for s in steps_of(run)]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_resume_is_bitwise_even_twice_and_after_lost_steps(small: Recipe, tmp_path: Path) -> None:
    Trainer(small).train()
    whole = tmp_path / "run"
    parts = recipes.replace(small, "run.dir", str(tmp_path / "parts"))
    trainer = Trainer(parts)
    for _ in range(2):  # dies at step 4 and again at step 7, one step after the checkpoints of steps 3 and 6
        trainer.checkpoints.begin = dying(trainer.checkpoints.begin, after=1)  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="killed"):
            trainer.train()
        trainer = Trainer(parts, resume=True)
    assert trainer.step == 6
    trainer.train()
    assert losses(tmp_path / "parts") == losses(whole)
    assert [step for step, _, _ in losses(whole)] == list(range(1, 9))
    assert same(weights(whole), weights(tmp_path / "parts"))


def dying(save, after: int):
    calls = []

    def wrapped(*args, **more):
        calls.append(1)
        if len(calls) > after:
            raise RuntimeError("killed")
        return save(*args, **more)

    return wrapped


def test_loss_falls_and_the_step_line_is_complete(small: Recipe, tmp_path: Path) -> None:
    recipe = recipes.replace(small, "train.steps", 40)
    Trainer(recipes.replace(recipe, "train.save_every", 0)).train()
    lines = steps_of(tmp_path / "run")
    assert sum(s["loss"] for s in lines[-10:]) < 0.8 * sum(s["loss"] for s in lines[:10])
    promised = {"step", "loss", "grad_norm", "lr", "samples_per_s", "data_wait_s", "step_s", "mfu"}
    promised |= {"real_token_fraction", "memory_bytes", "memory_fraction"}
    assert promised <= lines[0].keys()
    stored = recipes.load([tmp_path / "run" / "recipe.toml"])
    assert stored == recipes.replace(recipe, "train.save_every", 0)


def test_the_published_weights_are_the_running_average(small: Recipe, tmp_path: Path) -> None:
    trainer = Trainer(small)
    average = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    update, num_updates = trainer.engine.ema.update, 0

    def follow(step: int) -> None:
        nonlocal num_updates
        update(step)
        keep = (1 + num_updates) / (10 + num_updates)
        num_updates += 1
        for name, value in trainer.model.state_dict().items():
            average[name] = keep * average[name] + (1 - keep) * value

    trainer.engine.ema.update = follow  # type: ignore[method-assign]
    trainer.train()
    folder = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    published = read_policy(folder).build(torch.device("cpu")).state_dict()
    assert num_updates == 8
    assert all(torch.allclose(published[name], average[name], atol=1e-6) for name in published)
    assert not all(torch.allclose(published[name], value) for name, value in trainer.model.state_dict().items())


def test_numbers_of_the_state_start_in_order(small: Recipe) -> None:
    trainer = Trainer(small)
    ids = torch.from_numpy(trainer.plan.preparations[0].tokenizer.ordered_ids[0])
    rows = trainer.model.embed.weight[ids].detach()
    near, far = (torch.nn.functional.cosine_similarity(rows[:-n], rows[n:]).mean() for n in (1, 120))
    assert near > far + 0.2


def test_a_run_directory_is_not_overwritten(small: Recipe) -> None:
    Trainer(small).save()
    with pytest.raises(InputError, match="already holds a run: continue it with --resume"):
        Trainer(small)


def test_a_run_without_a_checkpoint_is_resumed_from_its_beginning(small: Recipe) -> None:
    run = Path(small.run.dir)
    (run / "checkpoints/.00000099.partial").mkdir(parents=True)
    (run / "steps.jsonl").write_text('{"step": 1, "loss": 9.0}\n')
    with pytest.raises(InputError, match="already holds a run: continue it with --resume"):
        Trainer(small)
    Trainer(small, resume=True).train()
    steps = [json.loads(line)["step"] for line in (run / "steps.jsonl").read_text().splitlines()]
    assert steps == list(range(1, small.train.steps + 1))
    assert not list(run.rglob("*.partial"))


def test_two_runs_cannot_write_to_one_directory(small: Recipe) -> None:
    first, second = Trainer(small), Trainer(small)
    with first._opened(), pytest.raises(InputError, match="another run is writing"):
        second.train()


@pytest.mark.parametrize(
    "fault", ["another run is writing", r"run\.json cannot be read", r"a sample has \d+ tokens: make it \d+ or more"]
)
def test_a_run_directory_is_refused_before_a_model_is_built(
    fault: str, small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Trainer(small)
    first.save()
    monkeypatch.setattr(Trainer, "_lay_out", lambda _: pytest.fail("a model was built"))
    if "json" in fault:
        (first.run_dir / "run.json").write_text("{")
    recipe = changed(small, micro_batch_tokens=5) if "tokens" in fault else small
    with first._opened() if "another" in fault else nullcontext(), pytest.raises(InputError, match=fault):
        Trainer(recipe, resume=True)


def test_a_run_that_has_all_its_steps_says_that_nothing_is_left(
    small: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = Trainer(small)
    trainer.step = 2
    saved = trainer.save()
    (tmp_path / "again.toml").write_text(recipes.dump(recipes.replace(small, "train.steps", 1)))
    assert train.run([str(tmp_path / "again.toml"), "--resume"]) == 0
    assert f"nothing to do at step 2, train.steps is 1; raise it to go on: {saved}" in capsys.readouterr().out
    assert train.run([str(tmp_path / "again.toml"), "--resume", "--json"]) == 0
    outcome = {"checkpoint": str(saved), "step": 2, "steps": 1, "finished": True, "num_skipped": 0}
    assert json.loads(capsys.readouterr().out) == outcome


def test_a_damaged_recipe_of_the_run_is_named_with_what_to_do(small: Recipe) -> None:
    Trainer(small).save()
    (Path(small.run.dir) / "recipe.toml").write_text("[model")
    with pytest.raises(InputError, match=r"recipe\.toml.*; mend it, or remove it and resume with the recipe"):
        Trainer(small, resume=True)


def test_resume_needs_a_checkpoint_of_this_dataset_and_model(small: Recipe) -> None:
    with pytest.raises(InputError, match="has no checkpoint to resume from"):
        Trainer(small, resume=True)
    Trainer(small).save()
    with pytest.raises(InputError, match="has changed since"):
        Trainer(recipes.replace(small, "data.exclude_episodes", (1,)), resume=True)
    with pytest.raises(InputError, match=r"data\.window_samples was 12 when this run began and is 0"):
        Trainer(recipes.replace(small, "data.window_samples", 0), resume=True)
    with pytest.raises(InputError, match=r"does not fit this run \(Size mismatch"):
        Trainer(recipes.replace(small, "model.image_size", 64), resume=True)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_goes_on(small: Recipe, tmp_path: Path) -> None:
    Trainer(small).save()
    trainer = Trainer(small, resume=True)
    trainer.step = 2
    damaged = trainer.save()
    for file in (damaged / "training_state").glob("*.distcp"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match=f"remove {damaged} and resume"):
        Trainer(small, resume=True)
    shutil.rmtree(damaged)
    assert Trainer(small, resume=True).step == 0


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint(
    error: Exception, small: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(small)
    trainer.save()
    before = weights(tmp_path / "run")
    trainer.step = 5

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(training, "write_policy", full)
    with pytest.raises(InputError, match="the disk is full; the checkpoints before it are untouched"):
        trainer.save()
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["00000000", "last"]
    assert same(weights(tmp_path / "run"), before)


def test_old_checkpoints_are_pruned(small: Recipe, tmp_path: Path) -> None:
    Trainer(recipes.replace(small, "train.keep_last", 1)).train()
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["00000008", "last"]


def test_training_goes_on_from_a_policy(small: Recipe, tmp_path: Path) -> None:
    first = Trainer(small).train()
    recipe = recipes.replace(recipes.replace(small, "run.dir", str(tmp_path / "next")), "model.init", str(first))
    trainer = Trainer(recipe)
    (preparation,) = trainer.plan.preparations
    assert preparation.to_json() == read_policy(first).first.to_json()
    assert same({k: v.clone() for k, v in trainer.model.state_dict().items()}, load_policy(first).model.state_dict())


def test_what_the_model_cannot_take_is_refused_before_anything_is_written(small: Recipe, tmp_path: Path) -> None:
    for key, value, message in (
        ("model.max_action_dim", 2, "the model takes at most 2: set model.max_action_dim"),
        ("model.preset", "huge", "choose one of tiny, mid, base"),
        ("model.name", "pi9", "there is no model 'pi9'; known are .*pi0.*pi05"),
        ("model.image_size", 40, "not a multiple of the patch size"),
        ("data.cameras", ("observation.images.left",), "observation.images.left"),
        ("data.action_key", "actions", "actions"),
    ):
        with pytest.raises(InputError, match=message):
            Trainer(recipes.replace(small, key, value))
    assert not (tmp_path / "run").exists()


def spoil(trainer: Trainer, bad_steps: range, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Let the gradients of some steps be NaN."""
    add = trainer.engine.add_gradients

    def add_bad(*args: Any) -> torch.Tensor:
        loss = add(*args)
        if trainer.step + 1 in bad_steps:
            next(p for p in trainer.model.parameters() if p.grad is not None).grad.fill_(float("nan"))
        return loss

    monkeypatch.setattr(trainer.engine, "add_gradients", add_bad)
    return trainer


def changed(recipe: Recipe, **settings: Any) -> Recipe:
    for name, value in settings.items():
        recipe = recipes.replace(recipe, f"train.{name}", value)
    return recipe


def test_gradients_that_stay_infinite_stop_the_run_at_its_last_good_checkpoint(
    small: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(small, steps=30, save_every=2, keep_last=1)
    trainer = spoil(Trainer(recipe), range(5, 31), monkeypatch)
    good = trainer.run_dir / "checkpoints/00000004"
    with pytest.raises(InputError, match=f"gradients of 10 steps up to step 14 were not finite: resume from {good}"):
        trainer.train()
    assert (trainer.run_dir / "checkpoints/last").resolve() == good.resolve()
    steps = read_lines(trainer.run_dir / "steps.jsonl")
    assert [step["num_skipped"] for step in steps] == [0] * 4 + [*range(1, 11)]
    events = [line["event"] for line in read_lines(trainer.run_dir / "events.jsonl")]
    assert [text for text in events if "is skipped" in text] == [
        "step 5 is skipped, its gradients are not finite; nothing is saved until they are again"
    ]


def test_a_run_does_not_end_with_a_step_that_was_skipped(small: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = spoil(Trainer(changed(small, steps=4, save_every=0)), range(4, 5), monkeypatch)
    with pytest.raises(InputError, match=r"gradients of step 4 were not finite: start again with a lower train.lr"):
        trainer.train()
    assert not (trainer.run_dir / "checkpoints/last").exists()


def test_what_was_skipped_is_counted_over_all_starts(small: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(Trainer(changed(small, steps=4, save_every=2)), range(2, 4), monkeypatch).train()
    run_dir = Path(small.run.dir)
    assert [path.name for path in (run_dir / "checkpoints").iterdir() if path.name.isdigit()] == ["00000004"]
    resumed = Trainer(changed(small, steps=6), resume=True)
    resumed.train()
    assert resumed.skipped.total == 2
    goodput = json.loads((run_dir / "goodput.json").read_text())
    assert goodput["lost_s"]["skipped"] > 0


def test_a_time_budget_fixes_the_steps_when_the_warm_up_ends(small: Recipe, tmp_path: Path) -> None:
    recipe = small
    for key, value in (("train.steps", 30), ("train.warmup_steps", 4), ("train.max_time_s", 1e-3)):
        recipe = recipes.replace(recipe, key, value)
    trainer = Trainer(recipe)
    trainer.train()
    assert (trainer.step, trainer.finished) == (4, True)
    stored = recipes.load([tmp_path / "run" / "recipe.toml"])
    assert (stored.train.steps, stored.train.max_time_s) == (4, 0.0)
    assert Trainer(recipe, resume=True).finished


def test_the_pace_is_the_median_of_the_warm_up(small: Recipe) -> None:
    recipe = small
    for key, value in (("train.steps", 1000), ("train.warmup_steps", 8), ("train.max_time_s", 100.0)):
        recipe = recipes.replace(recipe, key, value)
    trainer = Trainer(recipe)
    trainer.run_dir.mkdir(exist_ok=True)
    for step, step_s in enumerate([9.0, 5.0, 1.0, 5.0, 1.0, 2.0, 5.0, 5.0], 1):
        trainer.step = step
        trainer._fit_steps(step_s)
    assert trainer.recipe.train.steps == 100 / 5


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("run.dir", "", "run.dir is empty"),
        ("run.dir", __file__, "is a file"),
        ("train.device", "tpu", "'tpu'; use 'auto'"),
        ("train.device", "meta", "'meta'; use 'auto'"),
        ("train.dtype", "int8", "'int8'; use 'auto'"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_begins(small: Recipe, key: str, value: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Trainer(recipes.replace(small, key, value))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_named(small: Recipe) -> None:
    with pytest.raises(InputError, match="torch sees no GPU here"):
        Trainer(recipes.replace(small, "train.device", "cuda"))


def test_micro_batches_change_nothing(small: Recipe, tmp_path: Path) -> None:
    Trainer(small).train()
    cut = recipes.replace(recipes.replace(small, "run.dir", str(tmp_path / "cut")), "train.micro_batch_tokens", 170)
    trainer = Trainer(cut)
    assert len(next(peek(trainer))) > 1
    trainer.train()
    for whole, parts in zip(losses(tmp_path / "run"), losses(tmp_path / "cut"), strict=True):
        assert parts == pytest.approx(whole, rel=1e-5)


def peek(trainer: Trainer) -> Iterator[list[PackedBatch]]:
    share = Share(trainer.recipe, trainer.plan, trainer.datasets, trainer.mesh, 0, print)
    try:
        while True:
            yield next(share)
    finally:
        share.close()


def test_a_mixture_of_robots_trains_resumes_and_acts(
    small: Recipe, dataset_path: Path, tmp_path: Path, make_datasets: ModuleType
) -> None:
    other = tmp_path / "other"
    spec = make_datasets.Spec("v2.1", episodes=3, length="8:12", cameras="front", fps=30, state_dim=3, action_dim=5)
    make_datasets.make(other, spec)
    recipe = recipes.replace(small, "data.path", "")
    recipe = recipes.replace(recipe, "data.mixture", [{"path": str(dataset_path)}, {"path": str(other), "weight": 3}])
    Trainer(recipe).train()
    parts = recipes.replace(recipe, "run.dir", str(tmp_path / "parts"))
    Trainer(recipes.replace(parts, "train.steps", 3)).train()
    stored = recipes.load([tmp_path / "parts" / "recipe.toml"])
    assert stored.data.mixture == recipe.data.mixture
    Trainer(parts, resume=True).train()
    assert losses(tmp_path / "parts")[3:] == losses(tmp_path / "run")[3:]
    heavier = [{"path": str(dataset_path)}, {"path": str(other), "weight": 2}]
    with pytest.raises(InputError, match="weight was"):
        Trainer(recipes.replace(parts, "data.mixture", heavier), resume=True)
    with pytest.raises(InputError, match="acts for set, other: say which"):
        load_policy(tmp_path / "run")
    policy = load_policy(tmp_path / "run", embodiment="other")
    image = np.zeros((48, 64, 3), np.uint8)
    actions = policy.infer(Observation({"observation.images.front": image}, np.zeros(3, np.float32), "go"), (0,))
    assert actions.shape == (4, 5)


def test_changed_actions_are_noticed_though_no_file_has_another_size(
    small: Recipe, tmp_path: Path, make_datasets: ModuleType
) -> None:
    data = tmp_path / "set"
    make_datasets.make(data, make_datasets.Spec("v3.0", episodes=2, length="12", images=True))
    (file,) = data.glob("data/*/*.parquet")
    table = pq.read_table(file)
    pq.write_table(table, file, compression="none", use_dictionary=False)
    size = file.stat().st_size
    recipe = recipes.replace(small, "data.path", str(data))
    Trainer(recipes.replace(recipe, "train.steps", 2)).train()
    negated = pa.array((-np.array(table["action"].to_pylist(), np.float32)).tolist(), table["action"].type)
    place = table.schema.get_field_index("action")
    changed = table.set_column(place, table.schema.field(place), negated)
    pq.write_table(changed, file, compression="none", use_dictionary=False)
    assert file.stat().st_size == size
    with pytest.raises(InputError, match="has changed since; resuming would mix the two"):
        Trainer(recipe, resume=True)


def test_replaced_samples_are_in_the_data_state(small: Recipe, tmp_path: Path, make_datasets: ModuleType) -> None:
    recipe = recipes.replace(
        recipes.replace(small, "data.path", damaged(tmp_path, make_datasets)), "data.max_bad_fraction", 0.5
    )
    trainer = Trainer(recipe)
    trainer.train()
    replaced = noted(trainer)
    assert {tuple(bad) for bad, _ in replaced["samples"]} == {(0, 0, 5)}
    assert replaced["times"] == 1
    assert noted(Trainer(recipe, resume=True)) == replaced


def noted(trainer: Trainer) -> dict:
    now = trainer._share.replaced() if trainer._share else (0, [])
    return json.loads(trainer._replaced.noted([say(*now)]))


def test_bad_samples_count_against_the_whole_run(small: Recipe, tmp_path: Path, make_datasets: ModuleType) -> None:
    allowing_one = recipes.replace(
        recipes.replace(small, "data.path", damaged(tmp_path, make_datasets)), "data.max_bad_fraction", 0.003
    )
    trainer = Trainer(allowing_one)
    trainer.train()
    assert noted(trainer)["times"] == 1
    longer = Trainer(recipes.replace(allowing_one, "train.steps", 20), resume=True)
    with pytest.raises(InputError, match=r"2 of \d+ samples cannot be read; data.max_bad_fraction = 0.003"):
        longer.train()


def damaged(folder: Path, make_datasets: ModuleType) -> str:
    """A dataset with one sample that cannot be read."""
    data = folder / "damaged"
    make_datasets.make(data, make_datasets.Spec("v3.0", episodes=2, length="12", images=True))
    cut_a_picture(data)
    return str(data)


def cut_a_picture(data: Path) -> None:
    """Frame 5 of episode 0, so that only decoding can tell."""
    (file,) = data.glob("data/*/*.parquet")
    table, key = pq.read_table(file), "observation.images.top"
    pictures = table[key].to_pylist()
    pictures[5]["bytes"] = pictures[5]["bytes"][:200]
    place = table.schema.get_field_index(key)
    column = pa.array(pictures, table[key].type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), file)


def test_chunks_end_with_their_episode_unless_upstreams_are_asked_for(small: Recipe) -> None:
    """LeRobot's π0.5 learns from an episode's last action over and over (`action_is_pad` is not looked at)."""
    real = Trainer(small)
    repeated = Trainer(recipes.replace(small, "data.repeat_last_action", True))
    dataset, horizon = real.datasets[0], small.model.action_horizon
    table = dataset.read_table(dataset.episodes[0])
    last = dataset.episodes[0].length - 1
    frames = np.array([0, last - 1, last])
    chunks = [chunk for _, _, chunk in real.plan.preparations[0].numbers(table, frames)]
    filled = [chunk for _, _, chunk in repeated.plan.preparations[0].numbers(table, frames)]
    assert [len(chunk) for chunk in chunks] == [horizon, 2, 1]
    assert [len(chunk) for chunk in filled] == [horizon] * 3
    for own, whole in zip(chunks, filled, strict=True):
        np.testing.assert_array_equal(whole[: len(own)], own)
        np.testing.assert_array_equal(whole[len(own) :], np.repeat(own[-1:], horizon - len(own), 0))
    (batch,) = next(peek(repeated))
    assert set(batch.num_actions_B.tolist()) == {horizon}
