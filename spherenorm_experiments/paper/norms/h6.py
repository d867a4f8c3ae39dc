"""Table H.6: the momentum coefficient, and Corollary 2.3 on a trained network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Claim,
    Heading,
    Results,
    Row,
    Side,
    Table,
    Trial,
    advantage,
    at_best,
    at_point,
    combined,
    derive,
    grid_of,
    paired_values,
    paper,
    pooled,
    printed,
    slug,
    worst_of,
)
from spherenorm_experiments.paper.norms._sweeps import Curve, columns, of_all, over_steps
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.report.pictures import DASHES, Picture, drawn
from spherenorm_experiments.study import Plan, Study

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
KINDS = ("Nesterov", "heavy ball")
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
        points = columns("lr momentum", rows)
        return [
            self.swept(plan, _arm(name, kind), {**points, "nesterov": kind == "Nesterov"})
            for kind in KINDS
            for name in OPTIMIZERS
        ]

    def tables(self, results: Results) -> list[Table]:
        tables = [_norms(results, arm) for arm in results.arms]
        return [table for table in tables if table.rows]

    def pictures(self, results: Results) -> list[Picture]:
        pictures = []
        for arm in results.arms:
            grid = grid_of(results, arm)
            curves = [
                Curve(f"{arm.label}, β={m:g}", grid, grid.at(lr=RATE, momentum=m), dash)
                for m, dash in zip(PAPER, DASHES, strict=True)
            ]
            caption = f"Norm of {arm.label} for each momentum, at the rate {RATE}."
            pictures.append(over_steps(curves, "norm", "norm ‖w‖", caption))
        return drawn(pictures)

    @property
    def claims(self) -> Sequence[Claim]:
        return [*_of_theory(), *_of_gaps(), *_of_norms(), *_of_scores()]


def _law(arm: Arm, momentum: float) -> float | None:
    """Growth of the squared norm over the sum of the squared steps, where it is a constant."""
    if arm.settings["optimizer"] == "SGDP":
        return 1.0
    return 1 + 2 * momentum / (1 - momentum) if arm.settings["kind"] == "heavy ball" else None


def _norms(results: Results, arm: Arm) -> Table:
    grid = grid_of(results, arm)
    quoted = arm.settings["kind"] == "Nesterov"
    first = 0 if arm.settings["optimizer"] == "SGD" else 2
    rows: list[Row] = []
    for momentum, numbers in PAPER.items() if grid.items else ():
        fixed, scaled = (grid.at(lr=r, momentum=momentum) for r in (RATE, _scaled(momentum)))
        choice = grid.tuned(momentum=momentum)
        their_norm, their_score = numbers[first : first + 2] if quoted else (None, None)
        norm, other_norm = (grid.cell("norm_last", index) for index in (fixed, scaled))
        factor, law = grid.cell("growth_over_moves", fixed, ".4g"), Cell(_law(arm, momentum), ".4g")
        score = grid.cell("test", choice.index, ".2f")
        rows.append((f"{arm.label}, β={momentum:g}", norm, their_norm, other_norm, factor, law,
                     choice.cell, score, their_score))  # fmt: skip
    headings: list[Heading] = [
        *("arm", f"norm at {RATE}"),
        *paper("norm"),
        *("norm at lr / (1 - β) = 1", "growth / steps²", "law", "best lr", "accuracy there"),
        *paper("accuracy"),
    ]
    note = "Means over seeds ± standard deviation."
    return Table(f"{arm.label}: last norm and accuracy", headings, rows, note)


def _at(optimizer: str, kind: str, key: str, momentum: float = 0.9, scaled: bool = False) -> Side:
    rate = _scaled(momentum) if scaled else RATE
    return at_point(_arm(optimizer, kind), key, lr=rate, momentum=momentum)


def _of_theory() -> Iterator[Claim]:
    factor = "growth_over_moves"
    about = "the squared norm's growth over the sum of the squared steps"
    yield Claim(
        "law.heavy-ball", f"Heavy ball, β = 0.9: {about} is 19, within 5 %",
        _at("SGD", "heavy ball", factor), "=", 19.0, margin=0.95, cites=says("2.corollary"),
        paper=Cell(19, "g"), primary=True,
    )  # fmt: skip
    yield Claim(
        "law.sgdp", f"SGDP, β = 0.9: {about} is 1, within 1 %", _at("SGDP", "Nesterov", factor),
        "=", 1.0, margin=0.01, cites=says("3.eq11"), paper=Cell(1, "g"), primary=True,
    )  # fmt: skip
    yield Claim(
        "law.nesterov", f"Nesterov, β = 0.9: {about} is above 2", _at("SGD", "Nesterov", factor),
        ">", 2.0, cites=says("2.nesterov"),
    )  # fmt: skip


def _where(scaled: bool) -> tuple[str, str]:
    """The rate at which momenta are compared, in words, and in the names of claims."""
    if scaled:
        return "at one value of lr / (1 - β)", "scaled-rate"
    return f"at the rate {RATE}", "one-rate"


def _of_gaps() -> Iterator[Claim]:
    for kind, scaled in (("Nesterov", False), ("heavy ball", False), ("Nesterov", True)):
        at, rate = _where(scaled)
        gaps = [
            derive(paired_values, *(_at(o, kind, "norm_last", m, scaled) for o in OPTIMIZERS))
            for m in PAPER
        ]
        steps = [derive(paired_values, b, a) for a, b in pairwise(gaps)]
        yield Claim(
            f"gap-grows.{slug(kind)}.{rate}",
            f"The gap of the norms grows at each step of the momentum, {kind}, {at}: the least",
            of_all(partial(combined, min), steps), ">", 0.0, cites=says("h6.gap"),
            paper="2.59 - 2.53 = 0.06", primary=kind == "Nesterov" and not scaled,
        )  # fmt: skip


def _of_norms() -> Iterator[Claim]:
    for scaled in (False, True):
        at, name = _where(scaled)
        sgd, sgdp = (
            [_at(optimizer, "Nesterov", "norm_last", m, scaled) for m in PAPER]
            for optimizer in OPTIMIZERS
        )
        yield Claim(
            f"sgdp-norm-falls.{name}",
            f"SGDP's last norm falls with momentum, {at}: 0.975 over 0.5", sgdp[-1], "<", sgdp[0],
            how="ratio", cites=says("h6.sgdp"), paper="6.14 / 6.88 = 0.89",
        )  # fmt: skip
        yield Claim(
            f"sgd-norm-rises.{name}",
            f"SGD's last norm rises by about 15 %, {at}: 0.975 over 0.5 within 1.05 to 1.25",
            sgd[-1], "=", sgd[0], how="ratio", bound=1.15, margin=0.1, cites=says("h6.sgd"),
            paper="8.73 / 7.60 = 1.15",
        )  # fmt: skip
        yield Claim(
            f"sgd-norm-saturates.{name}", f"SGD's last norm saturates, {at}: 0.975 over 0.95",
            sgd[-1], "<", sgd[-2], how="ratio", bound=1.02, cites=says("h6.sgd"),
            paper="8.73 / 8.76 = 1.00",
        )  # fmt: skip


def _of_scores() -> Iterator[Claim]:
    gains = {
        m: derive(advantage, *(at_best(_arm(o, "Nesterov"), momentum=m) for o in ("SGDP", "SGD")))
        for m in PAPER
    }
    yield Claim(
        "gain-grows",
        "SGDP's gain in accuracy is larger at momentum 0.975 than at 0.5, each at its best rate",
        gains[0.975], ">", gains[0.5], cites=says("h6.accuracy"), unit="pp", equivalent=1.0,
        paper=Cell(1.60 - 0.18, "+.2f"),
    )  # fmt: skip
    yield Claim(
        "no-worse", "SGDP is no worse than SGD by 1 pp at any momentum: the least gain",
        of_all(partial(worst_of, min), list(gains.values())), ">", -1.0,
        cites=says("h6.most"), paper="+0.18", unit="pp",
    )  # fmt: skip
    yield Claim(
        "mean-gain", "SGDP's mean gain over all momenta",
        of_all(pooled, list(gains.values())), ">", 0.0, unit="pp",
    )  # fmt: skip
