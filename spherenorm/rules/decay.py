"""Weight decay in all its forms, and its counterpart on the sphere.

With a step size eta behind it, `DecoupledDecay(c)` takes eta c w from the weight. The policies are
values of c and of its fields, where eta_max is the schedule's maximum:

| policy | written |
|---|---|
| decoupled, eta lambda (Loshchilov and Hutter 2019) | `DecoupledDecay(wd)` |
| independent, lambda eta / eta_max | `DecoupledDecay(wd / max_lr)` |
| constant, lambda | `DecoupledDecay(wd)` behind `StepSize(lr)` |
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
    """L2 regularization: the gradient of (lambda / 2) |w|^2 joins the direction, d + lambda w.

    Put first, it passes through momentum and preconditioner like the loss's own gradient.

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
    """Decay that bypasses momentum and preconditioner: d + lambda w, right before the step size.

    With `invariant_ratio` = r, weights that an earlier `ScaleInvarianceTest` found invariant decay
    by r lambda, since their norm no longer grows by momentum (the paper's implementation uses
    r = 0.1).

    Args:
        weight_decay: lambda, in [0, inf); the Python number 0 leaves the term out.
        invariant_ratio: r, in [0, inf); None decays all weights alike.
        cautious: decay the entries with w d >= 0 alone, which the step shortens anyway.

    Raises:
        ValueError: on the first step, when a ratio is given and no test came before.

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
                need = "DecoupledDecay(invariant_ratio=...) needs a ScaleInvarianceTest before it"
                raise ValueError(need)
            decay = update.invariance.select(decay * self.invariant_ratio, decay, update.weight)
        weight, direction = update.weight, update.direction
        if self.cautious:
            weight = torch.where(weight * direction >= 0, weight, 0)
        return update.replace(direction=add_scaled(direction, decay, weight)), {}


@dataclass(frozen=True)
class TargetNormDecay(RadiusRule):
    """Decay towards a norm R instead of 0, right before the step size: d + lambda (1 - R / |w|) w.

    At |w| = R nothing is pulled; R = 0 would be `DecoupledDecay`. A zero unit is left alone.

    Args:
        weight_decay: lambda, in [0, inf); the Python number 0 leaves the term out.
        view: splits the weight into its units.
        radius: R: "initial", the norm at the start, or a number.

    Raises:
        ValueError: a unit of the weight is 0, and R the initial norm.

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
            return update, self.kept(state)
        norm = self.view.norm(update.weight)
        away = 1 - self.target(update, state, norm) / torch.where(norm > 0, norm, 1)
        pulled = torch.where(norm > 0, away, 0)
        direction = add_scaled(update.direction, self.weight_decay, pulled * update.weight)
        return update.replace(direction=direction), self.kept(state)


@dataclass(frozen=True)
class OrthogonalityRegularization(Rule):
    """Weight decay for the Grassmann manifold, which turns the units of a layer apart.

    The gradient of (alpha / 2) |Y^T Y - I|_F^2, where Y holds the units as columns, joins the
    direction: d + 2 alpha Y (Y^T Y - I). Put it before the tangent projection and the clip. Weights
    of fewer than two dimensions are left alone.

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

    vectors = "skip"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        if is_zero(self.alpha) or update.weight.ndim < 2 or not update.weight.numel():
            return update, {}
        rows = self.view.rows(update.weight)
        # Multiplied out: an identity matrix would have to be sharded as the weight is.
        gradient = 2 * (rows @ rows.T @ rows - rows)
        gradient = self.view.from_rows(gradient, update.weight)
        return update.replace(direction=add_scaled(update.direction, self.alpha, gradient)), {}
