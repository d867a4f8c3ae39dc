"""Table H.6: the momentum coefficient, and Corollary 2.3 on a trained network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pandas as pd

from spherenorm_experiments.comparison import Arm, Condition, Setup
from spherenorm_experiments.runs import Runs, align_seeds
from spherenorm_experiments.tables import Cell, parse_table, subtract_printed
from spherenorm_experiments.verdict import Claim
from spherenorm_paper.norms import grid
from spherenorm_paper.norms.grid import claim, higher, points, ratio

ROWS = {float(row["momentum"].value): row for row in parse_table("""
    momentum  SGD norm  SGD    SGDP norm  SGDP   law  SGDP law
    0.5       7.60      67.57  6.88       67.75  3    1
    0.8       8.31      67.64  6.57       68.55  9    1
    0.9       8.53      67.42  6.33       68.95  19   1
    0.95      8.76      67.67  6.23       69.12  39   1
    0.975     8.73      67.56  6.14       69.17  79   1
""")}  # fmt: skip
"""Last norms and accuracies, and the factor of Corollary 2.3. (The paper's gains are 0.18, 0.91,
1.53, 1.45 and 1.61; it prints 1.60, and says that they increase.)"""

RATE = 0.1
RATES = (0.01, 0.025, 0.05, RATE, 0.2, 0.5, 1.0)
"""Learning rates; those that keep lr / (1 - momentum) at its value for 0.9 are among them."""

FACTOR = "growth / steps²"


def _name(optimizer: str, momentum: float) -> str:
    return f"{optimizer}, β = {momentum:g}"


def _numbers(of_sgd: str, of_sgdp: str) -> dict[str, Cell]:
    """A column of the paper's for each optimizer, by arm."""
    return {_name(optimizer, momentum): row[column]
            for optimizer, column in (("SGD", of_sgd), ("SGDP", of_sgdp))
            for momentum, row in ROWS.items()}  # fmt: skip


def _arm(optimizer: str, momentum: float) -> Arm:
    against = [_name("SGD", momentum)] if optimizer == "SGDP" else []
    paper_settings, name = {"weight_decay": 0.0}, _name(optimizer, momentum)
    return grid.arm(optimizer, name, (), against, paper_settings, momentum=momentum)


def _condition(kind: str, paper: Mapping[str, Mapping[str, Cell]]) -> Condition:
    nesterov = kind == "Nesterov"
    setup = Setup(hyper_parameters={"nesterov": nesterov})
    return Condition(kind, "network", setup, grid.RESNET18 if nesterov else None, paper=paper)


def _at(
    runs: Runs, optimizer: str, momentum: float = 0.9, kind: str = "Nesterov", scaled: bool = False
) -> pd.DataFrame:
    """The runs at one rate for all momenta, or at one value of lr / (1 - momentum)."""
    rate = round(RATE * (1 - momentum) / 0.1, 10) if scaled else RATE
    return runs.at_point(kind, _name(optimizer, momentum), lr=rate)


def _least_step(runs: Runs) -> pd.Series:
    """The least step of the gap of the norms from one momentum to the next."""
    gaps = [_at(runs, "SGD", m).norm_last - _at(runs, "SGDP", m).norm_last for m in ROWS]
    return align_seeds(b - a for a, b in pairwise(gaps)).min(axis=1)


def _gain(runs: Runs, momentum: float) -> pd.Series:
    return grid.gain(runs, "Nesterov", _name("SGDP", momentum), _name("SGD", momentum))


def _of_norms(scaled: bool) -> list[Claim]:
    """The claims about last norms, at either choice of the rate."""
    at = "at one value of lr / (1 - β)" if scaled else f"at the rate {RATE}"
    end = "scaled-rate" if scaled else "one-rate"
    sgd, sgdp = ("", "") if scaled else ("h6.sgd", "h6.sgdp")  # the paper's table is at one rate

    def over(runs: Runs, optimizer: str, momentum: float) -> pd.Series:
        """The last norm at momentum 0.975 over that at another."""
        last, before = (_at(runs, optimizer, m, scaled=scaled) for m in (0.975, momentum))
        return last.norm_last / before.norm_last

    return [
        ratio(f"sgdp-norm-falls.{end}", "< 1", lambda runs: over(runs, "SGDP", 0.5),
              f"SGDP's last norm falls with momentum, {at}: 0.975 over 0.5", sgdp,
              paper="6.14 / 6.88 = 0.89"),
        ratio(f"sgd-norm-rises.{end}", "= 1.15 ± 0.1", lambda runs: over(runs, "SGD", 0.5),
              f"SGD's last norm rises by about 15 %, {at}: 0.975 over 0.5 within 1.05 to 1.25",
              sgd, paper="8.73 / 7.60 = 1.15"),
        ratio(f"sgd-norm-saturates.{end}", "< 1.02", lambda runs: over(runs, "SGD", 0.95),
              f"SGD's last norm saturates, {at}: 0.975 over 0.95 below 1.02", sgd,
              paper="8.73 / 8.76 = 1.00"),
    ]  # fmt: skip


ABOUT = "the squared norm's growth over the sum of its squared steps"
GAINS = {momentum: subtract_printed(row["SGDP"], row["SGD"]) for momentum, row in ROWS.items()}
CLAIMS = [
    claim("law.heavy-ball", "= 19 ± 0.95",
          lambda runs: _at(runs, "SGD", kind="heavy ball").growth_over_moves,
          f"Heavy ball, β = 0.9: {ABOUT} is 19, within 5 %", "2.corollary", paper=Cell(19, "g"),
          primary=True),
    claim("law.sgdp", "= 1 ± 0.01", lambda runs: _at(runs, "SGDP").growth_over_moves,
          f"SGDP, β = 0.9: {ABOUT} is 1, within 1 %, as that of any projected step",
          "3.eq11", paper=Cell(1, "g")),
    claim("law.nesterov", "> 2", lambda runs: _at(runs, "SGD").growth_over_moves,
          f"Nesterov, β = 0.9: {ABOUT} is above 2", "2.nesterov"),
    claim("gap-grows.nesterov.one-rate", "> 0", _least_step,
          f"The gap of the norms grows at each step of the momentum, Nesterov, at the rate {RATE}: "
          "the least",
          "h6.gap", paper="2.59 - 2.53 = 0.06", primary=True),
    *_of_norms(scaled=False),
    *_of_norms(scaled=True),
    higher("gain-grows", lambda runs: _gain(runs, 0.975) - _gain(runs, 0.5),
           "SGDP's gain in accuracy is larger at momentum 0.975 than at 0.5, each at its best rate",
           "h6.accuracy", paper=subtract_printed(GAINS[0.975], GAINS[0.5])),
    higher("gain.large", lambda runs: _gain(runs, 0.975),
           "SGDP scores higher than SGD at momentum 0.975, each at its best rate", "h6.most",
           paper=GAINS[0.975]),
    points("no-worse", "> -1",
           lambda runs: pd.concat([_gain(runs, m) for m in ROWS], axis=1).min(axis=1),
           "SGDP is no worse than SGD by 1 pp at any momentum: each seed's least gain, the mean",
           "h6.most", paper=str(GAINS[0.5])),
]  # fmt: skip

H6 = grid.Grid(
    "h6",
    """Table H.6: norms and scores at momenta from 0.5 to 0.975

    SGD and SGDP without weight decay, at momenta from 0.5 to 0.975, with Nesterov's momentum as in
    the paper, and with heavy ball, whose law is Corollary 2.3: the squared norm grows by 1 + 2 beta
    / (1 - beta) times the sum of the run's own squared steps (Nesterov's factor is smaller: 14.2 at
    0.9, if gradients of different steps are uncorrelated). Claims compare norms at one rate for
    all, and at one value of lr / (1 - beta); scores at the best rate of each.
    """,
    arms=[_arm(optimizer, momentum) for optimizer in ("SGD", "SGDP") for momentum in ROWS],
    tune={"lr": RATES},
    conditions=[
        _condition("Nesterov", {"score": _numbers("SGD", "SGDP"),
                                "norm last": _numbers("SGD norm", "SGDP norm")}),
        _condition("heavy ball", {FACTOR: _numbers("law", "SGDP law")}),
    ],
    claims=CLAIMS,
    measures={FACTOR: ("growth_over_moves", ".4g")},
    first_seed=400,
)  # fmt: skip
