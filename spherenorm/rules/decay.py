"""Weight decay: coupled, decoupled and towards a norm, and orthogonality regularization.

Before a step size eta, `DecoupledDecay(c)` subtracts eta c w from the weight. Policies of weight
decay are values of c and of the fields; eta_max is the maximum of the schedule:

| policy | written |
|---|---|
| decoupled, eta lambda (Loshchilov and Hutter 2019) | `DecoupledDecay(wd)` |
| independent, lambda eta / eta_max | `DecoupledDecay(wd / max_lr)` |
| constant, lambda | `DecoupledDecay(wd)` after `StepSize(lr)` |
| AdamC, lambda eta^2 / eta_max (Defazio 2025) | `DecoupledDecay(wd * lr / max_lr)` |
| PaLM, lambda eta^2 | `DecoupledDecay(wd * lr)` |
| cautious (Chen et al. 2025) | `DecoupledDecay(wd, cautious=True)` |
| AdamP, eta lambda r where scale-invariant | `DecoupledDecay(wd, invariant_ratio=r)` |
| towards a norm (Loshchilov 2023) | `TargetNormDecay(wd)` |
| L2 regularization | `CoupledDecay(wd)` before the momentum |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spherenorm.fields import hyper, view
from spherenorm.numerics import Scalar, add_scaled, is_zero
from spherenorm.rule import Rule, State, Update
from spherenorm.rules.norm import Radius, RadiusRule
from spherenorm.views import ViewLike


@dataclass(frozen=True)
class CoupledDecay(Rule):
    """Add L2 regularization, the gradient of (lambda / 2) |w|^2, to the direction: d + lambda w.

    As the first rule of a chain, it passes through momentum and preconditioner like the gradient.

    Args:
        weight_decay: lambda, in [0, inf); the Python number 0 leaves the term out.

    Example:
        >>> CoupledDecay(0.5).step(torch.tensor([2.0]), torch.tensor([1.0]), {})[0]
        tensor([0.])
    """

    weight_decay: Scalar = hyper("[0, inf)")

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.weight_decay):
            return update, {}
        direction = add_scaled(update.direction, self.weight_decay, update.weight)
        return update.replace(direction=direction), {}


@dataclass(frozen=True)
class DecoupledDecay(Rule):
    """Add weight decay after momentum and preconditioner: d + lambda w, right before the step size.

    With `invariant_ratio` = r, weights that an earlier `ScaleInvarianceTest` found invariant decay
    by r lambda, since momentum no longer makes their norm grow (the paper's implementation uses
    r = 0.1).

    Args:
        weight_decay: lambda, in [0, inf); the Python number 0 leaves the term out.
        invariant_ratio: r, in [0, inf); None decays all weights alike.
        cautious: decay only the entries with w d >= 0, which the step shortens.

    Raises:
        ValueError: on the first step, if `invariant_ratio` is given and no test runs before.

    Example:
        >>> rule = chain(DecoupledDecay(0.5), StepSize(0.1))
        >>> rule.step(torch.tensor([2.0]), torch.tensor([1.0]), {})[0]
        tensor([1.8000])

    Source: Loshchilov and Hutter 2019; Chen et al. 2025 for `cautious`.
    """

    weight_decay: Scalar = hyper("[0, inf)")
    invariant_ratio: Scalar | None = hyper("[0, inf)", None)
    cautious: bool = False

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.weight_decay):
            return update, {}
        decay: Scalar = self.weight_decay
        if self.invariant_ratio is not None:
            if update.invariance is None:
                raise ValueError(
                    "DecoupledDecay(invariant_ratio=...) needs a ScaleInvarianceTest before it"
                )
            decay = update.invariance.select(decay * self.invariant_ratio, decay, update.weight)
        weight, direction = update.weight, update.direction
        if self.cautious:
            weight = torch.where(weight * direction >= 0, weight, 0)
        return update.replace(direction=add_scaled(direction, decay, weight)), {}


@dataclass(frozen=True)
class TargetNormDecay(RadiusRule):
    """Add decay towards a norm R instead of 0, before the step size: d + lambda (1 - R / |w|) w.

    There is no decay at |w| = R; R = 0 would be `DecoupledDecay`. A zero unit does not decay.

    Args:
        weight_decay: lambda, in [0, inf); the Python number 0 leaves the term out.
        view: splits the weight into its units.
        radius: R: "initial", the norm at the start, or a number.

    Raises:
        ValueError: on `init`, if a unit of the weight is 0 and R is the initial norm.

    Example:
        >>> rule = TargetNormDecay(0.5, radius=1.0)
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.zeros(2), {})[0]
        tensor([2., 0.])

    Source: Loshchilov 2023 (AdamWN).
    """

    weight_decay: Scalar = hyper("[0, inf)")
    view: ViewLike = view("layer")
    radius: Radius = "initial"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.weight_decay):
            return update, self.copy_state(state)
        norm = self.view.norm(update.weight)
        excess = 1 - self.target_norm(update, state, norm) / torch.where(norm > 0, norm, 1)
        excess = torch.where(norm > 0, excess, 0)
        direction = add_scaled(update.direction, self.weight_decay, excess * update.weight)
        return update.replace(direction=direction), self.copy_state(state)


@dataclass(frozen=True)
class OrthogonalityRegularization(Rule):
    """Add a regularization that turns the units of a layer away from one another.

    It is the gradient of (alpha / 2) |Y^T Y - I|_F^2, where Y has the units as columns:
    d + 2 alpha Y (Y^T Y - I). Put it before the tangent projection and the clip. Weights of fewer
    than two dimensions keep their direction.

    Args:
        alpha: the strength, in [0, inf); the Python number 0 leaves the term out.
        view: splits the weight into its units.

    Example:
        >>> rule = OrthogonalityRegularization(1.0)
        >>> rule.step(torch.eye(2), torch.zeros(2, 2), {})[0]  # orthonormal already
        tensor([[1., 0.],
                [0., 1.]])

    Source: Cho and Lee 2017.
    """

    alpha: Scalar = hyper("[0, inf)")
    view: ViewLike = view("channel")

    vector_policy = "skip"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.alpha) or update.weight.ndim < 2 or not update.weight.numel():
            return update, {}
        rows = self.view.rows(update.weight)
        # The product is expanded, since an identity matrix would have to be sharded as the weight.
        gradient = 2 * (rows @ rows.T @ rows - rows)
        gradient = self.view.from_rows(gradient, update.weight)
        return update.replace(direction=add_scaled(update.direction, self.alpha, gradient)), {}
