"""Rules around other rules: map the end of a step, or step blocks of a weight separately."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm.numerics import to_compute_dtype
from spherenorm.rule import Rule, State, Update
from spherenorm.views import replicate


@dataclass(frozen=True)
class Retraction(Rule):
    """Map the end of the step by a rule: d <- w - rule(w - d).

    With a rule that projects onto a manifold this is a retraction: `Orthogonalize("plain")` maps to
    the nearest point of the Stiefel manifold, `NormalizedUpdate` to the unit sphere. (`FixedNorm`
    has spheres of any radius.) Put it last, after the step size. A step size of 0 moves nothing.

    Args:
        rule: the rule that maps the end, which it gets as the direction.

    Example:
        >>> rule = chain(StepSize(1.0), Retraction(NormalizedUpdate("layer")))
        >>> rule.step(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]), {})[0]
        tensor([ 0.6000, -0.8000])

    Source: Absil and Malick 2012, *Projection-like retractions on matrix manifolds*.
    """

    rule: Rule

    uses_endpoint = True

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        end = update.replace(direction=update.weight - update.direction)
        mapped_end, new_state = self.update_child(0, end, state)
        direction = update.unless_rate_is_zero(update.weight - mapped_end.direction)
        return update.replace(direction=direction, rate=update.rate), new_state


@dataclass(frozen=True)
class Blocks(Rule):
    """Step each block of rows of a tensor as a separate weight:

        W = [W_1; W_2; ...],    D_i = the direction of rule i for W_i.

    Fused queries, keys and values are blocks. With grouped queries the blocks differ in size: for 8
    heads of queries and 2 of keys and values, the shares are (4, 1, 1). A stack of shape (layers,
    experts, m, n) is indexed by two dimensions: with `dims=2` a rule gets shape (layers experts, m,
    n), and its view "channel" makes each m x n a matrix.

    Each block has its own states. The result of a scale-invariance test holds for one block, so the
    test belongs into the rules of the blocks. The weight must be in flat space.

    Args:
        rules: the rule of each block.
        shares: the relative numbers of rows of the blocks, positive whole numbers.
        dims: the number of leading dimensions that count as rows, at least 1.

    Raises:
        ValueError: on construction, for shares or `dims` that are not positive whole numbers,
            another number of shares than of rules, or a rule that needs global sums or has a weight
            to evaluate with. On `init`, if the rows cannot be split in these shares.

    Example:
        >>> normalize = rules.NormalizedUpdate("layer")
        >>> rule = Blocks((normalize, normalize), shares=(1, 2))
        >>> grad = torch.tensor([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])
        >>> rule.step(torch.zeros(3, 2), grad, rule.init(grad))[0]
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
        if not all(isinstance(rule, Rule) for rule in _as_tuple(self.rules)):
            raise TypeError(f"Blocks: rules must be a tuple of rules, got {self.rules!r}")
        if not all(type(x) is int and x > 0 for x in (*_as_tuple(self.shares), self.dims)):
            raise ValueError(
                "Blocks: shares and dims must be positive whole numbers, "
                f"got shares={self.shares!r}, dims={self.dims!r}"
            )
        if len(self.rules) != len(self.shares):
            raise ValueError(
                "Blocks: rules must be one for each share, "
                f"got {len(self.rules)} rules, {len(self.shares)} shares"
            )
        if any(rule.needs_global_sums or rule.has_eval_weight for rule in self.rules):
            raise ValueError(
                "Blocks: a rule that needs sums over all weights, or has a weight to evaluate "
                "with, belongs around the blocks, not within"
            )

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the blocks of a tensor that has the shape of the weight.

        Raises:
            ValueError: the rows cannot be split in these shares.
        """
        total_share = sum(self.shares)
        if x.ndim < self.dims:
            raise ValueError(
                f"Blocks: dims={self.dims} needs as many dimensions, got shape {tuple(x.shape)}"
            )
        rows = replicate(x)
        if self.dims > 1:
            rows = rows.flatten(0, self.dims - 1)
        if len(rows) % total_share:
            raise ValueError(
                f"Blocks: shares={self.shares} needs rows that {total_share} divides, "
                f"got {len(rows)} of shape {tuple(x.shape)}"
            )
        rows_per_share = len(rows) // total_share
        return torch.split(rows, [share * rows_per_share for share in self.shares])

    def init(self, weight: Tensor) -> State:
        state: State = {}
        for index, block in enumerate(self.split(to_compute_dtype(weight))):
            state |= self.init_child(index, block)
        return {key: state[key] for key in self.state_keys}

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        directions: list[Tensor] = []
        new_state: State = {}
        for index, block in enumerate(self._split_update(update)):
            block_update, block_state = self.update_child(index, block, state)
            directions.append(block_update.direction)
            new_state |= block_state
        direction = torch.cat(directions).reshape(update.weight.shape)
        return update.replace(direction=direction), new_state

    def weight_warnings(self, weight: Tensor) -> list[str]:
        texts: list[str] = []
        for rule, block in zip(self.rules, self.split(weight), strict=True):
            texts.extend(rule.weight_warnings(block))
        return texts

    def _split_update(self, update: Update) -> list[Update]:
        """Return the update of each block; notes that have the shape of the weight are split."""
        weights = self.split(update.weight)
        grads = self.split(update.grad)
        directions = self.split(update.direction)
        notes: list[dict[str, Any]] = [{} for _ in self.rules]
        for name, note in update.notes.items():
            has_weight_shape = isinstance(note, Tensor) and note.shape == update.weight.shape
            block_notes = self.split(note) if has_weight_shape else [note] * len(self.rules)
            for notes_of_block, block_note in zip(notes, block_notes, strict=True):
                notes_of_block[name] = block_note
        blocks: list[Update] = []
        for index in range(len(self.rules)):
            block = update.replace(
                weight=weights[index],
                grad=grads[index],
                direction=directions[index],
                invariance=None,
                notes=notes[index],
            )
            blocks.append(block)
        return blocks


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)
