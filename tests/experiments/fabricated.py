"""Results that no run has made, and claims about numbers that are given.

In a world of random numbers a claim may be true or false.
"""

import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd

from spherenorm_experiments.comparison import find_study
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Result, Runs
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.verdict import EQUIVALENCE_MARGIN, Claim, evaluate_claim

SHARES = ("test", "validation", "projected_invariant", "projected_variant")
SIZES = ("norm_start", "norm_first_epoch", "norm_last", "path", "growth_over_moves")
GAPS = ("final_gap", "max_norm", "last_norm", "steps_to_0.1", "steps_to_0.01", "steps_to_0.001",
        "steps_to_1", "steps_to_10")  # fmt: skip
CHOSEN = {
    "final_gap": (1e-5, 1.0),
    "growth_over_moves": (1.0, 19.0),
    "max_norm": (1.0, 1.12, 2.53, 2.93, 3.2, 27.87),
    "projected_invariant": (99.99,),
    "projected_variant": (0.01,),
}
"""Numbers that some claims are about, and that chance would not find."""
SEEDS, POINTS_KEPT = 8, 120
KINDS = ("variant", "invariant")


@dataclass(frozen=True, kw_only=True)
class Made(Result):
    """A result with arrays and records of no file."""

    kept: Mapping = field(default_factory=dict)
    recorded: Sequence = ()

    @property
    def arrays(self):
        return self.kept

    def records(self, names=None):
        return list(self.recorded)


def result(place, seed=0, spec=None, records=(), name="made", recipe="sgd", **summary):
    """A finished run, of which nothing is stored.

    Args:
        place: a `Place`, or the name of an arm.
    """
    place = place if isinstance(place, Place) else Place("", place)
    spec = spec or Spec("digits", recipe, {"lr": 0.1}, seed=seed)
    folder = SimpleNamespace(name=name, path=name)
    summary = {"diverged_at": None, **summary}
    return Made(name=name, spec=spec, summary=summary, folder=folder, place=place, recorded=records)


def by_seed(values):
    """A Series of numbers by seed: of a list, a mapping or one number for each of eight."""
    if isinstance(values, float):
        values = [values] * SEEDS
    return pd.Series(dict(values) if isinstance(values, Mapping) else list(values), dtype=float)


def decided(values, relation="> 0", seed_counts=(), name="claim", **more):
    """A claim about numbers by seed, or about a number without randomness or none."""
    value = values if values is None or isinstance(values, float) else by_seed(values)
    return evaluate_claim(
        Claim(name, relation, lambda _: value, **more), Runs(seed_counts=seed_counts)
    )


def scores(ours, baseline, margin=EQUIVALENCE_MARGIN, **more):
    """A claim that a score is higher than another."""
    gap = by_seed(ours) - by_seed(baseline)
    return decided(
        gap, **{"is_performance": True, "unit": "pp", "equivalence_margin": margin, **more}
    )


def compared(study, plan, lost=lambda trial: False):
    """The results of a comparison, with scores by chance; with the keys of a run on batches.

    Args:
        lost: of a trial; where it is true the run diverged.
    """
    random, items = np.random.default_rng(0), []
    for number, trial in enumerate(study.trials(plan, Runs())):
        score, start, last, path = 50 + 40 * random.random(4)
        summary = {"validation": score, "test": score, "norm_last": last}
        summary["test_metrics"] = {name: score for c in study.conditions for name in c.paper}
        if lost(trial):
            summary = {**dict.fromkeys(summary), "test_metrics": {}, "diverged_at": 3}
        summary |= {"metric": "accuracy (%)", "norm_start": start, "invariant_share": 0.5}
        summary |= {"total_effective_step": path, "views": {"a": "channel", "b": None}}
        summary |= {"shapes": {"a": [3, 4], "b": [2, 4]}, "norm_first_epoch": start}
        summary |= {"steps_per_epoch": 2}
        keys, last = ("norm", "effective_step", "loss", "validation"), 30 if plan.real else 4
        records = [{"step": s, **dict.fromkeys(keys, score + s)} for s in range(1, last + 1)]
        spec = trial.spec if plan.real else replace(trial.spec, probes=("norms",))
        items.append(result(trial.place, 0, spec, records, f"run-{number}", **summary))
    return Runs(items)


def fabricated(name, world, lost=lambda recipe: False):
    """The results of a study in a world: numbers of an arm's own, alike for all seeds but noise.

    In every third world all arms of a recipe are alike but for noise, in every fifth all arms are;
    but sizes rise or fall from one arm of a condition to the next.

    Args:
        world: a seed.
        lost: of a recipe; where it is true all of its runs diverged, at all points.
    """
    random = np.random.default_rng([world, 7])
    items, places = [], {}
    for place, specs in _planned(name):
        recipe = specs[0].recipe
        alike = "" if world % 5 == 0 else recipe
        own = np.random.default_rng([world, 7, zlib.crc32(alike.encode())])
        levels = random if world % 3 and world % 5 else own
        key = place.condition, recipe
        items += _results(place, specs, random, levels, lost(recipe), places.setdefault(key, 0))
        places[key] += 1
    return Runs(items)


@functools.cache
def _planned(name):
    """Each place of a study with the specs of its runs: the same in all worlds."""
    trials = find_study(name).trials(Plan("smoke" if name == "f3" else "small"), Runs())
    places = {}
    for trial in trials:  # of a toy's two options the one at its side
        known = places.setdefault(trial.place, {})
        known.setdefault(json.dumps(dict(trial.spec.options)), []).append(trial.spec)
    planned = []
    for place, options in places.items():
        specs = [*options.values()][-1]
        if _is_toy(specs[0]):
            points = {json.dumps(dict(spec.hyper_parameters)): spec for spec in specs}
            specs = [replace(spec, seed=s) for spec in points.values() for s in range(SEEDS)]
        planned.append((place, specs))
    return planned


def _is_toy(spec):
    return spec.task in ("cosine", "rosenbrock")


def _results(place, specs, random, levels, lost, order):
    toy = _is_toy(specs[0])
    points = len({json.dumps(dict(own.hyper_parameters)) for own in specs})
    seeds = len(specs) // points
    rise = 0.0 if toy else order * levels.choice([-0.06, 0.0, 0.035, 0.25])
    tables = _tables(GAPS if toy else SIZES + SHARES, (points, seeds), random, levels, rise, lost)
    slope = levels.normal(scale=0.03) * np.arange(POINTS_KEPT)[:, None, None]
    curves = np.exp(slope + 0.01 * random.normal(size=(POINTS_KEPT, points, seeds)))
    ends = np.sort(np.exp(levels.normal(-9, 8, size=(2, 2))))
    items = []
    for number, own in enumerate(specs):
        point, seed = divmod(number, seeds)
        summary = {key: rows[point][seed] for key, rows in tables.items()}
        summary |= {"diverged_at": 3 if lost else None, "every": 2}
        curve = curves[:, point, seed]
        kept = {
            "norm": curve,
            "effective_step": curve * np.nan if lost else curve.copy(),
            **{f"cosines_{kind}": x.copy() for kind, x in zip(KINDS, ends, strict=True)},
        }
        items.append(
            Made(name="made", spec=own, summary=summary, folder=None, index=0, place=place,
                 kept=kept)
        )  # fmt: skip
    return items


def _tables(keys, shape, random, levels, rise, lost):
    """For each key a number for each point and seed; it may rise or fall with the first setting."""
    scale = levels.choice([1.0, np.exp(2 * levels.normal())])
    along = np.linspace(-1, 1, shape[0])[:, None] * levels.choice([-1.0, -0.2, 0.0, 0.2, 1.0])
    tables = {}
    for key in keys:
        noise = 0.003 * random.normal(size=shape)
        if key in CHOSEN and levels.random() < 0.6:
            values = levels.choice(CHOSEN[key]) * (
                1 + (0.01 if key not in SHARES else 1e-8) * noise
            )
        elif key in SHARES:
            values = 50 + 40 * np.tanh(levels.normal() + along * levels.normal()) + noise
        else:
            values = scale * np.exp(along + rise + 0.3 * levels.normal() + noise)
        tables[key] = [[None if lost else float(x) for x in row] for row in values]
    return tables
