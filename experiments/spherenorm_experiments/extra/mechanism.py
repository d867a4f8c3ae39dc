"""Norms, effective steps and turns of stored runs, laws beside them, and their link to scores.

frame = measured(results)
table, picture = norms_table(frame), growth_picture(frame)
answer, table, picture = answer_table(frame), scores_table(frame), scores_picture(frame)
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from spherenorm_experiments.comparing import find_study, study_classes
from spherenorm_experiments.comparison import TunedComparison
from spherenorm_experiments.optimizers import rate_factor
from spherenorm_experiments.pictures import Picture, color_of, points
from spherenorm_experiments.plan import TIERS
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.results import Result, frame_of
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.stats import interval, mean
from spherenorm_experiments.tables import Cell, Row, Table, mean_of

if TYPE_CHECKING:
    import pandas as pd

PROJECTED = {"adamp": ("adam", "adamw"), "sgdp": ("sgd",)}
"""Optimizers with a projection, and those without it."""

RECORDED = ("step", "norm", "norm_rms", "effective_step", "angular_update", "angular_update_rms")
"""Numbers of the probe `norms` that are read here."""

MEASURED = ("norm_start", "total_effective_step", "steps_per_epoch")
"""Numbers of a run that were measured step by step; a pure task has no epochs."""

GIVEN = ", given steps"
"""Behind the name of an optimizer whose steps are those of another run."""

KEYS = ["condition", "optimizer", "lr"]
"""Columns that together name a point: its runs differ in the seed."""


def measured(results: Iterable[Result]) -> pd.DataFrame:
    """The runs that have finished and whose scale-invariant weights were measured.

    The columns are those of `load`, and of the scale-invariant units, means unless they say rms:

    - `condition` and `optimizer`: in words; a condition names the settings, such as epochs or a
      weight decay, of which an optimizer has several values there;
    - `growth`: the last norm over the first, rms;
    - `growth_by_law`: the same by the norm-growth law of the recipe, given the first norm and the
      lengths of the steps; missing where these do not decide it, as under Adam's law;
    - `growth_of_steps`: the same if every step were orthogonal to its weight, <w, s> = 0;
    - `step_first` and `step_last`: the effective step in the first and in the last epoch;
    - `turn_last`: the angle per step in the last epoch, in degrees.

    A step that was not measured counts as the next one that was; norms between two measurements are
    interpolated.

    Raises:
        MissingExtraError: pandas is missing.
    """
    rows = {item.name: item for item in results if not item.diverged}
    kept_rows = [
        row
        for row in rows.values()
        # A recipe beside another one for the rest decides neither all steps nor the score.
        if row.spec.rest is None and all(row.summary.get(x) for x in MEASURED)
    ]
    kept, specs, numbers = frame_of(kept_rows), [row.spec for row in kept_rows], []
    for row in kept_rows:
        probed = [each for each in row.records(RECORDED) if "norm" in each]
        numbers.append(_numbers(row.spec, row.summary, probed))
    for column in numbers[0] if numbers else ():
        kept[column] = [each[column] for each in numbers]
    if numbers:
        kept["condition"] = _told_apart(kept, specs)
    return kept


def _told_apart(frame: pd.DataFrame, specs: Sequence[Spec]) -> list[str]:
    """The condition of each run, with the settings that some optimizer has several values of there.

    Runs of one condition, optimizer and rate then differ in the seed.
    """
    settings = [_settings(spec) for spec in specs]
    values: dict[tuple[str, str, str], set[str]] = {}
    for condition, optimizer, own in zip(
        frame["condition"], frame["optimizer"], settings, strict=True
    ):
        for name, value in own.items():
            values.setdefault((condition, optimizer, name), set()).add(value)
    several = {(condition, name) for (condition, _, name), of in values.items() if len(of) > 1}
    return [
        ", ".join([each, *(f"{name}={x}" for name, x in own.items() if (each, name) in several)])
        for each, own in zip(frame["condition"], settings, strict=True)
    ]


def _settings(spec: Spec) -> dict[str, str]:
    """All that a run was asked for but its condition, its optimizer, its rate and its seed."""
    content = asdict(spec)
    regime = {name: x for name, x in spec.regime.to_json().items() if name != "steps_of"}
    defaults: Mapping[str, Any] = {}
    with suppress(Exception):  # a user's module may be gone, or raise anything
        defaults = load_recipe(spec.recipe).defaults
    given = {name: x for name, x in {**defaults, **spec.hyper_parameters}.items() if name != "lr"}
    named = {name: content[name] for name in ("epochs", "batch_size", "schedule", "rest")}
    return {name: json.dumps(x, default=str) for name, x in {**named, **regime, **given}.items()}


def _numbers(
    spec: Spec, summary: Mapping[str, Any], probed: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """The columns that `measured` adds, of one run."""
    per_epoch = summary["steps_per_epoch"]
    first = [each for each in probed if each["step"] <= per_epoch] or probed[:1]
    last = [each for each in probed if each["step"] > summary["steps"] - per_epoch]
    given = spec.regime.steps_of is not None
    norms, turns = _trajectory(summary["norm_start"], probed)
    by_law, of_steps = (None, None) if given else grow(spec, norms, turns, per_epoch)
    return {
        "condition": _condition_of(spec),
        "optimizer": f"{spec.recipe}{GIVEN}" if given else spec.recipe,
        "growth": float(norms[-1] / norms[0]),
        "growth_by_law": by_law,
        "growth_of_steps": of_steps,
        "step_first": float(np.mean([each["effective_step"] for each in first])),
        "step_last": float(np.mean([each["effective_step"] for each in last])),
        "turn_last": math.degrees(np.mean([each["angular_update"] for each in last])),
    }


def grow(
    spec: Spec, norms: np.ndarray, turns: np.ndarray, per_epoch: int
) -> tuple[float | None, float | None]:
    """The last norm over the first by the recipe's law, and of steps with <w, s> = 0.

    With keep = 1 - kappa of the law and the turn theta from w to w', the length of the step s in
    w' = keep w + s is the side of a triangle:

        |s|^2 = |w'|^2 + keep^2 |w|^2 - 2 keep |w| |w'| cos theta.

    Args:
        norms: |w| before the first and after each step; shape (steps + 1,).
        turns: theta of each step; shape (steps,).
        per_epoch: the number of steps in an epoch.

    Returns:
        Both; None for the first if the lengths of the steps do not decide it, for both if the
        recipe has no law.
    """
    law = None if spec.regime.then else _law_of(spec)
    if law is None:
        return None, None
    steps = len(turns)
    factors = [rate_factor(spec, step, steps, per_epoch) for step in range(steps)]
    values = {**load_recipe(spec.recipe).defaults, **spec.hyper_parameters}
    values["lr"] = values["lr"] * np.array(factors)
    keep = 1 - _evaluate(law.kappa, values, steps)
    before, after = keep * norms[:-1], norms[1:]
    squared = after**2 + before**2 - 2 * before * after * np.cos(turns)
    known = {s: values[s] for s in law.step.traced.symbols if s in values}
    by_law = None
    # Nesterov's law needs more than the lengths of the steps, <m, s>.
    with suppress(ValueError):
        predicted = law.predict(norms[0], np.sqrt(np.maximum(squared, 0)), **known)
        by_law = float(predicted[-1] / norms[0])
    alone = norms[0] ** 2
    for share, length in zip(keep, squared, strict=True):
        alone = share**2 * alone + length
    return by_law, math.sqrt(alone) / norms[0]


def _trajectory(
    start: float, probed: Sequence[Mapping[str, float]]
) -> tuple[np.ndarray, np.ndarray]:
    """The norm before the first and after each step, and the turn of each step, rms over units."""
    times, norms, turns = (
        np.array([record[name] for record in probed])
        for name in ("step", "norm_rms", "angular_update_rms")
    )
    first = start * norms[0] / probed[0]["norm"]  # only the mean of the first norm is kept
    every = np.arange(times[-1] + 1)
    curve = np.exp(np.interp(every, [0, *times], np.log([first, *norms])))
    return curve, turns[np.searchsorted(times, every[1:])]


def _evaluate(formula: Any, values: Mapping[str, Any], steps: int) -> np.ndarray:
    """A formula of hyper-parameters, one value for each step."""
    names, number = _function_of(formula)
    return np.broadcast_to(number(*(values[name] for name in names)), steps)


@functools.cache
def _function_of(formula: Any) -> tuple[list[str], Callable[..., Any]]:
    """The names in a formula, and the function of their values."""
    import sympy

    symbols = sorted(formula.free_symbols, key=str)
    function = sympy.lambdify(symbols, formula, "numpy", dummify=True)
    return [symbol.name for symbol in symbols], function


def _law_of(spec: Spec) -> Any:
    """The law of a recipe, with its flags; None if it has none."""
    given = {name: x for name, x in spec.hyper_parameters.items() if isinstance(x, bool)}
    return _derived(spec.recipe, json.dumps(given, sort_keys=True))


@functools.cache
def _derived(recipe: str, flags: str) -> Any:
    from spherenorm_theory import norm_growth  # sympy takes a second to import

    try:
        return norm_growth(load_recipe(recipe).recipe, **json.loads(flags))
    except Exception:  # a recipe of a user's own may have no law, or raise anything
        return None


def _condition_of(spec: Spec) -> str:
    """The condition of a study with this task and these options; else the task with its options."""
    key = json.dumps([spec.task, dict(spec.options)], sort_keys=True)
    options = ", ".join(f"{name}={value}" for name, value in spec.options.items())
    return _conditions().get(key) or " ".join(filter(None, [spec.task, options]))


@functools.cache
def _conditions() -> dict[str, str]:
    """The conditions of the tuned comparisons, by task and options."""
    known: dict[str, str] = {}
    studies = (find_study(name) for name in study_classes())
    for study in (each for each in studies if isinstance(each, TunedComparison)):
        for condition, tier in itertools.product(study.on, TIERS):
            setup = condition.on(tier, real=False)
            key = json.dumps([condition.task, dict(setup.options)], sort_keys=True)
            known.setdefault(key, ": ".join(filter(None, [study.name, condition.label])))
    return known


def norms_table(frame: pd.DataFrame) -> Table:
    """Norms, the law's prediction, effective steps and turns of each optimizer on each condition.

    Args:
        frame: of `measured`.
    """
    shown = {"norm_start": ".3g", "growth": ".3f", "growth_by_law": ".3f", "growth_of_steps": ".3f",
             "total_effective_step": ".3g", "step_first": ".3g", "step_last": ".3g",
             "turn_last": ".3g", "test": ".4g"}  # fmt: skip
    rows: list[Row] = []
    for (condition, optimizer, rate), runs in frame.groupby(KEYS):
        cells = (_cell(runs, column, form) for column, form in shown.items())
        rows.append((condition, optimizer, Cell(rate, "g"), *cells))
    headings = ("condition", "optimizer", "lr", "first norm", "last / first", "by its law",
                "by steps alone", "path on sphere", "step, first epoch", "step, last epoch",
                "turn, last epoch (°)", "score")  # fmt: skip
    note = (
        "Means over seeds ± SD, of scale-invariant units. By its law: the growth that the "
        "norm-growth law of the recipe's code gives to steps of the measured lengths; no law: it "
        "leaves <w, s> open or needs more than lengths, or steps are those of another run. By "
        "steps alone: the same if steps were orthogonal to their weights."
    )
    return Table("Norms, effective steps and turns", headings, rows, note)


def _cell(runs: pd.DataFrame, column: str, form: str) -> Cell:
    known = runs[runs[column].notna()]
    if known.empty:
        return Cell(None, form, missing="no law" if column == "growth_by_law" else "–")
    return mean_of(dict(enumerate(known[column].astype(float))), form)


def growth_picture(frame: pd.DataFrame) -> Picture:
    """Draw the measured growth of norms against that of the law, or of the steps alone."""
    law = frame["growth_by_law"].astype(float)
    growth = law.fillna(frame["growth_of_steps"].astype(float))
    known = frame.assign(growth_x=growth)[growth.notna()]
    caption = (
        "Growth of norms, measured against the law of each recipe given the lengths of its steps. "
        "Adam's law is open: its growth stands against that of orthogonal steps as long as its "
        "own, and what lies above the line is due to momentum. A mark for each rate: the means "
        "over seeds."
    )
    words = "last / first norm by the law", "measured"
    return _scattered(known, "growth_x", "growth", *words, caption, diagonal=True)


def scores_table(frame: pd.DataFrame) -> Table:
    """Correlations of scores with the effective step in the last epoch, and gains beyond it.

    Conditions with at least two rates of an optimizer with a projection and one without.

    Args:
        frame: of `measured`.
    """
    rows: list[Row] = []
    for condition, runs in frame[frame["test"].notna()].groupby("condition", sort=False):
        for ours, theirs in _pairs(runs):
            pair = runs[runs["optimizer"].isin([ours, theirs])]
            ranks = [_rank_correlation(pair[pair["optimizer"] == each]) for each in (theirs, ours)]
            gaps = (_gap(pair, ours, at) for at in ("lr", "step_last"))
            both = Cell(_rank_correlation(pair), "+.2f")
            cells = (*(Cell(each, "+.2f") for each in ranks), both, *gaps)
            rows.append((condition, f"{theirs} → {ours}", Cell(len(pair), "d"), *cells))
    headings = ("condition", "optimizers", "runs", "rank correlation, first", "second", "both",
                "gain at equal rate", "gain at equal step")  # fmt: skip
    note = (
        "Rank correlation (Spearman) of the score, minus the mean of its seed, and the effective "
        "step in the last epoch, over rates and seeds. Gain: the second score minus the first "
        "where both fit one parabola in the logarithm of the rate, or of the effective step; 95 % "
        "intervals, by a jackknife over seeds. A gain at equal rate that is gone at equal step was "
        "a matter of the step's length."
    )
    return Table("Scores and effective steps", headings, rows, note)


def answer_table(frame: pd.DataFrame) -> Table:
    """The share of the differences in score that one curve of the effective step explains.

    For each condition and pair of `scores_table`, of the scores minus the mean of their seed, the
    share of the sum of squares that one parabola in the logarithm explains, for both optimizers:

        R² = 1 - min over a, b, c of sum (score - a - b x - c x²)² / sum score².

    Args:
        frame: of `measured`.
    """
    shares: dict[str, list[tuple[float, float]]] = {}
    for condition, runs in frame[frame["test"].notna()].groupby("condition", sort=False):
        for pair in _pairs(runs):
            both = runs[runs["optimizer"].isin(pair)]
            known = tuple(_explained(both, at) for at in ("step_last", "lr"))
            if all(map(math.isfinite, known)):
                shares.setdefault(str(condition), []).append((known[0], known[1]))
    means = np.array([np.mean(own, axis=0) for own in shares.values()]).reshape(-1, 2)
    rows: list[Row] = []
    for name, values in (
        ("effective step in the last epoch", means[:, 0].tolist()),
        ("learning rate", means[:, 1].tolist()),
        ("the first minus the second", (means[:, 0] - means[:, 1]).tolist()),
    ):
        ends = interval(values) if len(values) > 1 else None
        if values:
            rows.append((name, Cell(mean(values), ".2f", interval=ends)))
    note = (
        f"Shares of the differences in score within {len(means)} conditions, over rates and seeds, "
        "that one curve explains for an optimizer with projection and one without it. Student's "
        "95 % intervals over conditions. If scores followed the effective step whatever the "
        "optimizer, the first would be 1 but for noise."
    )
    title = "Does the score follow the effective step at the end, whatever the optimizer?"
    return Table(title, ("one curve of the", "explains"), rows, note)


def _explained(runs: pd.DataFrame, at: str) -> float:
    """R² of a parabola in log(at); nan of fewer than two values of it."""
    x = np.log(runs[at].astype(float).to_numpy())
    scores = runs["test"].astype(float)
    scores = (scores - scores.groupby(runs["seed"]).transform("mean")).to_numpy()
    if not np.isfinite(x).all() or np.ptp(x) == 0 or not scores.any():
        return math.nan
    columns = np.column_stack([np.ones_like(x), x, x**2])
    solution, *_ = np.linalg.lstsq(columns, scores, rcond=None)
    return 1 - float(((scores - columns @ solution) ** 2).sum() / (scores**2).sum())


def _pairs(runs: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """The optimizers with a projection and without it, each with two rates or more."""
    counts = runs.groupby("optimizer")["lr"].nunique()
    swept = set(counts[counts > 1].index)
    for ours, others in PROJECTED.items():
        yield from ((ours, theirs) for theirs in others if {ours, theirs} <= swept)


def _rank_correlation(runs: pd.DataFrame) -> float:
    """Spearman's, of the steps and of the scores minus the mean of their seed."""
    scores = runs["test"].astype(float)
    scores -= scores.groupby(runs["seed"]).transform("mean")
    return float(runs["step_last"].corr(scores, method="spearman"))


def _gap(pair: pd.DataFrame, ours: str, at: str) -> Cell:
    """The gain of one optimizer over another at an equal rate or step, with its interval."""
    seeds = sorted(pair["seed"].unique())
    whole, count = _fitted_gap(pair, ours, at), len(seeds)
    without = [_fitted_gap(pair[pair["seed"] != seed], ours, at) for seed in seeds]
    if count < 2 or not np.isfinite(without).all():
        return Cell(whole, "+.3g")
    pseudo = [count * whole - (count - 1) * each for each in without]
    return Cell(float(np.mean(pseudo)), "+.3g", interval=interval(pseudo), n=count)


def _fitted_gap(pair: pd.DataFrame, ours: str, at: str) -> float:
    """The coefficient b of score = a parabola in log(at) + b [optimizer is ours] + a seed's own."""
    x = np.log(pair[at].astype(float).to_numpy())
    seeds = (pair["seed"].to_numpy()[:, None] == pair["seed"].unique()[None]).astype(float)
    own = (pair["optimizer"] == ours).to_numpy(float)
    columns = np.column_stack([own, x, x**2, seeds])
    if len(pair) <= columns.shape[1] or not np.isfinite(columns).all():
        return math.nan
    solution, *_ = np.linalg.lstsq(columns, pair["test"].to_numpy(float), rcond=None)
    return float(solution[0])


def scores_picture(frame: pd.DataFrame) -> Picture:
    """Draw scores against the effective step in the last epoch, both relative to their condition.

    Args:
        frame: of `measured`; one condition has a curve of its own.
    """
    paired = {*PROJECTED, *itertools.chain(*PROJECTED.values())}
    names = frame["optimizer"].astype(str).str.removesuffix(GIVEN)
    known = frame[names.isin(paired) & frame["test"].notna() & (frame["step_last"] > 0)].copy()
    own = known.groupby("condition")
    known["score"] = known["test"].astype(float) - own["test"].transform("mean").astype(float)
    logs = np.log(known["step_last"].astype(float))
    known["step"] = np.exp(logs - logs.groupby(known["condition"]).transform("mean"))
    caption = (
        "Does the score follow the effective step, whatever the optimizer? Scores minus the mean "
        "of their condition against the effective step in the last epoch over its geometric mean "
        "there. A mark for each rate: the means over seeds."
    )
    words = "effective step in the last epoch, relative", "score, relative"
    return _scattered(known, "step", "score", *words, caption)


def _scattered(
    frame: pd.DataFrame, x: str, y: str, x_title: str, y_title: str, caption: str,
    diagonal: bool = False,
) -> Picture:  # fmt: skip
    """A mark for each point, in the color of its optimizer."""
    means = frame.astype({x: float, y: float}).groupby(KEYS, sort=True)[[x, y]].mean()
    series = {str(name): (of[x], of[y]) for name, of in means.groupby(level="optimizer")}
    colors = {name: color_of(name) for name in series}
    return points(
        series, x_title, y_title, caption, colors, log_x=True, log_y=diagonal, diagonal=diagonal
    )
