"""Norms of units: rules that set the norm of the direction or of the weight.

`NormalizedUpdate`, `KeepNorm` and `Graft` set the norm of the direction. `FixedNorm` and
`FixedSpectralNorm` set the norm of the weight after a step; `GainAndDirection` steps norms and
directions by separate rules.

Hyperball is a base optimizer, a `NormalizedUpdate` and a `FixedNorm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spherenorm.fields import Interval, check_number, choice, hyper, state_name, view
from spherenorm.numerics import (
    Scalar,
    accumulation_dtype,
    bias_correction,
    cast_like,
    ema,
    finite_or,
    is_zero,
    safe_divide,
    safe_sqrt,
    to_compute_dtype,
    without_overflow,
)
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.views import View, ViewLike, has_zero, replicate

Length = Literal["one", "weight"]
Radius = Literal["initial", "current", "intended", "shape"] | Scalar
Start = Literal["norm", "one"]

POSITIVE = Interval.parse("(0, inf)")
GRAM_SQUARINGS = 12
"""Squarings of a Gram matrix in `_spectral_norm`, like 2^13 steps of power iterations from all
starts at once."""
INVERSE_SOFTPLUS_OF_ONE = math.log(math.e - 1)
_DIRECTION, _MAGNITUDE, _GAIN = 0, 1, 1
"""The positions of the rules among the children of `Graft`, and of `GainAndDirection`."""


@dataclass(frozen=True)
class NormalizedUpdate(Rule):
    """Give the direction of each unit the norm 1, or the norm of the weight:

        d / |d|    or    |w| d / |d|.

    With `beta`, divide by a running root mean square of |d| instead:

        v_t = beta v_{t-1} + (1 - beta) |d|^2,    |d| <- sqrt(v_t / (1 - beta^t)) + eps.

    Known instances: "channel" normalizes rows and "dim=1" columns; "layer" with `length="weight"`
    is the relative update of LARS, LAMB and Hyperball; "channel" with `beta` is the second moment
    of NorMuon's neurons and the average of the rotational optimizers. A direction of 0 stays 0. A
    zero unit with `length="weight"` keeps its direction, as in LAMB, so that it can grow.

    Args:
        view: splits the weight into its units.
        length: the norm of the result: "one", or "weight" for |w|.
        beta: decay rate of the average, in [0, 1); the Python number 0 needs no state.
        eps: added to the norm of d, in [0, inf).

    Example:
        >>> rule = chain(NormalizedUpdate("channel"))
        >>> rule.step(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), {})[0]
        tensor([[-0.6000, -0.8000]])

    Source: You et al. 2017 (LARS); Li et al. 2025 (NorMuon); Kosson et al. 2024 (rotational
    optimizers), Algorithm 1.
    """

    view: ViewLike = view("layer")
    length: Length = choice("one", "weight")
    beta: Scalar = hyper("[0, 1)", 0.0)
    eps: Scalar = hyper("[0, inf)", 0.0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return () if is_zero(self.beta) else (STEP_KEY, "squared_length")

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        if state:
            state["squared_length"] = torch.zeros_like(self.view.unit_sums(state["squared_length"]))
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction = update.direction
        new_state: State = {}
        squared_norm = self.view.inner(direction, direction)
        if not is_zero(self.beta):
            squared_norm = without_overflow(squared_norm)
            average = ema(state["squared_length"], squared_norm, self.beta)
            new_state["squared_length"] = average
            correction = bias_correction(self.beta, state[STEP_KEY])
            squared_norm = average / cast_like(correction, average)
        norm = safe_sqrt(squared_norm) + cast_like(self.eps, squared_norm)
        if self.length == "weight":
            weight_norm = self.view.norm(update.weight)
            scale = torch.where(weight_norm > 0, safe_divide(weight_norm, norm), 1)
        else:
            scale = safe_divide(torch.ones_like(norm), norm)
        return update.replace(direction=scale * direction), new_state


@dataclass(frozen=True)
class KeepNorm(Rule):
    """Apply a rule, and give its direction the norm that the direction had before it.

    Args:
        rule: the rule that turns the direction.
        view: splits the weight into the units whose direction keeps its norm.

    Example:
        >>> rule = KeepNorm(RadialProjection("layer"))
        >>> rule.step(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 4.0]), {})[0]
        tensor([ 2., -5.])

    Source: Prieto et al. 2025 (OrthoGrad); Li et al. 2025 (NorMuon).
    """

    rule: Rule
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        norm = self.view.norm(update.direction)
        update, new_state = self.update_child(0, update, state)
        return _with_norm(update, norm, self.view), new_state


@dataclass(frozen=True)
class Graft(Rule):
    """Give the direction of one rule the norm of another rule's direction: |m| d / |d|.

    Both rules continue the same step. `KeepNorm` takes the norm from the direction before the rule.

    Args:
        direction: the rule of the direction d.
        magnitude: the rule of the direction m, whose norm counts.
        view: splits the weight into the units whose norms are compared.

    Example:
        >>> rule = Graft(Sign(), StepSize(0.5))
        >>> rule.step(torch.zeros(2), torch.tensor([6.0, 8.0]), {})[0].norm()  # half of |g| = 10
        tensor(5.)

    Source: Agarwal et al. 2020 (learning-rate grafting), arXiv:2002.11803.
    """

    direction: Rule
    magnitude: Rule
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        magnitude_update, magnitude_state = self.update_child(_MAGNITUDE, update, state)
        update, new_state = self.update_child(_DIRECTION, update, state)
        norm = self.view.norm(magnitude_update.direction)
        return _with_norm(update, norm, self.view), new_state | magnitude_state


def _with_norm(update: Update, norm: Tensor, view: View) -> Update:
    """Return the update with directions of these norms, as they are in units of direction 0."""
    scale = finite_or(safe_divide(norm, view.norm(update.direction)), 1)
    return update.replace(direction=scale * update.direction)


class RadiusRule(Rule):
    """A rule with the fields `view` and `radius`: the target norm R of each unit.

    A radius of "initial" is a state: the norm of each unit at the start. For the view "layer" it is
    one number in double precision.
    """

    if TYPE_CHECKING:  # Each subclass declares these fields, in an order of its own.

        @property
        def view(self) -> View: ...
        @property
        def radius(self) -> Radius: ...

    radius_names: ClassVar[tuple[str, ...]] = ("initial",)
    """The names that `radius` accepts besides a positive number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.radius, Tensor) or self.radius in self.radius_names:
            return
        if isinstance(self.radius, (bool, str)):
            names = ", ".join(f'"{name}"' for name in self.radius_names)
            raise ValueError(
                f"{type(self).__name__}: radius must be {names} or a number, got {self.radius!r}"
            )
        radius = check_number(self.radius, POSITIVE, f"{type(self).__name__}: radius must be")
        object.__setattr__(self, "radius", radius)

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("radius",) if isinstance(self.radius, str) and self.radius == "initial" else ()

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        if not isinstance(self.radius, str) or self.radius in ("intended", "shape"):
            return state
        if weight.numel() and has_zero(self.view.norm(to_compute_dtype(weight))):
            unit = "the weight" if self.view.dim is None else f"a unit of view {self.view}"
            raise ValueError(
                f"{type(self).__name__}: {unit} is 0, and a radius of 0 never changes; start from "
                "other values, or give the weight a recipe without a radius"
            )
        if self.radius == "current":
            return state
        if self.view.dim is not None:
            return {"radius": self.view.norm(to_compute_dtype(weight))}
        norm = replicate(self.view.norm(weight.to(accumulation_dtype(weight.device))))
        return {"radius": norm.sum()}  # The sum makes a 0-dim tensor, also of an empty weight.

    def copy_state(self, state: State) -> State:
        """Return the state after a step: a copy, since the radius does not change."""
        return {name: value.clone() for name, value in state.items()}

    def target_norm(self, update: Update, state: State, unit_norms: Tensor) -> Scalar:
        """Return R in the dtype of the weight; `FixedNorm` explains "current" and "intended".

        Args:
            update: the step so far.
            state: the state of this rule.
            unit_norms: a tensor with one number per unit, of the shape that R must have.

        Raises:
            ValueError: the state has another shape, with which it might broadcast to a wrong R.
        """
        if not isinstance(self.radius, str):
            return cast_like(self.radius, update.weight)
        if self.radius == "initial":
            shape = torch.Size() if self.view.dim is None else unit_norms.shape
            if state["radius"].shape != shape:
                raise ValueError(
                    f"view {self.view} needs a state 'radius' of shape {tuple(shape)}, "
                    f"got {tuple(state['radius'].shape)}"
                )
            return cast_like(state["radius"], update.weight)
        if self.radius == "shape":
            size, fan_in = self.view.size(update.weight), View(0).size(update.weight)
            return math.sqrt(max(size, 1) / max(fan_in, 1))
        norm = self.view.norm(update.weight)
        if self.radius == "current":
            return norm
        radial = safe_divide(self.view.inner(update.weight, update.direction), norm)
        return torch.where(norm > 0, (norm - radial).abs(), self.view.norm(update.direction))


@dataclass(frozen=True)
class FixedNorm(RadiusRule):
    """End the step of each unit on the sphere of radius R:

        d <- w - R (w - d) / |w - d|.

    This is the retraction by projection onto a sphere; the exponential map of `Sphere` is another
    one. It is a rule and not a manifold, since R may be a state, and so that other rules can
    contain it. Put it last, after the step size. R is

    - "initial": the norm at the start, stored as a state, so that rounding does not accumulate;
    - "current": |w|, the norm before the step;
    - "intended": |w| - <w, d> / |w|, the norm after the radial part of the step alone. (The
      tangent part t of a straight step adds about |t|^2 / (2 |w|), which this removes. A step
      from 0 is radial as a whole.)
    - "shape": sqrt(n / fan_in) for a unit with n entries, where fan_in is the number of entries at
      an index of dimension 0: the norm of entries of variance 1 / fan_in. A weight may start at 0;
    - a number.

    A unit whose step ends at 0 stays there, and a step size of 0 moves nothing. An optimizer warns
    of biases and gains, whose norm matters.

    Args:
        view: splits the weight into its units.
        radius: R, a name from the list above or a number in (0, inf).

    Raises:
        ValueError: on `init`, if a unit of the weight is 0 and R is its initial or current norm:
            the unit could never move.

    Example:
        >>> rule = chain(StepSize(1.0), FixedNorm("layer", "current"))
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 3.0]), {})[0]
        tensor([ 2.1213, -2.1213])

    Source: Wen et al. 2026 (Hyperball); the radial brake of modded-nanogpt, track 3.
    """

    view: ViewLike = view("layer")
    radius: Radius = "initial"

    radius_names = ("initial", "current", "intended", "shape")
    uses_endpoint = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        end = update.weight - update.direction
        norm = self.view.norm(end)
        scale = self.target_norm(update, state, norm) / torch.where(norm > 0, norm, 1)
        scale = finite_or(scale, 1)
        end = torch.where(norm > 0, scale, 1) * end
        direction = update.unless_rate_is_zero(update.weight - end)
        return update.replace(direction=direction, rate=update.rate), self.copy_state(state)

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """Return a warning for a bias or a gain, whose norm matters."""
        if weight.ndim > 1:
            return []
        return [
            "cannot move freely, as FixedNorm holds their norm: give them a param_group with "
            "another recipe, as spherenorm.param_groups does"
        ]


@dataclass(frozen=True)
class FixedSpectralNorm(Rule):
    """Scale a matrix of shape m x n to the spectral norm R before the step:

        d <- d + (1 - R / sigma) w,    R = radius sqrt(m / n),    sigma = |w|_2,

    so that the weight becomes (R / sigma) w - d. Put it last, after the step size. The relative
    error of sigma is at most ln(min(m, n)) / 2^14, however close the singular values are. A
    convolution is a matrix of shape (out, rest). A weight of 0 is not scaled. A weight far outside
    shrinks by at most a factor of sqrt(eps) per step, 3e-4 in float32, so that it keeps half of its
    digits. A step size of 0 moves nothing.

    Args:
        radius: the factor of sqrt(m / n) in R, in (0, inf).

    Raises:
        ValueError: on `init`, if the weight has fewer than two dimensions.

    Example:
        >>> weight = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
        >>> FixedSpectralNorm().step(weight, torch.zeros(2, 2), {})[0]
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])

    Source: arXiv:2601.08393 (Spectral Sphere Optimizer).
    """

    radius: Scalar = hyper("(0, inf)", 1.0)

    vector_policy = "refuse"
    needs_whole_weight = True
    uses_endpoint = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        matrix = replicate(update.weight).flatten(1)
        m, n = max(matrix.shape[0], 1), max(matrix.shape[1], 1)
        sigma = _spectral_norm(matrix)
        radius = cast_like(self.radius, matrix) * (m / n) ** 0.5
        # Subtracting almost all of w leaves its rounding error, so that the result needs a minimum.
        scale = safe_divide(radius, sigma).clamp(min=torch.finfo(matrix.dtype).eps ** 0.5)
        decay = torch.where(sigma > 0, 1 - scale, 0)
        direction = update.unless_rate_is_zero(update.direction + decay * update.weight)
        return update.replace(direction=direction, rate=update.rate), {}


def _spectral_norm(matrix: Tensor) -> Tensor:
    """Return the largest singular value sigma. With G the Gram matrix and Q = G^(2^k) / |G^(2^k)|,

        sigma^2 = <Q, G Q>,

    the mean of the squared singular values, weighted by their powers of 2^(k + 1).
    """
    norm = safe_sqrt((matrix * matrix).sum())
    # Squares of squares of a normalized matrix neither overflow nor underflow.
    matrix = safe_divide(matrix, norm)
    is_tall = matrix.shape[0] > matrix.shape[1]
    gram = matrix.mT @ matrix if is_tall else matrix @ matrix.mT
    power = _normalize(gram)
    for _ in range(GRAM_SQUARINGS):
        power = _normalize(power @ power)
    return norm * safe_sqrt((power * (gram @ power)).sum())


def _normalize(matrix: Tensor) -> Tensor:
    return safe_divide(matrix, safe_sqrt((matrix * matrix).sum()))


@dataclass(frozen=True)
class GainAndDirection(Rule):
    """Step the gain g of each unit and the direction v by separate rules, with w = g v.

    The model holds only w; g is a state. With G the gradient by w, the gradient by v is g G, and
    the gradient by g is <v, G>:

        v <- v - direction(v, g G),    g <- g - gain(g, <v, G>),    w <- g v.

    With `free_norm`, w = g v / |v|, so that |v| affects only the angle of a step. The gradient by v
    is g / |v| times the tangent part of G, so `direction` should begin with a `RadialProjection`.

    Known instances: Muown, with `free_norm`; AngularMuown, whose units v have norm 1; MD
    decoupling, a `GainAndDirection` for rows around a `GainAndDirection` for columns.

    Args:
        direction: the rule that steps v, which has the shape of the weight.
        gain: the rule that steps g, which has one entry per unit.
        view: splits the weight into its units.
        start: "norm": g starts at |w|. "one": g starts at 1 and stays positive, since it is the
            softplus of the number that `gain` steps.
        free_norm: v starts at w, and its norm is free: w does not show it; needs `start="norm"`.
        buffer: the name in the state of the number that `gain` steps.

    Raises:
        ValueError: `free_norm` goes with `start="one"`; a child rule needs global sums. On `init`,
            if a unit of the weight is 0 and its gain would start at 0.

    Example:
        >>> rule = GainAndDirection(StepSize(0.0), StepSize(1.0), "layer")
        >>> weight = torch.tensor([3.0, 4.0])
        >>> rule.step(weight, torch.tensor([1.0, 0.0]), rule.init(weight))[0].norm()
        tensor(4.4000)

    Source: Hägele et al. 2026 (MD decoupling), arXiv:2606.25971; arXiv:2605.10797 (Muown).
    """

    direction: Rule
    gain: Rule
    view: ViewLike = view("channel")
    start: Start = choice("norm", "one")
    free_norm: bool = False
    buffer: str = state_name("gain")

    uses_endpoint = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.free_norm and self.start == "one":
            raise ValueError(
                'GainAndDirection: free_norm=True needs start="norm", got "one": '
                "w = g v / |v| would move each unit to a norm of 1"
            )
        if self.direction.needs_global_sums or self.gain.needs_global_sums:
            raise ValueError(
                "GainAndDirection: a child rule needs sums over all weights; put that rule before "
                "this one"
            )

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer, "length") if self.free_norm else (self.buffer,)

    def init(self, weight: Tensor) -> State:
        weight = to_compute_dtype(weight)
        norm = self.view.norm(weight)
        self._refuse_zero_unit(weight, norm)
        if self.start == "norm":
            gain = norm.clone()
        else:
            gain = torch.full_like(norm, INVERSE_SOFTPLUS_OF_ONE)
        state = {self.buffer: gain}
        if self.free_norm:
            state["length"] = norm
        state |= self.init_child(_DIRECTION, weight / _nonzero(self._scale(state)))
        return state | self.init_child(_GAIN, gain)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        scale = self._scale(state)
        v = update.weight / _nonzero(scale)
        v_grad = scale * update.direction
        new_v, new_state = self._step_factor(_DIRECTION, update, v, v_grad, state)
        gain_grad = self.view.inner(v, update.direction)
        if self.free_norm:
            gain_grad = safe_divide(gain_grad, state["length"])
            new_state["length"] = self.view.norm(new_v)
        gain = state[self.buffer]
        if self.start == "one":
            gain_grad = gain_grad * torch.sigmoid(gain)  # The sigmoid is the slope of softplus.
        new_gain, gain_state = self._step_factor(_GAIN, update, gain, gain_grad, state)
        new_state[self.buffer] = new_gain
        direction = update.weight - self._scale(new_state) * new_v
        return update.replace(direction=direction), {**new_state, **gain_state}

    def restart_weight_averages(self, weight: Tensor, state: State) -> State:
        state = dict(state)
        if self.start == "norm":
            norm = self.view.norm(weight)
            self._refuse_zero_unit(weight, norm)
            state[self.buffer] = norm
        v = weight / _nonzero(self._scale(state))
        state |= self.restart_child(_DIRECTION, v, state)
        return state | self.restart_child(_GAIN, state[self.buffer], state)

    def _refuse_zero_unit(self, weight: Tensor, norm: Tensor) -> None:
        """Refuse a weight of which a gain that starts at the norm of a unit would start at 0.

        Raises:
            ValueError: a unit is 0.
        """
        if self.start == "norm" and weight.numel() and has_zero(norm):
            raise ValueError(
                f"GainAndDirection: a unit of view {self.view} is 0, without direction; start from "
                "other values, or give the weight another recipe"
            )

    def _step_factor(
        self, child: int, update: Update, factor: Tensor, grad: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """Return g or v after the step of a child rule, and the new states of the child."""
        update = update.replace(weight=factor, grad=grad, direction=grad)
        update, child_state = self.update_child(child, update, state)
        return factor - update.direction, child_state

    def _scale(self, state: State) -> Tensor:
        """Return w / v for each unit."""
        gain = state[self.buffer] if self.start == "norm" else softplus(state[self.buffer])
        return safe_divide(gain, state["length"]) if self.free_norm else gain


def _nonzero(scale: Tensor) -> Tensor:
    """Return the scale, with 1 in the place of 0, to divide by."""
    return torch.where(scale == 0, 1, scale)
