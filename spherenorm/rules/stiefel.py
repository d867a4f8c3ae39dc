"""The Stiefel manifold: its tangent space, and steps that end where a rule says."""

from __future__ import annotations

from dataclasses import dataclass

from spherenorm.rule import Rule, State, Update


@dataclass(frozen=True)
class Retraction(Rule):
    """A step that ends where a rule maps its end: d <- w - rule(w - d).

    A retraction by projection: `Orthogonalize("plain")` maps to the nearest point of the Stiefel
    manifold, `NormalizedUpdate` to the unit sphere. (`FixedNorm` has spheres of any radius.) Put it
    last, behind the step size, of which 0 moves nothing.

    Args:
        rule: maps the end as if it were a direction.

    Example:
        >>> rule = chain(StepSize(1.0), Retraction(NormalizedUpdate("layer")))
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]), {})[0]
        tensor([ 0.6000, -0.8000])

    Source: Absil and Malick 2012, *Projection-like retractions on matrix manifolds*.
    """

    rule: Rule

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        end = update.replace(direction=update.weight - update.direction)
        after, state = self.update_child(0, end, state)
        direction = update.unless_at_rest(update.weight - after.direction)
        return update.replace(direction=direction, rate=update.rate), state


@dataclass(frozen=True)
class StiefelProjection(Rule):
    """The part of the direction that is tangent to the Stiefel manifold, W^T W = I:

        D - W sym(W^T D),    sym(A) = (A + A^T) / 2.

    A wide matrix has W W^T = I instead; a convolution is out x rest.

    Raises:
        ValueError: on `init`, when a weight has fewer than two dimensions.

    Example:
        >>> weight, grad = torch.eye(2), torch.tensor([[1.0, 2.0], [0.0, 1.0]])
        >>> StiefelProjection().step(weight, grad, {})[0]  # I minus the skew part
        tensor([[ 1., -1.],
                [ 1.,  1.]])

    Source: Edelman, Arias and Smith 1998.
    """

    vectors = "refuse"

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        w, d = update.weight.flatten(1), update.direction.flatten(1)
        if w.shape[0] < w.shape[1]:
            inner = d @ w.mT
            tangent = d - 0.5 * (inner + inner.mT) @ w
        else:
            inner = w.mT @ d
            tangent = d - 0.5 * w @ (inner + inner.mT)
        return update.replace(direction=tangent.reshape(update.weight.shape)), {}
