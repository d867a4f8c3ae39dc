"""`Watch`: a number between two rules of a chain, which no step reads.

    chain(r.HeavyBall(0.9), r.Watch("rms"), r.Orthogonalize(), r.StepSize(lr), r.Watch("turn"))

`spherenorm.probe` collects the numbers of the weights that it measures; in `spherenorm.functional`
they are in the state.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from spherenorm.numerics import accumulation_dtype, safe_divide
from spherenorm.rule import Chain, Rule, State, Update, chain

WATCH_PREFIX = "watched_"
"""The start of the state key of a watch, which no other rule has."""


@dataclass(frozen=True)
class Watch(Rule):
    """Keep one number of the direction d at this place of a chain, and change nothing.

    With w, g the weight and the gradient, all taken as one vector:

    | quantity | number |
    |---|---|
    | "norm" | norm of d |
    | "rms" | root mean square of the entries of d |
    | "relative" | norm of d over that of w; norm of d if w is 0 |
    | "turn" | angle between w and w - d in radians, 0 where either is 0 |
    | "cosine" | cosine of w and d; below 0 a step along -d moves w outwards |
    | "grad_cosine" | cosine of g and d |
    | "nonzero" | share of the entries of d that are not 0 |

    A cosine with a vector of 0 is 0. The number is computed in the dtype of the step and has no
    derivative. It is the state "watched_<quantity>", or "<name>_watched_<quantity>" with a `name`;
    a checkpoint may lack it. `spherenorm.probe` and `spherenorm.export` know: the former has it as
    `Measurement.watched`, the latter leaves it out.

    Args:
        quantity: a word of the table.

    Raises:
        ValueError: the quantity is another word.

    Example:
        >>> rule = chain(StepSize(0.5), Watch("norm"), Watch("turn"))
        >>> weight = torch.tensor([2.0, 0.0])
        >>> _, state = rule.step(weight, torch.tensor([0.0, 4.0]), rule.init(weight))
        >>> {key: round(value.item(), 4) for key, value in state.items()}
        {'watched_norm': 2.0, 'watched_turn': 0.7854}
    """

    quantity: str

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.quantity, str) or self.quantity not in QUANTITIES:
            raise ValueError(
                f"Watch: quantity must be one of {', '.join(QUANTITIES)}, got {self.quantity!r}"
            )

    @property
    def state_names(self) -> tuple[str, ...]:
        return (WATCH_PREFIX + self.quantity,)

    @property
    def optional_names(self) -> tuple[str, ...]:
        return self.state_names

    def init(self, weight: Tensor) -> State:
        dtype = accumulation_dtype(weight.device)
        (name,) = self.state_names
        return {name: torch.zeros((), dtype=dtype, device=weight.device)}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        # Detached, since a root has no derivative at 0, and 0 times an infinite one is nan.
        weight, grad, direction = (
            x.detach() for x in (update.weight, update.grad, update.direction)
        )
        (name,) = self.state_names
        return update, {name: QUANTITIES[self.quantity](weight, grad, direction)}


def without_watches(rule: Rule) -> Rule:
    """Return a rule without its watches; its steps are the same, and so are its other states.

    Example:
        >>> without_watches(chain(StepSize(0.5), Watch("norm"))).rules
        (StepSize(lr=0.5),)
    """
    if not any(isinstance(child, Watch) for child in rule.walk()):
        return rule
    if isinstance(rule, Watch):
        return chain()
    if isinstance(rule, Chain):
        rules = [without_watches(child) for child in rule.rules if not isinstance(child, Watch)]
        return dataclasses.replace(rule, rules=tuple(rules))
    values: dict[str, Any] = {}
    for item in fields(rule):
        value = getattr(rule, item.name)
        if isinstance(value, Rule):
            values[item.name] = without_watches(value)
        elif type(value) is tuple:  # an empty chain in place of a watch, which a rule may count
            values[item.name] = tuple(
                without_watches(x) if isinstance(x, Rule) else x for x in value
            )
    return dataclasses.replace(rule, **values)


# The quantities


def _norm(x: Tensor) -> Tensor:
    return (x * x).sum().sqrt()


def _mean(x: Tensor) -> Tensor:
    return x.sum() / max(x.numel(), 1)


def _cosine(x: Tensor, y: Tensor) -> Tensor:
    return safe_divide((x * y).sum(), _norm(x) * _norm(y))


def _turn(weight: Tensor, direction: Tensor) -> Tensor:
    """Return the angle between w and w - d; a small one is exact.

    With d = a w + t, where t is orthogonal to w, it is atan2(|t|, (1 - a) |w|), here by the tangent
    of its half.
    """
    squared_norm = (weight * weight).sum()
    along = safe_divide((weight * direction).sum(), squared_norm)
    tangential = _norm(direction - along * weight)
    radial = (1 - along) * squared_norm.sqrt()
    denominator = (tangential * tangential + radial * radial).sqrt() + radial
    half_angle = torch.atan(tangential / torch.where(denominator > 0, denominator, 1))
    reversal = torch.where(radial < 0, math.pi, torch.zeros_like(radial))
    return torch.where(squared_norm > 0, torch.where(denominator > 0, 2 * half_angle, reversal), 0)


QUANTITIES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "norm": lambda w, g, d: _norm(d),
    "rms": lambda w, g, d: _mean(d * d).sqrt(),
    "relative": lambda w, g, d: safe_divide(_norm(d), _norm(w)),
    "turn": lambda w, g, d: _turn(w, d),
    "cosine": lambda w, g, d: _cosine(w, d),
    "grad_cosine": lambda w, g, d: _cosine(g, d),
    "nonzero": lambda w, g, d: _mean(torch.where(d == 0, 0, torch.ones_like(d))),
}
"""What a watch can measure: functions of the weight, the gradient and the direction."""
