"""Two studies of our own: do best learning rates stay over widths, and is warm-up needless?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.extra.control.arms import BASES, COLORS, CONTROLS, REST, arm_of
from spherenorm_experiments.extra.control.probe import PROBE
from spherenorm_experiments.extra.control.rates import (
    REACH,
    WITHIN,
    best_octave,
    lacking,
    losses,
    plateau,
    sensitivity,
)
from spherenorm_experiments.extra.control.turns import turn_over_law
from spherenorm_experiments.pictures import Picture, drawn, lines
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs, Trial, mean_over, number
from spherenorm_experiments.tables import Row, Table, mean_of

WIDTHS = {"smoke": (16,), "small": (16, 64), "full": (32, 64, 128, 256)}
"""The widths of each tier; from its smallest to its largest the best rate may drift."""

WINDOWS = {"smoke": 32, "small": 960, "full": 64_000}
"""Training windows of each tier: 120 steps of 8 in the small one, 2,000 of 32 in the full one."""

FIELDS = {"rest": REST, "schedule": "linear", "probes": ("norms", PROBE), "probe_every": 20}
NATS: dict[str, Any] = {"unit": "nats", "margin": WITHIN, "score": True}


def _condition(label: str, width: int) -> Condition:
    """The byte model at a width, in every tier."""
    windows = {tier: Setup({"windows": count}) for tier, count in WINDOWS.items()}
    setup = windows.pop("small").updated(Setup({"width": width}, fields=FIELDS))
    return Condition(label, "bytes", setup, tiers=windows, unit="nats", margin=WITHIN)


CONDITIONS = [
    _condition(f"width {width}", width) for width in sorted(set().union(*WIDTHS.values()))
]
ARMS = {(base, control): arm_of(base, control) for base in BASES for control in CONTROLS}


def _ran(runs: Runs) -> list[str]:
    """The conditions with runs, from the narrowest to the widest."""
    known = {place.condition for place in runs.places}
    return [condition.label for condition in CONDITIONS if condition.label in known]


def over_widths(runs: Runs, arm: str, of: Callable[[pd.DataFrame], pd.Series]) -> pd.Series:
    """The mean of a number of the losses over the widths that have runs."""
    return mean_over(of(losses(runs, width, arm)) for width in _ran(runs))


def drift(runs: Runs, arm: str) -> pd.Series:
    """log2 of the best rate at the largest width minus that at the smallest; none for one width."""
    if len(ran := _ran(runs)) < 2:
        return pd.Series(dtype=float)
    narrow, wide = (best_octave(losses(runs, ran[i], arm)) for i in (0, -1))
    return (wide - narrow).dropna()


def _tuned(runs: Runs, arm: str) -> pd.Series:
    """Minus the test loss of each seed at the rate that it chooses, the mean over widths."""
    return mean_over(runs.best(width, arm).test for width in _ran(runs))


def one_sided(runs: Runs, arms: Sequence[str]) -> str:
    """The arms whose rates end within reach of the best one, so that a sensitivity lacks some."""
    parts = []
    for width, arm in itertools.product(_ran(runs), arms):
        if few := lacking(losses(runs, width, arm)):
            parts.append(f"{arm} at {width} lacks {few} of {2 * REACH + 1} rates")
    return "; ".join(parts)


def _against_decay(base: str, control: str) -> list[Claim]:
    arm, decayed = (ARMS[base, each].name for each in (control, "decay"))
    end = f"{slug(base)}.{slug(control)}"

    def minus(runs: Runs, of: Callable[[Runs, str], pd.Series]) -> pd.Series:
        return of(runs, arm) - of(runs, decayed)

    return [
        Claim(f"loss.{end}", "> 0", lambda runs: minus(runs, _tuned),
              f"{arm} has a lower loss at its own best rates than {decayed}", **NATS),
        Claim(f"sensitivity.{end}", "< 0",
              lambda runs: minus(runs, lambda of, name: over_widths(of, name, sensitivity)),
              f"{arm} is less sensitive to the rate than {decayed}", primary=True,
              note=lambda runs: one_sided(runs, (arm, decayed)), **NATS),
        Claim(f"plateau.{end}", "> 0",
              lambda runs: minus(runs, lambda of, name: over_widths(of, name, plateau)),
              f"{arm} has a wider plateau than {decayed}", unit="octaves", score=True),
        Claim(f"drift.{end}", "< 0",
              lambda runs: minus(runs, lambda of, name: drift(of, name).abs()),
              f"{arm} has a best rate that drifts less over widths than {decayed}", primary=True,
              unit="octaves", score=True),
    ]  # fmt: skip


class LrTransfer(Comparison):
    """The comparison, its curves, and the claims about them."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        known = {f"width {width}" for width in WIDTHS[plan.budgets]}
        every = super().trials(plan, runs)
        return [trial for trial in every if trial.place.condition in known]

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for width, arm in itertools.product(_ran(runs), (arm.name for arm in self.arms)):
            found, chosen = losses(runs, width, arm), runs.best(width, arm)
            if len(found):
                cells = [mean_of(-chosen.test, ".3f"), mean_of(best_octave(found), ".2f")]
                cells += [mean_of(sensitivity(found), ".3f"), mean_of(plateau(found), ".2f")]
                cells.append(mean_of(number(chosen, turn_over_law), ".2f"))
                rows.append((f"{width}: {arm}", *cells))
        headings = ["arm", "loss at the best rate", "log2(best rate)", "sensitivity", "plateau"]
        note = (
            "Losses in nats per byte on the test files; means over seeds ± SD. Plateau in octaves. "
            "Turn: per step of hidden matrices, in the second half of the runs at the best rate, "
            "over arctan(lr) for Hyperball, lr for rotational, and the turn in equilibrium at the "
            "rate of each step for Adam with decay; the others have no law."
        )
        own = Table("Loss against rate", [*headings, "turn / law"], rows, note)
        return [*([own] if rows else []), *super().tables(runs)]

    def pictures(self, runs: Runs) -> list[Picture]:
        return [*drawn(_picture(runs, base) for base in BASES), *super().pictures(runs)]


def _picture(runs: Runs, base: str) -> Picture:
    """Draw the mean loss against the rate, a line for each norm control and width."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    colors, dashes = dict[str, str](), dict[str, str]()
    for width, dash in zip(_ran(runs), ("solid", "dash", "dot", "dashdot"), strict=False):
        for control in CONTROLS:
            means = losses(runs, width, ARMS[base, control].name).mean()
            if len(means):
                name = f"{control}, {width}"
                series[name] = [2.0**octave for octave in means.index], means.tolist()
                colors[name], dashes[name] = COLORS[control], dash
    caption = (
        f"{base}: test loss against the learning rate, means over seeds. Rates of Hyperball and "
        "rotational, and of Adam with gains, are turns; the others multiply the base's step."
    )
    words = "learning rate", "loss (nats per byte)"
    return lines(series, *words, caption, colors, log_x=True, dashes=dashes)


COMMON: dict[str, Any] = {"tune": {"lr": [0.01]}, "seeds": {"small": 3, "evidence": 6, "full": 12}}

STUDY = LrTransfer(
    "lr-transfer",
    f"""Learning rates over widths: does the best rate stay, and how much does it matter?

    A byte-level language model (two layers, normalized queries and keys, no gains) on the
    source of Python's standard library, each window read once, the rate falling linearly to 0.
    Two bases, Adam and Muon, each under six norm controls: decoupled decay, AdamP's projection
    (with the same decay), Hyperball, rotational, radial brake, and gains: W = diag(a) V diag(b),
    where |V| stays, and a and b are learned at a tenth of V's rate (MD decoupling). Only the
    matrices of the blocks take these; embedding and head take Adam at one rate in all arms.
    Rates are a factor 2 apart, and all train on all seeds.

    Sensitivity (Wortsman et al. 2023): the mean over the rates within {REACH} octaves of the best
    of min(loss, loss at the start), minus the best loss. Plateau: the octaves of rates whose loss
    is within {WITHIN:g} nats of the best. Drift: log2 of the best rate at the largest width minus
    that at the smallest. Each is taken seed by seed. The decay of each base is one value, which is
    not tuned.
    """,
    arms=list(ARMS.values()),
    conditions=CONDITIONS,
    claims=[claim for base, control in ARMS if control != "decay"
            for claim in _against_decay(base, control)],
    first_seed=1000,
    **COMMON,
)  # fmt: skip

SHARE = 0.2
"""Of the steps: over these the rate rises, if it does."""

AT_ONCE = [("Adam", "decay"), ("Adam", "Hyperball"), ("Adam", "rotational"), ("Muon", "decay"),
           ("Muon", "Hyperball"), ("Muon", "gains")]  # fmt: skip
"""The optimizers that train with the warm-up and without it."""


def _warmed(arm: Arm) -> Arm:
    name = f"{arm.name}, warm-up"
    return replace(arm, name=name, against=(arm.name,), regime=lambda _: {"warmup": SHARE})


def _gain_at_best(runs: Runs, arm: str) -> pd.Series:
    """The gain of the warm-up in nats, each at the rate that a seed chooses."""
    return runs.best("", f"{arm}, warm-up").test - runs.best("", arm).test


def _gain_over_rates(runs: Runs, arm: str) -> pd.Series:
    """The mean gain over the rates that both have."""
    at_once, warmed = losses(runs, "", arm), losses(runs, "", f"{arm}, warm-up")
    shared = at_once.columns.intersection(warmed.columns)
    return (at_once[shared].mean(axis=1) - warmed[shared].mean(axis=1)).astype(float)


def _of_warm_up(base: str, control: str) -> list[Claim]:
    """The gain over the rates, and whether either gain is smaller than under decay."""
    arm, decayed = (ARMS[base, each].name for each in (control, "decay"))
    end, said = f"{slug(base)}.{slug(control)}", f"The warm-up gains less under {arm} than under"
    gain = Claim(
        f"gain.rates.{end}", "> 0", lambda runs: _gain_over_rates(runs, arm),
        f"The warm-up lowers the loss of {arm} on the average over the rates", **NATS,
    )  # fmt: skip
    return [gain] if control == "decay" else [
        gain,
        Claim(f"less.best.{end}", "< 0",
              lambda runs: _gain_at_best(runs, arm) - _gain_at_best(runs, decayed),
              f"{said} {decayed} at the best rates", primary=True, **NATS),
        Claim(f"less.rates.{end}", "< 0",
              lambda runs: _gain_over_rates(runs, arm) - _gain_over_rates(runs, decayed),
              f"{said} {decayed} on the average over the rates", primary=True, **NATS),
    ]  # fmt: skip


WARM_UP = Comparison(
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
    conditions=[_condition("", 32)],
    claims=[claim for at in AT_ONCE for claim in _of_warm_up(*at)],
    first_seed=1200,
    **COMMON,
)
