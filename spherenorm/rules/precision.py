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
_LOW = torch.bfloat16
_BELOW = 0xFFFF
"""The bits of a float32 that bfloat16 does not have."""
_MIXED = (-1640531527, 0x7FEB352D, 0x346CA68B)
"""Odd numbers that mix the bits of others by multiplication (Knuth; Wellons 2018)."""


def stochastic_rounding(x: Tensor, seed: Tensor) -> Tensor:
    """x on the grid of bfloat16: one of its two neighbours, by chance, so that the mean is x.

    Args:
        x: real; it is rounded from float32.
        seed: a whole number, 0-dim. Equal seeds round equal tensors alike.

    Returns:
        A tensor like x. What is infinite or no number stays.

    Example:
        >>> x = torch.full((10_000,), 1 + 2**-10)  # the neighbours are 1 and 1 + 2**-7
        >>> rounded = stochastic_rounding(x, torch.tensor(3))
        >>> rounded.unique(), 0.11 < (rounded > 1).float().mean() < 0.14  # 1 / 8
        (tensor([1.0000, 1.0078]), tensor(True))

    Source: Gupta et al. 2015; the noise is a hash of the seed and the place of an entry.
    """
    if hasattr(x, "device_mesh"):
        from torch.distributed.tensor import DTensor

        sharded: Any = x
        local = stochastic_rounding(sharded.to_local(), _local(seed))
        mesh, places = sharded.device_mesh, sharded.placements
        return DTensor.from_local(
            local, mesh, places, run_check=False, shape=x.shape, stride=x.stride()
        )
    single = x.float()
    bits = single.view(torch.int32)
    rounded = ((bits + _noise(single, _local(seed))) & ~_BELOW).view(torch.float32)
    finite = torch.where(single.isfinite(), rounded, single)
    return finite.to(x.dtype)


def _local(seed: Any) -> Tensor:
    return seed.to_local() if hasattr(seed, "device_mesh") else seed  # type: ignore[no-any-return]


def _noise(x: Tensor, seed: Tensor) -> Tensor:
    """Whole numbers from 0 to 2^16 - 1 by chance, one for each entry."""
    first, second, third = _MIXED
    bits = torch.arange(x.numel(), device=x.device, dtype=torch.int32).reshape(x.shape)
    bits = bits * first + seed.remainder(2**31 - 1).to(torch.int32) * third
    for factor in (second, third):
        bits = (bits ^ ((bits >> 16) & _BELOW)) * factor
    return (bits ^ (bits >> 15)) & _BELOW


@dataclass(frozen=True)
class LowPrecisionState(Rule):
    """A rule whose states are kept in bfloat16 between two steps: 2 bytes an entry instead of 4.

    Within a step they are as precise as the weight's arithmetic. States of another shape than the
    weight's, such as the counter or the norms of rows, stay as they are. In flat space.

    Args:
        rule: whose states are kept.
        rounding: "stochastic" rounds up or down by chance, so that averages do not stall: with
            beta = 0.999 a moment would otherwise forget changes of less than 1/256. "nearest" is
            the usual one.
        seed: of the chance, a whole number in [0, inf).
        only: the names of the states to keep so; None: all. One that holds a weight, as Prodigy's
            first one, should not be among them.

    Raises:
        ValueError: the rule has no state of a name, or has `Blocks` within.

    Example:
        >>> rule = LowPrecisionState(sn.rules.HeavyBall(0.9))
        >>> rule.init(torch.ones(2))
        {'step': ..., 'momentum': tensor([0., 0.], dtype=torch.bfloat16)}

    Source: see `stochastic_rounding`.
    """

    needs_flat_space = True

    rule: Rule
    rounding: Rounding = choice("stochastic", "nearest")
    seed: Scalar = hyper("[0, inf)", 0)
    only: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(isinstance(each, Blocks) for each in self.rule.walk()):
            instead = "such as blocks(low_precision(adamw))"
            raise ValueError(
                f"LowPrecisionState: the states of Blocks lie in parts; put it within, {instead}"
            )
        for name in self.only or ():
            if name not in self.rule.state_keys:
                known = ", ".join(key for key in self.rule.state_keys if key != STEP_KEY)
                raise ValueError(
                    f"LowPrecisionState: only has {name!r}, the rule's states are {known}"
                )

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY,) if self.rounding == "stochastic" else ()

    def init(self, weight: Tensor) -> State:
        state, outer = super().init(weight), self.child_keys[0]
        kept = outer.values() if self.only is None else {outer[name] for name in self.only}
        return {
            key: x.to(_LOW) if key in kept and key != STEP_KEY and x.shape == weight.shape else x
            for key, x in state.items()
        }

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        after, new = self.update_child(0, update, state)
        if self.rounding == "stochastic":
            seeds = {key: state[STEP_KEY] * 64 + i + self.seed * 7919 for i, key in enumerate(new)}
            new = {
                key: stochastic_rounding(x, seeds[key]) if state[key].dtype is _LOW else x
                for key, x in new.items()
            }
        return after, {key: x.to(state[key].dtype) for key, x in new.items()}

    def child_state(self, index: int, state: State, weight: Tensor) -> State:
        """Return the child's states, those in bfloat16 in the dtype of the weight."""
        stored = super().child_state(index, state, weight)
        return {key: x.to(weight.dtype) if x.dtype is _LOW else x for key, x in stored.items()}


@dataclass(frozen=True)
class StochasticRounding(Rule):
    """Let a step end on the grid of bfloat16, in the mean at w - d: for weights in bfloat16.

    To the nearest, a step of less than 1/512 of a weight changes nothing: 200 steps of AdamW at a
    learning rate of 1e-4 leave 1.0 at 1.0. Put it last, in flat space.

    Args:
        seed: of the chance, a whole number in [0, inf).

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

    seed: Scalar = hyper("[0, inf)", 0)

    @property
    def state_names(self) -> tuple[str, ...]:
        return (STEP_KEY,)

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        seed = state[STEP_KEY] * 64 + 63 + self.seed * 7919
        end = stochastic_rounding(update.weight - update.direction, seed)
        way = torch.where(end.isfinite(), update.weight - end, update.direction)
        return update.replace(direction=way), {}
