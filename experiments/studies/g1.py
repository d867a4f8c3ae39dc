"""Table G.1: hyper-parameters of the Grassmann optimizers, and a search with equal trials for every optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.claims import Claim, paired, performance
from experiments.plots import Picture, best_of_k, sensitivity
from experiments.results import Result, Results, Trial, place, standing_in
from experiments.search import points
from experiments.spec import EUCLIDEAN_REST
from experiments.study import Plan, Study, Table, cell

__all__ = ["G1"]

PAPER: dict[str, dict[tuple[float, float | None, float, float], str]] = {
    "sgdg": {
        (0.1, 0.1, 0.01, 0.2): "66.00",
        (0, 0.1, 0.01, 0.2): "67.85",
        (0.1, None, 0.01, 0.2): "66.35",
        (0, 0.1, 0.1, 2): "63.28",
        (0, 0.1, 0.005, 0.1): "68.73",
        (0, 0.1, 0.1, 0.1): "69.74",
        (0, 0.1, 0.3, 0.3): "68.33",
        (0, 0.1, 0.03, 0.03): "70.39",
        (0, 0.1, 0.01, 0.01): "69.21",
    },
    "adamg": {
        (0.1, 0.1, 0.01, 0.05): "67.40",
        (0, 0.1, 0.01, 0.05): "68.43",
        (0.1, None, 0.01, 0.05): "67.36",
        (0, 0.1, 0.001, 0.005): "66.97",
        (0, 0.1, 0.0002, 0.001): "55.9",
        (0, 0.1, 0.001, 0.001): "59.36",
        (0, 0.1, 0.03, 0.15): "63.96",
        (0, 0.1, 0.003, 0.015): "69.45",
        (0, 0.1, 0.1, 0.5): "59.39",
    },
}
"""alpha, nu, learning rate of the Euclidean half, learning rate on the manifold; the paper's accuracy."""

SEARCH, TUNED = "search: ", "tuned: "
"""What the arms of the search are called, before the recipe."""

MOMENTUM = {"momentum": 0.9, "nesterov": True}
TRIALS = {"smoke": 2, "small": 8, "full": 32}
SPACES: dict[str, tuple[dict[str, Any], dict[str, tuple[float, float]]]] = {
    "sgd": (MOMENTUM, {"lr": (0.003, 3.0)}),
    "sgdp": (MOMENTUM, {"lr": (0.003, 3.0)}),
    "adamw": ({"weight_decay": 0.0}, {"lr": (1e-4, 1e-1)}),
    "adamp": ({"weight_decay": 0.0}, {"lr": (1e-4, 1e-1)}),
    "sgdg": (
        {"momentum": 0.9, "nu": 0.1, "alpha": 0.0},
        {"lr": (0.003, 3.0), "rest": (0.001, 1.0)},
    ),
    "adamg": ({"nu": 0.1, "alpha": 0.0}, {"lr": (1e-3, 1.0), "rest": (0.001, 1.0)}),
}
"""Fixed hyper-parameters, and the ranges that are searched; "rest" is the learning rate of the Euclidean half."""


def euclidean(lr: float) -> dict[str, Any]:
    """What is not on the manifold, for SGDG and AdamG alike, at this learning rate."""
    return {**EUCLIDEAN_REST, "lr": lr}


class G1(Study):
    """Table G.1: the Grassmann optimizers need tuning; tuned with equal trials

    The paper's rows on digits, at its values. Then a search: the same number of trials for every optimizer (Halton points of
    logarithmic ranges; `--set search=optuna` learns instead), of which the Grassmann ones spend theirs on two learning
    rates. Trials are chosen on the validation set with one seed; the best runs again with every seed, and only its test
    score counts. On the manifold are the weights that the audit finds scale-invariant; Cho and Lee choose theirs by name.
    """

    name = "g1"
    settings = ("search",)
    compared = {  # noqa: RUF012
        "score": lambda item: (
            None if SEARCH in item.arm or TUNED in item.arm else item.summary["test"]
        )
    }
    seeds = {"smoke": 1, "small": 3, "full": 10}  # noqa: RUF012

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        trials = []
        for recipe, rows in PAPER.items():
            for (alpha, nu, lr_rest, lr), _ in rows.items():
                setting: dict[str, Any] = {
                    "lr": lr,
                    "nu": nu,
                    "alpha": alpha,
                    **({"momentum": 0.9} if recipe == "sgdg" else {}),
                }
                trials += self.seeded(
                    plan,
                    _row(recipe, (alpha, nu, lr_rest, lr)),
                    "digits",
                    recipe,
                    setting,
                    rest=euclidean(lr_rest),
                )
        # A recipe that stands in for one of these is searched by its own scores, and tuned, in as many trials.
        own = {
            item.arm: item.spec.recipe
            for item in results
            if (of := place(item)) and of.startswith(SEARCH)
        }
        for arm in (*(SEARCH + recipe for recipe in SPACES), *own):
            searched = results.arm(arm)
            asked = self._search(plan, arm.rpartition(SEARCH)[2], searched)
            trials += [standing_in(trial, own[arm]) for trial in asked] if arm in own else asked
            if len(searched) >= TRIALS[plan.tier] and (best := _best(searched)) is not None:
                setting = {"hyper_parameters": best.spec.hyper_parameters, "rest": best.spec.rest}
                trials += self.seeded(
                    plan, arm.replace(SEARCH, TUNED), "digits", best.spec.recipe, **setting
                )
        return trials

    def _search(self, plan: Plan, recipe: str, searched: Results) -> list[Trial]:
        """The search's trials so far, with the plan's first seed; one that learns proposes a quarter of them at a time."""
        fixed, space = SPACES[recipe]
        method, count = plan.settings.get("search", "halton"), TRIALS[plan.tier]
        first = replace(plan, seeds=(plan.seeds or (0,))[:1])
        if method != "optuna":
            found = points(space, count, method)
        else:
            known = [
                ({**item.spec.hyper_parameters, **_rest_of(item)}, _score(item))
                for item in searched
            ]
            told = [
                ({name: float(values[name]) for name in space}, score) for values, score in known
            ]
            found = [dict(values) for values, _ in told]
            if len(found) < count:
                found += points(space, min(max(1, count // 4), count - len(found)), method, told)
        trials = []
        for point in found:
            rest = euclidean(point["rest"]) if "rest" in point else None
            trials += self.seeded(
                first, SEARCH + recipe, "digits", recipe, {**fixed, "lr": point["lr"]}, rest=rest
            )
        return trials

    def tables(self, results: Results) -> list[Table]:
        tables = []
        for recipe, rows in PAPER.items():
            shown = []
            for values, paper in rows.items():
                runs = results.arm(_row(recipe, values))
                if not runs:
                    continue
                alpha, nu, lr_rest, lr = values
                accuracy = cell(runs.mean("test"), ".2f") + (
                    f" ({len(runs.diverged)} diverged)" if runs.diverged else ""
                )
                shown.append(
                    (
                        f"{alpha:g}",
                        "none" if nu is None else f"{nu:g}",
                        f"{lr_rest:g}",
                        f"{lr:g}",
                        accuracy,
                        paper,
                    )
                )
            columns = ("α", "ν", "lr Euclidean", "lr Grassmann", "accuracy", "paper accuracy")
            if shown:
                tables.append(Table(f"{recipe.upper()} at the paper's values", columns, shown))
        rows_ = []
        for arm in results.arms:
            if TUNED in arm:
                tuned, tried = results.arm(arm), results.arm(arm.replace(TUNED, SEARCH))
                spec = tuned.items[0].spec
                rest = f"{spec.rest['lr']:.3g}" if spec.rest else ""
                failed = str(len(tried.diverged)) if tried.diverged else ""
                numbers = (cell(tuned.mean("validation"), ".2f"), cell(tuned.mean("test"), ".2f"))
                rows_.append(
                    (
                        arm.replace(TUNED, ""),
                        f"{spec.hyper_parameters['lr']:.3g}",
                        rest,
                        str(len(tried)),
                        failed,
                        *numbers,
                    )
                )
        heads = (
            "optimizer",
            "best lr",
            "best lr Euclidean",
            "trials",
            "diverged",
            "validation",
            "test",
        )
        return [
            *tables,
            *(
                [Table("Tuned with equal trials", heads, rows_, "Means over seeds.")]
                if rows_
                else []
            ),
        ]

    def pictures(self, results: Results) -> list[Picture]:
        searched = results.where(lambda item: SEARCH in item.arm)
        scores: dict[str, list[float]] = {}
        for item in searched:
            scores.setdefault(item.spec.recipe, []).append(0.0 if item.diverged else _score(item))
        pictures = [
            sensitivity(
                searched,
                "lr",
                "validation accuracy (%)",
                "The search: accuracy against the learning rate; crosses on top diverged.",
            ),
            best_of_k(
                scores,
                "validation accuracy (%)",
                "Expected best of k trials: what tuning with a budget of k would have found.",
            ),
        ]
        return [picture for picture in pictures if picture.figure.data]

    def claims(self, results: Results) -> list[Claim]:
        source, claims = "Table G.1", []
        for recipe, lrs, regularized, plain in (
            ("sgdg", (0.01, 0.2), "66.00", "67.85"),
            ("adamg", (0.01, 0.05), "67.40", "68.43"),
        ):
            without, with_ = (
                results.arm(_row(recipe, (alpha, 0.1, *lrs))).values("test") for alpha in (0, 0.1)
            )
            text = (
                f"{recipe}: the orthogonality regularization lowers the score (without minus with)"
            )
            claims.append(
                performance(
                    text,
                    without,
                    with_,
                    source=source,
                    paper=f"{float(plain) - float(regularized):+.2f}",
                    unit="pp",
                )
            )
        best = (0, 0.1, 0.03, 0.03)
        a, b = (
            results.arm(_row("sgdg", values)).values("test")
            for values in (best, (0.1, 0.1, 0.01, 0.2))
        )
        text = "sgdg: the paper's best row scores higher than its authors' recommendation"
        claims.append(performance(text, a, b, source=source, paper="+4.39", unit="pp"))
        for label, values in (
            ("0.001 for both", (0, 0.1, 0.001, 0.001)),
            ("0.0002 and 0.001", (0, 0.1, 0.0002, 0.001)),
        ):
            good, bad = (
                results.arm(_row("adamg", v)).values("test")
                for v in ((0, 0.1, 0.003, 0.015), values)
            )
            text = f"adamg collapses at small learning rates ({label}): at least 5 pp below its best row"
            claims.append(
                paired(
                    text,
                    good,
                    bad,
                    ">",
                    bound=5.0,
                    source=source,
                    paper="69.45 against 59.36 and 55.9",
                    unit="pp",
                )
            )
        for ours, theirs, paper in (
            ("sgdp", "sgdg", "70.70 against 70.39"),
            ("adamp", "adamg", "70.82 against 69.45"),
        ):
            scores = (results.arm(TUNED + recipe).values("test") for recipe in (ours, theirs))
            claims.append(
                performance(
                    f"Tuned {ours} scores higher than tuned {theirs}",
                    *scores,
                    source=source,
                    paper=paper,
                    unit="pp",
                )
            )
        return claims


def _row(recipe: str, values: tuple[float, float | None, float, float]) -> str:
    alpha, nu, lr_rest, lr = values
    return f"{recipe} α={alpha:g} ν={nu} lr={lr_rest:g}/{lr:g}"


def _rest_of(item: Result) -> Mapping[str, float]:
    return {"rest": item.spec.rest["lr"]} if item.spec.rest else {}


def _score(item: Result) -> float:
    """On the validation set; a diverged trial is worse than any."""
    return -math.inf if item.diverged else float(item.summary["validation"])


def _best(runs: Results) -> Result | None:
    best = max(runs, key=_score)
    return None if best.diverged else best
