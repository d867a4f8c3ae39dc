"""`Measurement`: one weight at one step; `Meter`: measures similar weights.

A meter computes measurements from the inner products of units, and of a matrix from products with
vectors. `find_weights` lists the weights of an optimizer that a probe measures, `make_meters` makes
a `Meter` for those of one shape, view and test, and for vectors of similar length.
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
from spherenorm.probes.kernel import load_products_kernel
from spherenorm.probes.products import (
    MAX_ENTRIES,
    PRODUCT_INDICES,
    Scratch,
    VectorProducts,
    largest_singular_values,
    matrices_of,
)
from spherenorm.rule import Rule, State
from spherenorm.rules import (
    AccumulatedInvarianceTest,
    InvarianceTest,
    Orthogonalize,
    ScaleInvarianceTest,
    UnitSums,
)
from spherenorm.rules.watch import WATCH_PREFIX
from spherenorm.support import did_you_mean
from spherenorm.torch_internals import copy_tensors, write_count
from spherenorm.views import View, ViewLike, as_view, replicate

LAYER = View(None)
N_UNIT_NUMBERS = 5
"""Numbers of a unit, from `norm_before` to `cosine`."""
BITS_OF_SIMILAR_LENGTHS = 3
"""Binary digits by which lengths of vectors in one meter may differ."""
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
    """A weight w at a step, which moves it by dw = w' - w to w'. A number may be nan.

    Attributes:
        step: number of steps of the optimizer so far, this one included.
        weight: name of the weight.
        view: the view that splits it into the units that are measured; "layer" for a vector.
        norm_before: |w| before the step; root mean square over the units, up to the cosine.
        norm: |w'|, after it.
        effective_step: |w'/|w'| - w/|w||.
        turn: the angle between w and w', in radians.
        cosine: cosine of w and the raw gradient; nan without a gradient.
        invariant: share of the weight's units that the test found scale-invariant.
        invariant_view: the view in which the test found them; None if it found none.
        predicted: the value that the law predicts; None without a law.
        units: the same quantities of each unit, if the probe was made with `units=True`.
        shape: the shape of the weight.
        grad_norm: |g| of the whole weight, as is what follows; nan without a gradient.
        relative_step: |dw| / |w|.
        update_rms: root mean square of the entries of dw.
        spectral_norm: largest singular value of the matrix w', computed from below by few products
            (`spherenorm.probes.products`); nan for a vector, and at steps that `spectra` of `probe`
            leaves out. The matrix is the weight's first dimension by all others; or the units of
            `Orthogonalize.view`, if the weight's rule has one: their root mean square.
        stable_rank: |w'|^2 / spectral_norm^2, between 1 and the rank; nan where |w'|^2 underflows
            or overflows.
        update_spectral_norm, update_stable_rank: the same of dw.
        lr: learning rate of the step: the `lr` of the weight's param_group, or the number of the
            recipe's own schedule of it; nan without one, or with several.
        watched: the numbers of the weight's `rules.Watch`, by "quantity" or "name_quantity".

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
    shape: tuple[int, ...] | None = None
    grad_norm: float = math.nan
    relative_step: float = math.nan
    update_rms: float = math.nan
    spectral_norm: float = math.nan
    stable_rank: float = math.nan
    update_spectral_norm: float = math.nan
    update_stable_rank: float = math.nan
    lr: float = math.nan
    watched: Mapping[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the entries by name for JSON; nan and infinities become None.

        `units`, if there are any, is a list of numbers for each name; so is `watched` a number.
        """
        names = [f.name for f in fields(self) if f.name not in ("units", "watched")]
        entries = {name: _finite_or_none(getattr(self, name)) for name in names}
        if self.watched:
            entries["watched"] = {k: _finite_or_none(x) for k, x in self.watched.items()}
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

    @property
    def matrix_view(self) -> View:
        """The view whose units are the matrices of a weight."""
        parts = self.rule.walk() if self.rule is not None else ()
        views = (part.view for part in parts if isinstance(part, Orthogonalize))
        return next(views, LAYER)

    @property
    def watched_keys(self) -> tuple[str, ...]:
        """The keys of the states that watches keep."""
        return () if self.rule is None else self.rule.optional_keys


@dataclass(frozen=True, eq=False)
class MeasuredWeight:
    """A weight that is measured.

    Attributes:
        weight: the parameter.
        name: its name in measurements.
        view: the view that splits it into the units that are measured.
        test: the test that decides which of its units are scale-invariant; None for a vector.
        index: its index among the measured weights.
        matrix_view: the view whose units are its matrices.
        watched_keys: the keys of the states that its watches keep.
        group: index of its param_group.
    """

    weight: Tensor
    name: str
    view: View
    test: InvarianceTest | None
    index: int
    matrix_view: View
    watched_keys: tuple[str, ...]
    group: int


def find_weights(
    optimizer: Optimizer,
    group_rules: Sequence[GroupRule],
    names: Mapping[Tensor, str],
    views: MeasuredViews,
) -> list[MeasuredWeight]:
    """Return the weights that the optimizer has now; those of no entries are left out.

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
        group_rule = group_rules[group_index]
        view = _find_view(views, name, group_rule, is_vector=weight.ndim < 2)
        if not weight.numel() or view is None or can_never_be_stepped(weight):
            continue
        if not weight.is_floating_point():
            raise TypeError(f"weight {name!r} must be real and floating-point, got {weight.dtype}")
        test = group_rule.test if weight.ndim >= 2 else None
        for used_view in (view, *(test.views if test is not None else ())):
            try:
                used_view.size(weight)
            except ValueError as error:
                raise ValueError(f"weight {name!r}: {error}") from error
        weights.append(
            MeasuredWeight(
                weight,
                name,
                view,
                test,
                len(weights),
                group_rule.matrix_view,
                group_rule.watched_keys,
                group_index,
            )
        )
    return weights


def layout_key(optimizer: Optimizer, group_rules: Sequence[GroupRule]) -> Hashable:
    """Return a value that changes when other weights are measured, or in another way.

    It tells weights apart by their id, so the weights must be kept alive as long as the value. A
    tensor among the hyper-parameters of a test may have changed in place, so that it makes a new
    value each time.
    """
    key: list[Hashable] = []
    for group, group_rule in zip(optimizer.param_groups, group_rules, strict=True):
        test = group_rule.test
        settings = [getattr(test, test_field.name) for test_field in fields(test)]
        settings = [object() if isinstance(x, Tensor) else x for x in settings]
        settings += [sphere_of(group_rule.rule), group_rule.matrix_view, group_rule.watched_keys]
        key.append((type(test), *settings, *group.get("param_names", ())))
        weights = group["params"]
        key += [*map(id, weights), *map(Tensor.size, weights)]
        key += [(p.dtype, p.device) for p in weights]
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


def group_rules_of(optimizer: Optimizer, previous: Sequence[GroupRule] = ()) -> list[GroupRule]:
    """Return the rule and the test of each group; those of `previous` where the rule is the same.

    To walk through a rule takes longer than to measure a small weight.
    """
    if not isinstance(optimizer, RecipeOptimizer):
        return [GroupRule(None, ScaleInvarianceTest())] * len(optimizer.param_groups)
    rules = [optimizer.rule_of(group) for group in optimizer.param_groups]
    by_id = {id(x.rule): x for x in previous}
    return [by_id.get(id(rule)) or GroupRule(rule, _find_test(rule)) for rule in rules]


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
    views: MeasuredViews, name: str, group_rule: GroupRule, is_vector: bool
) -> View | None:
    """Return the view that is measured; None if the weight is left out.

    It is the user's view, or else that of the manifold, or else the first that is tested. A vector
    is one unit.

    Raises:
        ValueError: the user names another view of a vector.
    """
    view: ViewLike | None
    if isinstance(views, Mapping) and name in views:
        view = views[name]
        if view is None:
            return None
        if is_vector and as_view(view) != LAYER:
            raise ValueError(
                f'weight {name!r} is a vector, which is measured as a whole; its view is "layer", '
                f"got {view!r}"
            )
        return as_view(view)
    if is_vector:
        return LAYER
    if views is not None and not isinstance(views, Mapping):
        return as_view(views)
    sphere = sphere_of(group_rule.rule)
    if sphere is not None:
        return as_view(sphere.view)
    return as_view(group_rule.test.views[0]) if group_rule.test.views else View()


class Meter:
    """Measures weights of one shape, view and test, or vectors, without waiting for the device.

    A measured step costs a copy of the weights, a pass over w, w' and g (or one batch of matrix
    products), and for matrices a few products with vectors. `make_table` computes the numbers of
    several steps together, and `read_table` makes measurements of them on the host.

    Args:
        measured: the weights.
        by_unit: whether to report each unit, too.
        spectra: whether to compute singular values of matrices.
        scratch: memory for products.

    Attributes:
        weights: the parameters.
        has_spectra: whether singular values are computed of them.
        reads_states: whether it reads their states in the optimizer.
    """

    def __init__(
        self, measured: Sequence[MeasuredWeight], by_unit: bool, spectra: bool, scratch: Scratch
    ) -> None:
        self.weights = [x.weight for x in measured]
        self._measured = measured
        self._shapes = [tuple(weight.shape) for weight in self.weights]  # before a `.data =`
        self._by_unit = by_unit
        self._scratch = scratch
        self._view = measured[0].view
        self._test = measured[0].test
        self._matrix_view = measured[0].matrix_view
        self._watched_keys = measured[0].watched_keys
        weight = self.weights[0]
        are_vectors = weight.ndim < 2
        self._kernel = load_products_kernel(weight)
        self._vector_products = VectorProducts(self.weights) if are_vectors else None
        self.has_spectra = spectra and not are_vectors
        has_test_state = self._test is not None and bool(self._test.state_names)
        self.reads_states = has_test_state or bool(self._watched_keys)
        self._tested_views: Sequence[View] = () if self._test is None else self._test.views
        views = list(dict.fromkeys((self._view, *self._tested_views, LAYER)))
        any_weight = torch.empty(weight.shape, device="meta")
        if self.has_spectra and len(matrices_of(any_weight, self._matrix_view)) > 1:
            views = list(dict.fromkeys((*views, self._matrix_view)))
        self._unit_sizes = {view: view.size(weight) for view in views}
        self._n_units = {view: weight.numel() // self._unit_sizes[view] for view in views}
        # The sum over a whole weight can be taken along any dimension that another view needs.
        dims = [view.dim % weight.ndim for view in views if view.dim is not None]
        layer_dim = dims[0] if dims else 0
        self._dims = {
            view: layer_dim if view.dim is None else view.dim % weight.ndim for view in views
        }
        self._weights_before = [
            torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in self.weights
        ]
        # For each weight (its .grad, the version of that tensor, the gradient or a copy of it).
        self._gradients: list[tuple[Tensor, int, Tensor] | None] = [None] * len(measured)
        self._copies_gradient = [True] * len(measured)
        self._states_before: list[State] = []
        self._rates_before: list[float | Tensor] = []
        # For each measured step, the inner products at each index of a dimension.
        self._products: list[dict[int, Tensor]] = []
        # For each measured step the bidiagonals of w' and dw, and the numbers of the watches.
        self._bidiagonals: list[Tensor | None] = []
        self._watched: list[Tensor] = []
        # For each measured step and weight, whether its gradient is known.
        self._has_gradient: list[bool] = []
        # For each measured step and weight, its learning rate.
        self._rates: list[float | Tensor] = []
        # For each measured step and weight, the state of its test before the step.
        self._states: list[State] = []

    def save_before_step(
        self, states: Sequence[State], rates_of_groups: Sequence[float | Tensor]
    ) -> None:
        """Save what the step is about to change: the weights, and the states of their test.

        Args:
            states: the state of each weight in the optimizer.
            rates_of_groups: the learning rate of each param_group, from `learning_rates_of`.
        """
        self._rates_before = [rates_of_groups[x.group] for x in self._measured]
        copy_tensors(self._weights_before, [to_full_dense(weight) for weight in self.weights])
        self._states_before = []
        if self._test is None or not self._test.state_names:
            return
        names = self._test.state_names
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

    def measure_step(self, states: Sequence[State]) -> None:
        """Compute the inner products of the step that has been taken.

        Args:
            states: the state of each weight in the optimizer, after the step.
        """
        before = self._weights_before
        after = [to_full_dense(weight) for weight in self.weights]
        has_stepped = [saved is not None for saved in self._gradients]
        grads = [self._take_gradient(i, x) for i, x in enumerate(after)]
        self._states += self._states_before
        self._rates += self._rates_before
        if self._watched_keys:
            # The state of a weight that is not stepped has the numbers of an earlier step.
            pairs = zip(states, has_stepped, strict=True)
            stepped_states = [state if stepped else {} for state, stepped in pairs]
            self._watched.append(self._watched_numbers(stepped_states))
        self._products.append(
            {
                dim: self._inner_products(before, after, grads, dim)
                for dim in dict.fromkeys(self._dims.values())
            }
        )

    def _inner_products(
        self, before: Sequence[Tensor], after: Sequence[Tensor], grads: Sequence[Tensor], dim: int
    ) -> Tensor:
        """Return the products of w, d = w' - w and g at each index of `dim`; of whole vectors."""
        if self._kernel is not None and self._kernel.takes([*after, *grads]):
            any_dim = None if self._vector_products is not None else dim
            return self._kernel.inner_products(before, after, grads, any_dim)
        if self._vector_products is not None:
            return self._vector_products.inner_products(before, after, grads)
        return self._scratch.inner_products(before, after, grads, dim)

    def matrices(self) -> list[Tensor]:
        """Return the matrices of w' and dw of each weight, once `measure_step` has been called.

        They are in the dtype of the step. The copy of the weights becomes dw.
        """
        if not self.has_spectra:
            return []
        matrices = []
        for weight, old in zip(self.weights, self._weights_before, strict=True):
            dtype = compute_dtype(old.dtype)
            new = to_full_dense(weight).to(dtype)
            step = torch.sub(new, old.to(dtype), out=old if old.dtype is dtype else None)
            matrices += matrices_of(new, self._matrix_view) + matrices_of(step, self._matrix_view)
        return matrices

    def add_bidiagonals(self, bidiagonals: Tensor | None) -> None:
        """Keep the bidiagonals of `matrices`, or None at a step at which they are not computed."""
        if bidiagonals is not None:
            bidiagonals = torch.unflatten(bidiagonals, 0, (len(self.weights), 2, -1))
        self._bidiagonals.append(bidiagonals)

    def _watched_numbers(self, states: Sequence[State]) -> Tensor:
        """Return the numbers of watches, shape (weights, watches); nan where there is no state."""
        nan = torch.full((), torch.nan, device=self.weights[0].device)
        numbers = [
            to_full_dense(state[key]) if key in state else nan
            for state in states
            for key in self._watched_keys
        ]
        stacked = torch.stack([x.to(accumulation_dtype(x.device)) for x in numbers])
        return stacked.view(len(states), len(self._watched_keys))

    def _take_gradient(self, index: int, weight: Tensor) -> Tensor:
        """Return the saved gradient; zeros if there was none, or the step has overwritten it."""
        saved = self._gradients[index]
        self._gradients[index] = None
        self._has_gradient.append(False)
        if saved is None:
            return torch.zeros_like(weight)
        grad, version, saved_grad = saved
        was_written = write_count(grad) != version
        self._copies_gradient[index] = was_written
        if was_written and saved_grad is grad:
            return torch.zeros_like(weight)
        self._has_gradient[-1] = True
        return to_full_dense(saved_grad)

    def make_table(self) -> Table:
        """Return the numbers of the steps since the last table, for `read_table`."""
        states, self._states = self._states, []
        steps, self._products = self._products, []
        has_gradient, self._has_gradient = self._has_gradient, []
        rates, self._rates = self._rates, []
        bidiagonals, self._bidiagonals = self._bidiagonals, []
        watched, self._watched = self._watched, []
        products_at = {
            dim: torch.cat([step[dim] for step in steps]).permute(2, 3, 0, 1)[PRODUCT_INDICES]
            for dim in steps[0]
        }
        products = {  # for each view, of shape (5, steps * weights, units)
            view: view.sums_of_index_groups(products_at[dim]) for view, dim in self._dims.items()
        }
        numbers = _measure_units(products[self._view])
        flags = [flag.to(numbers.dtype) for flag in self._invariant_flags(products, states)]
        squares = numbers.square()
        # The cosine, which is last, is nan in a unit without a gradient.
        means = [*squares[:-1].mean(-1).sqrt(), squares[-1].nanmean(-1).sqrt()]
        ww, wd, _, dd, gg = products[LAYER].squeeze(-1)
        sizes = torch.tensor([math.prod(shape) for shape in self._shapes], dtype=ww.dtype)
        sizes = sizes.repeat(len(steps)).to(ww.device, non_blocking=True)
        whole = [gg.sqrt(), dd.sqrt() / ww.sqrt(), (dd / sizes).sqrt()]
        shares = [flag.mean(-1) for flag in flags]
        tensors = {"numbers": torch.stack([*means, *whole, *shares], 1)}
        spectra_steps = [i for i, x in enumerate(bidiagonals) if x is not None]
        if spectra_steps:
            view = self._matrix_view if self._matrix_view in products else LAYER
            by_step = torch.unflatten(products[view], 1, (len(steps), len(self.weights)))
            ww, wd, _, dd, _ = torch.cat([by_step[:, i] for i in spectra_steps], 1)
            squared_norms = torch.stack([ww + 2 * wd + dd, dd], 1)
            entries = torch.cat([x for x in bidiagonals if x is not None])
            tensors["spectra"] = torch.cat([squared_norms[..., None], entries], -1)
        if watched:
            tensors["watched"] = torch.cat(watched)
        if self._by_unit:
            tensors["units"] = numbers
            for i, (flag, view) in enumerate(zip(flags, self._tested_views, strict=True)):
                tensors[f"flags {i}"] = flag.expand(-1, self._n_units[view])
        return Table(tensors, has_gradient, rates, spectra_steps)

    def _invariant_flags(
        self, products: Mapping[View, Tensor], states: Sequence[State]
    ) -> Sequence[Tensor]:
        """Return which units the test finds scale-invariant, for each tested view.

        Each is of shape (steps * weights, units), or (..., 1) where units share one decision.
        """
        test = self._test
        if test is None or not test.views:
            return []
        dtype = compute_dtype(self._weights_before[0].dtype)
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
        self, steps: Sequence[int], table: Table
    ) -> Iterator[tuple[int, int, Measurement]]:
        """Yield (step, index of the weight, measurement) for the rows of a table on the host."""
        tensors = table.tensors
        views = self._tested_views
        rows = tensors["numbers"].tolist()
        n_weights = len(self._measured)
        spectra = [[math.nan] * 4] * len(rows)
        computed = _read_spectra(tensors["spectra"]) if table.spectra_steps else []
        for i, step_index in enumerate(table.spectra_steps):
            start = step_index * n_weights
            spectra[start : start + n_weights] = computed[i * n_weights : (i + 1) * n_weights]
        watched = tensors["watched"].tolist() if "watched" in tensors else [[]] * len(rows)
        labels = [key.replace(WATCH_PREFIX, "") for key in self._watched_keys]
        view_name, view_names = str(self._view), [str(view) for view in views]
        for row_index, row in enumerate(rows):
            step = steps[row_index // n_weights]
            measured = self._measured[row_index % n_weights]
            *unit_means, grad_norm, relative_step, update_rms = row[: N_UNIT_NUMBERS + 3]
            norm_before, norm, effective_step, turn, cosine = unit_means
            shares = row[N_UNIT_NUMBERS + 3 :]
            # Report the first view, in the test's order, in which it found invariant units.
            view_index = next((i for i, share in enumerate(shares) if share > 0), None)
            spectral_norm, stable_rank, *of_update = spectra[row_index]
            measurement = Measurement(
                step=step,
                weight=measured.name,
                view=view_name,
                norm_before=norm_before,
                norm=norm,
                effective_step=effective_step,
                turn=turn,
                cosine=cosine,
                invariant=0.0 if view_index is None else shares[view_index],
                invariant_view=None if view_index is None else view_names[view_index],
                shape=self._shapes[row_index % n_weights],
                grad_norm=grad_norm if table.has_gradient[row_index] else math.nan,
                relative_step=relative_step,
                update_rms=update_rms,
                spectral_norm=spectral_norm,
                stable_rank=stable_rank,
                update_spectral_norm=of_update[0],
                update_stable_rank=of_update[1],
                lr=float(table.rates[row_index]),
                watched=dict(zip(labels, watched[row_index], strict=True)),
            )
            if "units" in tensors:
                flags = torch.zeros(0, dtype=torch.bool)
                if view_index is not None:
                    flags = tensors[f"flags {view_index}"][row_index] > 0
                unit_values = [*tensors["units"][:, row_index].clone(), flags]
                measurement = replace(measurement, units=Units(*unit_values))
            yield step, measured.index, measurement


class Table(NamedTuple):
    """Numbers of several steps of the weights of a meter; a row is a step and a weight.

    Attributes:
        tensors: by name. "numbers", of shape (rows, numbers and shares of each test); "spectra",
            (rows of `spectra_steps`, 2, matrices, 1 + entries): of w' and of dw, |.|^2 and the
            bidiagonal; "watched", (rows, watches); with `by_unit` "units", (5, rows, units), and
            the "flags" of the units of each tested view, (rows, units).
        has_gradient: for each row, whether the gradient is known.
        rates: for each row, the learning rate.
        spectra_steps: the indices of the steps that have spectra.
    """

    tensors: dict[str, Tensor]
    has_gradient: list[bool]
    rates: list[float | Tensor]
    spectra_steps: list[int]

    def to_host(self) -> Table:
        """Return the table on the CPU."""
        return self._replace(tensors={name: x.cpu() for name, x in self.tensors.items()})


def _read_spectra(spectra: Tensor) -> list[list[float]]:
    """Return (spectral norm, stable rank) of w' and of dw for each row of a table."""
    squared_norms, bidiagonals = spectra[..., 0], spectra[..., 1:]
    values = largest_singular_values(bidiagonals)
    ranks = (squared_norms.sqrt() / values).square()
    # Squares that have underflowed or overflowed tell no rank.
    tiny = torch.finfo(squared_norms.dtype).tiny
    ranks = torch.where((squared_norms >= tiny) & squared_norms.isfinite(), ranks, torch.nan)
    # Root mean squares over the matrices of a weight; nan where all of them are 0.
    scale = values.amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    mean_values = scale[..., 0] * (values / scale).square().mean(-1).sqrt()
    numbers = torch.stack([mean_values, ranks.square().nanmean(-1).sqrt()], -1)
    rows: list[list[float]] = numbers.flatten(1).tolist()
    return rows


def make_meters(
    weights: Sequence[MeasuredWeight], by_unit: bool, spectra: bool = True
) -> list[Meter]:
    """Return meters for weights of one shape, view and test; large weights have one each.

    Vectors of similar length share a meter, in which all take the memory of the longest.
    """
    scratch = Scratch()
    similar: dict[tuple[object, ...], list[MeasuredWeight]] = {}
    for x in weights:
        weight = x.weight
        kind: object = (weight.shape, x.matrix_view)
        if weight.ndim < 2:
            kind = weight.numel().bit_length() // BITS_OF_SIMILAR_LENGTHS
        key = kind, weight.dtype, weight.device, x.view, id(x.test), x.watched_keys
        similar.setdefault(key, []).append(x)
    meters = []
    for batch in similar.values():
        size = max(x.weight.numel() for x in batch)
        n_at_once = max(1, MAX_ENTRIES["cuda"] // size)
        for start in range(0, len(batch), n_at_once):
            meters.append(Meter(batch[start : start + n_at_once], by_unit, spectra, scratch))
    return meters


def to_full_dense(x: Tensor) -> Tensor:
    """Return `x` without a graph, dense, and unsharded in each process."""
    x = x.detach()
    if type(x) is not Tensor and getattr(x, "device_mesh", None) is not None:
        x = replicate(x).to_local()  # type: ignore[attr-defined]
    return x.to_dense() if x.layout != torch.strided else x


def _measure_units(products: Tensor) -> Tensor:
    """Return the numbers of each unit, from `norm_before` to `cosine`.

    Args:
        products: result of `Scratch.inner_products`, shape (5, steps * weights, units).

    Returns:
        A tensor of the same shape.
    """
    ww, wd, wg, dd, gg = products
    norm_after, angle = norm_and_angle(ww, wd, dd)
    return torch.stack(
        [ww.sqrt(), norm_after, chord(angle), angle, cosine_from_products(wg, ww, gg)]
    )
