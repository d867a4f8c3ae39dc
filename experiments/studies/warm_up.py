"""Does norm control make a warm-up needless?

spherenorm run experiments/studies/warm_up.py --tier evidence
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from spherenorm_experiments import Arm, ByteModel, Claim, Comparison, Condition, Runs, Setup, slug

SHARE = 0.2
"""The share of the steps over which the rate rises, if it does."""

WITHIN = 0.02
"""Nats within which two losses are equivalent."""

WINDOWS = {"smoke": 32, "small": 960, "full": 64_000}
"""Training windows of each tier: 120 steps of 8 in the small one, 2,000 of 32 in the full one."""

BETAS = {"betas": [0.9, 0.95]}

REST = {"recipe": "adam", "lr": 2.0**-5, **BETAS}
"""The optimizer of embedding, positions and head, at one rate in all arms."""

ENTRIES = tuple(2.0**k for k in range(-8, -2))
"""Rates of Adam's step, whose entries are about 1 before the rate multiplies them."""

TURNS = tuple(2.0**k for k in range(-7, -1))
"""Rates that are about the turn of a step in radians, as Muon's and those on spheres are."""


def _arm(name: str, recipe: str, rates: tuple[float, ...], **fixed: Any) -> Arm:
    return Arm(name, {"lr": rates}, fixed, against=(), recipe=recipe)


DECAYED = {
    "Adam": _arm("Adam, decay", "adamw", ENTRIES, **BETAS, weight_decay=1.0),
    "Muon": _arm("Muon, decay", "muon", TURNS, weight_decay=0.25),
}
"""By base. At a middle rate each has lr λ = 2^-6: |w|² decays in 1 / (2 lr λ) = 32 steps."""

CONTROLLED = {
    "Adam": [
        _arm("Adam, Hyperball", "hyperball(adamw)", TURNS, **BETAS),
        _arm("Adam, rotational", "rotational(adamw)", TURNS, **BETAS),
    ],
    "Muon": [
        _arm("Muon, Hyperball", "hyperball(muon)", TURNS),
        _arm("Muon, gains", "mdmuon", TURNS),
    ],
}
"""The norm controls of each base."""


def warmed(arm: Arm) -> Arm:
    """Return an arm whose rate rises linearly at first."""
    name = f"{arm.name}, warm-up"
    return replace(arm, name=name, against=(arm.name,), regime=lambda _: {"warmup": SHARE})


def gain_at_best(runs: Runs, arm: str) -> pd.Series:
    """Return the gain of the warm-up in nats, each at the rate that a seed chooses."""
    return runs.selected("", f"{arm}, warm-up").test - runs.selected("", arm).test


def gain_over_rates(runs: Runs, arm: str) -> pd.Series:
    """Return the mean gain over the rates that both have, of min(loss, loss at the start)."""
    at_once, after_warm_up = losses(runs, arm), losses(runs, f"{arm}, warm-up")
    shared = at_once.columns.intersection(after_warm_up.columns)
    gain = at_once[shared].mean(axis=1) - after_warm_up[shared].mean(axis=1)
    return gain.astype(float)


def losses(runs: Runs, arm: str) -> pd.DataFrame:
    """Return the test losses of an arm, a row for each seed and a column for each rate."""
    complete = runs.complete_grid("", arm)
    uniform = ByteModel.uniform_loss
    loss = (-complete.test.astype(float)).fillna(uniform).clip(upper=uniform)
    return complete.assign(loss=loss).pivot(index="seed", columns="lr", values="loss")


GAINS: Mapping[str, tuple[Callable[[Runs, str], pd.Series], str]] = {
    "best": (gain_at_best, "at the best rates"),
    "rates": (gain_over_rates, "on the average over the rates"),
}

NATS: Mapping[str, Any] = {"unit": "nats", "equivalence_margin": WITHIN, "is_performance": True}


def _claims(base: str) -> Iterator[Claim]:
    """The gain of each arm over the rates, and whether it is smaller than under decay."""
    decayed = DECAYED[base].name

    def minus_decay(runs: Runs, arm: str, gain: Callable[[Runs, str], pd.Series]) -> pd.Series:
        return gain(runs, arm) - gain(runs, decayed)

    for arm in (DECAYED[base], *CONTROLLED[base]):
        end = slug(arm.name.replace(", ", "."))
        yield Claim(
            f"gain.rates.{end}", "> 0", functools.partial(gain_over_rates, arm=arm.name),
            f"The warm-up lowers the loss of {arm.name} on the average over the rates", **NATS,
        )  # fmt: skip
        for name, (gain, at) in GAINS.items() if arm.name != decayed else ():
            yield Claim(
                f"less.{name}.{end}", "< 0",
                functools.partial(minus_decay, arm=arm.name, gain=gain),
                f"The warm-up gains less under {arm.name} than under {decayed} {at}", primary=True,
                **NATS,
            )  # fmt: skip


def byte_condition() -> Condition:
    """Return the byte model of width 32, in every tier."""
    setups = {tier: Setup({"windows": count}) for tier, count in WINDOWS.items()}
    fields = {"rest": REST, "schedule": "linear", "probes": ()}
    setup = setups.pop("small").updated(Setup({"width": 32}, fields=fields))
    task = "spherenorm_experiments.byte_model:ByteModel"
    return Condition("", task, setup, tiers=setups, unit="nats", margin=WITHIN)


STUDY = Comparison(
    "warm-up",
    f"""Warm-up: does norm control make it needless?

    A byte-level language model (two layers, normalized queries and keys, no gains, width 32) on the
    source of Python's standard library, with and without a linear rise of the learning rate over
    the first {SHARE:.0%} of the steps; in both the rate falls linearly to 0. All rates train on all
    seeds. The gain of the warm-up is the loss without it minus that with it: at the rate that each
    seed chooses, and as the mean over the rates of min(loss, loss at the start), since a warm-up
    may let larger rates train. Embedding, positions and head take Adam at one rate in all arms, and
    warm up with the others. The decay of each base is one value, which is not tuned.
    """,
    arms=[x for base in DECAYED for arm in (DECAYED[base], *CONTROLLED[base])
          for x in (arm, warmed(arm))],
    tune={"lr": ENTRIES},
    conditions=[byte_condition()],
    claims=[claim for base in DECAYED for claim in _claims(base)],
    first_seed=1200,
    seeds={"small": 3, "evidence": 6, "full": 12},
)  # fmt: skip
