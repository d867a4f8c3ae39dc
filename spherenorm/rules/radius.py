"""The norm at which a weight is held: rules with a radius R for each unit.

`FixedNorm` holds it: R (w - d) / |w - d| is the retraction by projection onto a sphere, of which
the exponential map of `Sphere` is the other. It is a rule, not a manifold, since R is a state, and
so that it acts within other rules. Hyperball is a base optimizer, a `NormalizedUpdate` and a
`FixedNorm`. `TargetNormDecay` draws the weight towards R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from spherenorm.fields import Interval, check_number, view
from spherenorm.numerics import (
    Scalar,
    accumulation_dtype,
    cast_like,
    finite_or,
    safe_divide,
    to_compute_dtype,
)
from spherenorm.rule import Rule, State, Update
from spherenorm.views import View, ViewLike, has_zero, replicate

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
