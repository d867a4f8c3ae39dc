"""Norms and turns per step under each norm control, measured and predicted.

spherenorm run experiments/studies/norm_control.py
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from norm_controls import (
    BASES,
    CONTROLS,
    PROBE,
    REST,
    arm_of,
    late_turn,
    law_of,
    norm_growth,
    spread_over_layers,
    turn_over_law,
    turn_over_law_with_momentum,
)

from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Key, Place, Result, Runs, Trial, mean_over, number
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Row, Table, mean_of
from spherenorm_experiments.verdict import Claim, slug

RATES = {"smoke": slice(2, 3), "small": slice(1, 4), "full": slice(0, 6)}
"""The places of the rates in the grid of each arm."""

WINDOWS = {"smoke": 32, "small": 2400, "full": 64_000}
"""Training windows of the byte model: 300 steps of 8 in the small tier."""

ALLOWED = {"Hyperball": 0.05, "rotational": 0.1, "decay": 0.15}
"""By how much the turn may differ from its law: a share of it. That of decay is a mean field."""

TASKS = {"bytes": "byte_model:ByteModel", "digits": "digits"}
"""The tasks on which turns are measured, by their labels."""


def _predicted(item: Result) -> float | None:
    """The turn of the law at the rate of a run, which is constant."""
    law = law_of(item.spec)
    return None if law is None else law(item.spec.hyper_parameters["lr"])


COLUMNS: dict[str, tuple[Key, str]] = {
    "turn (rad)": (late_turn, ".4f"),
    "law": (_predicted, ".4f"),
    "turn / law": (turn_over_law, ".3f"),
    "turn / law with momentum": (turn_over_law_with_momentum, ".3f"),
    "spread over layers": (spread_over_layers, ".3f"),
    "norm growth": (norm_growth, ".3f"),
}


def _claims(task: str, base: str, control: str) -> Iterator[Claim]:
    end, who, allowed = slug(f"{control}.{base}.{task}"), f"{base}, {control}", ALLOWED[control]
    law = f"of its law, within {allowed:.0%}"

    def of(runs: Runs, key: Key, control: str = control) -> pd.Series:
        """The mean of a number over the rates, by seed."""
        by_rate = runs.all_runs(task, arm_of(base, control).name).groupby("lr")
        return mean_over(
            number(rate_runs.set_index("seed"), key, math.inf) for _, rate_runs in by_rate
        )

    def turns(name: str, key: Key, more: str = "") -> Claim:
        text = f"{who}: the turn per step is that {law}{more}, the mean over the rates ({task})"
        return Claim(f"{name}.{end}", f"= 1 ± {allowed:g}", partial(of, key=key), text, ratio=True)

    if (base, control) != ("Muon", "decay"):
        yield turns("turn", turn_over_law)
    if control == "Hyperball":
        yield turns("momentum", turn_over_law_with_momentum, ", with momentum")
    if control != "decay":
        yield Claim(
            f"spread.{end}", "< 1",
            lambda runs: of(runs, spread_over_layers) / of(runs, spread_over_layers, "decay"),
            f"{who}: turns are spread less over layers than under decay ({task})", ratio=True,
        )  # fmt: skip


class NormControl(Study):
    """Norm control: norms and turns per step, measured and predicted

    Weight decay comes to a turn per step at which it balances the steps; on spheres the learning
    rate is that turn from the first step on. Here each matrix's norm and turn is measured under two
    bases and six norm controls, at constant rates, on a byte-level language model of width 32 and
    on a network of convolutions with BatchNorm for digits. Its convolutions are scale-invariant; of
    the language model only the matrices of queries and keys are.

    Laws: arctan(lr) on the hyperball, if the step is orthogonal to the weight; lr of rotational
    optimizers; under Adam with decay the turn in equilibrium, for gradients that are random and
    orthogonal to the weight. Averages are over the second half of the steps.

    Momentum lets steps on the hyperball point outwards, too, so that they turn the weight less. The
    turn that follows (`spherenorm_theory.equilibrium_turn`) has no free number; it was derived
    after the runs below had shown less than arctan(lr).
    """

    name = "norm-control"
    seeds = {"smoke": 1, "small": 3, "evidence": 6, "full": 12}  # noqa: RUF012
    first_seed = 1100
    claims = tuple(claim for part in itertools.product(TASKS, BASES, ALLOWED)
                   for claim in _claims(*part))  # fmt: skip

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        labels = ["bytes"] if plan.tier == "smoke" else [*TASKS]
        trials: list[Trial] = []
        for label, base, control in itertools.product(labels, BASES, CONTROLS):
            arm: Any = arm_of(base, control)
            options = (
                {"windows": WINDOWS[plan.budget_tier], "width": 32} if label == "bytes" else {}
            )
            for rate in arm.tune["lr"][RATES[plan.budget_tier]]:
                trials += self.make_trials(
                    plan, Place(label, arm.name), TASKS[label], arm.recipe,
                    {**arm.fixed, "lr": rate},
                    options=options, rest=REST, schedule="constant", probes=("norms", PROBE),
                    probe_every=10,
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for place in runs.places:
            for rate, rate_runs in runs.all_runs(*place).groupby("lr"):
                cells = [
                    mean_of(number(rate_runs, key, math.inf), f) for key, f in COLUMNS.values()
                ]
                rows.append((f"{place}, lr {rate:.3g}", *cells))
        note = (
            "Means over seeds ± SD, of hidden matrices. Turn: root mean square per step. Spread "
            "over layers: standard deviation over mean of the turns of the matrices. Norm growth: "
            "last norm over that at step 10, the geometric mean. Arms without a law: none is known."
        )
        return [Table("Turns and norms", ("arm", *COLUMNS), rows, note)] if rows else []
