"""Table H.6: the momentum coefficient, and Corollary 2.3 on a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pandas as pd

from spherenorm_experiments.claims import Claim, slug
from spherenorm_experiments.comparison import Arm, Condition, Setup
from spherenorm_experiments.paper.norms import grid
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.runs import Runs, across, mean_over
from spherenorm_experiments.tables import Cell, gap, printed, table_of

ROWS = {float(row["momentum"].value): row for row in table_of("""
    momentum  SGD norm  SGD    SGDP norm  SGDP   law
    0.5       7.60      67.57  6.88       67.75  3
    0.8       8.31      67.64  6.57       68.55  9
    0.9       8.53      67.42  6.33       68.95  19
    0.95      8.76      67.67  6.23       69.12  39
    0.975     8.73      67.56  6.14       69.17  79
""")}  # fmt: skip
"""Last norms and accuracies, and the factor of Corollary 2.3. (The paper's gains are 0.18, 0.91,
1.53, 1.45 and 1.61; it prints 1.60, and says that they increase.)"""

RATE = 0.1
RATES = (0.01, 0.025, 0.05, RATE, 0.2, 0.5, 1.0)
"""Those that keep lr / (1 - momentum) at its value for 0.9 among them."""

OPTIMIZERS = ("SGD", "SGDP")
FACTOR = "growth / steps²"


def _name(optimizer: str, momentum: float) -> str:
    return f"{optimizer}, β = {momentum:g}"


def _numbers(of_sgd: str, of_sgdp: str = "") -> dict[str, Cell]:
    """A column of the paper's for each optimizer, by arm; 1 for SGDP if it has none."""
    (one,) = printed("1")
    return {_name(optimizer, momentum): row.get(column, one)
            for optimizer, column in zip(OPTIMIZERS, (of_sgd, of_sgdp), strict=True)
            for momentum, row in ROWS.items()}  # fmt: skip


def _arm(optimizer: str, momentum: float) -> Arm:
    against = [_name("SGD", momentum)] if optimizer == "SGDP" else []
    theirs, name = {"weight_decay": 0.0}, _name(optimizer, momentum)
    return grid.arm(optimizer, name, (), against, theirs, momentum=momentum)


def _condition(kind: str, paper: Mapping[str, Mapping[str, Cell]]) -> Condition:
    nesterov = kind == "Nesterov"
    setup = Setup(hyper_parameters={"nesterov": nesterov})
    return Condition(kind, "network", setup, grid.real() if nesterov else None, paper=paper)


def _at(
    runs: Runs, optimizer: str, kind: str = "Nesterov", momentum: float = 0.9, scaled: bool = False
) -> pd.DataFrame:
    """The runs at one rate for all momenta, or at one value of lr / (1 - momentum)."""
    rate = round(RATE * (1 - momentum) / 0.1, 10) if scaled else RATE
    return runs.at(kind, _name(optimizer, momentum), lr=rate)


def _least_step(runs: Runs, kind: str, scaled: bool) -> pd.Series:
    """The least step of the gap of the norms from one momentum to the next."""
    gaps = []
    for momentum in ROWS:
        sgd, sgdp = (_at(runs, o, kind, momentum, scaled).norm_last for o in OPTIMIZERS)
        gaps.append(sgd - sgdp)
    return across(b - a for a, b in pairwise(gaps)).min(axis=1)


def _gain(runs: Runs, momentum: float) -> pd.Series:
    return grid.gain(runs, "Nesterov", *(_name(name, momentum) for name in OPTIMIZERS[::-1]))


def _where(scaled: bool) -> tuple[str, str]:
    """The rate at which momenta are compared, in words, and in the names of claims."""
    if scaled:
        return "at one value of lr / (1 - β)", "scaled-rate"
    return f"at the rate {RATE}", "one-rate"


def _gap_grows(kind: str, scaled: bool = False) -> Claim:
    at, end = _where(scaled)
    return Claim(
        f"gap-grows.{slug(kind)}.{end}", "> 0", lambda runs: _least_step(runs, kind, scaled),
        f"The gap of the norms grows at each step of the momentum, {kind}, {at}: the least",
        says("h6.gap"), paper="2.59 - 2.53 = 0.06", primary=kind == "Nesterov" and not scaled,
    )  # fmt: skip


def _of_norms(scaled: bool) -> list[Claim]:
    at, end = _where(scaled)

    def over(runs: Runs, optimizer: str, first: float) -> pd.Series:
        """The last norm at momentum 0.975 over that at another."""
        last, before = (_at(runs, optimizer, "Nesterov", m, scaled) for m in (0.975, first))
        return last.norm_last / before.norm_last

    return [
        Claim(f"sgdp-norm-falls.{end}", "< 1", lambda runs: over(runs, "SGDP", 0.5),
              f"SGDP's last norm falls with momentum, {at}: 0.975 over 0.5", says("h6.sgdp"),
              ratio=True, paper="6.14 / 6.88 = 0.89"),
        Claim(f"sgd-norm-rises.{end}", "= 1.15 ± 0.1", lambda runs: over(runs, "SGD", 0.5),
              f"SGD's last norm rises by about 15 %, {at}: 0.975 over 0.5 within 1.05 to 1.25",
              says("h6.sgd"), ratio=True, paper="8.73 / 7.60 = 1.15"),
        Claim(f"sgd-norm-saturates.{end}", "< 1.02", lambda runs: over(runs, "SGD", 0.95),
              f"SGD's last norm saturates, {at}: 0.975 over 0.95", says("h6.sgd"), ratio=True,
              paper="8.73 / 8.76 = 1.00"),
    ]  # fmt: skip


ABOUT = "the squared norm's growth over the sum of the squared steps"
GAINS = {momentum: gap(row["SGDP"], row["SGD"]) for momentum, row in ROWS.items()}
CLAIMS = [
    Claim("law.heavy-ball", "= 19 ± 0.95",
          lambda runs: _at(runs, "SGD", "heavy ball").growth_over_moves,
          f"Heavy ball, β = 0.9: {ABOUT} is 19, within 5 %", says("2.corollary"),
          paper=Cell(19, "g"), primary=True),
    Claim("law.sgdp", "= 1 ± 0.01", lambda runs: _at(runs, "SGDP").growth_over_moves,
          f"SGDP, β = 0.9: {ABOUT} is 1, within 1 %, as that of any projected step",
          says("3.eq11"), paper=Cell(1, "g")),
    Claim("law.nesterov", "> 2", lambda runs: _at(runs, "SGD").growth_over_moves,
          f"Nesterov, β = 0.9: {ABOUT} is above 2", says("2.nesterov")),
    *map(_gap_grows, ("Nesterov", "heavy ball")), _gap_grows("Nesterov", scaled=True),
    *(claim for scaled in (False, True) for claim in _of_norms(scaled)),
    Claim("gain-grows", "> 0", lambda runs: _gain(runs, 0.975) - _gain(runs, 0.5),
          "SGDP's gain in accuracy is larger at momentum 0.975 than at 0.5, each at its best rate",
          says("h6.accuracy"), unit="pp", margin=1.0, score=True,
          paper=gap(GAINS[0.975], GAINS[0.5])),
    Claim("no-worse", "> -1",
          lambda runs: pd.concat([_gain(runs, m) for m in ROWS], axis=1).min(axis=1),
          "SGDP is no worse than SGD by 1 pp at any momentum: the least gain", says("h6.most"),
          paper=str(min(GAINS.values(), key=lambda cell: float(cell.value or 0))), unit="pp",
          score=True),
    Claim("mean-gain", "> 0", lambda runs: mean_over(_gain(runs, m) for m in ROWS),
          "SGDP's mean gain over all momenta", unit="pp", score=True),
]  # fmt: skip

H6 = grid.Grid(
    "h6",
    """Table H.6: the larger the momentum, the more the projection matters

    SGD and SGDP without weight decay, at momenta from 0.5 to 0.975, with Nesterov's momentum as in
    the paper, and with heavy ball, whose law is Corollary 2.3: the squared norm grows by
    1 + 2 beta / (1 - beta) times the sum of the squared steps (Nesterov's factor is smaller: 14.2
    at 0.9). Claims compare norms at one rate for all, and at one value of lr / (1 - beta); scores
    at the best rate of each.
    """,
    arms=[_arm(optimizer, momentum) for optimizer in OPTIMIZERS for momentum in ROWS],
    tune={"lr": RATES},
    conditions=[
        _condition("Nesterov", {"score": _numbers("SGD", "SGDP"),
                                "norm last": _numbers("SGD norm", "SGDP norm")}),
        _condition("heavy ball", {FACTOR: _numbers("law")}),
    ],
    claims=CLAIMS,
    measures={FACTOR: ("growth_over_moves", ".4g")},
    first_seed=400,
)  # fmt: skip
