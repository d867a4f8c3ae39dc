"""`probe`: measurements of an optimizer's weights at every k-th step."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from spherenorm.optim import unwrap
from spherenorm.probes.measurement import Measurement, OfMeasurements, Sink
from spherenorm.probes.meter import Meter, meters_of
from spherenorm.probes.weights import (
    Views,
    arrangement,
    check_names,
    rules_of,
    watched_weights,
)
from spherenorm.views import as_view

_KEPT = "a probe could not hand over its block; it is kept, and handed over with the next one"

_TOGETHER = 16
"""Measured steps whose sums are kept, to make numbers of them together."""

_NONE: Mapping[str, Any] = MappingProxyType({})


class Probe:
    """Measures the weights of an optimizer at every k-th of its steps. Made by `probe`.

    Attributes:
        measurements: of all blocks so far; empty where `to` takes them.

    Example:
        >>> optimizer = torch.optim.SGD([torch.eye(2)], lr=0.1)
        >>> with probe(optimizer, every=2) as watch:
        ...     _ = [optimizer.step() for _ in range(4)]
        >>> [each.step for each in watch.measurements]
        [2, 4]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        to: Sink | None,
        names: Mapping[Tensor, str],
        views: Views,
        law: Callable[[Measurement], float] | None,
        block: int,
        units: bool,
    ) -> None:
        self.measurements: list[Measurement] = []
        self._to = Sink(self.measurements.extend) if to is None else to
        self._optimizer, self._every, self._block = optimizer, every, block
        self._names, self._views, self._law, self._units = names, views, law, units
        self._step, self._meters = 0, list[Meter]()
        self._laid_out: Hashable = None
        self._kept: list[Tensor] = []  # so that no other weight gets the identity of one of these
        self._measured: list[Measurement] = []  # and not yet handed over
        self._summed: list[int] = []  # steps of which the meters have sums
        self._count = 0  # of steps that are in no block yet
        self._waiting: list[tuple[list[int], Meter, tuple[Tensor, ...]]] = []
        check_names(optimizer, names, views)
        watched_weights(optimizer, rules_of(optimizer), names, views)  # called for its errors
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def flush(self) -> None:
        """Hand over what has been measured so far. This waits for the device.

        What `to` or `law` raises, this raises too; the measurements are kept for the next time.
        """
        with torch.no_grad():
            self._tabulate()
        waiting, self._waiting, self._count = self._waiting, [], 0
        found = [
            each
            for steps, meter, table in waiting
            for each in meter.read(steps, [x.cpu() for x in table])
        ]
        self._measured += [each for *_, each in sorted(found, key=lambda each: each[:2])]
        measured = list(self._measured)
        if self._law is not None:
            measured = [replace(each, predicted=float(self._law(each))) for each in measured]
        if measured:
            self._to(measured)
        self._measured.clear()

    def close(self) -> None:
        """Flush, and leave the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self.flush()
        self._to.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, int]:
        """The count of steps, for a checkpoint. What has been measured so far is handed over."""
        self.flush()
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Go on with the count of steps of a checkpoint.

        Raises:
            ValueError: the state_dict has no count.
        """
        if not isinstance(state_dict.get("step"), int):
            raise ValueError(f"a probe's state_dict has a step, got {dict(state_dict)!r}")
        self._tabulate()
        self._waiting, self._measured = [], []
        self._count, self._step = 0, state_dict["step"]

    @torch.no_grad()
    def _before(
        self, _: Any = None, args: tuple[Any, ...] = (), options: Mapping[str, Any] = _NONE
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if (self._step + 1) % self._every:
            return None
        self._lay_out()
        for meter in self._meters:
            meter.keep([self._optimizer.state.get(weight, {}) for weight in meter.weights])
        if not any(map(callable, (*args, *options.values()))):
            self._keep_gradients()
            return None
        named = {key: _followed(each, self._keep_gradients) for key, each in options.items()}
        return tuple(_followed(each, self._keep_gradients) for each in args), named

    def _keep_gradients(self) -> None:
        with torch.no_grad():
            for meter in self._meters:
                meter.keep_gradients()

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        self._step += 1
        if self._step % self._every:
            return
        for meter in self._meters:
            meter.sum()
        self._summed.append(self._step)
        if len(self._summed) >= _TOGETHER:
            self._tabulate()
        self._count += 1
        if self._count >= self._block:
            try:
                self.flush()
            except Exception as error:  # the step is done
                warnings.warn(f"{_KEPT}: {type(error).__name__}: {error}", stacklevel=2)

    def _tabulate(self) -> None:
        """Make numbers of the sums that the meters have."""
        if self._summed:
            self._waiting += [(self._summed, meter, meter.table()) for meter in self._meters]
            self._summed = []

    def _lay_out(self) -> None:
        """Make the meters, unless those of the last step serve."""
        rules = rules_of(self._optimizer)
        now = arrangement(self._optimizer, rules)
        if now == self._laid_out:
            return
        self._tabulate()
        watched = watched_weights(self._optimizer, rules, self._names, self._views)
        self._meters = meters_of(watched, self._units)
        self._kept = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._laid_out = now


def _followed(argument: Any, keep: Callable[[], None]) -> Any:
    """A closure that calls `keep` when it has made gradients; another argument as it is."""
    if not callable(argument):
        return argument

    @functools.wraps(argument)
    def closure() -> Any:
        loss = argument()
        keep()
        return loss

    return closure


def probe(
    optimizer: Any,
    every: int = 10,
    *,
    to: Sink | OfMeasurements | None = None,
    model: nn.Module | None = None,
    views: Views = None,
    law: Any = None,
    block: int | None = None,
    units: bool = False,
) -> Probe:
    """Measure the weights of `optimizer` at every k-th of its steps, whatever loop calls it.

    Every weight of two or more dimensions is measured (see `Measurement`): its norm, effective
    step, turn, cos(w, g), and the decision of the scale-invariance test. The test is the one in
    the optimizer's rule, or the paper's `ScaleInvarianceTest()` if it has none, as every optimizer
    outside of this library. Training does not change by a bit.

    The numbers stay on the device until a block is full. The gradients are those with which the
    optimizer steps: unscaled, clipped, accumulated. Steps skipped by GradScaler are not counted.
    Fused torch optimizers are called anyway: such a step is recorded with turn 0 and cosine nan.
    A closure that is called several times (LBFGS) leaves its last gradient, which is not at w: such
    cosines, and the test's decisions on them, say little.

    A measured step keeps a copy of the weights, which is the memory that a probe takes. Under
    `fully_shard` it gathers large weights one after another, and small ones of one shape together:
    every process must make a probe then.

    Args:
        optimizer: of torch, of this library, or any other with torch's step hooks; or a wrapper
            that holds one as `.optimizer`, as Accelerate's and Lightning's do.
        every: k; steps are counted from 1.
        to: takes a list of measurements when a block is full: a function, or a `Sink`: `Page`,
            `JSONLines`, `TensorBoard`, `WandB` or your own. None collects
            them in `Probe.measurements`. If it raises within a step, that is a warning, and it
            gets the block with the next one.
        model: gives the weights their names; those that `named_parameters()` gave an optimizer
            are known without.
        views: the view that is measured, for all weights, or by name (None leaves one out); by
            default that of the manifold, or else the first that is tested.
        law: has a `predict(measurement)`, or is a function of a measurement; what it returns
            is `Measurement.predicted`.
        block: measured steps that are handed over at once; None: as many as the sink says, which
            is 64, and 1 for a `Page`, which waits for the device at each of them.
        units: True gives each measurement its `units`, the numbers of every unit. Until a block
            is handed over they take 40 bytes per unit and measured step on the device, and 8 for
            each tested view.

    Raises:
        TypeError: this is no optimizer, or `to` no function.
        ValueError: `every` or `block` is not positive; a view does not fit a weight, or is of a
            name that neither the optimizer nor the model has; the model has no weight of the
            optimizer's.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> with probe(optimizer, every=1) as found:
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> round(found.measurements[0].turn, 4), found.measurements[0].invariant_view
        (0.0997, 'channel')
    """
    found = unwrap(optimizer)
    if not isinstance(found, Optimizer):
        raise TypeError(
            f"probe takes a torch optimizer, got {type(optimizer).__name__}; "
            "of a wrapper, pass the optimizer within (its .optimizer)"
        )
    optimizer = found
    if to is not None and not callable(to):
        sinks = "a function of a list of measurements, or a sink such as Page(path)"
        raise TypeError(f"to must be {sinks}, got {to!r}")
    sink = to if to is None or isinstance(to, Sink) else Sink(to)
    if block is None:
        block = (sink or Sink).block
    for argument, value in (("every", every), ("block", block)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument} must be a positive number of steps, got {value!r}")
    names: dict[Tensor, str] = (
        {} if model is None else {p: name for name, p in model.named_parameters()}
    )
    stepped = {p for group in optimizer.param_groups for p in group["params"]}
    if model is not None and stepped.isdisjoint(names):
        raise ValueError("model: none of its parameters is a weight of the optimizer")
    predict = law if law is None or callable(law) else law.predict
    if not (views is None or isinstance(views, Mapping)):
        views = as_view(views)
    return Probe(optimizer, every, sink, names, views, predict, block, units)
