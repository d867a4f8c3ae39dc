"""The share of studies without any difference that have a verdict, search and growth included.

    python -m tests.experiments.study.null_searches

Two arms are equal in distribution: a curve over the rates, a difficulty of each seed that the arms
share, and noise of each run, which validation and test share in part. Whole studies go through
`Comparison`: their grids grow, seeds choose, the claim is decided. A plain loop does the same a
hundred times faster: on the same scores its p-values are equal, so that its share, of many more
studies, is that of the real path. Beside it stand ways to choose in which seeds share a choice. The
suite runs a small part of it.
"""

import itertools

import numpy as np
from scipy import stats

from spherenorm_experiments.comparison import Comparison, Condition
from spherenorm_experiments.design import GROWTH
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.verdict import LEVEL
from tests.experiments.fabricated import result

RECIPES = ("adam", "adamp")
RATES = (0.01, 0.02, 0.04, 0.08)
CURVATURES = (0.0, 0.05, 0.2, 1.0)
"""The cost of a step along the grid at the top, in standard deviations of a run."""

PAIR, SHARED = 0.5, 0.7
"""The correlation of two runs of a seed, and of the noise of a run's validation and test."""


def null_study(seeds):
    return Comparison(
        "null",
        arms=[*RECIPES],
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


def run_to_end(study, world):
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
        study.decide_claims(run_to_end(study, World(random, curvature)))[0] for _ in range(studies)
    )
    return sum(decision.verdict in ("supported", "contradicted") for decision in decisions)


def plain_p_value(world, seeds):
    """The p-value of a study by a plain loop over the scores of a world."""
    rates, seeds = [*RATES], range(seeds)
    for _ in range(GROWTH):
        low = high = False
        for recipe in RECIPES:
            means = [np.mean([world.scores(recipe, x, seed)[0] for seed in seeds]) for x in rates]
            low |= np.argmax(means) == 0
            high |= np.argmax(means) == len(rates) - 1
        rates = [
            *([float(f"{rates[0] ** 2 / rates[1]:.3g}")] if low else []),
            *rates,
            *([float(f"{rates[-1] ** 2 / rates[-2]:.3g}")] if high else []),
        ]
    for recipe, rate, seed in itertools.product(RECIPES, rates, seeds):
        world.scores(recipe, rate, seed)
    differences = []
    for seed in seeds:
        best = [
            max((world.scores(recipe, rate, seed) for rate in rates), key=lambda scores: scores[0])
            for recipe in RECIPES
        ]
        differences.append(best[1][1] - best[0][1])
    return stats.ttest_1samp(differences, 0).pvalue


def plain_verdicts(seeds, studies, curvature, start=0):
    """The number of the studies whose p-value by the plain loop is below the level."""
    random = np.random.default_rng([start, seeds, CURVATURES.index(curvature)])
    return sum(plain_p_value(World(random, curvature), seeds) < LEVEL for _ in range(studies))


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


def main(studies=10_000, plain=100_000):
    print(f"Of {studies:,} studies without a difference, those with a verdict for or against;")
    print(f"by the plain loop of {plain:,}, ± 95 %")
    print("seeds  curvature  own choice    plain loop  two halves  leave one out")
    for seeds in (6, 12, 24):
        for curvature in CURVATURES:
            count, many = studies // (3 * len(CURVATURES)), plain // (3 * len(CURVATURES))
            own = verdicts(seeds, count, curvature) / count
            share = plain_verdicts(seeds, many, curvature) / many
            error = 1.96 * (share * (1 - share) / many) ** 0.5
            others = [f"{100 * x:9.1f}%" for x in shared_choices(seeds, studies, curvature)]
            own_text = f"{100 * own:9.1f}%  {100 * share:5.2f} ± {error:.2%}"
            print(f"{seeds:5}  {curvature:9g}  {own_text}", *others)


if __name__ == "__main__":
    main()
