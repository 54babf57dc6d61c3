"""The trainer: a loop that can be read in a minute, and the state that makes it exact to resume."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlarge import recipe as recipes
from vlarge.contracts import InputError, PackedBatch
from vlarge.data.check import require_trainable
from vlarge.data.index import Dataset
from vlarge.data.pack import check_budget
from vlarge.data.service.plan import ALONE
from vlarge.data.service.stream import Limits
from vlarge.models.adapt import adapter_scale, merged
from vlarge.models.attention import check_backend
from vlarge.models.compute import AMOUNTS
from vlarge.models.network import PolicyNetwork
from vlarge.models.registry import find_family
from vlarge.policy.files import write_policy
from vlarge.recipe import Recipe
from vlarge.train import hardware
from vlarge.train.checkpoint import Checkpoints, Reader
from vlarge.train.engines import TrainingEngine, make_engine, require_engine
from vlarge.train.feeding import Share, feed_of, open_data
from vlarge.train.fit import fit, longest
from vlarge.train.health import timeouts
from vlarge.train.health.balance import Balance
from vlarge.train.health.events import Events
from vlarge.train.health.pulse import COMMUNICATE, OPTIMIZER, SAVE
from vlarge.train.health.signals import stop_on_signal
from vlarge.train.health.watch import watching
from vlarge.train.largest import Trial, largest_micro_batch
from vlarge.train.optim import learning_rate
from vlarge.train.parallel.mesh import Mesh
from vlarge.train.parallel.world import World
from vlarge.train.replaced import Replaced, say
from vlarge.train.run_dir import check_same_model, check_vacant, holds_run, locked, recorded
from vlarge.train.skipped import Skipped
from vlarge.train.step import DTYPES, compute_dtype
from vlarge.train.track.opened import Log, tracked
from vlarge.train.track.provenance import recorded_starts
from vlarge.train.track.timeline import Timeline
from vlarge.train.track.tracker import Tracked


@dataclass(frozen=True)
class _Launched:
    """A step whose numbers may still be on their way. own_loss: this process's share; norm: of the whole gradient."""

    record: dict[str, Any]
    own_loss: Tensor
    norm: Tensor


class Trainer:
    """One training run. Everything that follows is a function of the recipe and the dataset.

    Raises InputError before a model is built when recipe, dataset, run directory and processes do not go together.
    """

    def __init__(self, recipe: Recipe, world: World | None = None, *, resume: bool = False) -> None:
        self._timeline = Timeline()
        self.world = world or World()
        self.run_dir = Path(recipe.run.dir)
        self.world.together(lambda: self._prepare(recipe, resume=resume))
        self._check_nodes()
        self.mesh, self.engine = self._lay_out()
        self.checkpoints = Checkpoints(self.run_dir, recipe.train.keep_last)
        self._events = Events(self.run_dir, self.world.rank, self.world.pulse)
        self._balance = Balance(self.world, recipe.health.balance_every, self._events)
        self._share: Share | None = None
        self._replaced = Replaced()
        self.step = 0
        self.skipped = Skipped(self._events.tell if self.world.is_main else lambda _: None)
        self._warmup_step_s: list[float] = []
        if recipe.train.micro_batch_tokens == "auto":
            self._fit_micro_batches(resume=resume)
        if resume:
            with self._timeline.span("restore"):
                self._restore()

    def _prepare(self, recipe: Recipe, *, resume: bool) -> None:
        # All that can be refused before processes work together.
        require_engine(recipe)
        self._check_run_dir(recipe, resume=resume)
        self.degrees = recipe.parallel.resolve(self.world.size)
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
        if budget := recipe.train.budget_tokens:
            check_budget(budget, longest(self.plan, self.datasets, recipe.train.suffixes_per_prefix)[0])
        self._order = feed_of(self.recipe, self.plan, ALONE, self.degrees, 0).decides_order(self.datasets)
        self._family = find_family(self.plan.model.name)
        division, degrees = self._family.division(self.plan.sizes), self.degrees
        division.check(num_stages=degrees.num_stages, ep=degrees.ep, cp=degrees.cp, tp=degrees.tp)
        self.audit = self.plan.audit(recipe.train.suffixes_per_prefix)
        self._division = dataclasses.replace(division, costs=self.audit.layer_costs(division))
        if self.world.is_main:
            with locked(self.run_dir):  # and again while it trains; here before a model is built for nothing
                recorded_starts(self.run_dir)

    def train(self) -> Path:
        """Train to the last step, or to Ctrl-C; save; return the checkpoint."""
        with ExitStack() as stack:
            log = stack.enter_context(self._opened())
            stop = stack.enter_context(stop_on_signal())
            stack.enter_context(watching(self.world, self._events, self.recipe.health))
            stack.callback(self._let_save_end)
            share = Share(self.recipe, self.plan, self.datasets, self.mesh, self.step, self._events.tell)
            self._share = share
            stack.callback(share.close)
            first_step = self.step + 1
            unread: deque[_Launched] = deque()
            while not self.finished:
                launched, stopping = self._train_step(share, stop)
                unread.append(launched)
                if self.step == first_step:
                    timeouts.shorten(self.world, self.recipe.health.timeout_s)
                self._fit_steps(launched.record["step_s"])
                saves = self.recipe.train.save_every and self.step % self.recipe.train.save_every == 0
                # A GPU is still at work on this step: what is read is the one before, which nobody waits for.
                while len(unread) > (self.device.type == "cuda" and not (self.finished or stopping or saves)):
                    self._read(unread.popleft(), log)
                if self.skipped.in_a_row:
                    continue
                if stopping:
                    break
                if saves:
                    self._begin_save()
            if self.skipped.in_a_row:
                raise self.skipped.error(self._last_good())
            return self.save()

    @property
    def model(self) -> PolicyNetwork[Any, Any]:
        """What this process has of the network; its first stage, where it has several."""
        return self.engine.networks[0]

    @property
    def finished(self) -> bool:
        return self.step >= self.recipe.train.steps

    def _lay_out(self) -> tuple[Mesh, TrainingEngine]:
        network = self.plan.build(self.recipe.run.seed, self.device)
        for name in self.audit.dead:  # no optimizer state for it, and no process waits for its gradient
            network.get_parameter(name).requires_grad_(False)
        mesh = Mesh(self.degrees, self.world, self.device.type)
        return mesh, make_engine(
            network, self._division, mesh, self.recipe.train, seed=self.recipe.run.seed, device=self.device
        )  # fmt: skip

    def _fit_micro_batches(self, *, resume: bool) -> None:
        """Of the size that memory has room for; a run that goes on keeps its size, which makes it exact."""
        began = recorded(self.run_dir) if resume else None
        tokens = began.train.budget_tokens if began else 0
        tokens = tokens or largest_micro_batch(self._trial())
        self.recipe = recipes.replace(self.recipe, "train.micro_batch_tokens", tokens)
        if self.world.is_main:
            self._events.tell(f"train.micro_batch_tokens is {tokens}, {'as before' if began else 'by trying'}")

    def _trial(self) -> Trial:
        cost, sample = longest(self.plan, self.datasets, self.recipe.train.suffixes_per_prefix)
        share = math.ceil(self.recipe.train.batch_size / self.degrees.num_data)
        most = math.ceil(share / self.degrees.num_micro)
        return Trial(self.engine, self.mesh, self.device, sample, cost, most)

    def _train_step(self, share: Share, stop: list[int]) -> tuple[_Launched, bool]:
        """One optimizer step, and whether any process was asked to stop."""
        c, pulse = self.recipe.train, self.world.pulse
        pulse.begin_step(self.step + 1)
        batches = next(share)
        counted = batches if self.mesh.is_lead else []
        num_valid, num_samples, num_tokens, stops, num_replaced = self.world.sum(
            sum(map(self._num_valid, counted)), sum(batch.num_samples for batch in counted),
            sum(int(batch.num_actions_B.sum()) for batch in counted), len(stop), share.replaced()[0],
        )  # fmt: skip
        self._limit_replaced(int(num_replaced), share)
        own_loss = self.engine.add_gradients(batches, self.step, num_valid, num_tokens)
        self.engine.settle_mixtures()
        with pulse.section(OPTIMIZER):
            lr = learning_rate(self.step, c)
            self.checkpoints.fence()
            norm = self.engine.update(lr, self.step)
        self.step += 1
        record = {"step": self.step, "lr": lr} | self._speed(batches, num_samples)
        return _Launched(record, own_loss, norm), bool(stops)

    def _read(self, launched: _Launched, log: Log) -> None:
        """Complete the record of a step, once its numbers are there. Raises InputError after too many bad ones."""
        with self.world.pulse.section(COMMUNICATE):
            own_loss, norm = launched.own_loss.item(), launched.norm.item()
        (loss,) = self.world.sum(own_loss)
        self.skipped.count(norm, launched.record["step"])
        counted = {"loss": loss, "grad_norm": norm, "num_skipped": self.skipped.total}
        log({"step": launched.record["step"]} | counted | launched.record)
        if self.skipped.are_too_many:
            raise self.skipped.error(self._last_good())

    def _last_good(self) -> Path | None:
        self._let_save_end()
        return self.checkpoints.last()

    def _limit_replaced(self, num_replaced: int, share: Share) -> None:
        """Stop the run where too many of all its samples so far could not be read."""
        num_samples = (self.step + 1) * self.recipe.train.batch_size
        limits = Limits(max_bad_fraction=self.recipe.data.max_bad_fraction)
        if total := self._replaced.exceed(limits, num_replaced, num_samples):
            reasons = self.world.texts(share.last_reason)
            raise limits.error(total, num_samples, next(filter(None, reasons), "before this start"))

    def _num_valid(self, batch: PackedBatch) -> int:
        """Values that count in the loss."""
        if self.recipe.train.loss_on_padding:
            return int(batch.num_actions_B.sum()) * self.plan.sizes.max_action_dim
        return batch.num_valid_values

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

    def _speed(self, batches: Sequence[PackedBatch], num_samples: float) -> dict[str, float]:
        pulse, draws = self.world.pulse, self.recipe.train.suffixes_per_prefix
        flops = 3 * sum(self._family.forward_flops(self.plan.sizes, batch, draws) for batch in batches)
        flops *= self.degrees.num_data / self.world.size
        used, fraction = hardware.memory(self.device)
        return {
            "samples_per_s": num_samples / pulse.step_s,
            **pulse.seconds(),
            **self._balance.add(pulse.seconds()),
            "mfu": flops / pulse.step_s / self._peak_flops,
            "real_token_fraction": 1.0,  # packed: there is no other kind of token
            "memory_bytes": used,
            "memory_fraction": fraction,
        }

    @contextmanager
    def _opened(self) -> Iterator[Log]:
        """The run directory, held by the main process, with the complete recipe and open trackers."""
        self._peak_flops = hardware.peak_flops(self.device, self.recipe.train.dtype)
        run = Tracked(
            self.run_dir, self.recipe, done_steps=self.step, on_gpu=self.device.type == "cuda",
            rank=self.world.rank, local_rank=self.world.local_rank,
        )  # fmt: skip
        with ExitStack() as stack:

            def enter() -> Log:
                if self.world.is_main:
                    stack.enter_context(locked(self.run_dir))
                    self._write_recipe()
                return stack.enter_context(tracked(run, self._timeline, self._events.tell))

            yield self.world.together(enter)

    def _check_run_dir(self, recipe: Recipe, *, resume: bool) -> None:
        if not recipe.run.dir:
            raise InputError("run.dir is empty: give the folder that the run is written to")
        if resume:
            check_same_model(self.run_dir, recipe.model)
        else:
            check_vacant(self.run_dir)

    def _check_batch(self) -> None:
        c = self.recipe.train
        self.degrees.check_batch(c.batch_size)
        if c.recompute not in AMOUNTS:
            raise InputError(f"train.recompute is {c.recompute!r}; use {', '.join(map(repr, AMOUNTS))}")
        if c.max_time_s and not c.warmup_steps:
            raise InputError("train.max_time_s is measured by the warm-up: set train.warmup_steps above 0")

    def _check_nodes(self) -> None:
        if len(set(self.world.texts(str(self.world.local_size)))) > 1:
            raise InputError("nodes have different numbers of processes: start equally many on each")

    def _begin_save(self) -> None:
        """Take a copy of everything, to be written beside the training; unless this step is saved already."""
        with self._timeline.span("save"), self.world.pulse.section(SAVE):
            now = self._share.replaced() if self._share else (0, [])
            replaced = self._replaced.noted(self.world.texts(say(*now)))
            whole = {f"model.{name}": shape for name, shape in self.engine.shapes.items()}
            self.checkpoints.begin(self.step, self._state(replaced), self._write_policy, must_hold=whole)

    def save(self) -> Path:
        """Write a checkpoint of this step, unless it is there already, and wait for it."""
        self._begin_save()
        with self._timeline.span("save"), self.world.pulse.section(SAVE):
            self.checkpoints.finish()
        return self.run_dir / "checkpoints" / f"{self.step:08d}"

    def _let_save_end(self) -> None:
        # One that is on its way while an error ends the run; what it may say is not what ended it.
        with suppress(InputError):
            self.checkpoints.finish()

    def _write_policy(self, folder: Path, read: Reader) -> None:
        # On a thread, while training goes on: everything comes from the checkpoint.
        averaged, names = set(read.names), self.engine.shapes
        weights = {name: read(f"ema.{name}" if f"ema.{name}" in averaged else f"model.{name}") for name in names}
        write_policy(
            folder, sizes=self.plan.sizes, weights=merged(weights, adapter_scale(self.recipe.model)),
            preparations=self.plan.by_embodiment, recipe=dataclasses.asdict(self.recipe), step=read("position.step"),
            origin=self.plan.init.origin if self.plan.init else None,
        )  # fmt: skip

    def _state(self, replaced: str) -> dict[str, Any]:
        position = {
            "step": self.step,
            "steps": self.recipe.train.steps,
            "order": json.dumps(self._order),
            "replaced": replaced,
            "skipped": self.skipped.total,
        }
        return {**self.engine.state(), "position": position}

    def _restore(self) -> None:
        last = self.checkpoints.agreed_last()
        if last is None and holds_run(self.run_dir):
            return  # it ended before its first checkpoint: it goes on from its beginning
        if last is None:
            raise InputError(f"{self.run_dir} has no checkpoint to resume from; start it without --resume")
        state = self._state("")
        self.checkpoints.load(state, last)
        self.engine.adopt(state)
        position = state["position"]
        check_order(json.loads(position["order"]), self._order, [dataset.root for dataset in self.datasets], last)
        self.step = int(position["step"])
        self._replaced.load(position["replaced"])
        self.skipped.total = int(position["skipped"])
        before, now = int(position["steps"]), self.recipe.train.steps
        if self.recipe.train.max_time_s and self.step >= self.recipe.train.warmup_steps:
            self._set_steps(before)
        elif before != now and self.world.is_main:
            self._events.tell(f"train.steps was {before} and is {now}: the learning rate now falls until step {now}")


def check_order(before: dict[str, Any], now: dict[str, Any], roots: Sequence[str], last: Path) -> None:
    """Raise InputError where samples would come in another order than before the resume, or from other datasets."""
    of_content = "dataset", "statistics of its states and actions"
    if any(before[name] != now[name] for name in of_content):
        raise InputError(
            f"{', '.join(roots)} is another dataset than {last} was trained on, or has changed since;"
            " resuming would mix the two"
        )
    for name, value in now.items():
        if before[name] != value:
            raise InputError(
                f"{name} was {before[name]} when this run began and is {value}: samples would come in another"
                " order; resume with the value it had, or start a new run with model.init"
            )
