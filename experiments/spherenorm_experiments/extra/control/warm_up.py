"""A study of our own: does norm control make the warm-up of the learning rate needless?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import Arm, Comparison
from spherenorm_experiments.extra.control.arms import arm_of
from spherenorm_experiments.extra.control.lr_transfer import byte_condition
from spherenorm_experiments.extra.control.rates import WITHIN, curves, losses_over
from spherenorm_experiments.runs import Runs

SHARE = 0.2
"""Of the steps: over these the rate rises, if it does."""


def _warmed(arm: Arm) -> Arm:
    name = f"{arm.name}, warm-up"
    return replace(arm, name=name, against=(arm.name,), regime=lambda _: {"warmup": SHARE})


CONDITION = byte_condition("", width=32)

PAIRS = {
    (base, control): (arm_of(base, control), _warmed(arm_of(base, control)))
    for base, control in (
        ("Adam", "decay"),
        ("Adam", "Hyperball"),
        ("Adam", "rotational"),
        ("Muon", "decay"),
        ("Muon", "Hyperball"),
        ("Muon", "gains"),
    )
}
"""Each optimizer without the warm-up, and with it."""

Gain = Callable[..., pd.Series]
"""The gain of the warm-up in nats, by seed, of a pair of arms."""


def gain_at_best(runs: Runs, pair: tuple[Arm, Arm]) -> pd.Series:
    """Each at the rate that a seed chooses."""
    at_once, warmed = (runs.best(CONDITION.label, arm.name).test for arm in pair)
    return warmed - at_once


def gain_over_rates(runs: Runs, pair: tuple[Arm, Arm]) -> pd.Series:
    """The mean over the rates that both have."""
    found = [curves(runs, CONDITION.label, arm.name) for arm in pair]
    if not all(found):
        return pd.Series(dtype=float)
    first, second = (next(iter(each.values())).octaves for each in found)
    shared = [octave for octave in first if octave in second]
    at_once, warmed = (losses_over(each, shared) for each in found)
    return at_once - warmed


def _less(runs: Runs, side: Gain, pair: tuple[Arm, Arm], other: tuple[Arm, Arm]) -> pd.Series:
    return side(runs, pair) - side(runs, other)


def _claims() -> Iterator[Claim]:
    """The gain over the rates, and whether either gain is smaller than under decay."""
    ways: dict[str, tuple[Gain, str]] = {
        "best": (gain_at_best, "at the best rates"),
        "rates": (gain_over_rates, "on the average over the rates"),
    }
    for (base, control), pair in PAIRS.items():
        end, name = slug(f"{base}.{control}"), pair[0].name
        yield Claim(
            f"gain.rates.{end}", "> 0", partial(gain_over_rates, pair=pair),
            f"The warm-up lowers the loss of {name} on the average over the rates", unit="nats",
            margin=WITHIN, score=True,
        )  # fmt: skip
        for way, (side, where) in ways.items() if control != "decay" else ():
            decayed = PAIRS[base, "decay"]
            yield Claim(
                f"less.{way}.{end}", "< 0", partial(_less, side=side, pair=pair, other=decayed),
                f"The warm-up gains less under {name} than under {decayed[0].name} {where}",
                unit="nats", margin=WITHIN, primary=True, score=True,
            )  # fmt: skip


STUDY = Comparison(
    "warm-up",
    f"""Warm-up: does norm control make it needless?

    The byte-level language model of `lr-transfer` at width 32, with and without a linear rise
    of the learning rate over the first {SHARE:.0%} of the steps; in both the rate falls
    linearly to 0. All rates train on all seeds. The gain of the warm-up is the loss without it
    minus that with it: at the rate that each seed chooses, and as the mean over the rates of
    min(loss, loss at the start), since a warm-up may let larger rates train. Embedding and head
    warm up with the others.
    """,
    arms=[each for pair in PAIRS.values() for each in pair],
    tune={"lr": [0.01]},
    conditions=[CONDITION],
    claims=list(_claims()),
    first_seed=1200,
    seeds={"small": 3, "evidence": 6, "full": 12},
)
