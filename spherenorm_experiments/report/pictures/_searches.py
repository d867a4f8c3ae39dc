"""Pictures of searches: scores against a hyper-parameter, best of k trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from spherenorm_experiments.analysis import Arm, Tuned, best_of_k
from spherenorm_experiments.report.pictures._figures import (
    Picture,
    add_crosses,
    empty_figure,
    line_styles,
    rounded,
)


def tried(searches: Mapping[Arm, Tuned], hyper_parameter: str, y: str, caption: str) -> Picture:
    """Draw the score of every trial against a hyper-parameter; each arm's best mark is large.

    Crosses on top are trials without a score.
    """
    figure = empty_figure(hyper_parameter, y, log_x=True)
    lost: list[tuple[float, str, None, str]] = []
    styles = line_styles(arm.recipe for arm in searches)
    for (arm, tuned), (color, dash) in zip(searches.items(), styles, strict=True):
        pairs = sorted(
            (point[hyper_parameter], score, i == tuned.best)
            for i, (point, score) in enumerate(zip(tuned.points, tuned.scores, strict=True))
        )
        known = [pair for pair in pairs if math.isfinite(pair[1])]
        lost += [
            (value, arm.label, None, color) for value, score, _ in pairs if not math.isfinite(score)
        ]
        if known:
            figure.add_scatter(
                x=rounded(value for value, *_ in known),
                y=rounded(score for _, score, _ in known),
                name=arm.label,
                mode="markers" if len(tuned.points[0]) > 1 else "lines+markers",
                line={"color": color, "dash": dash},
                marker={"color": color, "size": [15 if chosen else 7 for *_, chosen in known]},
            )
    add_crosses(figure, lost)
    return Picture(figure, caption)


def best_scores(scores: Mapping[Arm, Sequence[float]], y: str, caption: str) -> Picture:
    """Draw the expected best score of k trials of a random search, for each arm.

    See `spherenorm_experiments.analysis.best_of_k`.
    """
    figure = empty_figure("trials k", y)
    styles = line_styles(arm.recipe for arm in scores)
    for (arm, values), (color, dash) in zip(scores.items(), styles, strict=True):
        expected = rounded(best_of_k(values))
        figure.add_scatter(
            x=list(range(1, len(expected) + 1)),
            y=expected,
            name=arm.label,
            mode="lines+markers",
            line={"color": color, "dash": dash},
        )
    return Picture(figure, caption)
