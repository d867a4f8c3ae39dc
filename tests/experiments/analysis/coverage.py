"""The coverage of intervals, and the share of studies without any difference that have a verdict.

    python -m tests.experiments.analysis.coverage

The suite runs a small part of it.
"""

import numpy as np

from spherenorm_experiments.analysis import (
    PERFORMANCE_SEEDS,
    Sample,
    decide,
    interval,
    paired,
    performance,
)

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
    base = Sample(dict.fromkeys(range(seeds), 0.0))
    wrong = 0
    for study in values:
        made = [
            (performance if i % 2 else paired)(
                "",
                dict(enumerate(row)),
                base,
                *(() if i % 2 else (">",)),
                source="",
                primary=i < primary,
            )
            for i, row in enumerate(study)
        ]
        wrong += any(claim.verdict in ("holds", "does not hold") for claim in decide(made))
    return wrong / studies


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


if __name__ == "__main__":
    main()
