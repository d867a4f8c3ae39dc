"""`probe`: measurements of an optimizer's weights at every k-th step."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from spherenorm.numerics import compute_dtype
from spherenorm.optim import unwrap
from spherenorm.probes.meter import (
    GroupRule,
    MeasuredViews,
    Measurement,
    Meter,
    Table,
    check_names,
    find_weights,
    group_rules_of,
    layout_key,
    make_meters,
)
from spherenorm.probes.products import bidiagonalize
from spherenorm.probes.rates import learning_rates_of
from spherenorm.probes.sinks import MeasurementsFn, Sink
from spherenorm.rule import State
from spherenorm.views import as_view

STEPS_PER_TABLE = 16
"""Measured steps whose inner products are kept, to compute their numbers together."""

ENTRIES_OF_A_SMALL_NETWORK = 2**16
"""Entries of all matrices up to which each measured step has singular values."""
SPECTRA_EVERY = 8
"""Measured steps from one with singular values to the next, for larger networks."""

_NO_KWARGS: Mapping[str, Any] = MappingProxyType({})


class Probe:
    """A probe of an optimizer's weights at every k-th of its steps; made by `probe`.

    Attributes:
        measurements: the measurements of all blocks so far; empty if `to` takes them.

    Example:
        >>> optimizer = torch.optim.SGD([torch.eye(2)], lr=0.1)
        >>> with probe(optimizer, every=2) as watch:
        ...     _ = [optimizer.step() for _ in range(4)]
        >>> [measurement.step for measurement in watch.measurements]
        [2, 4]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        to: Sink | None,
        names: Mapping[Tensor, str],
        views: MeasuredViews,
        law: Any,
        block: int,
        units: bool,
        spectra: int | None,
    ) -> None:
        self.measurements: list[Measurement] = []
        self._optimizer = optimizer
        self._interval = every
        self._sink = Sink(self.measurements.extend) if to is None else to
        self._names = names
        self._views = views
        self._law = law
        # The laws of steps whose measurements are not handed over yet.
        self._law_at_step: dict[int, Any] = {}
        self._block_size = block
        self._by_unit = units
        self._spectra = spectra
        self._steps_to_spectra = 0
        self._step = 0
        self._steps_in_block = 0
        self._meters: list[Meter] = []
        self._group_rules: list[GroupRule] = []
        self._layout_key: Hashable = None
        # The weights of `_layout_key`, kept so that no other weight gets the id of one of them.
        self._kept_weights: list[Tensor] = []
        # A measured step passes through three stages: its inner products are in the meters, its
        # numbers are in a table on the device, its measurements are on the host.
        self._steps_in_meters: list[int] = []
        self._tables: list[tuple[list[int], Meter, Table]] = []
        self._pending: list[Measurement] = []
        check_names(optimizer, names, views)
        find_weights(optimizer, group_rules_of(optimizer), names, views)  # Raises its errors now.
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def flush(self) -> None:
        """Hand over what has been measured so far. This waits for the device.

        If `to` or `law` raises, this raises, too; the measurements are kept for the next time.
        """
        with torch.no_grad():
            self._make_tables()
        tables, self._tables = self._tables, []
        self._steps_in_block = 0
        rows: list[tuple[int, int, Measurement]] = []
        for steps, meter, table in tables:
            rows += meter.read_table(steps, table.to_host())
        rows.sort(key=lambda row: row[:2])  # by step, then by weight
        self._pending += [measurement for _, _, measurement in rows]
        measurements = list(self._pending)
        if self._law is not None:
            measurements = [replace(m, predicted=self._predict(m)) for m in measurements]
        if measurements:
            self._sink(measurements)
        self._pending.clear()
        self._law_at_step.clear()

    def _predict(self, measurement: Measurement) -> float:
        """Return the norm by the law, at the hyper-parameters of its step where the law has any."""
        law = self._law_at_step.get(measurement.step, self._law)
        return float(law(measurement) if callable(law) else law.predict(measurement))

    def close(self) -> None:
        """Hand over what has been measured, and remove the hooks from the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self.flush()
        self._sink.close()

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, int]:
        """Hand over what has been measured, and return the count of steps for a checkpoint."""
        self.flush()
        return {"step": self._step}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Continue with the count of steps of a checkpoint.

        Raises:
            ValueError: the state_dict has no count.
        """
        if not isinstance(state_dict.get("step"), int):
            raise ValueError(f"a probe's state_dict has a step, got {dict(state_dict)!r}")
        self._make_tables()
        self._tables = []
        self._pending = []
        self._law_at_step = {}
        self._steps_in_block = 0
        self._step = state_dict["step"]

    def _before_step(
        self, _: Any = None, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] = _NO_KWARGS
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Save weights and gradients; return the step's arguments with its closure wrapped."""
        if (self._step + 1) % self._interval:
            return None
        with torch.no_grad():
            return self._save_before_step(args, kwargs)

    def _save_before_step(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if hasattr(self._law, "snapshot"):
            self._law_at_step[self._step + 1] = self._law.snapshot()
        self._group_rules = group_rules_of(self._optimizer, self._group_rules)
        self._update_meters(self._group_rules)
        rates = learning_rates_of(self._optimizer, [x.rule for x in self._group_rules])
        for meter in self._meters:
            meter.save_before_step(self._states_of(meter), rates)
        if not any(map(callable, (*args, *kwargs.values()))):
            self._save_gradients()
            return None
        wrapped_args = tuple(_wrap_closure(arg, self._save_gradients) for arg in args)
        wrapped_kwargs = {
            name: _wrap_closure(arg, self._save_gradients) for name, arg in kwargs.items()
        }
        return wrapped_args, wrapped_kwargs

    def _states_of(self, meter: Meter) -> list[State]:
        if not meter.reads_states:
            return [{}] * len(meter.weights)
        return [self._optimizer.state.get(weight, {}) for weight in meter.weights]

    def _save_gradients(self) -> None:
        with torch.no_grad():
            for meter in self._meters:
                meter.save_gradients()

    def _after_step(self, *_: Any) -> None:
        """Measure the step if it is due, and hand over the block if it is full."""
        self._step += 1
        if self._step % self._interval == 0:
            with torch.no_grad():
                self._measure_step()

    def _measure_step(self) -> None:
        for meter in self._meters:
            meter.measure_step(self._states_of(meter))
        self._measure_spectra()
        self._steps_in_meters.append(self._step)
        if len(self._steps_in_meters) >= STEPS_PER_TABLE:
            self._make_tables()
        self._steps_in_block += 1
        if self._steps_in_block >= self._block_size:
            try:
                self.flush()
            except Exception as error:
                # The optimizer has stepped already, so an error would stop a training that works.
                warnings.warn(
                    "a probe could not hand over its block; it is kept, and handed over with the"
                    f" next one: {type(error).__name__}: {error}",
                    stacklevel=2,
                )

    def _measure_spectra(self) -> None:
        """Compute singular values of all matrices, if they are due at this measured step."""
        meters = [meter for meter in self._meters if meter.has_spectra]
        self._steps_to_spectra -= 1
        if self._steps_to_spectra > 0:
            for meter in meters:
                meter.add_bidiagonals(None)
            return
        n_entries = sum(weight.numel() for meter in meters for weight in meter.weights)
        is_small = n_entries <= ENTRIES_OF_A_SMALL_NETWORK
        self._steps_to_spectra = self._spectra or (1 if is_small else SPECTRA_EVERY)
        similar: dict[Hashable, list[Meter]] = {}
        for meter in meters:
            weight = meter.weights[0]
            similar.setdefault((weight.device, compute_dtype(weight.dtype)), []).append(meter)
        for batch in similar.values():
            bidiagonals = bidiagonalize([meter.matrices() for meter in batch])
            for meter, of_meter in zip(batch, bidiagonals, strict=True):
                meter.add_bidiagonals(of_meter)

    def _make_tables(self) -> None:
        """Compute the numbers of the steps whose inner products are in the meters."""
        if self._steps_in_meters:
            self._tables += [
                (self._steps_in_meters, meter, meter.make_table()) for meter in self._meters
            ]
            self._steps_in_meters = []

    def _update_meters(self, group_rules: Sequence[GroupRule]) -> None:
        """Make new meters if the weights or their tests have changed since the last step."""
        key = layout_key(self._optimizer, group_rules)
        if key == self._layout_key:
            return
        self._make_tables()
        weights = find_weights(self._optimizer, group_rules, self._names, self._views)
        self._meters = make_meters(weights, self._by_unit, self._spectra != 0)
        self._kept_weights = [p for group in self._optimizer.param_groups for p in group["params"]]
        self._layout_key = key


def _wrap_closure(argument: Any, after: Callable[[], None]) -> Any:
    """Return a closure that calls `after` once it has made gradients; other arguments as is."""
    if not callable(argument):
        return argument

    @functools.wraps(argument)
    def closure() -> Any:
        loss = argument()
        after()
        return loss

    return closure


def probe(
    optimizer: Any,
    every: int = 10,
    *,
    to: Sink | MeasurementsFn | None = None,
    model: nn.Module | None = None,
    views: MeasuredViews = None,
    law: Any = None,
    block: int | None = None,
    units: bool = False,
    spectra: int | None = None,
) -> Probe:
    """Measure the weights of `optimizer` at every k-th of its steps, whatever loop calls it.

    Every weight is measured (see `Measurement`): its norm, effective step, turn, cos(w, g), the
    norm of the gradient and the size of the step; if it has two or more dimensions, the largest
    singular value of it and of its step, and the decision of the scale-invariance test; and what
    the `rules.Watch` of its rule have measured. The test is the one in the optimizer's rule, or the
    paper's `ScaleInvarianceTest()` if it has none, as every optimizer outside of this library.
    Training does not change by a bit.

    The numbers stay on the device until a block is full. The gradients are those with which the
    optimizer steps: unscaled, clipped, accumulated. Steps skipped by GradScaler are not counted.
    Fused torch optimizers are called anyway: such a step is recorded with turn 0 and cosine nan.
    A closure that is called several times (LBFGS) leaves its last gradient, which is not at w: such
    cosines, and the test's decisions on them, say little.

    A measured step keeps a copy of the weights, which is the memory that a probe takes. Under
    `fully_shard` it gathers large weights one after another, and small ones of one shape together:
    every process must make a probe then.

    Args:
        optimizer: a torch optimizer, one of this library, or any other with torch's step hooks; or
            a wrapper that holds one as `.optimizer`, as Accelerate's and Lightning's do.
        every: k; steps are counted from 1.
        to: a function or a `Sink` that receives a list of measurements when a block is full:
            `Page`, `JSONLines`, `TensorBoard`, `WandB` or your own. None collects them in
            `Probe.measurements`. If it raises within a step, that is a warning, and it gets the
            block with the next one.
        model: gives the weights their names; names that `named_parameters()` gave an optimizer
            are known without it.
        views: the view that is measured, for all weights, or by name (None leaves one out); by
            default that of the manifold, or else the first that is tested. A vector is one unit.
        law: an object with a method `predict(measurement)`, or a function of a measurement; its
            result is `Measurement.predicted`. If it has a method `snapshot()`, that is called
            before each measured step, and the law that it returns predicts this step: a block is
            handed over later, when schedules have changed the hyper-parameters.
        block: number of measured steps that are handed over at once; None: as many as the sink
            says, which is 64, and 1 for a `Page`, which waits for the device at each of them.
        units: whether to give each measurement its `units`, the numbers of every unit. Until a
            block is handed over they take 40 bytes per unit and measured step on the device, and 8
            for each tested view.
        spectra: the number of measured steps from one with singular values to the next, the first
            being one; they are nan at the others. 0 leaves them out. By default 1 for up to 2^16
            entries of all matrices together, and 8 beyond, which bounds what they cost.

    Returns:
        The probe. Call its `close` after training, or use it in a `with` statement.

    Raises:
        TypeError: this is no optimizer, `to` no function, or `law` no law.
        ValueError: `every` or `block` is not positive; a view does not fit a weight, or is of a
            name that neither the optimizer nor the model has; the model has no weight of the
            optimizer's.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1)
        >>> with probe(optimizer, every=1) as watch:
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> round(watch.measurements[0].turn, 4), watch.measurements[0].invariant_view
        (0.0997, 'channel')
    """
    torch_optimizer = unwrap(optimizer)
    if not isinstance(torch_optimizer, Optimizer):
        raise TypeError(
            f"probe takes a torch optimizer, got {type(optimizer).__name__}; "
            "of a wrapper, pass the optimizer within (its .optimizer)"
        )
    if to is not None and not callable(to):
        raise TypeError(
            "to must be a function of a list of measurements, or a sink such as Page(path), got"
            f" {to!r}"
        )
    sink = to if to is None or isinstance(to, Sink) else Sink(to)
    if block is None:
        block = (sink or Sink).block
    for argument, value in (("every", every), ("block", block)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{argument} must be a positive number of steps, got {value!r}")
    if isinstance(spectra, bool) or not (spectra is None or isinstance(spectra, int)):
        raise TypeError(f"spectra must be a number of measured steps, got {spectra!r}")
    if spectra is not None and spectra < 0:
        raise ValueError(f"spectra must be a number of measured steps, or 0, got {spectra!r}")
    names: dict[Tensor, str] = {}
    if model is not None:
        names = {p: name for name, p in model.named_parameters()}
        weights = {p for group in torch_optimizer.param_groups for p in group["params"]}
        if weights.isdisjoint(names):
            raise ValueError("model: none of its parameters is a weight of the optimizer")
    if not (law is None or callable(law) or callable(getattr(law, "predict", None))):
        raise TypeError(
            "law must be a function of a measurement, or have a method predict(measurement), got "
            f"{law!r}"
        )
    if not (views is None or isinstance(views, Mapping)):
        views = as_view(views)
    return Probe(torch_optimizer, every, sink, names, views, law, block, units, spectra)
