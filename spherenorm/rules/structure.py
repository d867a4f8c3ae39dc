"""Rules around other rules: map the end of a step, or step blocks of a weight separately."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.numerics import to_compute_dtype
from spherenorm.rule import Rule, State, Update
from spherenorm.views import replicate


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
class Blocks(Rule):
    """Each block of rows of a tensor steps as a weight of its own:

        W = [W_1; W_2; ...],    D_i = the direction of rule i for W_i.

    Fused queries, keys and values are blocks. With grouped queries they are unequal: of 8 heads of
    queries and 2 of keys and values, the shares are (4, 1, 1). A stack of shape (layers, experts,
    m, n) has its matrices in two dimensions: with `dims=2` a rule gets (layers experts, m, n), and
    its view "channel" makes each m x n a matrix.

    Each block has states of its own, and a scale-invariance test counts in its block alone, so it
    belongs within. In flat space.

    Args:
        rules: one for each block.
        shares: of the rows that each block has, positive whole numbers.
        dims: how many leading dimensions count the rows, at least 1.

    Raises:
        ValueError: on construction, for other shares, another number of them, or another `dims`; a
            rule that measures all weights, or has a weight to evaluate with. On `init`, when rows
            do not divide so.

    Example:
        >>> unit = rules.NormalizedUpdate("layer"), rules.NormalizedUpdate("layer")
        >>> lengths = Blocks(unit, shares=(1, 2))
        >>> grad = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
        >>> lengths.step(torch.zeros(3, 2), grad, lengths.init(grad))[0]
        tensor([[-0.6000, -0.8000],
                [ 0.0000, -1.0000],
                [ 0.0000,  0.0000]])
    """

    needs_flat_space = True

    rules: tuple[Rule, ...]
    shares: tuple[int, ...] = (1,)
    dims: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(isinstance(each, Rule) for each in _entries(self.rules)):
            raise TypeError(f"Blocks: rules must be a tuple of rules, got {self.rules!r}")
        if not all(type(x) is int and x > 0 for x in (*_entries(self.shares), self.dims)):
            got = f"shares={self.shares!r}, dims={self.dims!r}"
            raise ValueError(f"Blocks: shares and dims must be positive whole numbers, got {got}")
        if len(self.rules) != len(self.shares):
            got = f"{len(self.rules)} rules, {len(self.shares)} shares"
            raise ValueError(f"Blocks: rules must be one for each share, got {got}")
        if any(rule.needs_global_sums or rule.has_eval_weight for rule in self.rules):
            what = "a rule that measures all weights, or has a weight to evaluate with"
            raise ValueError(f"Blocks: {what}, belongs around the blocks, not within")

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The blocks of a tensor of the weight's shape.

        Raises:
            ValueError: its rows do not divide so.
        """
        total, shape = sum(self.shares), tuple(x.shape)
        if x.ndim < self.dims:
            raise ValueError(
                f"Blocks: dims={self.dims} needs as many dimensions, got shape {shape}"
            )
        rows = replicate(x)
        rows = rows.flatten(0, self.dims - 1) if self.dims > 1 else rows
        if len(rows) % total:
            needs = f"shares={self.shares} needs rows that {total} divides"
            raise ValueError(f"Blocks: {needs}, got {len(rows)} of shape {shape}")
        return torch.split(rows, [share * (len(rows) // total) for share in self.shares])

    def init(self, weight: Tensor) -> State:
        state: State = {}
        for index, block in enumerate(self.split(to_compute_dtype(weight))):
            state |= self.init_child(index, block)
        return {key: state[key] for key in self.state_keys}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        directions: list[Tensor] = []
        new: State = {}
        for index, block in enumerate(self._updates(update)):
            after, changes = self.update_child(index, block, state)
            directions.append(after.direction)
            new |= changes
        joined = torch.cat(directions).reshape(update.weight.shape)
        return update.replace(direction=joined), new

    def weight_warnings(self, weight: Tensor) -> list[str]:
        blocks = zip(self.rules, self.split(weight), strict=True)
        return [each for rule, block in blocks for each in rule.weight_warnings(block)]

    def _updates(self, update: Update) -> list[Update]:
        """An update of each block; a note of the weight's shape is split, too."""
        shape = update.weight.shape
        parts = {
            name: self.split(getattr(update, name)) for name in ("weight", "grad", "direction")
        }
        notes = {
            name: self.split(x)
            if isinstance(x, Tensor) and x.shape == shape
            else [x] * len(self.rules)
            for name, x in update.notes.items()
        }
        return [
            update.replace(
                **{name: x[i] for name, x in parts.items()},
                invariance=None,
                notes={name: x[i] for name, x in notes.items()},
            )
            for i in range(len(self.rules))
        ]


def _entries(value: object) -> tuple[object, ...]:
    """Those of a tuple; what is none is its only one."""
    return value if isinstance(value, tuple) else (value,)
