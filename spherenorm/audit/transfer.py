"""Learning rates from a narrow base model to a wider one: `mup`, `spectral` and `turn`.

A policy gives each parameter a factor for its learning rate, from how its fan-in and fan-out grow
between the two models (`Growth`). Which dimensions are the fan-in is measured, see `Role.fan_in`.

The conditions (Yang, Simon and Bernstein 2023): every layer's output, and its change in a step,
have entries of the same size at every width. For a matrix with fan-in n and fan-out m that is

    |W|_2 ~ sqrt(m / n),    |dW|_2 ~ sqrt(m / n).

Weight decay is divided by the same factor, so that lr weight_decay stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from spherenorm.audit.roles import Role, Roles, roles
from spherenorm.registry import Bound
from spherenorm.rules import FixedNorm, FixedSpectralNorm
from spherenorm.support import columns

GrowthKind = Literal["hidden", "input", "output", "vector"]

_LONGEST_TRIAL_SIDE = 256
"""Longest side of the matrices on which a step is measured."""
_LONGEST_FIXED_SIDE = 1024
"""Longest side of these matrices along a dimension that does not grow."""
_SHORTEST_ROUNDED_SIDE = 8
"""Shortest side where no whole number divides all sides: rounding changes a ratio by 1/16."""
_TRIAL_STEPS = 3
"""The last of these steps is measured, since the first of some recipes is 0."""
_DISAGREEMENT = 1.4
"""Two measurements of a factor that lie farther apart than this ratio are a caveat."""
_EXPONENT_TOLERANCE = 0.2
"""Distance from 0, 1/2 or 1 at which the exponent of an initialization counts as unknown."""


@dataclass(frozen=True)
class Growth:
    """Growth of one parameter from the base model to the model.

    Attributes:
        name, role: name of the parameter, and its role in the model; see `roles`.
        shape, base_shape: shape of the parameter in the model and in the base.
        fan_in, fan_out: ratios of fan-in and fan-out, model over base; 1.0 where nothing grows.
        transposed: True if the fan-in is dimension 0, as in `x @ W`.
        caveat: why the ratios may be wrong; empty if they were measured.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    base_shape: tuple[int, ...]
    fan_in: float
    fan_out: float
    transposed: bool = False
    caveat: str = ""

    @property
    def kind(self) -> GrowthKind:
        """Which sides grow: "hidden" both, "input" the fan-out alone, "output" the fan-in alone."""
        if self.role == "vector":
            return "vector"
        if self.fan_in == 1:
            return "input"
        return "output" if self.fan_out == 1 else "hidden"

    def __str__(self) -> str:
        """Return "in x4, out x4", or nothing where nothing grows."""
        sides = (("in", self.fan_in), ("out", self.fan_out))
        return ", ".join(f"{side} x{ratio:g}" for side, ratio in sides if ratio != 1)


class Factor(NamedTuple):
    """The factor of a learning rate, the reason for it, and why it may be wrong, if so."""

    value: float
    reason: str
    caveat: str = ""


class Policy(Protocol):
    """A policy for `sn.param_groups(..., transfer=)`: a factor for each parameter."""

    def factor(self, growth: Growth, bound: Bound) -> Factor:
        """Return the factor by which the parameter's learning rate is multiplied."""


def growths(model: nn.Module, base: nn.Module, model_roles: Roles) -> list[Growth]:
    """Return how each parameter grows from `base` to `model`, in the model's order.

    Args:
        model: the wide model.
        base: the narrow model, whose parameters have the same names.
        model_roles: the roles of `model`.

    Raises:
        ValueError: the base has other parameters, or of other numbers of dimensions; or a parameter
            that grows is both an embedding and a head.
    """
    base_shapes = {name: tuple(weight.shape) for name, weight in base.named_parameters()}
    names = {role.name for role in model_roles}
    if names != base_shapes.keys():
        unmatched = sorted(names ^ base_shapes.keys())
        raise ValueError(f"base has other parameters than the model, such as {unmatched[0]!r}")
    return [_growth(role, base_shapes[role.name]) for role in model_roles]


def _growth(role: Role, base_shape: tuple[int, ...]) -> Growth:
    """Return the growth of one parameter.

    Raises:
        ValueError: the base's has another number of dimensions, or no one rate is right.
    """
    name, shape = role.name, role.shape
    if len(base_shape) != len(shape):
        raise ValueError(f"{name}: base has shape {base_shape}, the model {shape}")
    ratios = [length / base for length, base in zip(shape, base_shape, strict=True)]
    grows = any(ratio != 1 for ratio in ratios)
    if role.role == "tied" and grows:
        raise ValueError(
            f"{name} is an embedding and a head, whose rates grow differently: no one rate is"
            " right; untie them, or set its rate by overrides={name: {'lr': ...}}"
        )
    if role.role == "vector":
        return Growth(name, role.role, shape, base_shape, 1.0, math.prod(ratios))
    summed, caveat = role.fan_in, ""
    if summed is None:
        summed = tuple(range(1, len(shape)))
        unequal = len(set(ratios)) > 1
        if grows and (unequal or len(shape) != 2):
            caveat = "its fan-in was not seen, since a copy of it is multiplied"
    if role.role == "experts" and ratios[0] != 1:
        caveat = "the number of experts grows"
    fan_in = math.prod(ratios[dim] for dim in summed)
    not_summed = [dim for dim in range(len(shape)) if dim not in summed]
    if role.role == "experts":
        not_summed = [dim for dim in not_summed if dim != 0]
    fan_out = math.prod(ratios[dim] for dim in not_summed)
    return Growth(name, role.role, shape, base_shape, fan_in, fan_out, summed == (0,), caveat)


@dataclass(frozen=True)
class Mup:
    """The factors of muP, tabulated for Adam-like and SGD-like steps; see `mup`."""

    like: Literal["adam", "sgd"]

    def factor(self, growth: Growth, bound: Bound) -> Factor:
        """Return 1 / (fan-in) for hidden and output weights of Adam; see `mup` for the table."""
        kind, r_in, r_out = growth.kind, growth.fan_in, growth.fan_out
        if self.like == "adam":
            value = 1 / r_in if kind in ("hidden", "output") else 1.0
        else:
            value = {"hidden": r_out / r_in, "output": 1 / r_in}.get(kind, r_out)
        return Factor(value, f"muP for {self.like}, {kind}", growth.caveat)


def mup(like: Literal["adam", "sgd"]) -> Mup:
    """Return the policy of muP without multipliers in the forward pass, as a table.

    With r_in and r_out the ratios of fan-in and fan-out, the learning rate is multiplied by

    | | hidden | output | input, vector |
    |---|---|---|---|
    | "adam" | 1 / r_in | 1 / r_in | 1 |
    | "sgd" | r_out / r_in | 1 / r_in | r_out |

    A head's rate and start take over what muP's `MuReadout` does in the forward pass, so `start`
    belongs to it.

    Args:
        like: "adam" for steps whose size does not depend on the gradient's (Adam, AdamW, AdamP,
            Lion), "sgd" for steps that are proportional to it.

    Raises:
        ValueError: `like` is neither.

    Example:
        >>> make = lambda width: nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        >>> groups = sn.param_groups(
        ...     make(64), torch.randn(8, 4), "adamw", lr=0.01, base=make(16), transfer=mup("adam")
        ... )
        >>> [(x.name, x.factor) for x in groups.assignments if x.factor != 1]
        [('2.weight', 0.25)]

    Source: Yang et al. 2022 (Tensor Programs V), Tables 3 and 8.
    """
    if like not in ("adam", "sgd"):
        raise ValueError(f"mup: like must be 'adam' or 'sgd', got {like!r}")
    return Mup(like)


class _TrialShapes(NamedTuple):
    """Shapes on which a step is measured, in the place of the base's and the model's."""

    base: tuple[int, ...]
    model: tuple[int, ...]


class MeasuredPolicy:
    """A policy that measures the recipe's own step at the base's shape and at the model's."""

    def factor(self, growth: Growth, bound: Bound) -> Factor:
        """Return the measured factor; 1.0 where nothing has to be measured.

        Raises:
            ValueError: the step is proportional to the gradient.
        """
        # Entries of vectors and embeddings step alike at every width.
        if growth.kind == "vector" or growth.role == "embedding":
            reason = f"{growth.kind}: entries step alike at every width"
            return Factor(1.0, reason, growth.caveat)
        if growth.fan_in == growth.fan_out == 1:
            return Factor(1.0, "does not grow", growth.caveat)
        _refuse_proportional_steps(bound)
        return self.measure(growth, bound)

    def measure(self, growth: Growth, bound: Bound) -> Factor:
        """Return the factor of a matrix that grows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Spectral(MeasuredPolicy):
    """The factor that keeps |dW|_2 sqrt(fan-in / fan-out), measured; see `spectral`."""

    def measure(self, growth: Growth, bound: Bound) -> Factor:
        """Return the ratio of the sizes of a step at the base's shape and at the model's."""

        def size(step: Tensor, _: Tensor) -> float:
            matrix = _as_matrix(step, growth)
            fan_out, fan_in = matrix.shape
            return float(torch.linalg.matrix_norm(matrix, 2)) / math.sqrt(fan_out / fan_in)

        value = _ratio_of_sizes(growth, bound, size, rank_one=True, fresh=False)
        caveat = _measurement_caveat(growth)
        if _holds_norms(bound):
            turn = _ratio_of_sizes(growth, bound, _relative_length, rank_one=False, fresh=True)
            if not 1 / _DISAGREEMENT < value / turn < _DISAGREEMENT:
                caveat = caveat or (
                    f"its norm is held, and steps of full rank turn it alike at a factor of "
                    f"{turn:.3g}: which of both holds over a long run is open"
                )
        else:
            repeated = _ratio_of_sizes(growth, bound, size, rank_one=False, fresh=False)
            fresh = _ratio_of_sizes(growth, bound, size, rank_one=False, fresh=True)
            if not 1 / _DISAGREEMENT < repeated / fresh < _DISAGREEMENT:
                caveat = caveat or (
                    f"its step depends on earlier gradients: the factor is {repeated:.3g} for one "
                    f"gradient that repeats, and {fresh:.3g} for gradients that change"
                )
        return Factor(value, f"keeps the spectral norm of {bound.name}'s step, measured", caveat)


@dataclass(frozen=True)
class Turn(MeasuredPolicy):
    """The factor that keeps |dW| / |W|, measured; see `turn`."""

    def measure(self, growth: Growth, bound: Bound) -> Factor:
        """Return the ratio of the turns of a step at the base's shape and at the model's."""
        value = _ratio_of_sizes(growth, bound, _relative_length, rank_one=False, fresh=True)
        reason = f"keeps the turn per step of {bound.name}, measured"
        return Factor(value, reason, _measurement_caveat(growth))


def spectral() -> Spectral:
    """Return the policy that keeps the spectral norm of a step in proportion, for any recipe.

    The recipe's own rule steps a matrix of the base's shape, and one of the model's, on a gradient
    of rank one; the factor is the ratio of |dW|_2 sqrt(fan-in / fan-out). That is 1 / r_in for
    Adam, 1 for Muon, 1 / sqrt(r) for Muon scaled as AdamW's RMS. Where another measurement
    disagrees (a norm that is held, a step that depends on earlier gradients) the groups say
    "doubtful".

    Raises:
        ValueError: in `param_groups`, a recipe's step is proportional to the gradient.

    Example:
        >>> make = lambda width: nn.Sequential(
        ...     nn.Linear(4, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        ... )
        >>> groups = sn.param_groups(
        ...     make(64), torch.randn(8, 4), "muon+adamw", base=make(16), transfer=spectral()
        ... )
        >>> [(x.name, round(x.factor, 6)) for x in groups.assignments if len(x.shape) == 2]
        [('0.weight', 1.0), ('1.weight', 1.0), ('3.weight', 0.25)]

    Source: Yang, Simon and Bernstein 2023 (A spectral condition for feature learning),
    arXiv:2310.17813.
    """
    return Spectral()


def turn() -> Turn:
    """Return the policy that keeps |dW| / |W|, the angle by which a step turns a weight.

    It is for recipes that hold the norm of a weight, whose learning rate is that angle, and for
    runs in the equilibrium of growth and decay. The gradients of the measurement have full rank.

    Raises:
        ValueError: in `param_groups`, a recipe's step is proportional to the gradient.

    Example:
        >>> make = lambda width: nn.Sequential(
        ...     nn.Linear(4, width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        ... )
        >>> groups = sn.param_groups(
        ...     make(64), torch.randn(8, 4), "hyperball", base=make(16), transfer=turn()
        ... )
        >>> [round(x.factor, 1) for x in groups.assignments if x.name == "1.weight"]
        [1.0]

    Source: Wen et al. 2026 (Hyperball), arXiv:2606.16899, who find that this angle transfers.
    """
    return Turn()


def _holds_norms(bound: Bound) -> bool:
    return any(isinstance(rule, FixedNorm | FixedSpectralNorm) for rule in bound.rule.walk())


def _relative_length(step: Tensor, weight: Tensor) -> float:
    return float(step.norm() / weight.norm())


def _measurement_caveat(growth: Growth) -> str:
    """Say why the measured matrix is not that of the product; empty if it is."""
    shapes = growth.base_shape, growth.shape
    base, model = (shape[1:] if growth.role == "experts" else shape for shape in shapes)
    ratios = model[0] / base[0], math.prod(model[1:]) / math.prod(base[1:])
    expected = (
        (growth.fan_in, growth.fan_out) if growth.transposed else (growth.fan_out, growth.fan_in)
    )
    if growth.caveat or all(map(math.isclose, ratios, expected)):
        return growth.caveat
    return (
        "its step is measured on a matrix of dimension 0 by the others, which the product does not "
        "sum over; give its rate by name"
    )


def _as_matrix(step: Tensor, growth: Growth) -> Tensor:
    """Return a step as a matrix of fan-out by fan-in; of a stack, its first matrix."""
    if growth.role == "experts":
        step = step[0]
    matrix = step.reshape(step.shape[0], -1)
    return matrix.T if growth.transposed else matrix


def _trial_shapes(growth: Growth) -> _TrialShapes:
    """Return shapes of the same growth that are small enough to measure on.

    Dimensions that grow are divided by one number, which divides them exactly if there is one that
    leaves at least two entries. A dimension that does not grow, such as a vocabulary, is cut.
    """
    base, model = growth.base_shape, growth.shape
    growing = [i for i, (old, new) in enumerate(zip(base, model, strict=True)) if old != new]
    sides = [shape[i] for shape in (base, model) for i in growing]
    divisor = _divisor_of_sides(sides) if sides else 1

    def shrink(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(
            max(1, round(n / divisor)) if i in growing else min(n, _LONGEST_FIXED_SIDE)
            for i, n in enumerate(shape)
        )

    return _TrialShapes(shrink(base), shrink(model))


def _divisor_of_sides(sides: Sequence[int]) -> float:
    """Return a number by which sides are divided for a trial, without a change of their ratios."""
    longest, shortest = max(sides), min(sides)
    if longest <= _LONGEST_TRIAL_SIDE:
        return 1
    common = math.gcd(*sides)
    exact = [d for d in range(1, common + 1) if common % d == 0 and shortest >= 2 * d]
    short_enough = [d for d in exact if longest / d <= _LONGEST_TRIAL_SIDE]
    if short_enough:
        return short_enough[0]
    rounded = min(longest / _LONGEST_TRIAL_SIDE, shortest / _SHORTEST_ROUNDED_SIDE)
    return max([1, *exact[1:]]) if len(exact) > 1 else max(1, rounded)


def _ratio_of_sizes(
    growth: Growth,
    bound: Bound,
    size: Callable[[Tensor, Tensor], float],
    *,
    rank_one: bool,
    fresh: bool,
) -> float:
    """Return the size of a step at the base's shape over that at the model's.

    Args:
        growth: shapes of the parameter.
        bound: the recipe of the parameter.
        size: a function of the last step and of the weight before it.
        rank_one: whether gradients have rank one, or full rank.
        fresh: whether each step has a gradient of its own.
    """
    shapes = _trial_shapes(growth)
    sizes = []
    for shape in shapes:
        step, weight = _trial_step(_without_decay(bound), shape, rank_one, fresh, growth.transposed)
        sizes.append(size(step, weight))
    # eps and rounding differ between trials: more digits would put equal factors in other groups.
    return float(f"{sizes[0] / sizes[1]:.6g}")


def _without_decay(bound: Bound) -> Bound:
    """Return a recipe with a small rate and no decay, so that the step is the update alone."""
    changed = {"lr": 1e-3, "weight_decay": 0.0}
    return bound.replace(**{name: x for name, x in changed.items() if name in bound.defaults})


def _trial_step(
    bound: Bound, shape: tuple[int, ...], rank_one: bool, fresh: bool, transposed: bool
) -> tuple[Tensor, Tensor]:
    """Return the last of some steps of a rule on random gradients, and the weight before it.

    The weight starts with a standard deviation of 1 / sqrt(fan-in); `transposed` says that the
    fan-in is dimension 0.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    rows, entries = shape[0], math.prod(shape[1:])
    fan_in = rows if transposed else entries
    weight = (draw(rows, entries) / math.sqrt(fan_in)).reshape(shape)
    rule = bound.rule
    state = rule.init(weight)
    grad = before = weight
    for index in range(_TRIAL_STEPS):
        if fresh or index == 0:
            rank = 1 if rank_one else min(rows, entries)
            grad = (draw(rows, rank) @ draw(rank, entries)).reshape(shape)
        before = weight
        weight, state = rule.step(weight, grad, state)
    return weight - before, before


def _refuse_proportional_steps(bound: Bound) -> None:
    """Refuse a recipe whose step doubles with the gradient.

    Raises:
        ValueError: it does.
    """
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    rule = _without_decay(bound).rule
    lengths = []
    for factor in (1.0, 2.0):
        new_weight, _ = rule.step(weight, factor * grad, rule.init(weight))
        lengths.append(float((new_weight - weight).norm()))
    if lengths[1] > 1.9 * lengths[0] > 0:
        raise ValueError(
            f"transfer: a step of {bound.name} is proportional to the gradient, whose size at "
            "another width is not known: use sn.transfer.mup('sgd')"
        )


def transfer_rate(
    bound: Bound, growth: Growth, policy: Policy, has_own_rate: bool
) -> tuple[Bound, Factor]:
    """Return a recipe at the rate and decay of the wider model, and the factor of the rate.

    Args:
        bound: the recipe at the base's rate.
        growth: how the parameter grows.
        policy: the policy.
        has_own_rate: whether the user has set the rate of this parameter, which then stays.

    Raises:
        ValueError: the recipe has no `lr`, or the policy refuses it.
    """
    if has_own_rate:
        return bound, Factor(1.0, "the rate is yours")
    if "lr" not in bound.hyper_parameters:
        raise ValueError(f"transfer: recipe {bound.name!r} has no lr")
    factor = policy.factor(growth, bound)
    changed = {"lr": bound.hyper_parameters["lr"] * factor.value}
    decay = bound.hyper_parameters.get("weight_decay", 0)
    if factor.value != 1 and decay:
        changed["weight_decay"] = decay / factor.value
    return bound.replace(**changed), factor


@dataclass(frozen=True)
class StartChange:
    """The factor of one parameter's initial values, and the reason; see `start`."""

    name: str
    factor: float
    reason: str


class StartChanges(tuple[StartChange, ...]):
    """The changes that `start` has made, in the model's order; prints as a table."""

    def __str__(self) -> str:
        rows = [("parameter", "factor", "why")]
        rows += [(x.name, f"{x.factor:.4g}", x.reason) for x in self]
        return columns(rows)

    __repr__ = __str__


def start(model: nn.Module, base: nn.Module, batch: Any) -> StartChanges:
    """Scale the initial weights of a model to those that the base model's spread implies, in place.

    With s the standard deviation of a parameter in the base, its standard deviation becomes
    s / sqrt(r_in) for hidden weights, s / r_in for heads, and s for inputs, biases and gains. How
    the model's own initialization depends on width is read off the two spreads, as a power of r_in
    of 0, 1/2 or 1, so that a second call changes nothing.

    Args:
        model: the wide model, freshly initialized; its parameters are scaled.
        base: the narrow model, freshly initialized.
        batch: see `roles`.

    Returns:
        One `StartChange` for each parameter; "doubtful" where the spreads follow no such power,
        which leaves the parameter as it is.

    Raises:
        ValueError: see `growths`.

    Example:
        >>> make = lambda width: nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 99))
        >>> base, model, batch = make(64), make(1024), torch.randn(8, 4)
        >>> [(x.name, x.factor) for x in start(model, base, batch)]
        [('0.weight', 1.0), ('0.bias', 1.0), ('2.weight', 0.25), ('2.bias', 4.0)]
        >>> {x.factor for x in start(model, base, batch)}
        {1.0}

    Source: Yang et al. 2022 (Tensor Programs V), Table 8.
    """
    growth_by_name = {growth.name: growth for growth in growths(model, base, roles(model, batch))}
    base_values = dict(base.named_parameters())
    spreads = {
        name: _Spread.measure(growth_by_name[name], base_values[name], weight)
        for name, weight in model.named_parameters()
    }
    _pool_biases(model, spreads)
    changes = []
    with torch.no_grad():
        for name, weight in model.named_parameters():
            change = spreads[name].change()
            if change.factor != 1:
                weight.mul_(change.factor)
            changes.append(change)
    return StartChanges(changes)


@dataclass
class _Spread:
    """The spread of a parameter's initial values in the base and in the model.

    Attributes:
        growth: how the parameter grows.
        base, model: standard deviations of its entries.
        n_entries: the smaller number of entries.
        fan_in: the ratio of the fan-in that its initialization knows; of a bias, that of the matrix
            in its module.
        exponent: p where its spread goes as (fan-in)^-p; nan where the fan-in does not grow.
    """

    growth: Growth
    base: float
    model: float
    n_entries: int
    fan_in: float
    exponent: float = math.nan

    @classmethod
    def measure(cls, growth: Growth, base: Tensor, model: Tensor) -> _Spread:
        """Return the spread of a parameter."""
        base_spread, spread = (float(x.detach().double().std(correction=0)) for x in (base, model))
        n_entries = min(base.numel(), model.numel())
        measured = cls(growth, base_spread, spread, n_entries, growth.fan_in)
        measured.estimate_exponent()
        return measured

    def estimate_exponent(self) -> None:
        """Set the exponent from the two spreads, if the fan-in grows."""
        if self.fan_in != 1 and self.base > 0 and self.model > 0:
            self.exponent = math.log(self.base / self.model) / math.log(self.fan_in)

    def change(self) -> StartChange:
        """Return the factor that gives the parameter the spread that the base's implies."""
        growth = self.growth
        if growth.caveat:
            return StartChange(growth.name, 1.0, f"doubtful: {growth.caveat}")
        if self.base == 0 or self.model == 0:
            return StartChange(growth.name, 1.0, "all entries are equal")
        if self.fan_in == 1:
            return StartChange(growth.name, 1.0, f"{growth.kind}: its fan-in does not grow")
        target = {"hidden": 0.5, "output": 1.0}.get(growth.kind, 0.0)
        nearest = min((0.0, 0.5, 1.0), key=lambda x: abs(x - self.exponent))
        if abs(nearest - self.exponent) > _EXPONENT_TOLERANCE:
            reason = f"doubtful: its spread goes as (fan-in)^{-self.exponent:.2f}"
            return StartChange(growth.name, 1.0, reason)
        reason = f"{growth.kind}: from (fan-in)^{-nearest:g} to (fan-in)^{-target:g}"
        return StartChange(growth.name, self.fan_in ** (nearest - target), reason)


def _pool_biases(model: nn.Module, spreads: Mapping[str, _Spread]) -> None:
    """Give biases the fan-in of their modules' matrices, and one exponent for each class.

    A bias of ten entries tells little about its own spread, but layers of one class draw theirs in
    one way.
    """
    biases_by_class: dict[type[nn.Module], list[_Spread]] = {}
    for prefix, module in model.named_modules():
        names = [f"{prefix}.{name}" if prefix else name for name in module._parameters]
        members = [spreads[name] for name in names if name in spreads]
        ratios = {x.growth.fan_in for x in members if x.growth.kind != "vector"}
        if len(ratios) != 1:
            continue
        for spread in members:
            if spread.growth.kind == "vector":
                spread.fan_in = next(iter(ratios))
                spread.estimate_exponent()
                if math.isfinite(spread.exponent):
                    biases_by_class.setdefault(type(module), []).append(spread)
    for biases in biases_by_class.values():
        weights = [x.n_entries * math.log(x.fan_in) ** 2 for x in biases]
        pooled = sum(w * x.exponent for w, x in zip(weights, biases, strict=True)) / sum(weights)
        for spread in biases:
            spread.exponent = pooled
