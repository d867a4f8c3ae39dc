"""Table H.6: the momentum coefficient, and Corollary 2.3 on a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from spherenorm_experiments.analysis import (
    OURS,
    Arm,
    Basis,
    Cell,
    Claim,
    Grid,
    Heading,
    Results,
    Row,
    Sample,
    Table,
    Trial,
    advantage,
    combined,
    grid_of,
    paired,
    paired_values,
    paper,
    printed,
    sample,
    worst_of,
)
from spherenorm_experiments.paper.norms._bands import Curve, over_steps
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import DASHES, Picture, drawn
from spherenorm_experiments.study import Plan, Study

__all__ = ["H6"]

PAPER = {
    0.5: printed("7.60 67.57 6.88 67.75"),
    0.8: printed("8.31 67.64 6.57 68.55"),
    0.9: printed("8.53 67.42 6.33 68.95"),
    0.95: printed("8.76 67.67 6.23 69.12"),
    0.975: printed("8.73 67.56 6.14 69.17"),
}
"""For each momentum: SGD's last norm and accuracy, SGDP's."""

RATE = 0.1
RATES = (0.01, 0.03, RATE, 0.3, 1.0)
KINDS = {"Nesterov": True, "heavy ball": False}
OPTIMIZERS = ("SGD", "SGDP")


def _scaled(momentum: float) -> float:
    """The rate that keeps lr / (1 - momentum) at its value for 0.9."""
    return round(RATE * (1 - momentum) / 0.1, 10)


def _arm(optimizer: str, kind: str) -> Arm:
    return Arm(f"{optimizer}, {kind}", optimizer.lower(), {"optimizer": optimizer, "kind": kind})


class H6(Study):
    """Table H.6: the larger the momentum, the more the projection matters

    SGD and SGDP without weight decay, at momenta from 0.5 to 0.975, with Nesterov's momentum as in
    the paper, and with heavy ball, whose law is Corollary 2.3: the squared norm grows by
    1 + 2 beta / (1 - beta) times the sum of the squared steps (Nesterov's factor is smaller: 14.2
    at 0.9). Norms are compared at one rate for all, and at one value of lr / (1 - beta); scores at
    the best rate of each.
    """

    name = "h6"
    first_seed = 400
    compared = {}  # noqa: RUF012  (every arm has a row)
    departures = (
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("momentum", "Nesterov", "Nesterov, and heavy ball", "Corollary 2.3 is heavy ball's"),
        ("learning rate", "0.1", "0.1; 0.01 / (1 - β) constant; best of six for scores",
         "a larger momentum is a larger step at one rate"),
        ("norm", "not defined; 8.53 here, 4.34 in Table 1 for the same setting",
         "mean of the 2-norms of all scale-invariant rows", ""),
    )  # fmt: skip

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        rows = [(rate, m) for m in PAPER for rate in sorted({*RATES, _scaled(m)})]
        lr, momentum = (list(column) for column in zip(*rows, strict=True))
        return [
            self.swept(
                plan,
                _arm(optimizer, kind),
                {"lr": lr, "momentum": momentum, "nesterov": nesterov},
            )
            for kind, nesterov in KINDS.items()
            for optimizer in OPTIMIZERS
        ]

    def tables(self, results: Results) -> list[Table]:
        tables = [_norms(results, arm) for arm in results.arms]
        return [table for table in tables if table.rows]

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        for arm in results.arms:
            grid = grid_of(results, arm)
            curves = [
                Curve(f"{arm.label}, β={m:g}", grid, grid.at(lr=RATE, momentum=m), DASHES[i])
                for i, m in enumerate(PAPER)
            ]
            caption = f"Norm of {arm.label} for each momentum, at the rate {RATE}."
            pictures.append(over_steps(curves, "norm", "norm ‖w‖", caption))
        return drawn(pictures)

    def claims(self, results: Results) -> list[Claim]:
        grids = {
            (optimizer, kind): grid_of(results, _arm(optimizer, kind))
            for optimizer in OPTIMIZERS
            for kind in KINDS
        }
        return [
            *_claims_of_theory(grids),
            *_claims_of_gaps(grids),
            *_claims_of_norms(grids),
            *_claims_of_scores(grids),
        ]


Grids = Mapping[tuple[str, str], Grid]


def _law(arm: Arm, momentum: float) -> float | None:
    """Growth of the squared norm over the sum of the squared steps, where it is a constant."""
    if arm.substitutes_for is not None:
        return None
    if arm.settings["optimizer"] == "SGDP":
        return 1.0
    return 1 + 2 * momentum / (1 - momentum) if arm.settings["kind"] == "heavy ball" else None


def _norms(results: Results, arm: Arm) -> Table:
    grid = grid_of(results, arm)
    quoted = arm.substitutes_for is None and arm.settings["kind"] == "Nesterov"
    first = 0 if arm.settings["optimizer"] == "SGD" else 2
    rows: list[Row] = []
    for momentum, numbers in PAPER.items() if grid.items else ():
        fixed, scaled = (grid.at(lr=r, momentum=momentum) for r in (RATE, _scaled(momentum)))
        choice = grid.tuned(momentum=momentum)
        theirs = numbers[first : first + 2] if quoted else (None, None)
        rows.append(
            (
                f"{arm.label}, β={momentum:g}",
                grid.cell("norm_last", fixed),
                theirs[0],
                grid.cell("norm_last", scaled),
                grid.cell("growth_over_moves", fixed, ".4g"),
                Cell(_law(arm, momentum), ".4g"),
                choice.cell,
                grid.cell("test", choice.index, ".2f"),
                theirs[1],
            )
        )
    columns: list[Heading] = [
        *("arm", f"norm at {RATE}"),
        *paper("norm"),
        *("norm at lr / (1 - β) = 1", "growth / steps²", "law", "best lr", "accuracy there"),
        *paper("accuracy"),
    ]
    note = "Means over seeds ± standard deviation."
    return Table(f"{arm.label}: last norm and accuracy", columns, rows, note)


def _claims_of_theory(grids: Grids) -> list[Claim]:
    def factor(optimizer: str, kind: str, momentum: float = 0.9) -> Sample:
        grid = grids[optimizer, kind]
        return grid.sample("growth_over_moves", grid.at(lr=RATE, momentum=momentum))

    about = "the squared norm's growth over the sum of the squared steps"
    return [
        sample(
            f"Heavy ball, β = 0.9: {about} is 19, within 5 %", factor("SGD", "heavy ball"), "=",
            19.0, margin=0.95, source=says("2.corollary"), paper=Cell(19, "g"), primary=True,
        ),
        sample(
            f"SGDP, β = 0.9: {about} is 1, within 1 %", factor("SGDP", "Nesterov"), "=", 1.0,
            margin=0.01, source=says("3.eq11"), paper=Cell(1, "g"), primary=True,
        ),
        sample(
            f"Nesterov, β = 0.9: {about} is above 2", factor("SGD", "Nesterov"), ">", 2.0,
            source=says("2.nesterov"),
        ),
    ]  # fmt: skip


def _at(grid: Grid, key: str, momentum: float, *, scaled: bool = False) -> Sample:
    rate = _scaled(momentum) if scaled else RATE
    return grid.sample(key, grid.at(lr=rate, momentum=momentum))


def _claims_of_gaps(grids: Grids) -> list[Claim]:
    claims = []
    variants: tuple[tuple[str, bool, Basis], ...] = (
        ("Nesterov", False, says("h6.gap")),
        ("heavy ball", False, says("h6.gap")),
        ("Nesterov", True, says("h6.gap")),
    )
    for kind, scaled, source in variants:
        gaps = [
            paired_values(
                _at(grids["SGD", kind], "norm_last", m, scaled=scaled),
                _at(grids["SGDP", kind], "norm_last", m, scaled=scaled),
            )
            for m in PAPER
        ]
        least = combined(min, [paired_values(b, a) for a, b in pairwise(gaps)])
        at = "at one value of lr / (1 - β)" if scaled else f"at the rate {RATE}"
        text = f"The gap of the norms grows at each step of the momentum, {kind}, {at}: the least"
        primary = kind == "Nesterov" and not scaled
        claims.append(
            sample(
                text, least, ">", 0.0, source=source, paper="2.59 - 2.53 = 0.06", primary=primary
            )
        )
    return claims


def _claims_of_norms(grids: Grids) -> list[Claim]:
    ends: dict[tuple[str, bool], Any] = {
        (o, scaled): [_at(grids[o, "Nesterov"], "norm_last", m, scaled=scaled) for m in PAPER]
        for o in OPTIMIZERS
        for scaled in (False, True)
    }
    claims = []
    for scaled in (False, True):
        at = "at one value of lr / (1 - β)" if scaled else f"at the rate {RATE}"
        sgd, sgdp = ends["SGD", scaled], ends["SGDP", scaled]
        claims += [
            paired(f"SGDP's last norm falls with momentum, {at}: 0.975 over 0.5", sgdp[-1],
                   sgdp[0], "<", how="ratio", source=says("h6.sgdp"), paper="6.14 / 6.88 = 0.89"),
            paired(f"SGD's last norm rises by about 15 %, {at}: 0.975 over 0.5 within 1.05 to 1.25",
                   sgd[-1], sgd[0], "=", how="ratio", bound=1.15, margin=0.1,
                   source=says("h6.sgd"), paper="8.73 / 7.60 = 1.15"),
            paired(f"SGD's last norm saturates, {at}: 0.975 over 0.95", sgd[-1], sgd[-2], "<",
                   how="ratio", bound=1.02, source=says("h6.sgd"), paper="8.73 / 8.76 = 1.00"),
        ]  # fmt: skip
    return claims


def _claims_of_scores(grids: Grids) -> list[Claim]:
    gains = {}
    for momentum in PAPER:
        pair = [grids[o, "Nesterov"] for o in ("SGDP", "SGD")]
        ours, theirs = (g.sample("test", g.tuned(momentum=momentum).index) for g in pair)
        gains[momentum] = advantage(ours, theirs)
    text = "SGDP's gain in accuracy is larger at momentum 0.975 than at 0.5, each at its best rate"
    most = "SGDP is no worse than SGD by 1 pp at any momentum: the least gain"
    return [
        paired(text, gains[0.975], gains[0.5], ">", source=says("h6.accuracy"), equivalence=1.0,
               paper="1.60 - 0.18 = +1.42", unit="pp", detail="equivalent means within ±1 pp"),
        sample(most, worst_of(min, list(gains.values())), ">", -1.0, source=says("h6.most"),
               paper="+0.18", unit="pp"),
        sample("SGDP's mean gain over all momenta", _mean(list(gains.values())), ">", 0.0,
               source=OURS, unit="pp"),
    ]  # fmt: skip


def _mean(samples: list[Sample]) -> Sample:
    return combined(lambda values: sum(values) / len(values), samples)
