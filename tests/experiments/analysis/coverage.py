"""The coverage of intervals, and the share of studies without any difference that have a verdict.

    python -m tests.experiments.analysis.coverage

The suite runs a small part of it.
"""

from decimal import Decimal

import numpy as np

from spherenorm_experiments.comparison import Comparison, Condition
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.tables import Cell
from spherenorm_experiments.verdict import (
    EQUIVALENCE_MARGIN,
    PERFORMANCE_SEEDS,
    Statement,
    adjust_for_multiplicity,
    interval,
)
from spherenorm_paper.findings import outcome
from spherenorm_paper.shared.claims import projection
from tests.experiments.fabricated import decided, result

DECIDED = ("supported", "contradicted")
TOLD = ("holds", "does not hold", "holds in part")
NORMS = ("norms",)
SEEDS = (3, 4, 5, 8, 10, 20)
IMAGES = 360
"""Of the digits' test set: an accuracy is a multiple of 1 / 3.6 points."""


def normal(random, shape):
    return random.normal(size=shape)


def binomial(random, shape):
    """Independent errors at 98 %, the difference of two arms."""
    a, b = random.binomial(IMAGES, 0.98, (2, *shape))
    return 100 * (a - b) / IMAGES


def one_image(random, shape):
    """Arms that vary by one image or so: the coarsest that we see."""
    a, b = np.round(random.normal(size=(2, *shape)))
    return 100 * (a - b) / IMAGES


def unequal(random, shape):
    """Seeds of unequal difficulty, shared by the arms, at 98 % on average."""
    share = random.beta(980, 20, shape)
    a, b = random.binomial(IMAGES, share, (2, *shape))
    return 100 * (a - b) / IMAGES


SCORES = {f.__name__: f for f in (normal, binomial, one_image, unequal)}


def coverage(name, seeds, repeats, start=0):
    """The share of samples without a true difference whose nominal 95 % interval holds 0."""
    random = np.random.default_rng([start, seeds])
    ends = [interval(row) for row in SCORES[name](random, (repeats, seeds))]
    return np.mean([low <= 1e-12 and high >= -1e-12 for low, high in ends])


def false_verdicts(name, seeds, studies, start=0, claims=10, primary=3):
    """The share of studies of ten claims, none of them true or false by nature, with a verdict.

    Half the claims are on performance; a verdict of equivalence is right here.
    """
    random = np.random.default_rng([start, seeds, 1])
    values = SCORES[name](random, (studies, claims, seeds))
    wrong = 0
    for study in values:
        made = [
            decided(row, name=f"claim-{i}", primary=i < primary, is_performance=bool(i % 2),
                    equivalence_margin=EQUIVALENCE_MARGIN if i % 2 else None)
            for i, row in enumerate(study)
        ]  # fmt: skip
        wrong += any(claim.verdict in DECIDED for claim in adjust_for_multiplicity(made))
    return wrong / studies


def null_study():
    """Four conditions of a paper's gains, one of them far smaller than 12 seeds can find."""
    statements = [Statement("paper", "Table 1", f"gain {i}") for i in range(2)]
    effects = ((2.0, 2.0, 0), (1.0, 2.0, 0), (0.5, 0.5, 1), (0.1, 2.0, 1))
    conditions = [
        Condition(
            f"condition-{i}",
            "digits",
            paper={"accuracy": {"sgd": Cell(Decimal(0)), "sgdp": Cell(Decimal(str(effect)))}},
            cites=statements[about],
            unit="pp",
            spread=spread,
        )
        for i, (effect, spread, about) in enumerate(effects)
    ]
    return Comparison(
        "null", arms=["sgd", "sgdp"], tune={"lr": [0.1, 0.2]}, conditions=conditions,
        claims=[*projection(conditions, ("sgd", "sgdp"))],
    )  # fmt: skip


def null_verdicts(studies, seeds=12, start=0):
    """Of studies in which both optimizers are one, the share with a verdict for or against.

    All of a study counts: scores, geometry and families. Equivalent is right here, and no
    verdict. The second number is the share in which such verdicts decide a statement.
    """
    study, random = null_study(), np.random.default_rng([start, seeds, 2])
    spreads = [condition.spread for condition in study.conditions]
    places = [Place(c.label, arm.name) for c in study.conditions for arm in study.arms]
    wrong = told = 0
    for _ in range(studies):
        scores = 90 + np.repeat(spreads, 2)[:, None] * random.normal(size=(8, seeds)) / 2**0.5
        sizes = np.exp(0.3 * random.normal(size=(3, 8, seeds)))
        items = [
            result(
                place, seed, Spec("digits", place.arm, {"lr": 0.1}, seed=seed, probes=NORMS),
                test=score, validation=score, norm_start=start, norm_last=last,
                total_effective_step=path,
            )
            for place, *columns in zip(places, scores, *sizes, strict=True)
            for seed, (score, start, last, path) in enumerate(zip(*columns, strict=True))
        ]  # fmt: skip
        decided = study.decide_claims(Runs(items))
        named = {each.claim.cites: [] for each in decided if each.kind == "paper"}
        for each in decided:
            if each.kind == "paper" and each.has_results and each.verdict != "equivalent":
                named[each.claim.cites].append(each.verdict)
        wrong += any(each.verdict in DECIDED for each in decided)
        told += any(outcome(found) in TOLD for found in named.values())
    return wrong / studies, told / studies


def main():
    print("Coverage of the nominal 95 % interval with no true difference, 20,000 samples each")
    print(f"{'':10}", *(f"{f'n = {n}':>8}" for n in SEEDS))
    for name in SCORES:
        print(f"{name:10}", *(f"{100 * coverage(name, n, 20_000):7.1f}%" for n in SEEDS))
    print("Studies of ten claims without any true difference that have a verdict")
    for name in SCORES:
        for seeds in (PERFORMANCE_SEEDS, 10):
            few, many = (false_verdicts(name, seeds, count) for count in (1000, 10_000))
            print(f"{name:10} n = {seeds:2}: {few:.1%} of 1,000, {many:.1%} of 10,000")
    wrong, told = null_verdicts(10_000)
    print(f"10,000 comparisons of an optimizer with itself: {wrong:.1%} have a verdict for or")
    print(f"against a claim; in {told:.1%} it decides a statement")


if __name__ == "__main__":
    main()
