"""The trainer: a loop that can be read in a minute, and the state that makes it exact to resume."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from vlarge import recipe as recipes
from vlarge.contracts import InputError, PackedBatch
from vlarge.data.check import require_trainable
from vlarge.data.index import Dataset
from vlarge.models.registry import find_family
from vlarge.policy.files import write_policy
from vlarge.recipe import Recipe
from vlarge.train import hardware
from vlarge.train.checkpoint import Checkpoints, load_state
from vlarge.train.ema import Ema
from vlarge.train.optim import build_optimizer, learning_rate, update
from vlarge.train.parallel.data import replicate
from vlarge.train.parallel.mesh import World
from vlarge.train.run_dir import check_vacant, locked, truncate_steps
from vlarge.train.setup import open_data, open_stream, plan
from vlarge.train.step import compute_dtype, flow_loss, precision
from vlarge.train.timing import Stopwatch
from vlarge.train.track import open_trackers

MAX_BAD_STEPS = 10  # skipped updates in a row before the run gives up


class Trainer:
    """One training run. Everything that follows is a function of the recipe and the dataset.

    Raises InputError before anything is written when recipe, dataset and model do not go together.
    """

    def __init__(self, recipe: Recipe, world: World | None = None, *, resume: bool = False) -> None:
        self.world = world or World()
        self.run_dir = Path(recipe.run.dir)
        if not recipe.run.dir:
            raise InputError("run.dir is empty: give the folder that the run is written to")
        if not resume:
            check_vacant(self.run_dir)
        self.device = hardware.resolve_device(recipe.train.device, self.world.local_rank)
        self.recipe = recipes.replace(recipe, "train.dtype", compute_dtype(recipe.train.dtype, self.device))
        self._check_batch()
        if recipe.train.num_threads:
            torch.set_num_threads(recipe.train.num_threads)
        self.dataset: Dataset = open_data(recipe.data)
        require_trainable(self.dataset)
        self.plan = plan(recipe, self.dataset)
        self._family = find_family(self.plan.model_name)
        self.model = self.plan.build(recipe.run.seed, self.device)
        self.optimizer = build_optimizer(self.model, recipe.train)
        self.ema = Ema(self.model, recipe.train.ema_decay)
        self.checkpoints = Checkpoints(self.run_dir, recipe.train.keep_last)
        self.step = 0
        self._bad_steps = 0
        self._warmup_step_s: list[float] = []
        if resume:
            self._restore()
        self.replica = replicate(self.model, self.world)

    def train(self) -> Path:
        """Train to the last step, or to Ctrl-C; save; return the checkpoint."""
        with ExitStack() as stack:
            trackers = stack.enter_context(self._opened())
            stop = stack.enter_context(stop_on_signal())
            stream = open_stream(
                self.recipe, self.dataset, self.plan.preparation, self.world, self.step, self._note_event
            )
            stack.callback(stream.close)
            while not self.finished:
                record, stopping = self._train_step(stream, stop)
                self._fit_steps(record["step_s"])
                for tracker in trackers:
                    tracker.log(record)
                if stopping:
                    break
                if self.recipe.train.save_every and self.step % self.recipe.train.save_every == 0:
                    self.save()
            return self.save()

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    def save(self) -> Path:
        """Write a checkpoint of this step (the main process does), unless it is there already."""
        folder = self.run_dir / "checkpoints" / f"{self.step:08d}"
        if self.world.is_main:
            self.checkpoints.save(self.step, self._write_policy, self._state())
        self.world.barrier()
        return folder

    def _train_step(self, stream: Iterator[list[PackedBatch]], stop: list[int]) -> tuple[dict[str, Any], bool]:
        """One optimizer step; its record for steps.jsonl, and whether any process was asked to stop."""
        c, watch = self.recipe.train, Stopwatch()
        with watch.section("data_wait"):
            (batch,) = next(stream)
        num_valid, num_samples, stops = self.world.sum(batch.num_valid_values, batch.num_samples, len(stop))
        with watch.section("forward"), precision(c.dtype, self.device):
            loss = flow_loss(
                self.replica, batch, seed=self.recipe.run.seed, step=self.step, num_draws=c.suffixes_per_prefix,
                action_dim=self.plan.sizes.max_action_dim, num_valid=num_valid,
            )  # fmt: skip
        with watch.section("backward"):
            (loss * self.world.size).backward()  # DDP averages; the loss is a share of a global sum
        with watch.section("optimizer"):
            lr = learning_rate(self.step, c)
            norm = update(self.model, self.optimizer, lr, c.clip_norm)
            self._count_bad(norm)
            self.ema.update(self.model, self.step)
        (loss_value,) = self.world.sum(loss.item())
        self.step += 1
        record = {"step": self.step, "loss": loss_value, "grad_norm": norm, "lr": lr}
        return record | self._speed(watch, batch, num_samples), bool(stops)

    def _fit_steps(self, step_s: float) -> None:
        """With a time budget: when the warm-up ends, fix the number of steps by the pace of its quickest quarter.

        The quickest, because the first steps also start threads and fill the window, and a burst of other work on the
        machine should not shorten the whole run. The learning rate of the warm-up does not depend on that number, so
        the run stays a function of its recipe: recipe.toml is written again with the number in it.
        """
        c = self.recipe.train
        if not c.max_time_s or self.step > c.warmup_steps:
            return
        self._warmup_step_s.append(step_s)
        if self.step == c.warmup_steps:
            quick_s = sorted(self._warmup_step_s)[len(self._warmup_step_s) // 4]
            (mean_s,) = self.world.sum(quick_s / self.world.size)
            affordable = max(int(c.max_time_s / mean_s), c.warmup_steps)
            self._set_steps(min(c.steps, affordable))
            if self.world.is_main:
                self._write_recipe()

    def _set_steps(self, steps: int) -> None:
        self.recipe = recipes.replace(recipes.replace(self.recipe, "train.steps", steps), "train.max_time_s", 0.0)

    def _write_recipe(self) -> None:
        (self.run_dir / "recipe.toml").write_text(recipes.dump(self.recipe))

    def _speed(self, watch: Stopwatch, batch: PackedBatch, num_samples: float) -> dict[str, float]:
        flops = 3 * self._family.forward_flops(self.plan.sizes, batch, self.recipe.train.suffixes_per_prefix)
        used, fraction = hardware.memory(self.device)
        return {
            "samples_per_s": num_samples / watch.total_s,
            **watch.seconds(),
            "mfu": flops / watch.total_s / self._peak_flops,
            "real_token_fraction": 1.0,  # packed: there is no other kind of token
            "memory_bytes": used,
            "memory_fraction": fraction,
        }

    def _count_bad(self, norm: float) -> None:
        self._bad_steps = 0 if math.isfinite(norm) else self._bad_steps + 1
        if self._bad_steps >= MAX_BAD_STEPS:
            last = self.checkpoints.last()
            raise InputError(
                f"gradients were not finite for {MAX_BAD_STEPS} steps in a row up to step {self.step}; the last good"
                f" checkpoint is {last or 'none'}: resume from it with a lower train.lr"
            )

    @contextmanager
    def _opened(self) -> Iterator[list[Any]]:
        """The run directory, held by the main process, with the complete recipe and open trackers."""
        self._peak_flops = hardware.peak_flops(self.device, self.recipe.train.dtype)
        if not self.world.is_main:
            yield []
            return
        with locked(self.run_dir):
            self._write_recipe()
            truncate_steps(self.run_dir / "steps.jsonl", self.step)
            tensorboard, steps = self.recipe.track.tensorboard, self.recipe.train.steps
            with open_trackers(self.run_dir, tensorboard=tensorboard, total_steps=steps, done_steps=self.step) as all:
                yield all

    def _note_event(self, text: str) -> None:
        """For people on the spot and for those who look later."""
        print(f"rank {self.world.rank}: {text}", file=sys.stderr)
        line = {"step": self.step, "rank": self.world.rank, "event": text}
        with (self.run_dir / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _check_batch(self) -> None:
        if self.recipe.train.batch_size < self.world.size:
            raise InputError(
                f"train.batch_size is {self.recipe.train.batch_size}, which {self.world.size} processes cannot share"
            )

    def _write_policy(self, folder: Path) -> None:
        write_policy(
            folder, model_name=self.plan.model_name, sizes=self.plan.sizes, weights=self.ema.state,
            preparation=self.plan.preparation, recipe=dataclasses.asdict(self.recipe), step=self.step,
        )  # fmt: skip

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "ema": self.ema.state,
            "position": {"step": self.step, "steps": self.recipe.train.steps, "dataset": self.dataset.revision},
        }

    def _restore(self) -> None:
        last = self.checkpoints.last()
        if last is None:
            raise InputError(f"{self.run_dir} has no checkpoint to resume from; start it without --resume")
        state = self._state()
        load_state(last / "training_state", state)
        if state["position"]["dataset"] != self.dataset.revision:
            raise InputError(
                f"{self.dataset.root} is another dataset than {last} was trained on, or has changed since;"
                " resuming would mix the two"
            )
        self.model.load_state_dict(state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        self.ema.load(state["ema"])
        self.step = int(state["position"]["step"])
        if self.recipe.train.max_time_s and self.step >= self.recipe.train.warmup_steps:
            self._set_steps(int(state["position"]["steps"]))


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """The list fills when Ctrl-C or SIGTERM asks to stop; a second Ctrl-C interrupts at once."""
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
