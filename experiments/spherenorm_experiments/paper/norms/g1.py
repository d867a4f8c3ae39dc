"""Table G.1: the Grassmann optimizers' hyper-parameters, and a search with equal trials for all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from spherenorm_experiments.claims import MARGIN, Claim, slug
from spherenorm_experiments.comparison import Arm, Comparison, Condition
from spherenorm_experiments.paper.norms._network import MEASURES, NESTEROV, RESNET18, SEEDS
from spherenorm_experiments.paper.statements import says
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial, choose
from spherenorm_experiments.tables import Heading, Row, Table, gap, mean_of, paper, printed

PAPER = {
    "SGDG": """
        0.1 0.1 0.01 0.2 66.00
        0 0.1 0.01 0.2 67.85
        0.1 None 0.01 0.2 66.35
        0 0.1 0.1 2 63.28
        0 0.1 0.005 0.1 68.73
        0 0.1 0.1 0.1 69.74
        0 0.1 0.3 0.3 68.33
        0 0.1 0.03 0.03 70.39
        0 0.1 0.01 0.01 69.21
    """,
    "AdamG": """
        0.1 0.1 0.01 0.05 67.40
        0 0.1 0.01 0.05 68.43
        0.1 None 0.01 0.05 67.36
        0 0.1 0.001 0.005 66.97
        0 0.1 0.0002 0.001 55.9
        0 0.1 0.001 0.001 59.36
        0 0.1 0.03 0.15 63.96
        0 0.1 0.003 0.015 69.45
        0 0.1 0.1 0.5 59.39
    """,
}
"""The paper's rows: alpha, nu, the rate elsewhere, the rate on the sphere, and the accuracy."""

RECOMMENDED = {"SGDG": 0.2, "AdamG": 0.05}
"""The learning rate on the sphere, by the authors of the optimizers."""

CANDIDATES = {"SGDG": (0.2, 2.0, 0.1), "AdamG": (0.05, 0.005, 0.001)}
"""The rates on the sphere of the paper's four candidates, before it tuned further."""

BEST = {"SGD": "70.47", "SGDP": "70.70", "AdamW": "70.39", "AdamP": "70.82", "SGDG": "70.39",
        "AdamG": "69.45"}  # fmt: skip
"""The paper's best accuracies."""

RATES = {
    "SGDG": (0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 2.0, 5.0),
    "AdamG": (0.001, 0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0),
    **dict.fromkeys(("SGD", "SGDP"), (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
    **dict.fromkeys(("AdamW", "AdamP"), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3)),
}
"""Eight for every optimizer."""

EUCLIDEAN = {"recipe": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
"""Of the weights that are not on the sphere, with the paper's data; their rate is a row's own."""

DECAYS = {"SGD": 1e-4, "SGDP": 1e-5, "AdamW": 1e-4, "AdamP": 1e-6}
"""Of Table 2, with the paper's data."""

BASELINE, PROJECTED = {"SGDG": "SGD", "AdamG": "AdamW"}, {"SGDG": "SGDP", "AdamG": "AdamP"}


def _rows(name: str) -> list[list[str]]:
    return [line.split() for line in PAPER[name].strip().splitlines()]


def _name(optimizer: str, alpha: float = 0.0, clip: bool = True) -> str:
    parts = [optimizer, *(["α = 0.1"] if alpha else []), *([] if clip else ["no clip"])]
    return ", ".join(parts)


def _arm(optimizer: str, alpha: float = 0.0, clip: bool = True) -> Arm:
    fixed: dict[str, Any] = {"momentum": 0.9} if optimizer.startswith("SGD") else {}
    if optimizer in PAPER:
        fixed |= {"alpha": alpha, "nu": 0.1 if clip else None}
    else:
        fixed |= {**(NESTEROV if fixed else {}), "weight_decay": 0.0}
    theirs = {**fixed, "lr": 0.1 if "momentum" in fixed else 1e-3}
    theirs |= {"weight_decay": DECAYS[optimizer]} if optimizer in DECAYS else {}
    against = [theirs for ours, theirs in BASELINE.items() if ours == optimizer]
    name = _name(optimizer, alpha, clip)
    tune = {"lr": RATES[optimizer]}
    return Arm(name, tune, fixed, against, theirs, recipe=optimizer.lower())


def _row_name(name: str, row: Sequence[str]) -> str:
    """The arm of a row of the paper's, with its data."""
    alpha, nu, elsewhere, on_sphere, _ = row
    return f"{name}, α {alpha}, ν {nu}, lr {elsewhere} and {on_sphere}"


QUOTED = {
    "SGDG": ("70.39 - 67.85 = +2.54", "70.39 against 70.47", "70.70 - 69.74 = +0.96",
             "70.70 - 70.39 = +0.31"),
    "AdamG": ("69.45 - 68.43 = +1.02", "69.45 against 70.39", "70.82 - 68.43 = +2.39",
              "70.82 - 69.45 = +1.37"),
}  # fmt: skip


def _best(runs: Runs, name: str, among: Collection[float] = ()) -> pd.Series:
    """The score of each seed at its best rate, of some or of all."""
    if not among:
        return runs.best("", name).test
    own = runs.of("", name)
    known = [bool(np.isclose(lr, [*among], rtol=1e-6).any()) for lr in own.lr]
    return choose(own[np.array(known, dtype=bool)]).test


def _claims(name: str) -> Iterator[Claim]:
    rate, (regularized, clipped, free, *_) = RECOMMENDED[name], _rows(name)
    baseline, ours = BASELINE[name], PROJECTED[name]
    points: dict[str, Any] = {"unit": "pp", "score": True}

    def at(runs: Runs, **variant: Any) -> pd.Series:
        return runs.at("", _name(name, **variant), lr=rate).test

    yield Claim(
        f"{slug(name)}.regularization", "> 0", lambda runs: at(runs) - at(runs, alpha=0.1),
        f"{name}: the regularization lowers the score at the recommended rate", says("g.alpha"),
        margin=MARGIN, paper=gap(*printed(f"{clipped[-1]} {regularized[-1]}")), **points,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.clipping", "= 0 ± 1",
        lambda runs: at(runs, alpha=0.1) - at(runs, alpha=0.1, clip=False),
        f"{name}: the clipping has no effect on the score, within 1 pp, at the recommended rate",
        says("g.nu"), paper=gap(*printed(f"{regularized[-1]} {free[-1]}")), **points,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.tuning", "> 0", lambda runs: _best(runs, name) - at(runs),
        f"{name}: tuning its rate raises the score over the recommended rate", says("g.essential"),
        margin=MARGIN, paper=QUOTED[name][0], **points,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.as-baseline", "= 0 ± 1",
        lambda runs: _best(runs, name) - _best(runs, baseline),
        f"Tuned {name} and tuned {baseline} score alike, within 1 pp", says("g.comparable"),
        paper=QUOTED[name][1], primary=True, **points,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.candidates", "> 0",
        lambda runs: _best(runs, ours) - _best(runs, name, CANDIDATES[name]),
        f"{ours} scores higher than {name} at the best of the paper's three rates",
        says("g.lower"), margin=MARGIN, paper=QUOTED[name][2], **points,
    )  # fmt: skip
    yield Claim(
        f"{slug(name)}.projected", "> 0", lambda runs: _best(runs, ours) - _best(runs, name),
        f"Tuned {ours} scores higher than tuned {name}", says("g.higher"), margin=MARGIN,
        paper=QUOTED[name][3], primary=True, **points,
    )  # fmt: skip


class TableG1(Comparison):
    """Table G.1, with the scores at the paper's values; with its data, each of its rows."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        made = super().trials(plan, runs)
        if not plan.real:
            return made
        fields = {**RESNET18.fields, "options": RESNET18.options, "probe_every": 100}
        kept = [trial for trial in made if trial.place.arm in DECAYS]
        for name in PAPER:
            for row in _rows(name):
                alpha, nu, elsewhere, on_sphere, _ = row
                point: dict[str, Any] = {"momentum": 0.9} if name == "SGDG" else {}
                point |= {"lr": float(on_sphere), "alpha": float(alpha)}
                point |= {"nu": None if nu == "None" else float(nu)}
                rest = {**EUCLIDEAN, "lr": float(elsewhere)}
                kept += self.seeded(
                    plan, Place("", _row_name(name, row)), RESNET18.task, name.lower(), point,
                    rest=rest, **fields,
                )  # fmt: skip
        return kept

    def tables(self, runs: Runs) -> list[Table]:
        rows: list[Row] = []
        for name in PAPER:
            for alpha, nu, *rates, theirs in _rows(name):
                label = _name(name, float(alpha), nu != "None")
                row = [alpha, nu, *rates, theirs]
                scores = runs.at("", _row_name(name, row), lr=float(rates[1])).test  # --data
                if scores.empty:
                    scores = runs.at("", label, lr=float(rates[1])).test
                if len(scores):
                    score = mean_of(scores, ".2f")
                    rows.append((name, alpha, nu, *rates, score, *printed(theirs)))
        headings: list[Heading] = [
            *("optimizer", "α", "ν", "lr Euclidean (--data)", "lr Grassmann", "accuracy"),
            *paper("accuracy"),
        ]
        note = "Rows whose rate on the sphere is one of our eight."
        table = Table("At the paper's values", headings, rows, note)
        return [*super().tables(runs), *([table] if rows else [])]


G1 = TableG1(
    "g1",
    """Table G.1: the Grassmann optimizers need tuning; tuned with equal trials

    Eight learning rates for every optimizer; for the Grassmann ones with and without their
    regularization, and their clipping. Every row starts at norm 1, for which their rates and their
    clipping are meant. The classifier is fixed at its start, so that every weight that trains is on
    the sphere, and there is one learning rate, not two.
    """,
    arms=[
        *map(_arm, ("SGD", "SGDP", "AdamW", "AdamP")),
        *(_arm(name, alpha, clip) for name in PAPER for alpha in (0.0, 0.1)
          for clip in (True, False)),
    ],
    tune={"lr": RATES["SGD"]},
    conditions=[
        Condition(
            "", "network", {"sphere": True}, RESNET18, theirs="ResNet-18, ImageNet",
            paper={"score": {name: printed(score)[0] for name, score in BEST.items()}},
        )
    ],
    claims=[claim for name in PAPER for claim in _claims(name)],
    scored=False,
    measures=MEASURES,
    first_seed=300,
    seeds=SEEDS,
    departures=(
        ("data, network", "ImageNet, ResNet-18", "digits, three hidden layers", "a small machine"),
        ("classifier", "trained, with a learning rate of its own", "fixed",
         "all rates and seeds train as one sweep of one recipe"),
        ("start", "the sphere's for SGDG and AdamG, He's for the others", "rows of norm 1 for all",
         "one start for every optimizer"),
        ("on the sphere (--data too)", "convolutions, chosen by name",
         "every scale-invariant matrix", "the audit finds them"),
        ("weight decay off the sphere (--data)", "not given", "1e-4, Nesterov SGD",
         "Table 2's; the Euclidean half of AdamG is Nesterov SGD in its authors' code"),
        ("learning rates", "nine rows, by hand", "eight for each of all optimizers, and more "
         "where a best is at an end", "equal tuning"),
        ("weight decay", "1e-4 (SGD, AdamW), less for SGDP and AdamP", "none",
         "the sphere has none"),
    ),
)  # fmt: skip
