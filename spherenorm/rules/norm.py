"""Norms of units: rules that set the norm of the direction or of the weight.

`NormalizedUpdate` and `Graft` set the norm of the direction. `FixedNorm` and `FixedSpectralNorm`
set the norm of the weight after a step; `Gain` steps norms and directions by separate rules.

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


@dataclass(frozen=True)
class NormalizedUpdate(Rule):
    """Give the direction of each unit a length of 1, or of |w|:

        d / |d|    or    |w| d / |d|.

    With a memory, an average over steps takes the place of |d|:

        v_t = beta v_{t-1} + (1 - beta) |d|^2,    |d| <- sqrt(v_t / (1 - beta^t)) + eps.

    Known instances: "channel" normalizes rows and "dim=1" columns; "layer" with `length="weight"`
    is the relative update of LARS, LAMB and Hyperball; "channel" with a memory is the second moment
    of NorMuon's neurons and the average of the rotational optimizers. A direction of 0 stays 0. A
    zero unit under `length="weight"` keeps its direction, as LAMB has it, so that it can grow.

    Args:
        view: splits the weight into its units.
        length: of the result, "one" or "weight".
        beta: decay rate of the average, in [0, 1); at the Python number 0 there is no state.
        eps: added to the length that is divided by, in [0, inf).

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
            state["squared_length"] = torch.zeros_like(self.view.total(state["squared_length"]))
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        direction, new = update.direction, {}
        squared = self.view.inner(direction, direction)
        if not is_zero(self.beta):
            squared = ema(state["squared_length"], without_overflow(squared), self.beta)
            new["squared_length"] = squared
            squared = squared / cast_like(bias_correction(self.beta, state[STEP_KEY]), squared)
        length = safe_sqrt(squared) + cast_like(self.eps, squared)
        if self.length == "weight":
            norm = self.view.norm(update.weight)
            scale = torch.where(norm > 0, safe_divide(norm, length), 1)
        else:
            scale = safe_divide(torch.ones_like(length), length)
        return update.replace(direction=scale * direction), new


@dataclass(frozen=True)
class Graft(Rule):
    """Apply a rule, and give its direction the length that the direction had before.

    Args:
        rule: applied to the direction; its states are part of this rule's.
        view: splits the weight into the units whose length stays.

    Example:
        >>> rule = Graft(RadialProjection("layer"))
        >>> rule.step(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 4.0]), {})[0]
        tensor([ 2., -5.])

    Source: Prieto et al. 2025 (OrthoGrad); Li et al. 2025 (NorMuon).
    """

    rule: Rule
    view: ViewLike = view("layer")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        before = self.view.norm(update.direction)
        update, state = self.update_child(0, update, state)
        scale = finite_or(safe_divide(before, self.view.norm(update.direction)), 1)
        return update.replace(direction=scale * update.direction), state


Radius = Literal["initial", "current", "intended", "shape"] | Scalar
_POSITIVE = Interval.parse("(0, inf)")


class RadiusRule(Rule):
    """A rule with the fields `view` and `radius`, of which "initial" is a state.

    A layer's radius is one number in double precision, as counters are.
    """

    if TYPE_CHECKING:  # fields of each subclass, in its own order

        @property
        def view(self) -> View: ...
        @property
        def radius(self) -> Radius: ...

    radii: ClassVar[tuple[str, ...]] = ("initial",)
    """The names that `radius` takes beside a positive number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.radius, Tensor) or self.radius in self.radii:
            return
        what = f"{type(self).__name__}: radius must be"
        if isinstance(self.radius, (bool, str)):
            known = ", ".join(f'"{name}"' for name in self.radii)
            raise ValueError(f"{what} {known} or a number, got {self.radius!r}")
        object.__setattr__(self, "radius", check_number(self.radius, _POSITIVE, what))

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("radius",) if isinstance(self.radius, str) and self.radius == "initial" else ()

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        if not isinstance(self.radius, str) or self.radius in ("intended", "shape"):
            return state
        if weight.numel() and has_zero(self.view.norm(to_compute_dtype(weight))):
            own = self.view.dim is None
            zero = "the weight is 0" if own else f"a unit of view {self.view} is 0"
            instead = "start from other values, or give the weight a recipe without a radius"
            never = f"and a radius of 0 never changes; {instead}"
            raise ValueError(f"{type(self).__name__}: {zero}, {never}")
        if self.radius == "current":
            return state
        if self.view.dim is not None:
            return {"radius": self.view.norm(to_compute_dtype(weight))}
        whole = replicate(self.view.norm(weight.to(accumulation_dtype(weight.device))))
        return {"radius": whole.sum()}  # of one entry, or of none

    def kept(self, state: State) -> State:
        """The state after a step: the same radius, in new memory as all results."""
        return {name: value.clone() for name, value in state.items()}

    def target(self, update: Update, state: State, units: Tensor) -> Scalar:
        """R, in the dtype of the weight; "current" and "intended" as `FixedNorm` says.

        Args:
            update, state: as for `update`.
            units: any number per unit, as the view broadcasts it.

        Raises:
            ValueError: the state was made for other units, against which it might broadcast.
        """
        if not isinstance(self.radius, str):
            return cast_like(self.radius, update.weight)
        if self.radius == "initial":
            needed = torch.Size() if self.view.dim is None else units.shape
            if state["radius"].shape != needed:
                shapes = f"{tuple(needed)}, got {tuple(state['radius'].shape)}"
                raise ValueError(f"view {self.view} needs a state 'radius' of shape {shapes}")
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
    """Let the step of each unit end on the sphere of radius R:

        d <- w - R (w - d) / |w - d|.

    Put it last, behind the step size. R is

    - "initial": the norm at the start, kept as a state, so that rounding cannot add up;
    - "current": |w|, the norm before the step;
    - "intended": |w| - <w, d> / |w|, the norm after the radial part of the step alone. (The
      tangent part t of a straight step adds about |t|^2 / (2 |w|), which this takes away. A step
      from 0 is radial as a whole.)
    - "shape": sqrt(n / fan_in) of a unit with n entries, where fan_in is the entries at an index of
      dimension 0: the norm of entries of variance 1 / fan_in. A weight may start at 0;
    - a number.

    A unit whose step ends at 0 stays there, and a step size of 0 moves nothing. Of biases and
    gains, whose norm matters, an optimizer warns.

    Args:
        view: splits the weight into its units.
        radius: R.

    Raises:
        ValueError: a unit of the weight is 0, and R its initial or current norm: it could never
            move.

    Example:
        >>> rule = chain(StepSize(1.0), FixedNorm("layer", "current"))
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 3.0]), {})[0]
        tensor([ 2.1213, -2.1213])

    Source: Wen et al. 2026 (Hyperball); the radial brake of modded-nanogpt, track 3.
    """

    view: ViewLike = view("layer")
    radius: Radius = "initial"

    radii = ("initial", "current", "intended", "shape")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        end = update.weight - update.direction
        norm = self.view.norm(end)
        scale = self.target(update, state, norm) / torch.where(norm > 0, norm, 1)
        scale = finite_or(scale, 1)
        end = torch.where(norm > 0, scale, 1) * end
        direction = update.unless_at_rest(update.weight - end)
        return update.replace(direction=direction, rate=update.rate), self.kept(state)

    def weight_warnings(self, weight: Tensor) -> list[str]:
        """A bias or a gain, whose norm has a meaning, is held at it."""
        if weight.ndim > 1:
            return []
        groups = "a param_group with another recipe, as spherenorm.param_groups does"
        return [f"cannot move freely, as FixedNorm holds their norm: give them {groups}"]


DOUBLINGS = 12
"""Squarings of a Gram matrix: 2^13 steps of a power iteration, from all starts at once."""


@dataclass(frozen=True)
class FixedSpectralNorm(Rule):
    """Take a matrix of m x n to the spectral norm R before the step:

        d <- d + (1 - R / sigma) w,    R = radius sqrt(m / n),    sigma = |w|_2,

    so that the weight becomes (R / sigma) w - d. Put it last, behind the step size. sigma is too
    small by at most ln(min(m, n)) / 2^14 of itself, however close the singular values are. A
    convolution is out x rest; a weight of 0 stays as it is before its step. A weight far outside
    comes down by a factor of sqrt(eps) a step, 3e-4 in float32, so that it keeps half its digits.
    A step size of 0 moves nothing.

    Args:
        radius: in (0, inf).

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> weight = torch.tensor([[4.0, 0.0], [0.0, 2.0]])
        >>> FixedSpectralNorm().step(weight, torch.zeros(2, 2), {})[0]
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])

    Source: arXiv:2601.08393 (Spectral Sphere Optimizer).
    """

    radius: Scalar = hyper("(0, inf)", 1.0)

    vectors = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        matrix = replicate(update.weight).flatten(1)
        m, n = (max(length, 1) for length in matrix.shape)
        sigma = _spectral_norm(matrix)
        radius = cast_like(self.radius, matrix) * (m / n) ** 0.5
        # The step takes w away up to the rounding of w, which a lower rest would not survive.
        kept = safe_divide(radius, sigma).clamp(min=torch.finfo(matrix.dtype).eps ** 0.5)
        share = torch.where(sigma > 0, 1 - kept, 0)
        direction = update.unless_at_rest(update.direction + share * update.weight)
        return update.replace(direction=direction, rate=update.rate), {}


def _spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value: with G the Gram matrix and Q = G^(2^k) / |G^(2^k)|,

        sigma^2 = <Q, G Q>,

    the mean of the squared singular values, weighted by their powers of 2^(k + 1).
    """
    length = safe_sqrt((matrix * matrix).sum())
    matrix = safe_divide(matrix, length)  # of which the squares of squares stay finite, and above 0
    tall = matrix.shape[0] > matrix.shape[1]
    gram = matrix.mT @ matrix if tall else matrix @ matrix.mT
    power = _unit(gram)
    for _ in range(DOUBLINGS):
        power = _unit(power @ power)
    return length * safe_sqrt((power * (gram @ power)).sum())


def _unit(matrix: Tensor) -> Tensor:
    return safe_divide(matrix, safe_sqrt((matrix * matrix).sum()))


Start = Literal["norm", "one"]
_ONE = math.log(math.e - 1)
"""The softplus of this is 1."""
_DIRECTION, _GAIN = 0, 1
"""The positions of the two rules among the children of a `Gain`."""


@dataclass(frozen=True)
class Gain(Rule):
    """A gain for each unit, and the rest of the weight, each stepped by a rule of its own: w = g v.

    With G the gradient by w, that by v is g G, and that by g is <v, G>:

        v <- v - direction(v, g G),    g <- g - gain(g, <v, G>),    w <- g v.

    With `free`, w = g v / |v|, so that |v| sets the angle of a step and nothing else. The gradient
    by v is g / |v| times the tangent part of G: put `RadialProjection` first into `direction`.

    Args:
        direction: steps v, shaped as the weight.
        gain: steps g, one entry for each unit.
        view: splits the weight into its units.
        start: "norm", g starts at |w|; "one", g is the softplus of the number that `gain` steps: it
            starts at 1, and stays positive.
        free: v starts at w, and keeps a length of its own; for a gain that starts at |w|.
        buffer: the name of g, or of the number of which it is the softplus, in the state.

    Raises:
        ValueError: a unit of the weight is 0, and the gain starts at its norm; `free` with a gain
            that starts at one; a rule within it measures all weights.

    Example:
        >>> rule = Gain(StepSize(0.0), StepSize(1.0), "layer")
        >>> weight = torch.tensor([3.0, 4.0])
        >>> rule.step(weight, torch.tensor([1.0, 0.0]), rule.init(weight))[0].norm()
        tensor(4.4000)

    Source: Hägele et al. 2026 (MD decoupling), arXiv:2606.25971; arXiv:2605.10797 (Muown).
    """

    direction: Rule
    gain: Rule
    view: ViewLike = view("channel")
    start: Start = choice("norm", "one")
    free: bool = False
    buffer: str = state_name("gain")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.free and self.start == "one":
            norms = "w = g v / |v| would move each unit to a norm of 1"
            raise ValueError(f'Gain: free=True needs start="norm", got "one": {norms}')
        if self.direction.needs_global_sums or self.gain.needs_global_sums:
            raise ValueError("Gain: a rule that measures all weights does not see them within it")

    @property
    def state_names(self) -> tuple[str, ...]:
        return (self.buffer, "length") if self.free else (self.buffer,)

    def init(self, weight: Tensor) -> State:
        weight = to_compute_dtype(weight)
        norm = self.view.norm(weight)
        if self.start == "norm" and weight.numel() and has_zero(norm):
            instead = "start from other values, or give the weight another recipe"
            raise ValueError(f"Gain: a unit of view {self.view} is 0, without direction; {instead}")
        gain = norm.clone() if self.start == "norm" else torch.full_like(norm, _ONE)
        state = {self.buffer: gain, "length": norm} if self.free else {self.buffer: gain}
        state |= self.init_child(_DIRECTION, weight / _safe(self._scale(state)))
        return state | self.init_child(_GAIN, gain)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        scale = self._scale(state)
        rest = update.weight / _safe(scale)
        moved, new = self._stepped(_DIRECTION, update, rest, scale * update.direction, state)
        slope = self.view.inner(rest, update.direction)
        if self.free:
            slope = safe_divide(slope, state["length"])
            new["length"] = self.view.norm(moved)
        if self.start == "one":
            slope = slope * torch.sigmoid(state[self.buffer])  # the derivative of softplus
        gain = state[self.buffer]
        new[self.buffer], more = self._stepped(_GAIN, update, gain, slope, state)
        change = update.weight - self._scale(new) * moved
        return update.replace(direction=change), {**new, **more}

    def restart_averages(self, weight: Tensor, state: State) -> State:
        state = dict(state)
        if self.start == "norm":
            norm = self.view.norm(weight)
            state[self.buffer] = torch.where(norm > 0, norm, state[self.buffer])
        rest = weight / _safe(self._scale(state))
        state |= self.restart_child(_DIRECTION, rest, state)
        return state | self.restart_child(_GAIN, state[self.buffer], state)

    def _stepped(
        self, child: int, update: Update, weight: Tensor, grad: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """Return a factor of the weight after the step of a child rule, and the child's states."""
        factor = update.replace(weight=weight, grad=grad, direction=grad)
        after, changes = self.update_child(child, factor, state)
        return weight - after.direction, changes

    def _scale(self, state: State) -> Tensor:
        """w / v for each unit."""
        gain = state[self.buffer] if self.start == "norm" else softplus(state[self.buffer])
        return safe_divide(gain, state["length"]) if self.free else gain


def _safe(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 1, scale)
