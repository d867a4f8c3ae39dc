"""Low precision: keep states and weights in bfloat16 without losing small steps to rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from spherenorm.fields import choice, hyper
from spherenorm.numerics import Scalar
from spherenorm.rule import STEP_KEY, Rule, State, Update
from spherenorm.rules.structure import Blocks

Rounding = Literal["stochastic", "nearest"]
STORAGE_DTYPE = torch.bfloat16
LOW_16_BITS = 0xFFFF
"""The bits of a float32 that bfloat16 does not have."""
HASH_MULTIPLIERS = (-1640531527, 0x7FEB352D, 0x346CA68B)
"""Odd numbers by which an integer hash multiplies (Knuth; Wellons 2018)."""
SEEDS_PER_STEP = 64
"""Seeds of one step: one per state, and the last one for the weight."""
SEED_STRIDE = 7919
"""The distance between the seeds of two values of a rule's `seed`, a prime number."""


def stochastic_rounding(x: Tensor, seed: Tensor) -> Tensor:
    """Round each entry at random to one of its two neighbours in bfloat16, with mean x.

    Args:
        x: a real tensor; it is rounded from float32.
        seed: a whole number, 0-dim. Equal seeds round equal tensors alike.

    Returns:
        A tensor with the dtype of x. Infinite entries and nan do not change.

    Example:
        >>> x = torch.full((10_000,), 1 + 2**-10)  # the neighbours are 1 and 1 + 2**-7
        >>> rounded = stochastic_rounding(x, torch.tensor(3))
        >>> rounded.unique(), 0.11 < (rounded > 1).float().mean() < 0.14  # 1 / 8
        (tensor([1.0000, 1.0078]), tensor(True))

    Source: Gupta et al. 2015; the noise is a hash of the seed and the index of an entry.
    """
    if hasattr(x, "device_mesh"):
        from torch.distributed.tensor import DTensor

        sharded: Any = x
        return DTensor.from_local(
            stochastic_rounding(sharded.to_local(), _to_local(seed)),
            sharded.device_mesh,
            sharded.placements,
            run_check=False,
            shape=x.shape,
            stride=x.stride(),
        )
    float32 = x.float()
    bits = float32.view(torch.int32)
    rounded_bits = (bits + _draw_16_bits(float32, _to_local(seed))) & ~LOW_16_BITS
    rounded = rounded_bits.view(torch.float32)
    return torch.where(float32.isfinite(), rounded, float32).to(x.dtype)


def _to_local(seed: Any) -> Tensor:
    return seed.to_local() if hasattr(seed, "device_mesh") else seed  # type: ignore[no-any-return]


def _draw_16_bits(x: Tensor, seed: Tensor) -> Tensor:
    """Return a pseudo-random whole number from 0 to 2^16 - 1 for each entry."""
    index_multiplier, multiplier, seed_multiplier = HASH_MULTIPLIERS
    bits = torch.arange(x.numel(), device=x.device, dtype=torch.int32).reshape(x.shape)
    bits = bits * index_multiplier + seed.remainder(2**31 - 1).to(torch.int32) * seed_multiplier
    for factor in (multiplier, seed_multiplier):
        bits = (bits ^ ((bits >> 16) & LOW_16_BITS)) * factor
    return (bits ^ (bits >> 15)) & LOW_16_BITS


@dataclass(frozen=True)
class LowPrecisionState(Rule):
    """Store the states of a rule in bfloat16 between two steps: 2 bytes per entry instead of 4.

    During a step they have the compute dtype of the weight. States of another shape than the
    weight's, such as the step count or the norms of rows, keep their dtype. The weight must be in
    flat space.

    Args:
        rule: the rule whose states are stored in bfloat16.
        rounding: "stochastic" rounds up or down at random, so that averages do not stall: with
            beta = 0.999 a moment would otherwise lose changes of less than 1/256. "nearest" is
            the usual rounding.
        seed: seed for the rounding noise, a whole number in [0, inf).
        only: the names of the states to store so; None stores all of them. A state that holds a
            weight, such as the `start` of `ProdigyStep`, should not be among them.

    Raises:
        ValueError: the rule has no state of a name in `only`, or contains `Blocks`.

    Example:
        >>> rule = LowPrecisionState(sn.rules.HeavyBall(0.9))
        >>> rule.init(torch.ones(2))
        {'step': ..., 'momentum': tensor([0., 0.], dtype=torch.bfloat16)}

    Source: see `stochastic_rounding`.
    """

    needs_flat_space = True
    needs_whole_weight = False

    rule: Rule
    rounding: Rounding = choice("stochastic", "nearest")
    seed: Scalar = hyper("[0, inf)", 0)
    only: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(rule, Blocks) for rule in self.rule.walk()):
            raise ValueError(
                "LowPrecisionState: the states of Blocks lie in parts; put it within, "
                "such as blocks(low_precision(adamw))"
            )
        for name in self.only or ():
            if name not in self.rule.state_keys:
                names = ", ".join(key for key in self.rule.state_keys if key != STEP_KEY)
                raise ValueError(
                    f"LowPrecisionState: only has {name!r}, the rule's states are {names}"
                )

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY,) if self.rounding == "stochastic" else ()

    def init(self, weight: Tensor) -> State:
        state = super().init(weight)
        child_keys = self.child_keys[0]
        names = child_keys if self.only is None else self.only
        for key in {child_keys[name] for name in names} - {STEP_KEY}:
            if state[key].shape == weight.shape:
                state[key] = state[key].to(STORAGE_DTYPE)
        return state

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        update, child_state = self.update_child(0, update, state)
        new_state: State = {}
        for index, (key, value) in enumerate(child_state.items()):
            dtype = state[key].dtype
            rounded = value
            if self.rounding == "stochastic" and dtype is STORAGE_DTYPE:
                seed = state[STEP_KEY] * SEEDS_PER_STEP + index + self.seed * SEED_STRIDE
                rounded = stochastic_rounding(value, seed)
            new_state[key] = rounded.to(dtype)
        return update, new_state

    def child_state(self, index: int, state: State, weight: Tensor) -> State:
        """Return the child's states, those in bfloat16 in the dtype of the weight."""
        child_state = super().child_state(index, state, weight)
        for key, value in child_state.items():
            if value.dtype is STORAGE_DTYPE:
                child_state[key] = value.to(weight.dtype)
        return child_state


@dataclass(frozen=True)
class StochasticRounding(Rule):
    """Round the end of a step, w - d, to bfloat16 at random and with mean w - d.

    For weights in bfloat16. With rounding to the nearest, a step of less than 1/512 of a weight
    changes nothing: 200 steps of AdamW at a learning rate of 1e-4 leave 1.0 at 1.0. Put it last;
    the weight must be in flat space.

    Args:
        seed: seed for the rounding noise, a whole number in [0, inf).

    Example:
        >>> rule = sn.chain(sn.rules.StepSize(1e-4), StochasticRounding())
        >>> weight = torch.ones(1000, dtype=torch.bfloat16)
        >>> state = rule.init(weight)
        >>> for _ in range(200):
        ...     weight, state = rule.step(weight, torch.ones_like(weight), state)
        >>> 0.979 < weight.float().mean() < 0.981
        tensor(True)

    Source: see `stochastic_rounding`.
    """

    needs_flat_space = True
    needs_whole_weight = False
    uses_endpoint = True

    seed: Scalar = hyper("[0, inf)", 0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        last_seed = SEEDS_PER_STEP - 1
        seed = state[STEP_KEY] * SEEDS_PER_STEP + last_seed + self.seed * SEED_STRIDE
        end = stochastic_rounding(update.weight - update.direction, seed)
        direction = torch.where(end.isfinite(), update.weight - end, update.direction)
        return update.replace(direction=direction), {}
