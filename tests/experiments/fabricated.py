"""Results that no run has made, and claims about numbers that are given.

In a world of random numbers a claim may be true or false.
"""

import functools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import numpy as np

from spherenorm_experiments.claims import MARGIN, Claim
from spherenorm_experiments.comparing import find_study
from spherenorm_experiments.decisions import evaluate
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.results import Result, Results
from spherenorm_experiments.spec import Spec

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
    """A result with arrays of no file."""

    kept: Mapping = field(default_factory=dict)

    @property
    def arrays(self):
        return self.kept


def result(arm, seed=0, spec=None, records=(), name="made", **summary):
    """A finished run, of which nothing is stored."""
    spec = spec or Spec("digits", arm.recipe, {"lr": 0.1}, seed=seed)
    metrics = SimpleNamespace(read=lambda *_: records)
    folder = SimpleNamespace(name=name, metrics=metrics, path=name)
    return Result(name, spec, {"diverged_at": None, **summary}, folder, arm=arm)


def decided(left, relation, right, name="claim", text="", **more):
    """A claim about numbers by seed, or about a number without randomness."""
    sides = (left, right if isinstance(right, float) else lambda _: right)
    return evaluate(Claim(name, text, lambda _: sides[0], relation, sides[1], **more), Results([]))


def scores(ours, baseline, margin=MARGIN, **more):
    """A claim that a score is higher than another."""
    performance = {"performance": True, "unit": "pp", "equivalent": margin}
    return decided(ours, ">", baseline, **performance | more)


def compared(study, plan, lost=lambda arm: False):
    """The results of a tuned comparison, with scores by chance.

    Args:
        lost: of an arm; where it is true all of its runs diverged.
    """
    random, items = np.random.default_rng(0), []
    for number, trial in enumerate(study.trials(plan, Results([]))):
        score, start, last, path = 50 + 40 * random.random(4)
        summary = {"validation": score, "test": score, "norm_last": last}
        summary["test_metrics"] = {name: score for c in study.on for name in c.paper}
        if lost(trial.arm):
            summary = {**dict.fromkeys(summary), "test_metrics": {}, "diverged_at": 3}
        summary |= {"metric": "accuracy (%)", "norm_start": start, "invariant_share": 0.5}
        summary |= {"total_effective_step": path, "views": {"a": "channel", "b": None}}
        keys = ("norm", "effective_step", "loss", "validation")
        records = [{"step": step, **dict.fromkeys(keys, score + step)} for step in range(1, 5)]
        spec = replace(trial.spec, probes=("norms",))
        items.append(result(trial.arm, 0, spec, records, f"run-{number}", **summary))
    return Results(items)


def fabricated(name, world, lost=lambda arm: False):
    """The results of a study in a world: numbers of an arm's own, alike for all seeds but noise.

    In every third world all arms of a recipe are alike but for noise, in every fifth all arms are;
    but sizes rise or fall from one contender of a condition to the next.

    Args:
        world: a seed.
        lost: of an arm; where it is true all of its runs diverged, at all points.
    """
    random = np.random.default_rng([world, 7])
    items, places = [], {}
    for arm, spec, rows in _planned(name):
        alike = "" if world % 5 == 0 else arm.recipe
        own = np.random.default_rng([world, 7, zlib.crc32(alike.encode())])
        levels = random if world % 3 and world % 5 else own
        place = arm.settings.get("condition"), arm.recipe
        items += _results(arm, spec, rows, random, levels, lost(arm), places.setdefault(place, 0))
        places[place] += 1
    return Results(items)


@functools.cache
def _planned(name):
    """Each arm of a study with a spec and those of all of its runs: the same in all worlds."""
    trials = find_study(name).trials(Plan("smoke" if name == "f3" else "small"), Results([]))
    arms = {}
    for trial in trials:  # of a toy's two options the one at its side
        known = arms.setdefault(trial.arm, {})
        known.setdefault(json.dumps(dict(trial.spec.options)), []).append(trial.spec)
    planned = []
    for arm, options in arms.items():
        specs = [*options.values()][-1]
        if _is_toy(specs[0]):
            points = {json.dumps(dict(spec.hyper_parameters)): spec for spec in specs}
            specs = [replace(spec, seed=s) for spec in points.values() for s in range(SEEDS)]
        planned.append((arm, specs[0], specs))
    return planned


def _is_toy(spec):
    return spec.task in ("cosine", "rosenbrock")


def _results(arm, spec, specs, random, levels, lost, place):
    toy = _is_toy(spec)
    points = len({json.dumps(dict(own.hyper_parameters)) for own in specs})
    seeds = len(specs) // points
    rise = 0.0 if toy else place * levels.choice([-0.06, 0.0, 0.035, 0.25])
    tables = _tables(GAPS if toy else SIZES + SHARES, (points, seeds), random, levels, rise, lost)
    slope = levels.normal(scale=0.03) * np.arange(POINTS_KEPT)[:, None, None]
    curves = np.exp(slope + 0.01 * random.normal(size=(POINTS_KEPT, points, seeds)))
    ends = np.sort(np.exp(levels.normal(scale=3, size=(2, 2))))
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
        items.append(Made("made", own, summary, None, 0, arm=arm, kept=kept))
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
