"""A study of our own: gradients at the end of training, under decay, AdamC and norm control."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import MARGIN, Claim, slug
from spherenorm_experiments.extra.control.arms import BETAS, REST
from spherenorm_experiments.extra.control.norm_control import BYTES, PLACES, Measured
from spherenorm_experiments.extra.control.probe import PROBE
from spherenorm_experiments.extra.control.rates import WITHIN
from spherenorm_experiments.extra.control.turns import growth, series
from spherenorm_experiments.pictures import Picture, drawn, lines
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Key, Place, Result, Runs, Trial, number
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, mean_of

MIDDLE, END = (0.4, 0.5), (0.9, 1.0)
"""Parts of the run that are compared; the rate falls linearly to 0."""

LR, DECAY, TURN = 2.0**-6, 1.0, 2.0**-5
"""Decay and steps balance within 1 / (2 lr λ) = 32 steps at the first rate."""

ARMS = {
    "AdamW": ("adamw", {**BETAS, "lr": LR, "weight_decay": DECAY}),
    "AdamC": ("adamc", {**BETAS, "lr": LR, "weight_decay": DECAY, "max_lr": LR}),
    "Hyperball": ("hyperball(adamw)", {**BETAS, "lr": TURN}),
}
COLORS = {"AdamW": "#0072b2", "AdamC": "#aa3377", "Hyperball": "#009e73"}

WINDOWS = {"smoke": 160, "small": 8000, "full": 64_000}
"""Training windows of the byte model: 1,000 steps of 8 in the small tier."""

EPOCHS = {"smoke": 4, "small": 50, "full": 200}
"""Of the digits; 900 steps in the small tier."""

SMOOTHED = {"label_smoothing": 0.2}
"""Of the digits: it keeps a network that fits all of them from having no gradient."""


class EndOfTraining(Study):
    """End of training: do gradients grow as the rate falls, and does AdamC cure that?

    Where decay and steps balance, a scale-invariant weight has |g| / |w| in proportion to
    sqrt(λ / lr): as the rate falls the weight shrinks and its gradient grows (Defazio 2025). AdamC
    makes the decay fall with the rate, in proportion to lr², so that the norm stays; on the
    hyperball it stays by construction. Here the rate falls linearly to 0, and the norms of all
    hidden weights and of their gradients near the end are compared with those in the middle. In the
    network for digits all hidden weights are scale-invariant, in the language model those of
    queries and keys.
    """

    name = "end-of-training"
    seeds = {"smoke": 1, "small": 3, "evidence": 12, "full": 12}  # noqa: RUF012
    first_seed = 1300

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        places = PLACES[:1] if plan.tier == "smoke" else PLACES
        tier, trials = plan.budgets, list[Trial]()
        for place in places:
            own: dict[str, Any] = {"epochs": EPOCHS[tier], "options": SMOOTHED}
            if place is BYTES:
                own = {"options": {"windows": WINDOWS[tier], "width": 32}}
            fields = {"rest": REST, "schedule": "linear", "probe_every": 10}
            for name, (recipe, hyper_parameters) in ARMS.items():
                trials += self.seeded(
                    plan, Place(place.label, name), place.task, recipe, hyper_parameters,
                    probes=("norms", PROBE), **fields, **own,
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for place in runs.places:
            every = runs.every(*place)
            parts = (number(every, of_gradient, math.inf), number(every, of_norm, math.inf))
            ends = (mean_of(part, ".3f") for part in parts)
            rows.append((str(place), *ends, mean_of(every.test, ".4g")))
        headings = ("arm", "gradient norm, end / middle", "weight norm, end / middle", "test score")
        note = (
            f"Root mean squares over the steps from {END[0]:.0%} on over those from "
            f"{MIDDLE[0]:.0%} to {MIDDLE[1]:.0%}, of all hidden weights together; means over seeds "
            "± SD. Scores: minus nats per byte, and accuracy in percent."
        )
        return [Table("The end of training", headings, rows, note)] if rows else []

    def pictures(self, runs: Runs) -> list[Picture]:
        return drawn(_over_time(runs, place) for place in PLACES)

    @property
    def claims(self) -> Sequence[Claim]:
        return [claim for place in PLACES for claim in _claims(place)]


def of_gradient(item: Result) -> float | None:
    """The gradient norm near the end over that in the middle."""
    return growth(item, "gradients", MIDDLE, END)


def of_norm(item: Result) -> float | None:
    """The norm of the weights near the end over that in the middle."""
    return growth(item, "norms", MIDDLE, END)


def _number(runs: Runs, place: Measured, name: str, key: Key) -> pd.Series:
    return number(runs.every(place.label, name).set_index("seed"), key, math.inf)


def _over_adamw(runs: Runs, place: Measured, name: str) -> pd.Series:
    ours, theirs = (_number(runs, place, each, of_gradient) for each in (name, "AdamW"))
    return ours / theirs


def _gain(runs: Runs, place: Measured) -> pd.Series:
    return _number(runs, place, "AdamC", "test") - _number(runs, place, "AdamW", "test")


def _claims(place: Measured) -> Iterator[Claim]:
    where, end = f"({place.label})", slug(place.label)
    side = partial(_number, place=place)
    yield Claim(
        f"grows.{end}", "> 1", partial(side, name="AdamW", key=of_gradient),
        f"AdamW's gradients grow as the rate falls {where}", ratio=True, primary=True,
    )  # fmt: skip
    for name in ("AdamC", "Hyperball"):
        yield Claim(
            f"less.{slug(name)}.{end}", "< 1", partial(_over_adamw, place=place, name=name),
            f"{name}'s gradients grow less than AdamW's {where}", ratio=True, primary=True,
        )  # fmt: skip
    yield Claim(
        f"shrinks.{end}", "< 1", partial(side, name="AdamW", key=of_norm),
        f"AdamW's weights shrink as the rate falls {where}", ratio=True,
    )  # fmt: skip
    yield Claim(
        f"keeps.{end}", "= 1 ± 0.05", partial(side, name="AdamC", key=of_norm),
        f"AdamC's weights keep their norm within 5 % {where}", ratio=True,
    )  # fmt: skip
    nats = place is BYTES
    yield Claim(
        f"score.{end}", "> 0", partial(_gain, place=place),
        f"AdamC scores higher than AdamW {where}", unit="nats" if nats else "pp",
        margin=WITHIN if nats else MARGIN, score=True,
    )  # fmt: skip


def _over_time(runs: Runs, place: Measured) -> Picture:
    """Draw the norm of the gradients against the progress of the run, the mean over seeds."""
    drawn_lines = {}
    for name in ARMS:
        own = runs.every(place.label, name).run
        known = [list(series(item)) for item in own if not item.diverged]
        known = [each for each in known if each]
        if known:
            xs, ys = np.mean(known, axis=0).T
            drawn_lines[name] = xs.tolist(), ys.tolist()
    caption = f"The norm of the gradients of hidden weights, means over seeds ({place.label})."
    return lines(drawn_lines, "progress", "gradient norm", caption, COLORS, log_y=True)
