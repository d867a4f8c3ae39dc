"""Does the best learning rate of a narrow model stay the best one of a wide model?

    spherenorm run experiments/studies/lr_transfer.py --tier evidence

A table of losses has a row for each seed, and a column for log2 of each rate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import nn

import spherenorm as sn
from spherenorm_experiments import (
    ByteModel,
    Cell,
    Claim,
    Place,
    Plan,
    Runs,
    Study,
    Table,
    Trial,
    mean_of,
    slug,
)

BASE_WIDTH = 32
"""The rates of all models are those of this width, which transfer then multiplies."""

WIDTHS = {"smoke": (16, 32), "small": (32, 128), "full": (32, 64, 128, 256)}
"""The widths of each tier; the rate of the first is compared with that of the last."""

WINDOWS = {"smoke": 16, "small": 768, "full": 64_000}
"""Training windows of each tier: 96 steps of 8 in the small one, 2,000 of 32 in the full one."""

OCTAVES = {"adamw": (-9, -4), "muon": (-7, -2), "muon (rms)": (-8, -3), "hyperball": (-6, -1)}
"""log2 of the smallest and of the largest rate."""

STAYS = 0.5
"""Octaves within which a best rate stays."""

REST = {"recipe": "adam", "lr": 2.0**-5, "betas": [0.9, 0.95]}
"""The optimizer of embedding, positions and head, at the base width."""

Policy = Literal["one rate", "mup", "spectral", "turn"]

POLICIES = {
    "mup": sn.transfer.mup("adam"),
    "spectral": sn.transfer.spectral(),
    "turn": sn.transfer.turn(),
}


@dataclass(frozen=True)
class TransferredModel(ByteModel):
    """The byte model, whose rates are those of the base width times the factors of a policy.

    Attributes:
        policy: "one rate" has the rates of the base width at every width.
        recipe: of the hidden matrices.
        scale: of the recipe, if it is Muon.
    """

    policy: Policy = "one rate"
    recipe: str = "adamw"
    scale: str = ""

    def parameter_groups(self, model: nn.Module) -> Sequence[Mapping[str, Any]]:
        weights = dict(model.named_parameters())
        groups: dict[float, list[nn.Parameter]] = {}
        for name, factor in rate_factors(self).items():
            groups.setdefault(factor, []).append(weights[name])
        return [{"params": params, "lr_factor": factor} for factor, params in groups.items()]


@functools.cache
def rate_factors(task: TransferredModel) -> Mapping[str, float]:
    """Return the factor of each parameter's rate under the policy of a task."""
    if task.policy == "one rate":
        return {}
    groups = sn.param_groups(
        task.model(), task.audit_inputs(), task.recipe, rest="adam",
        base=ByteModel(BASE_WIDTH).model(), transfer=POLICIES[task.policy],
        **({"scale": task.scale} if task.scale else {}),
    )  # fmt: skip
    return {assignment.name: assignment.factor for assignment in groups.assignments}


@dataclass(frozen=True)
class Optimizer:
    """A recipe with its fixed hyper-parameters and the policies under which it trains.

    Attributes:
        policies: the first is compared with the second.
    """

    recipe: str
    fixed: Mapping[str, Any]
    policies: tuple[Policy, ...]


BETAS = {"betas": [0.9, 0.95], "weight_decay": 0.0}
RMS = "match_rms_adamw"

OPTIMIZERS = {
    "adamw": Optimizer("adamw", BETAS, ("mup", "one rate")),
    "muon": Optimizer("muon", {"weight_decay": 0.0}, ("spectral",)),
    "muon (rms)": Optimizer("muon", {"weight_decay": 0.0, "scale": RMS}, ("spectral", "one rate")),
    "hyperball": Optimizer("hyperball(muon)", {}, ("turn", "spectral")),
}

ARMS = [(name, policy) for name, chosen in OPTIMIZERS.items() for policy in chosen.policies]


def arm_name(optimizer: str, policy: str) -> str:
    """Return the name of an arm.

    >>> arm_name("muon", "spectral")
    'muon, spectral'
    """
    return f"{optimizer}, {policy}"


def losses(runs: Runs, width: str, arm: str) -> pd.DataFrame:
    """The test losses of an arm in nats per byte, at the rates at which all seeds have ended.

    A run that diverged, or does worse than a uniform model, has the loss of that.
    """
    complete = runs.complete_grid(width, arm)
    uniform = ByteModel.uniform_loss
    loss = (-complete.test.astype(float)).fillna(uniform).clip(upper=uniform)
    table = complete.assign(octave=np.log2(complete.lr.astype(float)), loss=loss)
    return table.pivot(index="seed", columns="octave", values="loss")


def best_octave(table: pd.DataFrame) -> pd.Series:
    """Return log2 of the best rate by seed; see `vertex`."""
    octaves = {seed: vertex(table.columns, row.tolist()) for seed, row in table.iterrows()}
    return pd.Series(octaves, dtype=float)


def vertex(octaves: Sequence[float], values: Sequence[float]) -> float:
    """The vertex of the parabola through the best loss and those beside; the end if it is at one.

    >>> round(vertex((-6.0, -5.0, -4.0), (2.0, 1.0, 1.5)), 2)
    -4.83
    """
    index = int(np.argmin(values))
    if index in (0, len(values) - 1):
        return float(octaves[index])
    before, best, after = values[index - 1 : index + 2]
    curvature = before - 2 * best + after
    if curvature == 0:
        return float(octaves[index])
    spacing = (octaves[index + 1] - octaves[index - 1]) / 2
    return float(octaves[index] + spacing * (before - after) / 2 / curvature)


def at_edge(table: pd.DataFrame) -> int:
    """Return the number of seeds whose best rate is the smallest or the largest."""
    best = table.to_numpy().argmin(axis=1)
    return int(np.isin(best, (0, table.shape[1] - 1)).sum())


def widths_of(runs: Runs) -> list[str]:
    """Return the conditions with runs, from the narrowest to the widest."""
    conditions = {place.condition for place in runs.places}
    return sorted(conditions, key=lambda condition: int(condition.split()[1]))


def drift(runs: Runs, arm: str) -> pd.Series:
    """Return log2 of the best rate at the largest width minus that at the smallest, by seed."""
    widths = widths_of(runs)
    if len(widths) < 2:
        return pd.Series(dtype=float)
    narrow, wide = (best_octave(losses(runs, width, arm)) for width in (widths[0], widths[-1]))
    return (wide - narrow).dropna()


def cost_of_transfer(runs: Runs, width: str, arm: str) -> pd.Series:
    """Return the loss at the rate that the base chooses, minus that at the width's own, by seed.

    Both rates are chosen on validation data.
    """
    selected = runs.selected(width, arm)
    base_rates = runs.selected(widths_of(runs)[0], arm).lr
    complete = runs.complete_grid(width, arm)
    transferred = complete[complete.lr == complete.seed.map(base_rates)].set_index("seed")
    return (selected.test - transferred.test).dropna()


def _claims(name: str, optimizer: Optimizer) -> Iterator[Claim]:
    main_arm, *other_arms = (arm_name(name, policy) for policy in optimizer.policies)
    for arm in (main_arm, *other_arms):
        yield Claim(
            f"stays.{slug(arm)}", f"= 0 ± {STAYS:g}", functools.partial(drift, arm=arm),
            f"{arm}: the best rate stays within half an octave", unit="octaves",
            is_performance=True, primary=arm == main_arm,
        )  # fmt: skip
    for other_arm in other_arms:

        def more_distance(runs: Runs, other_arm: str = other_arm) -> pd.Series:
            return drift(runs, main_arm).abs() - drift(runs, other_arm).abs()

        yield Claim(
            f"less.{slug(main_arm)}", "< 0", more_distance,
            f"{main_arm}: the best rate drifts less than that of {other_arm}", unit="octaves",
            is_performance=True, primary=True,
        )  # fmt: skip


class LrTransfer(Study):
    """Transfer of rates: is the best learning rate of a narrow model the best one of a wide model?

    A byte-level language model (two layers, normalized queries and keys, no gains) on the source of
    Python's standard library, each window read once, the rate falling linearly to 0, no decay. The
    rates are those of width 32; `sn.transfer` multiplies them at other widths by the factors of a
    policy, and "one rate" does not. The matrices of the blocks take the recipe; embedding,
    positions and head take Adam at one rate of width 32, which the policy multiplies, too. muon
    (rms) has the scale "match_rms_adamw", and hyperball is "hyperball(muon)". Rates are a factor 2
    apart, and all train on all seeds.

    Drift: log2 of the best rate at the largest width minus that at the smallest, seed by seed; the
    best rate is the vertex of the parabola through the best test loss and those beside it. At the
    base width all policies are the same runs.
    """

    name = "lr-transfer"
    seeds = {"smoke": 1, "small": 3, "evidence": 6, "full": 12}  # noqa: RUF012
    first_seed = 1000
    claims = tuple(claim for item in OPTIMIZERS.items() for claim in _claims(*item))

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        trials: list[Trial] = []
        for width in WIDTHS[plan.budget_tier]:
            for name, policy in ARMS:
                optimizer = OPTIMIZERS[name]
                options: dict[str, Any] = {"width": width, "windows": WINDOWS[plan.budget_tier]}
                if width != BASE_WIDTH:
                    scale = {"scale": optimizer.fixed["scale"]} if name == "muon (rms)" else {}
                    options |= {"policy": policy, "recipe": optimizer.recipe, **scale}
                low, high = OCTAVES[name]
                rates = [2.0**octave for octave in range(low, high + 1)]
                if plan.tier == "smoke":
                    rates = rates[3:5]
                trials += self.make_trials(
                    plan, Place(f"width {width}", arm_name(name, policy)),
                    f"{__name__}:TransferredModel", optimizer.recipe,
                    {**optimizer.fixed, "lr": rates}, options=options, rest=REST,
                    schedule="linear", probes=(),
                )  # fmt: skip
        return trials

    def tables(self, runs: Runs) -> list[Table]:
        summary: list[Sequence[Any]] = []
        curves: list[Sequence[Any]] = []
        octaves = range(min(low for low, _ in OCTAVES.values()), max(*OCTAVES.values())[1] + 1)
        for (name, policy), width in itertools.product(ARMS, widths_of(runs)):
            arm = arm_name(name, policy)
            table, chosen = losses(runs, width, arm), runs.selected(width, arm)
            if table.empty:
                continue
            best = [mean_of(-chosen.test, ".3f"), mean_of(best_octave(table), ".2f")]
            cost = mean_of(cost_of_transfer(runs, width, arm), "+.3f")
            summary.append((arm, width, *best, Cell(at_edge(table), "d"), cost))
            means = table.mean()
            curve = [Cell(means.get(float(k)), ".3f", missing="") for k in octaves]
            curves.append((arm, width, *curve))
        note = (
            "Losses in nats per byte on the test files; means over seeds ± SD. At an edge: seeds "
            "whose best rate is the smallest or the largest that was tried. Cost: the loss at the "
            "rate that a seed chooses at the smallest width, minus that at its own choice."
        )
        columns = ("arm", "width", "loss at the best rate", "log2(best rate)", "at an edge",
                   "cost of the base's rate")  # fmt: skip
        by_rate = ("arm", "width", *map(str, octaves))
        tables = (
            Table("Best rates", columns, summary, note),
            Table("Loss by log2(rate)", by_rate, curves, "Means over seeds of the test loss."),
        )
        return [table for table in tables if table.rows]
