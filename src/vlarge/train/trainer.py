"""The trainer: a loop that can be read in a minute, and the state that makes it exact to resume."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from vlarge import recipe as recipes
from vlarge.contracts import InputError, PackedBatch
from vlarge.data.check import require_trainable
from vlarge.data.index import Dataset
from vlarge.data.service.stream import Limits, Stream
from vlarge.models.adapt import merged
from vlarge.models.attention import check_backend
from vlarge.models.compute import compile_regions, recompute_layers
from vlarge.models.moe import imbalance, mixtures, watched
from vlarge.models.network import PolicyNetwork
from vlarge.models.registry import find_family
from vlarge.policy.files import write_policy
from vlarge.recipe import Recipe
from vlarge.train import hardware
from vlarge.train.checkpoint import Checkpoints, Reader
from vlarge.train.ema import Ema
from vlarge.train.feeding import feed_of, open_data, open_stream
from vlarge.train.fit import fit
from vlarge.train.optim import build_optimizer, learning_rate, update
from vlarge.train.parallel.data import reducing, replicate
from vlarge.train.parallel.mesh import World
from vlarge.train.run_dir import check_same_model, check_vacant, holds_run, locked, truncate_steps
from vlarge.train.step import DTYPES, compute_dtype, flow_loss, precision
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
        if resume:
            check_same_model(self.run_dir, recipe.model)
        else:
            check_vacant(self.run_dir)
        self.device = hardware.resolve_device(recipe.train.device, self.world.local_rank)
        self.recipe = recipes.replace(recipe, "train.dtype", compute_dtype(recipe.train.dtype, self.device))
        check_backend(recipe.model.attention, self.device, DTYPES[self.recipe.train.dtype])
        self._check_batch()
        if recipe.train.num_threads:
            torch.set_num_threads(recipe.train.num_threads)
        self.datasets: tuple[Dataset, ...] = open_data(recipe.data)
        for dataset in self.datasets:
            require_trainable(dataset)
        self.plan = fit(recipe, self.datasets)
        self._order = feed_of(self.recipe, self.plan, self.world, 0).decides_order(self.datasets)
        self._family = find_family(self.plan.model.name)
        self.audit = self.plan.audit(recipe.train.suffixes_per_prefix)
        self.model = self._build_model()
        self._mixtures = mixtures(self.model)
        self._expert_tokens = [torch.zeros_like(mixture.share_E) for mixture in self._mixtures]
        self.optimizer = build_optimizer(self.model, recipe.train)
        self.ema = Ema(self.model, recipe.train.ema_decay)
        self.checkpoints = Checkpoints(self.run_dir, recipe.train.keep_last)
        self.step = 0
        self._stream: Stream | None = None
        self._replaced_before: dict[str, Any] = {"times": 0, "samples": []}  # before this start, on any process
        self._bad_steps = 0
        self._warmup_step_s: list[float] = []
        if resume:
            self._restore()
        self.replica = replicate(self.model, self.world, partly_used=self.plan.sometimes_blind)

    def train(self) -> Path:
        """Train to the last step, or to Ctrl-C; save; return the checkpoint."""
        with ExitStack() as stack:
            trackers = stack.enter_context(self._opened())
            stop = stack.enter_context(stop_on_signal())
            feed = feed_of(self.recipe, self.plan, self.world, self.step)
            self._stream = open_stream(self.recipe, self.datasets, feed, self.world, self._note_event)
            stack.callback(self._stream.close)
            while not self.finished:
                record, stopping = self._train_step(self._stream, stop)
                self._fit_steps(record["step_s"])
                for tracker in trackers:
                    tracker.log(record)
                if stopping:
                    break
                if self.recipe.train.save_every and self.step % self.recipe.train.save_every == 0:
                    self.save()
            return self.save()

    def _build_model(self) -> PolicyNetwork[Any, Any]:
        model = self.plan.build(self.recipe.run.seed, self.device)
        for name in self.audit.dead:  # no optimizer state for it, and no process waits for its gradient
            model.get_parameter(name).requires_grad_(False)
        if self.recipe.train.compile:
            compile_regions(model)
        if self.recipe.train.recompute:
            recompute_layers(model)
        return model

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    def save(self) -> Path:
        """Write a checkpoint of this step, unless it is the last that was written or read."""
        return self.checkpoints.save(self.step, self._state(self._replaced()), self._write_policy)

    def _train_step(self, stream: Stream, stop: list[int]) -> tuple[dict[str, Any], bool]:
        """One optimizer step; its record for steps.jsonl, and whether any process was asked to stop."""
        c, watch = self.recipe.train, Stopwatch()
        with watch.section("data_wait"):
            batches = next(stream)
        num_valid, num_samples, num_tokens, stops, num_replaced = self.world.sum(
            sum(map(self._num_valid, batches)), sum(batch.num_samples for batch in batches),
            sum(int(batch.num_actions_B.sum()) for batch in batches), len(stop), stream.num_replaced,
        )  # fmt: skip
        self._limit_replaced(int(num_replaced), stream)
        loss_sum = 0.0
        for number, batch in enumerate(batches, 1):
            if batch.num_samples:
                with reducing(self.replica, now=number == len(batches)):
                    loss_sum += self._add_gradients(batch, num_valid, num_tokens, watch)
        self._settle_mixtures()
        with watch.section("optimizer"):
            lr = learning_rate(self.step, c)
            norm = update(self.model, self.optimizer, lr, c.clip_norm)
            self._count_bad(norm)
            self.ema.update(self.model, self.step)
        (loss,) = self.world.sum(loss_sum)
        self.step += 1
        record = {"step": self.step, "loss": loss, "grad_norm": norm, "lr": lr}
        return record | self._speed(watch, batches, num_samples), bool(stops)

    def _limit_replaced(self, num_replaced: int, stream: Stream) -> None:
        """Stop the run where too many of all its samples so far could not be read."""
        num_replaced += self._replaced_before["times"]
        num_samples = (self.step + 1) * self.recipe.train.batch_size
        limits = Limits(max_bad_fraction=self.recipe.data.max_bad_fraction)
        if limits.are_exceeded(num_replaced, num_samples):
            reasons = self.world.texts(stream.last_reason)
            raise limits.error(num_replaced, num_samples, next(filter(None, reasons), "before this start"))

    def _add_gradients(self, batch: PackedBatch, num_valid: float, num_tokens: float, watch: Stopwatch) -> float:
        """Of one micro-batch; returns its share of the loss. The numbers are those of the whole global batch."""
        c = self.recipe.train
        with watch.section("forward"), precision(c.dtype, self.device), watched(self._mixtures) as balances:
            loss = flow_loss(
                self.replica, batch, self.model.flow, seed=self.recipe.run.seed, step=self.step,
                num_draws=c.suffixes_per_prefix, action_dim=self.plan.sizes.max_action_dim, num_valid=num_valid,
                over_padding=c.loss_on_padding,
            )  # fmt: skip
            uneven = imbalance(balances) / (num_tokens * c.suffixes_per_prefix)
        for tokens_E, balance in zip(self._expert_tokens, balances, strict=True):
            tokens_E += balance.count_E
        with watch.section("backward"):
            total = loss + c.balance_weight * uneven
            (total * self.world.size).backward()  # DDP averages; the loss is a share of a global sum
        return loss.item()

    def _num_valid(self, batch: PackedBatch) -> int:
        """Values that count in the loss."""
        if self.recipe.train.loss_on_padding:
            return int(batch.num_actions_B.sum()) * self.plan.sizes.max_action_dim
        return batch.num_valid_values

    def _settle_mixtures(self) -> None:
        """Tell every mixture of experts how all processes' tokens of this step were spread."""
        for mixture, tokens_E in zip(self._mixtures, self._expert_tokens, strict=True):
            mixture.settle(torch.tensor(self.world.sum(*tokens_E.tolist())))
            tokens_E.zero_()

    def _fit_steps(self, step_s: float) -> None:
        """With a time budget: when the warm-up ends, fix the number of steps by its median pace.

        The median, because the first steps also start threads and fill the window, and a burst of other work on the
        machine should not shorten the whole run. The learning rate of the warm-up does not depend on that number, so
        the run stays a function of its recipe: recipe.toml is written again with the number in it.
        """
        c = self.recipe.train
        if not c.max_time_s or self.step > c.warmup_steps:
            return
        self._warmup_step_s.append(step_s)
        if self.step == c.warmup_steps:
            (mean_s,) = self.world.sum(statistics.median(self._warmup_step_s) / self.world.size)
            affordable = max(int(c.max_time_s / mean_s), c.warmup_steps)
            self._set_steps(min(c.steps, affordable))
            if self.world.is_main:
                self._write_recipe()

    def _set_steps(self, steps: int) -> None:
        self.recipe = recipes.replace(recipes.replace(self.recipe, "train.steps", steps), "train.max_time_s", 0.0)

    def _write_recipe(self) -> None:
        (self.run_dir / "recipe.toml").write_text(recipes.dump(self.recipe))

    def _speed(self, watch: Stopwatch, batches: Sequence[PackedBatch], num_samples: float) -> dict[str, float]:
        draws = self.recipe.train.suffixes_per_prefix
        flops = 3 * sum(self._family.forward_flops(self.plan.sizes, batch, draws) for batch in batches)
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
        with suppress(OSError), (self.run_dir / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")  # stderr has it too

    def _check_batch(self) -> None:
        if self.recipe.train.batch_size < self.world.size:
            raise InputError(
                f"train.batch_size is {self.recipe.train.batch_size}, which {self.world.size} processes cannot share"
            )
        if self.recipe.train.max_time_s and not self.recipe.train.warmup_steps:
            raise InputError("train.max_time_s is measured by the warm-up: set train.warmup_steps above 0")
        if len(set(self.world.texts(str(self.world.local_size)))) > 1:
            raise InputError("nodes have different numbers of processes: start equally many on each")

    def _write_policy(self, folder: Path, read: Reader) -> None:
        averages = self.ema.averages
        weights = {name: read(f"{'ema' if name in averages else 'model'}.{name}") for name in self.ema.state}
        write_policy(
            folder, sizes=self.plan.sizes, weights=merged(self.model, weights), step=read("position.step"),
            preparations=self.plan.by_embodiment, recipe=dataclasses.asdict(self.recipe),
            origin=self.plan.init.origin if self.plan.init else None,
        )  # fmt: skip

    def _replaced(self) -> dict[str, Any]:
        """How many times a sample was replaced so far, on any process, and [sample, the last in its place] of each."""
        before, stream = self._replaced_before, self._stream
        own = [stream.num_replaced, [*stream.replaced.items()]] if stream else [0, []]
        said = [json.loads(text) for text in self.world.texts(json.dumps(own))]
        pairs = {tuple(bad): used for bad, used in chain(before["samples"], *(each for _, each in said))}
        times = before["times"] + sum(number for number, _ in said)
        return {"times": times, "samples": [[[*bad], used] for bad, used in sorted(pairs.items())]}

    def _state(self, replaced: dict[str, Any] | None = None) -> dict[str, Any]:
        position = {
            "step": self.step,
            "steps": self.recipe.train.steps,
            "order": json.dumps(self._order),
            "replaced": json.dumps(replaced),
        }
        return {
            "model": self.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer),
            "ema": self.ema.averages,
            "position": position,
        }

    def _check_order(self, before: dict[str, Any], last: Path) -> None:
        of_content = "dataset", "statistics of its states and actions"
        if any(before[name] != self._order[name] for name in of_content):
            roots = ", ".join(dataset.root for dataset in self.datasets)
            raise InputError(
                f"{roots} is another dataset than {last} was trained on, or has changed since;"
                " resuming would mix the two"
            )
        for name, now in self._order.items():
            if before[name] != now:
                raise InputError(
                    f"{name} was {before[name]} when this run began and is {now}: samples would come in another"
                    " order; resume with the value it had, or start a new run with model.init"
                )

    def _restore(self) -> None:
        last = self.checkpoints.agreed_last()
        if last is None and holds_run(self.run_dir):
            return  # it ended before its first checkpoint: it goes on from its beginning
        if last is None:
            raise InputError(f"{self.run_dir} has no checkpoint to resume from; start it without --resume")
        state = self._state()
        self.checkpoints.load(state, last)
        self._check_order(json.loads(state["position"]["order"]), last)
        self.model.load_state_dict(state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        self.ema.load(state["ema"])
        self.step = int(state["position"]["step"])
        self._replaced_before = json.loads(state["position"]["replaced"])
        if self.recipe.train.max_time_s and self.step >= self.recipe.train.warmup_steps:
            self._set_steps(int(state["position"]["steps"]))


@contextmanager
def stop_on_signal() -> Iterator[list[int]]:
    """The list fills when Ctrl-C or SIGTERM asks to stop; a second Ctrl-C interrupts at once."""
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        received.append(number)
        # Not print: it may be at work already when the signal comes.
        os.write(2, b"stopping: the run is saved after this step; Ctrl-C again leaves at once\n")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
