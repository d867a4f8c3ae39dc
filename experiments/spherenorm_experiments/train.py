"""A run's training: model, optimizer and step; the loop around it; and sweeps of pure tasks."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from spherenorm import Bound, explain, sphere_of, torch_optimizer
from spherenorm.functional import Sweep, sweep
from spherenorm.optim import RecipeOptimizer
from spherenorm_experiments.data import TrainingBatches, evaluation_batches
from spherenorm_experiments.lookup import (
    describe_source,
    leaves_steps_to_run,
    require_extra,
    with_total_steps,
)
from spherenorm_experiments.probes import MeasuredStep, Watched, is_finite, measure
from spherenorm_experiments.run import (
    SINGLE_PROCESS,
    Job,
    Ranks,
    Run,
    Runner,
    parallelize,
    synchronized,
)
from spherenorm_experiments.spec import SCHEDULES, Spec, is_number
from spherenorm_experiments.store import RunFolder, write_file
from spherenorm_experiments.task import (
    PureTask,
    Split,
    Statistic,
    Task,
    better_of,
    seed_everything,
    stream,
)


class Training:
    """A run on batches, before its first step.

    Attributes:
        module: the model with its weights.
        model: the model as the loss calls it, in DDP if there are several processes.
        watched: the weights of two or more dimensions, with their views.
        backend: the executor of its steps.
        scaler: of the loss, for float16.
    """

    def __init__(
        self, run: Run, task: Task, ranks: Ranks = SINGLE_PROCESS, workers: int = 0
    ) -> None:
        self.run, self.spec, self.task, self.ranks = run, run.spec, task, ranks
        self.regime, self.workers = run.spec.regime, workers
        self.device = ranks.device(self.spec.device)
        seed_everything(stream(self.spec.seed, "init"), self.device)
        self.module = _new_model(task).to(self.device)
        self.watched = Watched.of(self.module, task, self.device)
        self.model = parallelize(self.module, ranks, self.device)
        self.batches = TrainingBatches(run, task, ranks, workers, self.device)
        self.optimizer = make_optimizer(run, task, self.module, self.watched.channels)
        self.backend = self.optimizer.param_groups[0]["backend"]
        self._rates = [group.get("lr") for group in self.optimizer.param_groups]
        self._kind = torch.device(self.device).type
        self.scaler = torch.amp.GradScaler(self._kind, enabled=self.regime.precision == "float16")

    def step(self, step: int, *notes: float) -> tuple[dict[str, Any] | None, list[float]]:
        """Take one step.

        Args:
            notes: numbers to be summed over ranks, beside the loss.

        Returns:
            Its measurements, None if the loss was not finite; and the sums of the notes.
        """
        if not _is_training(self.module):
            self.module.train()
        self.optimizer.zero_grad()
        loss, *sums = self.ranks.totals([self._add_gradients(step), *notes])
        if not math.isfinite(loss):
            return None, sums
        record: dict[str, Any] = {"step": step + 1, "loss": loss}
        factor = self.spec.rate_factor(step, self.run.steps, self.run.steps_per_epoch)
        for group, lr in zip(self.optimizer.param_groups, self._rates, strict=True):
            if lr is not None:
                group["lr"] = lr * factor
        ends = (step + 1) % self.run.steps_per_epoch == 0
        probed = self.spec.probes and (ends or (step + 1) % self.spec.probe_every == 0)
        before = self.watched.copies(self.module) if probed else {}
        with self.task.around_step(self, step):
            record |= self._update()
        if probed:
            record |= self._probed(before)
        return record, sums

    def survived(self) -> bool:
        """True if the norms of the weights are finite: no loss is computed after the last step."""
        norms = map(torch.linalg.vector_norm, (x.detach() for x in self.module.parameters()))
        return all(bool(norm.isfinite()) for norm in norms)

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint; all ranks must ask. Buffers are rank 0's."""
        self.ranks.share(self.module.buffers())
        states = {
            name: dict(self.optimizer.state[weight])
            for name, weight in self.module.named_parameters()
            if weight in self.optimizer.state
        }
        # Buffers, too, that torch leaves out of a state (`persistent=False`).
        tensors = {**dict(self.module.named_buffers()), **self.module.state_dict()}
        content = {"model": tensors, "optimizer": {"state": states}}
        scaler = self.scaler.state_dict() if self.scaler.is_enabled() else {}
        return {**content, "scaler": scaler}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Go on from a checkpoint, whatever number of processes has written it."""
        _load_model(self.module, content["model"])
        _load_states(self.module, self.optimizer, content["optimizer"]["state"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(content["scaler"])

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the block in which the model computes in the run's precision."""
        precision = self.regime.precision
        if precision == "float32":
            return nullcontext()
        return torch.autocast(self._kind, dtype=getattr(torch, precision))

    def _add_gradients(self, step: int) -> float:
        """Add up the gradients of a step's micro-batches; the rank's part of its loss."""
        total, last = 0.0, len(self.batches.shares.of_step(step)) - 1
        for number, (batch, weight) in enumerate(self.batches.at(step)):
            key = (step, number, self.ranks.rank)
            seed_everything(stream(self.spec.seed, "noise", *key), self.device)
            with synchronized(self.model, last=number == last):
                with self.autocast():
                    loss = self.task.loss(self.model, batch)
                _require_scalar(loss, self.task)
                # DDP takes the mean over ranks of what is a sum.
                share = weight * self.ranks.world
                scaled = loss if share == 1 else share * loss
                self.scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]
            total += weight * loss.item()
        return total

    def _update(self) -> dict[str, float]:
        """Clip the gradient and step; the norm before clipping, if it is clipped.

        A scaled gradient that overflowed has no norm, and no step: it is no divergence.
        """
        measured = {}
        if self.regime.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clipped = nn.utils.clip_grad_norm_(self.module.parameters(), self.regime.clip_norm)
            norm = float(clipped)
            if math.isfinite(norm) or not self.scaler.is_enabled():
                measured["grad_norm"] = norm
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return measured

    def _probed(self, before: dict[str, Tensor]) -> dict[str, Any]:
        now, grads = self.watched.now(self.module), self.watched.gradients(self.module)
        measured = measure(self.run.probes, MeasuredStep(before, now, grads, self.watched.views))
        finite = {name: value for name, value in measured.items() if is_finite(value)}
        # 0/0, say, where the weights are finite: the probe has no number here
        return finite if len(finite) < len(measured) and self.survived() else measured


def _require_scalar(loss: Any, task: Task) -> None:
    """Refuse a loss of a task that is no scalar, which has no gradient."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"{describe_source(type(task), 'loss')} must return a scalar tensor, such as the mean "
            f"over the batch's items, got {got}"
        )


def make_optimizer(
    run: Run, task: Task, model: nn.Module, invariant: Sequence[str]
) -> RecipeOptimizer:
    """Return the optimizer of a run, with the task's groups and the run's others in one more.

    With another recipe for the rest, the run's takes the weights that `Task.hidden_weight_names`
    names, or those that are scale-invariant channel by channel; on a sphere it takes these alone,
    and they start with norm 1.

    Args:
        invariant: the weights that are scale-invariant channel by channel.

    Raises:
        ValueError: a weight in two of the task's groups, or one that is not the model's there or in
            `Task.hidden_weight_names`.
    """
    # Before the optimizer is made: where it finds a schedule in a rule, it begins to count steps.
    bound = with_total_steps(run.bound, run.steps)
    other_recipe = None if run.rest is None else with_total_steps(run.rest, run.steps)
    sphere = None if other_recipe is None else sphere_of(bound.rule)
    named = None if sphere is not None else task.hidden_weight_names(model)
    names = {id(weight): name for name, weight in model.named_parameters()}
    if unknown := sorted(set(named or ()) - set(names.values())):
        raise ValueError(f"hidden_weight_names has {unknown[0]!r}, which is no weight of the model")
    chosen = (
        set(names.values()) if other_recipe is None else set(invariant if named is None else named)
    )
    groups: list[dict[str, Any]] = []
    for weights, group_values in _task_groups(task, model, names):
        inside = [weight for weight in weights if names[id(weight)] in chosen]
        outside = [weight for weight in weights if names[id(weight)] not in chosen]
        if inside:
            if sphere is not None:
                with torch.no_grad():
                    for weight in inside:
                        weight.copy_(sphere.normalize(weight))
            groups.append({"params": inside, **_settings(bound, group_values)})
        if outside:
            assert other_recipe is not None
            groups.append(
                {
                    "params": outside,
                    "recipe": other_recipe.recipe,
                    **_settings(other_recipe, group_values),
                }
            )
    # Each group sets all numbers; the optimizer warns of an argument that differs from all of them.
    first_group = next((group for group in groups if "recipe" not in group), {})
    arguments = {name: first_group.get(name, x) for name, x in bound.hyper_parameters.items()}
    optimizer = torch_optimizer(bound.recipe)(groups, **arguments)
    for group in optimizer.param_groups:
        if "max_lr" in group and group["max_lr"] is None:  # no schedule exceeds 1
            group["max_lr"] = group["lr"]
    # By name: the bits of a run depend on the path, and none is left to what a build does later.
    backend = name_backend(optimizer)
    for group in optimizer.param_groups:
        group["backend"] = backend
    return optimizer


def name_backend(optimizer: RecipeOptimizer) -> str:
    """Return the name of the executor: "compiled" if kernels take all weights here, else "rule"."""
    kernels = {"C++ kernel", "batched"}
    return "compiled" if all(line.path in kernels for line in explain(optimizer)) else "rule"


def _task_groups(
    task: Task, model: nn.Module, names: Mapping[int, str]
) -> Iterator[tuple[list[Tensor], dict[str, Any]]]:
    """Weights with their own hyper-parameters; all that are in no group of the task come first."""
    groups = []
    used: set[int] = set()
    for group in task.parameter_groups(model):
        weights = list(group["params"])
        for weight in weights:
            if id(weight) not in names:
                raise ValueError("parameter_groups has a weight that is not the model's")
            if id(weight) in used:
                raise ValueError(f"parameter_groups has the weight {names[id(weight)]!r} twice")
            used.add(id(weight))
        groups.append((weights, {name: x for name, x in group.items() if name != "params"}))
    yield [weight for weight in model.parameters() if id(weight) not in used], {}
    yield from groups


def _settings(bound: Bound, group_values: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of a recipe in a group: the recipe's, and the group's that it has."""
    used = {name: value for name, value in group_values.items() if name in bound.defaults}
    settings = {**bound.hyper_parameters, **used}
    if "lr_factor" in group_values and "lr" in settings:
        settings["lr"] = group_values["lr_factor"] * settings["lr"]
    return settings


def _is_training(module: nn.Module) -> bool:
    """Return True if a module and all of its parts are in training mode.

    To ask costs a tenth of `module.train()`, which sets an attribute of each part.
    """
    parts = module._modules.values()  # (`children` builds a set at each call)
    return module.training and all(part is None or _is_training(part) for part in parts)


def _new_model(task: Task) -> nn.Module:
    """Return a model whose weights no run of this process has had.

    Raises:
        ValueError: they are those of an earlier run, which has trained them.
    """
    model = task.model()
    for name, weight in model.named_parameters():
        if getattr(weight, "_of_a_run", False) and weight.requires_grad:
            raise ValueError(
                f"{describe_source(type(task), 'model')} returns the same {name!r} on each call: "
                "a run would go on from the last one's; make a new module"
            )
        weight._of_a_run = True  # type: ignore[attr-defined]
    return model


def _load_model(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load weights and buffers; a buffer may have grown since the model was made."""
    state = module.state_dict()
    module.load_state_dict({name: tensors[name] for name in state})
    device = next(module.parameters()).device
    for name in tensors.keys() - state.keys():
        owner, _, name_in_owner = name.rpartition(".")
        setattr(module.get_submodule(owner), name_in_owner, tensors[name].to(device))


def _load_states(
    module: nn.Module, optimizer: RecipeOptimizer, states: Mapping[str, Mapping[str, Tensor]]
) -> None:
    """Load the optimizer's states by the names of their weights."""
    names = {weight: name for name, weight in module.named_parameters()}
    for group in optimizer.param_groups:
        rule = optimizer.rule_of(group)
        for weight in group["params"]:
            saved = states.get(names[weight], {})
            fresh = rule.init(weight.detach()) if saved else {}
            if saved:
                optimizer.state[weight] = {
                    name: value.to(fresh[name].device) for name, value in saved.items()
                }


SECONDS_BETWEEN = 1.0
"""Two writings of the progress."""

MOST_SCALARS = 20
"""TensorBoard takes 50 microseconds for a number, so it gets only a few."""


def train(
    run: Run, task: Task, runner: Runner, ranks: Ranks
) -> tuple[list[tuple[str, Spec, dict[str, Any]]], list[str], dict[str, str]]:
    """Bring a run to its end; its folder then has the records and the last checkpoint.

    Returns:
        Its name, spec and summary as one row; the names of its code; the executor of its steps.
    """
    training = Training(run, task, ranks, runner.workers)
    loop = _Loop(run, training, runner)
    try:
        loop.go()
    finally:
        if loop.live is not None:
            loop.live.close()
    row = run.name, run.spec, _summary(training, loop)
    return [row], loop.code, {"executor": training.backend}


class _Loop:
    """The steps of a run, with its records, checkpoints and progress."""

    def __init__(self, run: Run, training: Training, runner: Runner) -> None:
        self.run, self.training, self.ranks = run, training, training.ranks
        self.every = runner.checkpoint_seconds
        self.start_norm = training.watched.mean_norm(training.module)
        self.diverged_at: int | None = None
        self.score_name: str | None = None
        self.code: list[str] = []
        self.done = self._resume()
        self.pending: list[dict[str, Any]] = []
        self.live: _Live | None = None
        if self.ranks.first:
            events = run.store.root / "tensorboard" / run.name if runner.tensorboard else None
            self.live = _Live(run.folder.path, run.steps, self.done, events)

    def go(self) -> None:
        """Step until the end, or until the run has diverged."""
        last_checkpoint = time.monotonic()
        while self.done < self.run.steps and self.diverged_at is None:
            waited = time.monotonic() - last_checkpoint
            # Rank 0's clock decides for all, on the way of the loss.
            due = float(self.ranks.first and waited >= self.every)
            record, (due,) = self.training.step(self.done, due)
            if record is not None and (self.done + 1) % self.run.steps_per_epoch == 0:
                metrics = score(self.training, self.run.splits.validation)
                self.score_name = next(iter(metrics), None)
                record["validation"] = next(iter(metrics.values()), math.nan)
                record |= {f"validation/{name}": metrics[name] for name in list(metrics)[1:]}
            last = self.done + 1 == self.run.steps
            finite = record is not None and all(map(is_finite, record.values()))
            if record is None or not finite or (last and not self.training.survived()):
                self.diverged_at = self.done
                break
            self.done += 1
            self.pending.append(record)
            if self.live is not None:
                self.live.tell(record)
            if due:
                self.checkpoint()
                last_checkpoint = time.monotonic()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Write what there is, so that a run that is killed now loses nothing."""
        state = self.training.state()
        if self.ranks.first:
            length = self.run.folder.append(self.pending)
            position = {
                "done": self.done,
                "diverged_at": self.diverged_at,
                "score": self.score_name,
                "code": self.code,
                "records": length,
            }
            self.run.folder.save_checkpoint({**state, **position})
        self.pending.clear()
        self.ranks.wait()

    def _resume(self) -> int:
        """Load the last checkpoint, if its code counts; how many steps are done."""
        folder, store, checkpoint = self.run.folder, self.run.store, None
        if self.ranks.first:
            checkpoint = folder.load_checkpoint()
            if checkpoint is None or not store.is_accepted(checkpoint["code"]):
                checkpoint = None
                folder.clear()
            else:
                folder.rewind(checkpoint["records"])
            self.code = [
                *dict.fromkeys([*(checkpoint["code"] if checkpoint else ()), store.write_code()])
            ]
        checkpoint = self.ranks.broadcast(checkpoint)
        if checkpoint is None:
            return 0
        self.training.restore(checkpoint)
        self.diverged_at, self.score_name = checkpoint["diverged_at"], checkpoint.get("score")
        return int(checkpoint["done"])


class _Live:
    """The progress of one run, told while it trains: one small file, and TensorBoard.

    Args:
        folder: the run's; `progress.json` in it has step, steps, rate, remaining, last values.
        steps: of the whole run.
        steps_done: before this process began.
        events: the folder of TensorBoard's event files; None writes none.
    """

    def __init__(self, folder: Path, steps: int, steps_done: int, events: Path | None) -> None:
        self.path, self.steps, self.first = folder / "progress.json", steps, steps_done
        self.started = self.last_written = time.monotonic()
        self.validation: dict[str, float] = {}
        self.writer: Any = None
        if events is not None:
            board = require_extra("torch.utils.tensorboard", "--tensorboard")
            # What a run that was killed wrote after its last checkpoint is written again.
            self.writer = board.SummaryWriter(str(events), purge_step=steps_done + 1)

    def tell(self, record: Mapping[str, Any]) -> None:
        """Take in the record of a step."""
        now, steps_done = time.monotonic(), record["step"]
        if "validation" in record:
            self.validation = {"validation": record["validation"]}
        if self.writer is not None:
            for name, value in _scalars(record).items():
                self.writer.add_scalar(name, value, steps_done)
        if now - self.last_written < SECONDS_BETWEEN:
            return
        self.last_written = now
        rate = (steps_done - self.first) / (now - self.started)
        content = {
            "step": steps_done,
            "steps": self.steps,
            "rate": rate,
            "remaining": (self.steps - steps_done) / rate,
            "last": {**_scalars(record), **self.validation},
            "updated": time.time(),
        }
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):  # it only informs: a full disk stops a run where it matters
            partial.write_text(json.dumps(content), encoding="utf-8")
            os.replace(partial, self.path)

    def close(self) -> None:
        """The run has ended or stopped; what it is then is in its status."""
        self.path.unlink(missing_ok=True)
        if self.writer is not None:
            self.writer.close()


def _scalars(record: Mapping[str, Any]) -> dict[str, float]:
    numbers = {name: x for name, x in record.items() if isinstance(x, int | float)}
    numbers.pop("step")
    return dict(list(numbers.items())[:MOST_SCALARS])


def _summary(training: Training, loop: _Loop) -> dict[str, Any]:
    run, watched, survived = training.run, training.watched, loop.diverged_at is None
    summary: dict[str, Any] = {
        "diverged_at": loop.diverged_at,
        "steps": loop.done,
        "steps_per_epoch": run.steps_per_epoch,
        "views": dict(watched.views),
        "shapes": dict(watched.shapes),
        "invariant_share": watched.invariant_share,
    }
    for name in ("validation", "test"):
        metrics = score(training, getattr(run.splits, name)) if survived else {}
        # JSON has no number for an infinite perplexity.
        finite = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        summary |= {name: next(iter(finite.values()), None), f"{name}_metrics": finite}
    # By its name: a file has the metrics in the order of theirs.
    summary["score"] = next(iter(summary["test_metrics"]), loop.score_name)
    summary["metric"] = training.task.metric or summary["score"]
    if better_of(training.task, summary["score"]) == "lower":
        summary["better"] = "lower"
    if training.ranks.distributed:
        summary["processes"] = training.ranks.world
    if not training.ranks.first:
        return summary
    return summary | _norms(run.folder, run.steps_per_epoch, loop.start_norm)


def _norms(folder: RunFolder, per_epoch: int, start: float | None) -> dict[str, Any]:
    """Numbers of the probe `norms` over the whole run.

    Between two probed steps the effective step counts as that of the later one.
    """
    records = folder.records(("step", "norm", "effective_step"))
    probed = [record for record in records if "norm" in record]
    if not probed:
        return {}
    steps = [0, *(record["step"] for record in probed)]
    path = (
        record["effective_step"] * (record["step"] - before)
        for before, record in zip(steps, probed, strict=False)
    )
    first_epoch = [record["norm"] for record in probed if record["step"] <= per_epoch]
    return {
        "norm_start": start,
        "norm_first_epoch": first_epoch[-1] if first_epoch else probed[0]["norm"],
        "norm_last": probed[-1]["norm"],
        "norm_max": max(record["norm"] for record in probed),
        "total_effective_step": math.fsum(path),
    }


def score(training: Training, split: Split) -> dict[str, float]:
    """Return the task's metrics on a split, alike for any number of ranks.

    None has a number if an output of the model is not finite: an accuracy, F1 or recall would be
    that of a model that works, since an argmax is then 0 and nothing is above a threshold.

    Raises:
        ValueError: one is not a number although all outputs of the model are finite: the run has
            not diverged, its task cannot compute the metric. Or `evaluate` returns no metrics, or
            others for one batch than for another.
    """
    ranks, module = training.ranks, training.module
    ranks.share(module.buffers())
    module.eval()
    with _watched_outputs(module) as finite, training.autocast():
        shares, own_states = _shares(training, split, finite)
        if ranks.totals([float(finite.count(False))]) != [0.0]:
            return dict.fromkeys(shares, math.nan)
        states = {
            number: state for part in ranks.gather(own_states) for number, state in part.items()
        }
        ordered = [states[number] for number in sorted(states)]  # as the data are
        metrics = {name: share.value([s[name] for s in ordered]) for name, share in shares.items()}
    nan_metrics = [name for name, value in metrics.items() if math.isnan(value)]
    if nan_metrics and training.survived():
        lack = f"task {training.spec.task!r}: the metric {nan_metrics[0]!r} is not a number"
        raise ValueError(f"{lack}, although all outputs of the model are finite")
    return metrics


def _shares(
    training: Training, split: Split, finite: Sequence[bool]
) -> tuple[dict[str, Statistic], dict[int, dict[str, Any]]]:
    """The last shares of this rank, and the states of all of them by the number of their batch."""
    shares: dict[str, Statistic] = {}
    states: dict[int, dict[str, Any]] = {}
    run, task, where = training.run, training.task, f"task {training.spec.task!r}"
    which = training.ranks, training.workers, training.device
    for number, counts, batch in evaluation_batches(split, run, task, *which):
        seed_everything(stream(run.spec.seed, "evaluation", number), training.device)
        before = shares
        try:
            with torch.no_grad():
                result = task.evaluate(training.module, batch)
        except Exception:
            if all(finite):
                raise
            continue  # a library's metric, say, that refuses what is not a number
        if not isinstance(result, Mapping):
            raise ValueError(
                f"{describe_source(type(task), 'evaluate')} must return the metrics by name, such "
                f'as {{"accuracy": Mean(...)}}, got a {type(result).__name__}'
            )
        shares = dict(result)
        for name, share in shares.items():
            if not isinstance(share, Statistic):
                requirement = f"evaluate: the metric {name!r} must be a Mean or Collected"
                raise ValueError(f"{where}: {requirement}, got {share!r}")
        if before and list(before) != list(shares):  # the first is the score
            names = f"{list(before)} of one batch and {list(shares)} of another"
            raise ValueError(f"{where}: the metrics are {names}; give all of each")
        if counts:
            states[number] = {name: share.state for name, share in shares.items()}
    if not shares and all(finite):
        raise ValueError(f"{where}: no metrics, or no items to evaluate")
    return shares, states


@contextmanager
def _watched_outputs(model: nn.Module) -> Iterator[list[bool]]:
    """Note of each call of the model if all that it returns is finite.

    Minus infinity counts as finite, unless there is nothing else: a mask fills logits with it.
    """
    are_finite: list[bool] = []

    def is_known(x: Tensor) -> bool:
        finite = x.isfinite()
        return bool((finite | x.isneginf()).all()) and (not x.numel() or bool(finite.any()))

    def note(_: nn.Module, __: object, output: object) -> None:
        tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        are_finite.append(all(is_known(x) for x in tensors if x.is_floating_point()))

    handle = model.register_forward_hook(note)
    try:
        yield are_finite
    finally:
        handle.remove()


def sweep_rows(job: Job, task: PureTask) -> list[tuple[str, Spec, dict[str, Any]]]:
    """Train every run and write the arrays; the name, the spec and the summary of each.

    It takes seconds, so it has no checkpoint.

    Args:
        job: every point with every seed, which are alike but for these.
    """
    keys = [json.dumps(dict(run.spec.hyper_parameters), sort_keys=True) for run in job.runs]
    points = {key: run.spec.hyper_parameters for key, run in zip(keys, job.runs, strict=True)}
    seeds = list(dict.fromkeys(run.spec.seed for run in job.runs))
    start, swept = _swept(job, task, list(points.values()), seeds)
    numbers, arrays = task.summarize(seeds, start, swept)
    ends, order, places, rows = _ends(swept), list(points), [], []
    for key, run in zip(keys, job.runs, strict=True):
        place = order.index(key), seeds.index(run.spec.seed)
        row_numbers = {name: float(x[place]) for name, x in numbers.items()}
        end = ends[place[0]][place[1]]
        finite = {
            n: x if end is None and math.isfinite(x) else None for n, x in row_numbers.items()
        }
        rows.append((run.name, run.spec, {"diverged_at": end, "steps": run.spec.epochs, **finite}))
        places.append(place)
    at = tuple(torch.tensor(column) for column in zip(*places, strict=True))
    buffer, stored = io.BytesIO(), {name: x.detach().cpu()[at] for name, x in arrays.items()}
    np.savez_compressed(buffer, **{n: x.numpy() for n, x in stored.items()})  # type: ignore[arg-type]
    write_file(job.folder.path / "arrays.npz", buffer.getvalue())
    return rows


def _swept(
    job: Job, task: PureTask, points: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> tuple[dict[str, Tensor], Sweep]:
    """Return the initial parameters, and all steps."""
    spec, factor = job.first.spec, SCHEDULES[job.first.spec.schedule]

    def stacked(trees: Sequence[Any]) -> Any:
        return tree_map(lambda *x: torch.stack(x).to(spec.device), *trees)

    starts = []
    for seed in seeds:  # each its own, also of a task that draws from the global random states
        seed_everything(stream(seed, "init"), spec.device)
        starts.append(task.start(seed))
    batches = [batch for batch in map(task.batches, seeds) if batch is not None]
    columns, fixed = _columns(job, points)
    if leaves_steps_to_run(job.first.bound):
        fixed["total_steps"] = spec.epochs
    start = stacked(starts)
    swept = sweep(
        job.first.bound.recipe,
        task.loss,
        start,
        {
            name: torch.tensor(values, dtype=torch.float64, device=spec.device)
            for name, values in columns.items()
        },
        steps=spec.epochs,
        batches=(lambda t: stacked([batch(t) for batch in batches])) if batches else None,
        schedule=None if spec.schedule == "constant" else lambda t: factor(t / spec.epochs),
        record=task.record,
        **fixed,
    )
    return start, swept


def _columns(
    job: Job, points: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return the hyper-parameters with a value per point, and those that all points share."""
    defaults, fixed = job.first.bound.defaults, dict[str, Any]()
    columns: dict[str, list[float]] = {}
    for name, value in points[0].items():
        values = [point[name] for point in points]
        if is_number(value) and (name == "lr" or any(x != value for x in values)):
            columns[name] = values
        else:
            fixed[name] = tuple(value) if isinstance(value, list) else value
    if "lr" in defaults and "lr" not in columns:  # a schedule needs it at every point
        columns["lr"] = [fixed.pop("lr", defaults["lr"])] * len(points)
    return columns, fixed


def _ends(swept: Sweep) -> list[list[int | None]]:
    """Return the step at which each run diverged, if it did, by point and seed.

    A run diverges at the first step whose loss is not finite, or at the last one if the norms of
    the weights then are not.
    """
    bad = ~swept.loss.isfinite()
    norms = (x.double().square().flatten(2).sum(-1) for x in swept.params.values())
    lost_at_end = ~torch.stack([norm.isfinite() for norm in norms]).all(dim=0)
    ends = torch.where(bad.any(dim=0), bad.int().argmax(dim=0), len(bad) - 1)
    diverged_at = torch.where(bad.any(dim=0) | lost_at_end, ends, -1)
    return [[step if step >= 0 else None for step in row] for row in diverged_at.tolist()]
