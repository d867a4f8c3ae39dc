"""The share of studies without any difference that have a verdict, search and growth included.

    python -m tests.experiments.study.null_searches

Two arms are equal in distribution: a curve over the rates, a difficulty of each seed that the arms
share, and noise of each run, which validation and test share in part. Whole studies go through
`Comparison`: their grids grow, seeds choose, the claim is decided. Beside it, from the same
numbers, stand ways to choose in which seeds share a choice. The suite runs a small part of it.
"""

import numpy as np
from scipy import stats

from spherenorm_experiments.comparison import Comparison, Condition
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from tests.experiments.fabricated import result

RATES = (0.01, 0.02, 0.04, 0.08)
CURVATURES = (0.0, 0.05, 0.2, 1.0)
"""The cost of a step along the grid at the top, in standard deviations of a run."""

PAIR, SHARED = 0.5, 0.7
"""The correlation of two runs of a seed, and of the noise of a run's validation and test."""


def null_study(seeds):
    return Comparison(
        "null",
        arms=["adam", "adamp"],
        tune={"lr": RATES},
        conditions=[Condition("", "digits", unit="pp")],
        seeds={"small": seeds},
    )


class World:
    """Scores of two arms at any rate, for any seed."""

    def __init__(self, random, curvature):
        self.random, self.curvature, self.known = random, curvature, {}
        self.top = random.uniform(np.log2(RATES[0]), np.log2(RATES[-1]))

    def scores(self, recipe, rate, seed):
        """Validation and test."""
        key = recipe, rate, seed
        if key not in self.known:
            easy = self.known.setdefault(seed, self.random.normal())
            run, other = self.random.normal(size=2)
            mean = 80 - self.curvature * (np.log2(rate) - self.top) ** 2 + PAIR**0.5 * easy
            shared = SHARED * run + (1 - SHARED**2) ** 0.5 * other
            self.known[key] = [mean + (1 - PAIR) ** 0.5 * noise for noise in (shared, run)]
        return self.known[key]


def ended(study, world):
    """The results of a study when nothing is left to run."""
    items, trials = [], study.trials(Plan(), Runs())
    while len(trials) > len(items):
        done = {(item.place, *_point(item.spec)) for item in items}
        for trial in trials:
            if (trial.place, *_point(trial.spec)) not in done:
                validation, test = world.scores(trial.spec.recipe, *_point(trial.spec))
                summary = {"validation": validation, "test": test, "metric": "accuracy (%)"}
                items.append(result(trial.place, 0, trial.spec, **summary))
        trials = study.trials(Plan(), Runs(items))
    return Runs(items)


def _point(spec):
    return spec.hyper_parameters["lr"], spec.seed


def verdicts(seeds, studies, curvature, start=0):
    """The number of the studies that have a verdict for or against."""
    random, study = np.random.default_rng([start, seeds]), null_study(seeds)
    decisions = (
        study.decide_claims(ended(study, World(random, curvature)))[0] for _ in range(studies)
    )
    return sum(each.verdict in ("supported", "contradicted") for each in decisions)


def _chosen(validation, test, groups):
    """Test scores where each seed has the rate that is best on the groups that are not its own."""
    chosen = np.empty((len(test), 2, test.shape[-1]))
    for group in set(groups):
        own = groups == group
        best = validation[..., ~own].mean(-1).argmax(-1)[:, :, None, None]
        chosen[..., own] = np.take_along_axis(test, best, 2)[:, :, 0][..., own]
    return chosen


def shared_choices(seeds, studies, curvature, level=0.04):
    """The same share where two halves choose for each other, and where all others choose."""
    random = np.random.default_rng(seeds)
    rates = np.arange(6)[:, None] - 2.5
    easy = PAIR**0.5 * random.normal(size=(studies, 1, 1, seeds))
    run, other = (1 - PAIR) ** 0.5 * random.normal(size=(2, studies, 2, 6, seeds))
    mean = easy - curvature * (rates - 0.25) ** 2
    noise = SHARED * run + (1 - SHARED**2) ** 0.5 * other
    for groups in (np.arange(seeds) % 2, np.arange(seeds)):
        a, b = _chosen(mean + noise, mean + run, groups).swapaxes(0, 1)
        yield np.mean(stats.ttest_rel(a, b, axis=1).pvalue < level)


def main(studies=10_000):
    print(f"Of {studies:,} studies without a difference, those with a verdict for or against")
    print("seeds  curvature  own choice  two halves  leave one out")
    for seeds in (6, 12, 24):
        for curvature in CURVATURES:
            own = verdicts(seeds, studies // (3 * len(CURVATURES)), curvature)
            others = shared_choices(seeds, studies, curvature)
            shares = own / (studies // (3 * len(CURVATURES))), *others
            print(f"{seeds:5}  {curvature:9g}", *(f"{100 * share:9.1f}%" for share in shares))


if __name__ == "__main__":
    main()
