"""Table H.6: the momentum coefficient, and Corollary 2.3 on a trained network."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from spherenorm_experiments.claims import Claim, Side, derive, slug
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.condition import Condition, Contender, Setup
from spherenorm_experiments.paper.norms._network import MEASURES, SEEDS, of_all
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.samples import advantage, combined, paired_values, pooled, worst_of
from spherenorm_experiments.tables import Cell, printed
from spherenorm_experiments.tuning import of_best, of_point

PAPER = {
    0.5: printed("7.60 67.57 6.88 67.75"),
    0.8: printed("8.31 67.64 6.57 68.55"),
    0.9: printed("8.53 67.42 6.33 68.95"),
    0.95: printed("8.76 67.67 6.23 69.12"),
    0.975: printed("8.73 67.56 6.14 69.17"),
}
"""For each momentum: SGD's last norm and accuracy, SGDP's."""

RATE = 0.1
RATES = (0.01, 0.025, 0.05, RATE, 0.2, 0.5, 1.0)
"""Those that keep lr / (1 - momentum) at its value for 0.9 among them."""
OPTIMIZERS = ("SGD", "SGDP")
FACTOR = "growth / steps²"


def _scaled(momentum: float) -> float:
    """The rate that keeps lr / (1 - momentum) at its value for 0.9."""
    return round(RATE * (1 - momentum) / 0.1, 10)


def _name(optimizer: str, momentum: float) -> str:
    return f"{optimizer}, β = {momentum:g}"


def _contender(optimizer: str, momentum: float) -> Contender:
    against = [_name("SGD", momentum)] if optimizer == "SGDP" else []
    fixed = {"momentum": momentum}
    return Contender(
        _name(optimizer, momentum), None, fixed, against, recipe=optimizer.lower()
    )  # fmt: skip


def _condition(kind: str) -> Condition:
    nesterov = kind == "Nesterov"
    numbers = {
        heading: {
            _name(optimizer, momentum): row[2 * i + place]
            for momentum, row in PAPER.items()
            for i, optimizer in enumerate(OPTIMIZERS)
        }
        for place, heading in ((1, "score"), (0, "norm last"))
    }
    names = [_name(optimizer, momentum) for optimizer in OPTIMIZERS for momentum in PAPER]
    law = {FACTOR: dict(zip(names, printed("3 9 19 39 79 1 1 1 1 1"), strict=True))}
    setup = Setup(hyper_parameters={"nesterov": nesterov})
    return Condition(kind, "network", setup, paper=numbers if nesterov else law)


CONDITIONS = tuple(map(_condition, ("Nesterov", "heavy ball")))


def _at(optimizer: str, kind: str, key: str, momentum: float = 0.9, scaled: bool = False) -> Side:
    rate = _scaled(momentum) if scaled else RATE
    return of_point(f"{kind}: {_name(optimizer, momentum)}", key, lr=rate)


def _claims() -> Iterator[Claim]:
    about = "the squared norm's growth over the sum of the squared steps"
    heavy, projected, nesterov = (
        _at(optimizer, kind, "growth_over_moves")
        for optimizer, kind in (("SGD", "heavy ball"), ("SGDP", "Nesterov"), ("SGD", "Nesterov"))
    )
    yield Claim(
        "law.heavy-ball", f"Heavy ball, β = 0.9: {about} is 19, within 5 %", heavy, "=", 19.0,
        margin=0.95, cites=says("2.corollary"), paper=Cell(19, "g"), primary=True,
    )  # fmt: skip
    yield Claim(
        "law.sgdp", f"SGDP, β = 0.9: {about} is 1, within 1 %", projected, "=", 1.0, margin=0.01,
        cites=says("3.eq11"), paper=Cell(1, "g"), primary=True,
    )  # fmt: skip
    yield Claim(
        "law.nesterov", f"Nesterov, β = 0.9: {about} is above 2", nesterov, ">", 2.0,
        cites=says("2.nesterov"),
    )  # fmt: skip
    yield from _of_gaps()
    yield from _of_norms()
    yield from _of_scores()


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
        m: derive(advantage, *(of_best(f"Nesterov: {_name(o, m)}") for o in ("SGDP", "SGD")))
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


BASELINE, *CONTENDERS = (_contender(name, m) for name in OPTIMIZERS for m in PAPER)

H6 = TunedComparison(
    "h6",
    """Table H.6: the larger the momentum, the more the projection matters

    SGD and SGDP without weight decay, at momenta from 0.5 to 0.975, with Nesterov's momentum as in
    the paper, and with heavy ball, whose law is Corollary 2.3: the squared norm grows by
    1 + 2 beta / (1 - beta) times the sum of the squared steps (Nesterov's factor is smaller: 14.2
    at 0.9). Claims compare norms at one rate for all, and at one value of lr / (1 - beta); scores
    at the best rate of each.
    """,
    baseline=BASELINE,
    contenders=CONTENDERS,
    tune={"lr": RATES},
    on=CONDITIONS,
    claims=list(_claims()),
    scored=False,
    measures={FACTOR: ("growth_over_moves", ".4g"), **MEASURES},
    first_seed=400,
    seeds=SEEDS,
    departures=(
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("momentum", "Nesterov", "Nesterov, and heavy ball", "Corollary 2.3 is heavy ball's"),
        ("learning rate", "0.1", "0.1, and 0.01 / (1 - β) constant; tuned for scores and tables",
         "a larger momentum is a larger step at one rate"),
        ("norm", "not defined; 8.53 here, 4.34 in Table 1 for the same setting",
         "mean of the 2-norms of all scale-invariant rows", ""),
    ),
)  # fmt: skip
