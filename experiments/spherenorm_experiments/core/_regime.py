"""`Regime`: the options of a training run that no task has to write."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from spherenorm.support import unknown_name
from spherenorm_experiments.core._typed import fits

PRECISIONS = ("float32", "bfloat16", "float16")


def _in_turn(optimizers: Sequence[Mapping[str, Any]]) -> bool:
    """True for mappings with a recipe and a place, whose places rise within (0, 1)."""
    if not all(fits(x.get("recipe"), str) and fits(x.get("after"), float) for x in optimizers):
        return False
    places = [x["after"] for x in optimizers]
    return places == sorted(set(places)) and all(0 < place < 1 for place in places)


RANGES: dict[str, tuple[Any, Callable[[Any], bool], str]] = {
    "warmup": (float, lambda x: x >= 0, "a number of epochs of at least 0"),
    "micro_batches": (int, lambda x: x >= 1, "an integer of at least 1"),
    "clip_norm": (float | None, lambda x: 0 < x < math.inf, "a number in (0, inf)"),
    "ema": (float | None, lambda x: 0 < x < 1, "a number in (0, 1)"),
    "label_smoothing": (float, lambda x: 0 <= x < 1, "a number in [0, 1)"),
    "frozen": (
        tuple[str, float] | None,
        lambda x: isinstance(x, tuple),
        "a prefix of names and a number of epochs",
    ),
    "then": (
        tuple[Mapping[str, Any], ...],
        _in_turn,
        "mappings with a recipe's name and a share after, which rises within (0, 1)",
    ),
    "steps_of": (str | None, lambda x: x != "", "the name of a run"),
}
"""Of each option its type, its range, and both in words."""


@dataclass(frozen=True)
class Regime:
    """Options of a run on batches; the defaults change nothing.

        Regime(warmup=5, clip_norm=1.0, precision="bfloat16")

    Attributes:
        warmup: epochs over which the learning rate rises linearly: it is multiplied by
            min(1, (t + 1) / W) at step t, with W the steps of the warm-up.
        micro_batches: parts of a batch, whose gradients are added up before each step.
        clip_norm: the largest norm of the gradient of all weights together; None does not clip.
        ema: the decay d of an exponential moving average a <- d a + (1 - d) w of weights and
            buffers, which is evaluated in place of the weights; None keeps none.
        label_smoothing: for tasks whose loss calls `spherenorm_experiments.core.cross_entropy`.
        precision: float32, or by autocast bfloat16, or float16 with a scaled loss.
        frozen: a prefix of weights' names and a number of epochs, the first, in which these weights
            stay as they are and have no gradient; None freezes none.
        then: optimizers that follow, each a mapping of "recipe", "after" (the share of the
            steps that come before it, in (0, 1)) and hyper-parameters, with a state of its own.
        steps_of: a run in the same store, with the probe `steps` at every step. Each
            scale-invariant weight turns as far as in that run, in the direction of its own step;
            its norm is that of its own step.

    Raises:
        ValueError: a value out of its range, an unknown precision, or one that follows without
            recipe or place.
    """

    warmup: float = 0.0
    micro_batches: int = 1
    clip_norm: float | None = None
    ema: float | None = None
    label_smoothing: float = 0.0
    precision: str = "float32"
    frozen: tuple[str, float] | None = None
    then: tuple[Mapping[str, Any], ...] = ()
    steps_of: str | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        for name, (hint, is_inside, range_) in RANGES.items():
            value = getattr(self, name)
            if not fits(value, hint) or (value is not None and not is_inside(value)):
                raise ValueError(f"{name} must be {range_}, got {value!r}")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Regime:
        """The inverse of `to_json`."""
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists})

    def to_json(self) -> dict[str, Any]:
        """The options that are not the default."""
        given, usual = asdict(self), asdict(Regime())
        return {name: value for name, value in given.items() if value != usual[name]}
