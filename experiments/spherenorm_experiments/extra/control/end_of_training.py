"""A study of our own: gradients at the end of training, under decay, AdamC and norm control."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pandas as pd

from spherenorm_experiments.claims import MARGIN, Claim
from spherenorm_experiments.extra.control.arms import BETAS, REST
from spherenorm_experiments.extra.control.lr_transfer import WITHIN
from spherenorm_experiments.extra.control.norm_control import TASKS
from spherenorm_experiments.extra.control.probe import PROBE
from spherenorm_experiments.extra.control.turns import growth
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Key, Place, Runs, Trial, number
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

WINDOWS = {"smoke": 160, "small": 8000, "full": 64_000}
"""Training windows of the byte model: 1,000 steps of 8 in the small tier."""

EPOCHS = {"smoke": 4, "small": 50, "full": 200}
"""Of the digits; 900 steps in the small tier."""

SMOOTHED = {"label_smoothing": 0.2}
"""Of the digits: it keeps a network that fits all of them from having no gradient."""

GRADIENT = partial(growth, what="gradients", early=MIDDLE, late=END)
NORM = partial(growth, what="norms", early=MIDDLE, late=END)
"""The norm near the end over that in the middle, of all hidden weights."""


def _claims(task: str) -> list[Claim]:
    unit, margin = ("nats", WITHIN) if task == "bytes" else ("pp", MARGIN)

    def of(runs: Runs, name: str, key: Key) -> pd.Series:
        return number(runs.every(task, name).set_index("seed"), key, math.inf)

    def over_adamw(runs: Runs, name: str) -> pd.Series:
        return of(runs, name, GRADIENT) / of(runs, "AdamW", GRADIENT)

    return [
        Claim(f"grows.{task}", "> 1", partial(of, name="AdamW", key=GRADIENT),
              f"AdamW's gradients grow as the rate falls ({task})", ratio=True, primary=True),
        *(Claim(f"less.{name.lower()}.{task}", "< 1", partial(over_adamw, name=name),
                f"{name}'s gradients grow less than AdamW's ({task})", ratio=True, primary=True)
          for name in ("AdamC", "Hyperball")),
        Claim(f"shrinks.{task}", "< 1", partial(of, name="AdamW", key=NORM),
              f"AdamW's weights shrink as the rate falls ({task})", ratio=True),
        Claim(f"keeps.{task}", "= 1 ± 0.05", partial(of, name="AdamC", key=NORM),
              f"AdamC's weights keep their norm within 5 % ({task})", ratio=True),
        Claim(f"score.{task}", "> 0",
              lambda runs: of(runs, "AdamC", "test") - of(runs, "AdamW", "test"),
              f"AdamC scores higher than AdamW ({task})", score=True, unit=unit, margin=margin),
    ]  # fmt: skip


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
    claims = tuple(claim for task in TASKS for claim in _claims(task))

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials: list[Trial] = []
        for task in TASKS[:1] if plan.tier == "smoke" else TASKS:
            own: dict[str, Any] = {"epochs": EPOCHS[plan.budgets], "options": SMOOTHED}
            if task == "bytes":
                own = {"options": {"windows": WINDOWS[plan.budgets], "width": 32}}
            for name, (recipe, hyper_parameters) in ARMS.items():
                trials += self.seeded(
                    plan, Place(task, name), task, recipe, hyper_parameters, rest=REST,
                    schedule="linear", probes=("norms", PROBE), probe_every=10, **own,
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for place in runs.places:
            every = runs.every(*place)
            ends = (mean_of(number(every, key, math.inf), ".3f") for key in (GRADIENT, NORM))
            rows.append((str(place), *ends, mean_of(every.test, ".4g")))
        headings = ("arm", "gradient norm, end / middle", "weight norm, end / middle", "test score")
        note = (
            f"Root mean squares over the steps from {END[0]:.0%} on over those from "
            f"{MIDDLE[0]:.0%} to {MIDDLE[1]:.0%}, of all hidden weights together; means over seeds "
            "± SD. Scores: minus nats per byte, and accuracy in percent."
        )
        return [Table("The end of training", headings, rows, note)] if rows else []
