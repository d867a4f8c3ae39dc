"""Pictures of searches: sensitivity to a hyper-parameter, best of k trials, profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from experiments.pictures._figures import (
    Picture,
    add_band,
    add_crosses,
    color_of,
    empty_figure,
    rounded,
)
from experiments.results import Results, best_of_k, shares_solved

__all__ = ["best_scores", "profile", "sensitivity"]


def sensitivity(
    results: Results, hyper_parameter: str, y: str, caption: str, key: str = "validation"
) -> Picture:
    """Draw a score against a hyper-parameter: for each recipe the mean with a band over seeds.

    Crosses on top are runs that diverged.
    """
    figure = empty_figure(hyper_parameter, y, log_x=True)
    failed: list[tuple[float, str, int, str]] = []
    scores: dict[str, dict[float, list[float]]] = {}
    for item in results:
        recipe, value = item.spec.recipe, float(item.spec.hyper_parameters[hyper_parameter])
        found = scores.setdefault(recipe, {}).setdefault(value, [])
        if item.diverged:
            failed.append((value, recipe, item.summary["diverged_at"], color_of(recipe)))
        else:
            found.append(item.summary[key])
    for recipe, by_value in scores.items():
        xs = [value for value in sorted(by_value) if by_value[value]]
        if xs:
            width = max(len(by_value[value]) for value in xs)
            rows = np.array([np.resize(sorted(by_value[value]), width) for value in xs]).T
            add_band(figure, xs, rows, recipe, color_of(recipe))
    add_crosses(figure, failed)
    return Picture(figure, caption)


def best_scores(scores: Mapping[str, Sequence[float]], y: str, caption: str) -> Picture:
    """Draw the expected best score of k trials of a random search, for each recipe.

    See `experiments.results.best_of_k`.
    """
    figure = empty_figure("trials k", y)
    for recipe, values in scores.items():
        expected = rounded(best_of_k(values))
        figure.add_scatter(
            x=list(range(1, len(expected) + 1)),
            y=expected,
            name=recipe,
            mode="lines+markers",
            line={"color": color_of(recipe)},
        )
    return Picture(figure, caption)


def profile(steps_to_target: Mapping[str, Sequence[float]], caption: str) -> Picture:
    """Draw a performance profile of recipes.

    It is the share of problems that a recipe solves within a factor tau of the fastest recipe's
    steps, see `experiments.results.shares_solved`.

    Args:
        steps_to_target: for each recipe its steps on each problem, in one common order; inf where
            the target was missed.
    """
    figure = empty_figure("factor τ of the fastest", "share of problems solved", log_x=True)
    for recipe, (tau, share) in shares_solved(steps_to_target).items():
        line = {"color": color_of(recipe), "width": 2}
        figure.add_scatter(x=rounded(tau), y=rounded(share), name=recipe, mode="lines", line=line)
    return Picture(figure, caption)
