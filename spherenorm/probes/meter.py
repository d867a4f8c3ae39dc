"""`Measurement`: one weight at one step; `Meter`: measures similar weights.

A meter computes measurements from the inner products of units. `find_weights` lists the weights of
an optimizer that a probe measures, `make_meters` makes a `Meter` for those of one shape, view and
test.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from spherenorm.manifolds import sphere_of
from spherenorm.metrics import chord, cosine_from_products, norm_and_angle
from spherenorm.numerics import accumulation_dtype, can_never_be_stepped, compute_dtype
from spherenorm.optim import RecipeOptimizer
from spherenorm.rule import Rule, State
from spherenorm.rules import (
    AccumulatedInvarianceTest,
    InvarianceTest,
    ScaleInvarianceTest,
    UnitSums,
)
from spherenorm.support import did_you_mean
from spherenorm.torch_internals import copy_tensors, write_count
from spherenorm.views import View, ViewLike, as_view, replicate

MAX_ENTRIES = {"cpu": 2**17, "cuda": 2**21}
"""Entries that are summed at once, by device: few calls, and little memory; on a CPU, what its
caches hold."""

BATCHED_DECISIONS = ScaleInvarianceTest.decide, AccumulatedInvarianceTest.decide
"""The `decide` methods that take the units of several weights at once; others run under vmap."""

MeasuredViews = ViewLike | Mapping[str, ViewLike | None] | None
"""The view that is measured, for all weights or by name; see `probe`."""


@dataclass(frozen=True, eq=False)
class Units:
    """The units of a weight at a step, in the order of `View.units`; each of shape (units,).

    Attributes:
        norm_before, norm, effective_step, turn, cosine: the quantities of `Measurement` for each
            unit, in float64. The cosine is nan where the weight or the gradient is 0.
        invariant: True where the test found the unit scale-invariant. These are the units of
            `invariant_view`; there are none if that is None.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD([weight], lr=1.0)
        >>> with sn.probe(optimizer, every=1, units=True) as probe:
        ...     weight.grad = torch.tensor([[0.0, 1.0], [0.0, 0.5]])
        ...     optimizer.step()
        >>> probe.measurements[0].units.norm
        tensor([1.4142, 0.5000], dtype=torch.float64)
    """

    norm_before: Tensor
    norm: Tensor
    effective_step: Tensor
    turn: Tensor
    cosine: Tensor
    invariant: Tensor


@dataclass(frozen=True)
class Measurement:
    """A weight w at a step. A number is the root mean square over the weight's units, or nan.

    Attributes:
        step: number of steps of the optimizer so far, this one included.
        weight: name of the weight.
        view: the view that splits it into the units that are measured.
        norm_before: |w| before the step.
        norm: |w'|, after it.
        effective_step: |w'/|w'| - w/|w||.
        turn: the angle between w and w', in radians.
        cosine: cosine of w and the raw gradient; nan without a gradient.
        invariant: share of the weight's units that the test found scale-invariant.
        invariant_view: the view in which the test found them; None if it found none.
        predicted: the value that the law predicts; None without a law.
        units: the same quantities of each unit, if the probe was made with `units=True`.

    Example:
        >>> measurement = Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")
        >>> measurement.norm / measurement.norm_before, measurement.plain()["weight"]
        (1.5, 'a')
    """

    step: int
    weight: str
    view: str
    norm_before: float
    norm: float
    effective_step: float
    turn: float
    cosine: float
    invariant: float
    invariant_view: str | None
    predicted: float | None = None
    units: Units | None = field(default=None, compare=False, repr=False)

    def plain(self) -> dict[str, Any]:
        """Return the entries by name for JSON; nan and infinities become None.

        `units`, if there are any, is a list of numbers for each name.
        """
        names = [f.name for f in fields(self) if f.name != "units"]
        entries = {name: _finite_or_none(getattr(self, name)) for name in names}
        if self.units is None:
            return entries
        units = {f.name: getattr(self.units, f.name).tolist() for f in fields(Units)}
        return {
            **entries,
            "units": {name: [_finite_or_none(x) for x in values] for name, values in units.items()},
        }


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


SCALAR_NAMES = [f.name for f in fields(Measurement) if str(f.type).startswith("float")]
"""The entries of a measurement that are numbers, without the step and the units."""


class GroupRule(NamedTuple):
    """The rule of a param_group, if it has one, and its test; without a test, the paper's."""

    rule: Rule | None
    test: InvarianceTest


@dataclass(frozen=True, eq=False)
class MeasuredWeight:
    """A weight that is measured.

    Attributes:
        weight: the parameter.
        name: its name in measurements.
        view: the view that splits it into the units that are measured.
        test: the test that decides which of its units are scale-invariant.
        index: its index among the measured weights.
    """

    weight: Tensor
    name: str
    view: View
    test: InvarianceTest
    index: int


def find_weights(
    optimizer: Optimizer,
    group_rules: Sequence[GroupRule],
    names: Mapping[Tensor, str],
    views: MeasuredViews,
) -> list[MeasuredWeight]:
    """Return the weights of two or more dimensions that the optimizer has now.

    Args:
        optimizer: the optimizer.
        group_rules: the rule and test of each of its groups, from `group_rules_of`.
        names: names of the model's parameters.
        views: the view that is measured, for all weights or by name.

    Raises:
        TypeError: a weight is complex.
        ValueError: a view has no units in a weight.
    """
    weights: list[MeasuredWeight] = []
    for group_index, weight, name in _named_weights(optimizer, names):
        rule, test = group_rules[group_index]
        view = _find_view(views, name, rule, test)
        if weight.ndim < 2 or not weight.numel() or view is None or can_never_be_stepped(weight):
            continue
        if not weight.is_floating_point():
            raise TypeError(f"weight {name!r} must be real and floating-point, got {weight.dtype}")
        for used_view in (view, *test.views):
            try:
                used_view.size(weight)
            except ValueError as error:
                raise ValueError(f"weight {name!r}: {error}") from error
        weights.append(MeasuredWeight(weight, name, view, test, len(weights)))
    return weights


def layout_key(optimizer: Optimizer, group_rules: Sequence[GroupRule]) -> Hashable:
    """Return a value that changes when other weights are measured, or in another way.

    It tells weights apart by their id, so the weights must be kept alive as long as the value. A
    tensor among the hyper-parameters of a test may have changed in place, so that it makes a new
    value each time.
    """
    key: list[Hashable] = []
    for group, (rule, test) in zip(optimizer.param_groups, group_rules, strict=True):
        settings = [getattr(test, test_field.name) for test_field in fields(test)]
        settings = [object() if isinstance(x, Tensor) else x for x in settings]
        key.append((sphere_of(rule), type(test), *settings, *group.get("param_names", ())))
        key += [(id(p), p.shape, p.dtype, p.device) for p in group["params"]]
    return tuple(key)


def check_names(optimizer: Optimizer, names: Mapping[Tensor, str], views: MeasuredViews) -> None:
    """Refuse views of weights that neither the optimizer nor the model has.

    Raises:
        ValueError: a name is unknown.
    """
    if not isinstance(views, Mapping):
        return
    weight_names = [name for _, _, name in _named_weights(optimizer, names)]
    known_names = dict.fromkeys([*weight_names, *names.values()])
    for name in views:
        if name not in known_names:
            raise ValueError(
                f"views: no weight is named {name!r}; {did_you_mean(name, known_names)}"
            )


def group_rules_of(optimizer: Optimizer) -> list[GroupRule]:
    """Return the rule and the test of each group."""
    if not isinstance(optimizer, RecipeOptimizer):
        return [GroupRule(None, ScaleInvarianceTest())] * len(optimizer.param_groups)
    rules = [optimizer.rule_of(group) for group in optimizer.param_groups]
    return [GroupRule(rule, _find_test(rule)) for rule in rules]


def _find_test(rule: Rule) -> InvarianceTest:
    tests = (part for part in rule.walk() if isinstance(part, InvarianceTest))
    return next(tests, ScaleInvarianceTest())


def _named_weights(
    optimizer: Optimizer, names: Mapping[Tensor, str]
) -> Iterator[tuple[int, Tensor, str]]:
    """Yield (index of its group, weight, name) for each parameter of the optimizer.

    The name is the model's, or else the optimizer's, or else the index of the parameter.
    """
    index = 0
    for group_index, group in enumerate(optimizer.param_groups):
        group_names = group.get("param_names", [None] * len(group["params"]))
        for weight, name in zip(group["params"], group_names, strict=True):
            yield group_index, weight, names.get(weight) or name or str(index)
            index += 1


def _find_view(
    views: MeasuredViews, name: str, rule: Rule | None, test: InvarianceTest
) -> View | None:
    """Return the view that is measured; None if the weight is left out.

    It is the user's view, or else that of the manifold, or else the first that is tested.
    """
    if isinstance(views, Mapping):
        if name in views:
            view = views[name]
            return None if view is None else as_view(view)
    elif views is not None:
        return as_view(views)
    sphere = sphere_of(rule)
    if sphere is not None:
        return as_view(sphere.view)
    return as_view(test.views[0]) if test.views else View()


class Meter:
    """Measures weights of one shape, view and test without waiting for the device.

    A measured step costs a copy of the weights and one batch of matrix products. `make_table`
    computes the numbers of several steps together, and `read_table` makes measurements of them on
    the host.

    Args:
        measured: the weights.
        by_unit: whether to report each unit, too.

    Attributes:
        weights: the parameters.
    """

    def __init__(self, measured: Sequence[MeasuredWeight], by_unit: bool) -> None:
        self.weights = [x.weight for x in measured]
        self._measured = measured
        self._by_unit = by_unit
        self._view = measured[0].view
        self._test = measured[0].test
        weight = self.weights[0]
        views = list(dict.fromkeys((self._view, *self._test.views)))
        self._unit_sizes = {view: view.size(weight) for view in views}
        self._n_units = {view: weight.numel() // self._unit_sizes[view] for view in views}
        # The sum over a whole weight can be taken along any dimension that another view needs.
        dims = [view.dim % weight.ndim for view in views if view.dim is not None]
        layer_dim = dims[0] if dims else 0
        self._dims = {
            view: layer_dim if view.dim is None else view.dim % weight.ndim for view in views
        }
        self._weights_before = torch.empty(
            len(measured), *weight.shape, dtype=weight.dtype, device=weight.device
        )
        # For each weight (its .grad, the version of that tensor, the gradient or a copy of it).
        self._gradients: list[tuple[Tensor, int, Tensor] | None] = [None] * len(measured)
        self._copies_gradient = [True] * len(measured)
        self._states_before: list[State] = []
        # For each measured step, the inner products at each index of a dimension.
        self._products: list[dict[int, Tensor]] = []
        # For each measured step and weight, the state of its test before the step.
        self._states: list[State] = []

    def save_before_step(self, states: Sequence[State]) -> None:
        """Save what the step is about to change: the weights, and the states of their test.

        Args:
            states: the state of each weight in the optimizer.
        """
        copy_tensors(
            self._weights_before.unbind(), [to_full_dense(weight) for weight in self.weights]
        )
        self._states_before = []
        names = self._test.state_names
        if not names:
            return
        for weight, state in zip(self.weights, states, strict=True):
            has_test_state = state.keys() >= set(names)
            test_state = state if has_test_state else self._test.init(weight)
            by_units = self._test.flatten_state_per_unit(test_state)
            self._states_before.append(
                {name: to_full_dense(by_units[name]).clone() for name in names}
            )

    def save_gradients(self) -> None:
        """Save the raw gradients, before the step or, with a closure, as soon as it makes them.

        A gradient is copied at the first step, and later only if the last step has written into it,
        as a step does that adds its weight decay to it.
        """
        for i, weight in enumerate(self.weights):
            grad = weight.grad
            self._gradients[i] = None
            if grad is not None:
                saved_grad = grad.clone() if self._copies_gradient[i] else grad
                self._gradients[i] = grad, write_count(grad), saved_grad

    def measure_step(self) -> None:
        """Compute the inner products of the step that has been taken."""
        before = self._weights_before.unbind()
        after = [to_full_dense(weight) for weight in self.weights]
        grads = [self._take_gradient(i, x) for i, x in enumerate(after)]
        dims = dict.fromkeys(self._dims.values())
        self._products.append({dim: _inner_products(before, after, grads, dim) for dim in dims})
        self._states += self._states_before

    def _take_gradient(self, index: int, weight: Tensor) -> Tensor:
        """Return the saved gradient; zeros if there was none, or the step has overwritten it."""
        saved = self._gradients[index]
        self._gradients[index] = None
        if saved is None:
            return torch.zeros_like(weight)
        grad, version, saved_grad = saved
        was_written = write_count(grad) != version
        self._copies_gradient[index] = was_written
        if was_written and saved_grad is grad:
            return torch.zeros_like(weight)
        return to_full_dense(saved_grad)

    def make_table(self) -> tuple[Tensor, ...]:
        """Return the numbers of the steps since the last table, for `read_table`.

        Returns:
            The root mean squares over units and the invariant shares, shape (steps * weights,
            numbers and tests); with `by_unit` also the numbers of units, (5, steps * weights,
            units), and the flags of each test, (steps * weights, units).
        """
        states, self._states = self._states, []
        steps, self._products = self._products, []
        products = {  # for each view, of shape (5, steps * weights, units)
            view: view.sums_of_index_groups(torch.cat([step[dim] for step in steps], 1))
            for view, dim in self._dims.items()
        }
        numbers = _measure_units(products[self._view])
        flags = [flag.to(numbers.dtype) for flag in self._invariant_flags(products, states)]
        squares = numbers.square()
        # The cosine, which is last, is nan in a unit without a gradient.
        means = [*squares[:-1].mean(-1).sqrt(), squares[-1].nanmean(-1).sqrt()]
        shares = [flag.mean(-1) for flag in flags]
        weight_table = torch.stack([*means, *shares], 1)
        if not self._by_unit:
            return (weight_table,)
        unit_flags = [
            flag.expand(-1, self._n_units[view])
            for flag, view in zip(flags, self._test.views, strict=True)
        ]
        return weight_table, numbers, *unit_flags

    def _invariant_flags(
        self, products: Mapping[View, Tensor], states: Sequence[State]
    ) -> Sequence[Tensor]:
        """Return which units the test finds scale-invariant, for each tested view.

        Each is of shape (steps * weights, units), or (..., 1) where units share one decision.
        """
        test = self._test
        if not test.views:
            return []
        dtype = compute_dtype(self._weights_before.dtype)
        sums_by_view = []
        for view in test.views:
            ww, _, wg, _, gg = products[view].to(dtype).unbind()
            sums_by_view.append(torch.stack([ww, gg, wg]))
        state = {name: torch.stack([x[name] for x in states]) for name in test.state_names}

        def decide(
            sums_by_view: Sequence[Tensor], state: State, over: int | None
        ) -> tuple[Tensor, ...]:
            unit_sums = [
                UnitSums(view, self._unit_sizes[view], self._n_units[view], *sums, unit_dim=over)
                for view, sums in zip(test.views, sums_by_view, strict=True)
            ]
            invariance, _ = test.decide(unit_sums, state)
            return tuple(flag if flag.ndim else flag[None] for flag in invariance.flags)

        if type(test).decide in BATCHED_DECISIONS:
            return decide(sums_by_view, state, 1)

        def decide_for_one_weight(
            sums_by_view: Sequence[Tensor], state: State
        ) -> tuple[Tensor, ...]:
            return decide(sums_by_view, state, None)

        flags: tuple[Tensor, ...] = torch.vmap(decide_for_one_weight, (1, 0))(sums_by_view, state)
        return flags

    def read_table(
        self, steps: Sequence[int], table: Sequence[Tensor]
    ) -> Iterator[tuple[int, int, Measurement]]:
        """Yield (step, index of the weight, measurement) for the rows of a table on the host."""
        weight_table, *unit_tables = table
        views = self._test.views
        rows = weight_table.tolist()
        for row_index, row in enumerate(rows):
            step = steps[row_index // len(self._measured)]
            measured = self._measured[row_index % len(self._measured)]
            norm_before, norm, effective_step, turn, cosine, *shares = row
            # Report the first view, in the test's order, in which it found invariant units.
            view_index = next((i for i, share in enumerate(shares) if share > 0), None)
            measurement = Measurement(
                step=step,
                weight=measured.name,
                view=str(self._view),
                norm_before=norm_before,
                norm=norm,
                effective_step=effective_step,
                turn=turn,
                cosine=cosine,
                invariant=0.0 if view_index is None else shares[view_index],
                invariant_view=None if view_index is None else str(views[view_index]),
            )
            if unit_tables:
                unit_numbers, *unit_flags = unit_tables
                flags = torch.zeros(0, dtype=torch.bool)
                if view_index is not None:
                    flags = unit_flags[view_index][row_index] > 0
                unit_values = [*unit_numbers[:, row_index].clone(), flags]
                measurement = replace(measurement, units=Units(*unit_values))
            yield step, measured.index, measurement


def make_meters(weights: Sequence[MeasuredWeight], by_unit: bool) -> list[Meter]:
    """Return meters for weights of one shape, view and test; large weights have one each."""
    similar: dict[tuple[object, ...], list[MeasuredWeight]] = {}
    for x in weights:
        key = x.weight.shape, x.weight.dtype, x.weight.device, x.view, id(x.test)
        similar.setdefault(key, []).append(x)
    meters = []
    for batch in similar.values():
        n_at_once = max(1, MAX_ENTRIES["cuda"] // batch[0].weight.numel())
        for start in range(0, len(batch), n_at_once):
            meters.append(Meter(batch[start : start + n_at_once], by_unit))
    return meters


def to_full_dense(x: Tensor) -> Tensor:
    """Return `x` without a graph, dense, and unsharded in each process."""
    x = x.detach()
    if type(x) is not Tensor and getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


def _inner_products(
    before: Sequence[Tensor], after: Sequence[Tensor], grads: Sequence[Tensor], dim: int
) -> Tensor:
    """Return <w, w>, <w, d>, <w, g>, <d, d> and <g, g> at each index of `dim`, with d = w' - w.

    They are computed in parts of little memory: some weights, or some rows of one.

    Returns:
        A tensor of shape (5, weights, indices).
    """
    max_entries = MAX_ENTRIES.get(before[0].device.type, MAX_ENTRIES["cuda"])
    size, length = before[0].numel(), before[0].shape[dim]
    n_weights = max(1, max_entries // size)
    n_rows = max(1, max_entries * length // size)
    vectors: list[Sequence[Tensor]] = [before, after, grads]
    if dim:
        vectors = [[x.movedim(dim, 0) for x in tensors] for tensors in vectors]
    products = []
    for start in range(0, len(before), n_weights):
        part = [tensors[start : start + n_weights] for tensors in vectors]
        if n_rows >= length:
            products.append(_inner_products_of_rows(*part))
            continue
        row_products = []
        for row in range(0, length, n_rows):
            rows = [[x[row : row + n_rows] for x in tensors] for tensors in part]
            row_products.append(_inner_products_of_rows(*rows))
        products.append(torch.cat(row_products, 2))
    return torch.cat(products, 1)


def _inner_products_of_rows(
    before: Sequence[Tensor], after: Sequence[Tensor], grads: Sequence[Tensor]
) -> Tensor:
    """Return the inner products of each row of a few weights, shape (5, weights, rows)."""
    n_weights, n_rows, device = len(before), len(before[0]), before[0].device
    vectors = torch.empty(
        (3, n_weights, *before[0].shape), dtype=accumulation_dtype(device), device=device
    )
    copy_tensors(vectors.flatten(0, 1).unbind(), [*before, *after, *grads])
    vectors[1].sub_(vectors[0])
    matrices = vectors.flatten(3).flatten(1, 2).transpose(0, 1)
    ww, wd, wg, _, dd, _, _, _, gg = torch.bmm(matrices, matrices.mT).flatten(1).unbind(1)
    return torch.stack([ww, wd, wg, dd, gg]).view(5, n_weights, n_rows)


def _measure_units(products: Tensor) -> Tensor:
    """Return the numbers of each unit, from `norm_before` to `cosine`.

    Args:
        products: result of `_inner_products`, shape (5, steps * weights, units).

    Returns:
        A tensor of the same shape.
    """
    ww, wd, wg, dd, gg = products
    norm_after, angle = norm_and_angle(ww, wd, dd)
    return torch.stack(
        [ww.sqrt(), norm_after, chord(angle), angle, cosine_from_products(wg, ww, gg)]
    )
