"""Figure 2: gradient, momentum and projected step of a real step of the toy in the plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spherenorm_experiments.pictures import Picture, color_of, empty_figure
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import RecordedNumber, Result, Runs, Trial
from spherenorm_experiments.study import Study
from spherenorm_experiments.verdict import Claim, Statement
from spherenorm_paper.plane.f1 import LR, METHODS, descent
from spherenorm_paper.shared.facts import departures

METHOD = "GDM 0.9"
Vector = NDArray[np.float64]


class Step(NamedTuple):
    """A weight in the plane, and the directions at it."""

    w: Vector
    gradient: Vector
    momentum: Vector
    projected: Vector


def _find_outward_step(run: Result) -> list[list[float]]:
    """Return the fields of the `Step` whose momentum points outward most."""
    path = run.arrays["w"][:200]
    moves = np.diff(path, axis=0)
    lengths = np.linalg.norm(path[:-1], axis=1) * np.linalg.norm(moves, axis=1)
    index = 1 + int(np.argmax(((path[:-1] * moves).sum(1) / lengths)[1:]))
    w, momentum = path[index], -moves[index] / LR
    gradient = momentum - METHODS[METHOD][1] * -moves[index - 1] / LR
    projected = momentum - (w @ momentum) / (w @ w) * w
    return [vector.tolist() for vector in (w, gradient, momentum, projected)]


outward_step = RecordedNumber("outward step", _find_outward_step)


def _step(runs: Runs) -> Step | None:
    """Return the step whose momentum points outward most; None if the run has not finished."""
    finished = [run for run in runs.all_runs("", METHOD).run if not run.diverged]
    if not finished:
        return None
    return Step(*map(np.array, outward_step(finished[0])))


def _cosine(w: Vector, v: Vector) -> float:
    return float(w @ v / np.linalg.norm(w) / np.linalg.norm(v))


def _turn(step: Step) -> float:
    """The angle of the projected step over that of the plain one; 0 if they turn apart."""
    w, ends = step.w, (step.w - LR * step.momentum, step.w - LR * step.projected)
    plain_turn, straight = (
        np.copysign(np.arccos(np.clip(_cosine(w, v), -1, 1)), w[0] * v[1] - w[1] * v[0])
        for v in ends
    )
    return max(0.0, float(straight / plain_turn))


def _claim(
    name: str, relation: str, of: Callable[[Step], float], text: str, place: str, margin: float
) -> Claim:
    def number(runs: Runs) -> float | None:
        step = _step(runs)
        return None if step is None else of(step)

    return Claim(name, relation, number, text, Statement("identity", place), decision_margin=margin)


class F2(Study):
    """Figure 2: a momentum step has a radial part, its projection has none

    The step of GDM with momentum 0.9 on Figure 1's toy whose momentum points outward most. The
    momentum is read off the trajectory, the gradient off it and the one before. Arrows share one
    scale, the gradient's is five times that.
    """

    name = "f2"
    departures = departures("f2")
    claims = (
        _claim("gradient-orthogonal", "< 1e-6", lambda step: abs(_cosine(step.w, step.gradient)),
               "The gradient is orthogonal to the weight: cosine, without its sign",
               "Section 2.1, Equation 4", 1e-7),
        _claim("momentum-outward", "> 0", lambda step: _cosine(step.w, -step.momentum),
               "The momentum step points outward: cosine", "Section 2, Lemma 2.2", 0.01),
        _claim("projected-tangent", "< 1e-6", lambda step: abs(_cosine(step.w, step.projected)),
               "The projected step is tangent: cosine, without its sign",
               "Section 3.1, Equation 9", 1e-7),
        _claim("projected-turns-alike", "> 0", _turn,
               "It turns the weight to the same side: ratio of the angles, 0 if to the other",
               "Section 3.1, Proposition 3.1", 1e-6),
    )  # fmt: skip
    """They cannot fail."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        return descent(METHOD, self.budget(plan, "cosine").epochs)

    def pictures(self, runs: Runs) -> list[Picture]:
        step = _step(runs)
        return [] if step is None else [_arrows(step)]


def _arrows(step: Step) -> Picture:
    """Draw the weight, the circle of its norm, and the directions as arrows."""
    w, radius = step.w, float(np.linalg.norm(step.w))
    scale = 0.5 * radius / float(np.linalg.norm(step.momentum))
    figure = empty_figure("w₁", "w₂")
    angle = np.linspace(-0.7, 0.4, 60) + np.arctan2(w[1], w[0])
    circle = (radius * np.array([np.cos(angle), np.sin(angle)])).round(4)
    gray = {"color": "#999999", "width": 1}
    figure.add_scatter(x=circle[0], y=circle[1], name="same norm", line={**gray, "dash": "dot"})
    ray = np.array([0.55 * w, w]).T
    figure.add_scatter(x=ray[0], y=ray[1], name="w, from the origin", mode="lines", line=gray)
    for name, direction, color, times in (
        ("minus gradient, × 5", step.gradient, "#777777", 5),
        ("minus momentum", step.momentum, color_of("sgd"), 1),
        ("minus projected", step.projected, color_of("sgdp"), 1),
    ):
        tip = w - scale * direction * times
        figure.add_scatter(
            x=[w[0], tip[0]], y=[w[1], tip[1]], name=name, mode="lines+markers",
            line={"color": color, "width": 3},
            marker={"symbol": "arrow", "size": [0, 14], "angleref": "previous", "color": color},
        )  # fmt: skip
    figure.update_yaxes(scaleanchor="x", scaleratio=1)
    caption = (
        "The gradient is tangent to the circle; the momentum, a sum of gradients that were tangent "
        "elsewhere, points outward; projected it is tangent again."
    )
    return Picture(figure, caption, height=440, shows="Figure 2")
