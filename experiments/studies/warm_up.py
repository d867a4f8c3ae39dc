"""Does norm control make a warm-up needless?

spherenorm run experiments/studies/warm_up.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd
from lr_transfer import ARMS, COMMON, NATS, byte_condition, losses

from spherenorm_experiments.comparison import Arm, Comparison
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.verdict import Claim, slug

SHARE = 0.2
"""The share of the steps over which the rate rises, if it does."""

AT_ONCE = [("Adam", "decay"), ("Adam", "Hyperball"), ("Adam", "rotational"), ("Muon", "decay"),
           ("Muon", "Hyperball"), ("Muon", "gains")]  # fmt: skip
"""The optimizers that train with the warm-up and without it."""


def _warmed(arm: Arm) -> Arm:
    name = f"{arm.name}, warm-up"
    return replace(arm, name=name, against=(arm.name,), regime=lambda _: {"warmup": SHARE})


def _gain_at_best(runs: Runs, arm: str) -> pd.Series:
    """The gain of the warm-up in nats, each at the rate that a seed chooses."""
    return runs.selected("", f"{arm}, warm-up").test - runs.selected("", arm).test


def _gain_over_rates(runs: Runs, arm: str) -> pd.Series:
    """The mean gain over the rates that both have."""
    at_once, warmed = losses(runs, "", arm), losses(runs, "", f"{arm}, warm-up")
    shared = at_once.columns.intersection(warmed.columns)
    return (at_once[shared].mean(axis=1) - warmed[shared].mean(axis=1)).astype(float)


def _of_warm_up(base: str, control: str) -> Iterator[Claim]:
    """The gain over the rates, and whether either gain is smaller than under decay."""
    arm, decayed = (ARMS[base, name].name for name in (control, "decay"))
    end = f"{slug(base)}.{slug(control)}"

    def minus_decay(runs: Runs, gain: Callable[[Runs, str], pd.Series]) -> pd.Series:
        return gain(runs, arm) - gain(runs, decayed)

    yield Claim(
        f"gain.rates.{end}", "> 0", partial(_gain_over_rates, arm=arm),
        f"The warm-up lowers the loss of {arm} on the average over the rates", **NATS,
    )  # fmt: skip
    for name, gain, at in (
        ("best", _gain_at_best, "at the best rates"),
        ("rates", _gain_over_rates, "on the average over the rates"),
    ):
        if control != "decay":
            yield Claim(
                f"less.{name}.{end}", "< 0", partial(minus_decay, gain=gain),
                f"The warm-up gains less under {arm} than under {decayed} {at}", primary=True,
                **NATS,
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
    arms=[arm for at in AT_ONCE for arm in (ARMS[at], _warmed(ARMS[at]))],
    conditions=[byte_condition("", 32)],
    claims=[claim for at in AT_ONCE for claim in _of_warm_up(*at)],
    first_seed=1200,
    **COMMON,
)
