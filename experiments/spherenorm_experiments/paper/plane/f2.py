"""Figure 2: gradient, momentum and projected step of a real step of the toy in the plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spherenorm_experiments.claims import Claim, Statement
from spherenorm_experiments.paper.plane.f1 import LR, descent
from spherenorm_experiments.pictures import Picture, color_of, empty_figure
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial
from spherenorm_experiments.study import Study
from spherenorm_experiments.tables import Cell, Table

METHOD = "GDM 0.9"
BETA = 0.9
Vector = NDArray[np.float64]


class F2(Study):
    """Figure 2: a momentum step has a radial part, its projection has none

    The step of GDM with momentum 0.9 on Figure 1's toy whose momentum points outward most. The
    momentum is read off the trajectory, the gradient off it and the one before. Arrows share one
    scale, the gradient's is five times that.
    """

    name = "f2"

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        return descent(METHOD, self.budget(plan, "cosine").epochs)

    def tables(self, runs: Runs) -> list[Table]:
        if (step := _step(runs)) is None:
            return []
        rows = []
        directions = ("gradient", "momentum", "projected momentum")
        for name, v in zip(directions, (step.gradient, step.momentum, step.projected), strict=True):
            after = step.w - LR * v
            growth = float(np.linalg.norm(after) - np.linalg.norm(step.w))
            length, angle = Cell(float(np.linalg.norm(v)), ".4f"), _angle(step.w, after)
            changes = Cell(_cosine(step.w, v), "+.2e"), Cell(growth, "+.2e"), Cell(angle, ".6f")
            rows.append((name, length, *changes))
        headings = ("direction", "length", "cosine with w", "change of the norm", "angle turned")
        note = (
            "Change of the norm and angle (in radians): of a step of the learning rate along "
            "minus the direction."
        )
        return [Table("The step in numbers", headings, rows, note)]

    def pictures(self, runs: Runs) -> list[Picture]:
        step = _step(runs)
        return [] if step is None else [_arrows(step)]

    @property
    def claims(self) -> Sequence[Claim]:
        """They cannot fail."""
        return [
            Claim("gradient-orthogonal", "< 1e-6",
                  _of(lambda step: abs(_cosine(step.w, step.gradient))),
                  "The gradient is orthogonal to the weight: |cosine|",
                  Statement("identity", "Section 2, Lemma 2.1"), margin=1e-7),
            Claim("momentum-outward", "> 0", _of(lambda step: _cosine(step.w, -step.momentum)),
                  "The momentum step points outward: cosine",
                  Statement("identity", "Section 2, Lemma 2.2"), margin=0.01),
            Claim("projected-tangent", "< 1e-6",
                  _of(lambda step: abs(_cosine(step.w, step.projected))),
                  "The projected step is tangent: |cosine|",
                  Statement("identity", "Section 3.1, Equation 9"), margin=1e-7),
            Claim("projected-turns-further", "> 1", _of(_turn),
                  "It turns the weight to the same side, and further: ratio of the angles",
                  Statement("identity", "Section 3.1, Proposition 3.1"), margin=1e-6),
        ]  # fmt: skip


class _Step(NamedTuple):
    """A weight in the plane, and the directions at it."""

    w: Vector
    gradient: Vector
    momentum: Vector
    projected: Vector


def _step(runs: Runs) -> _Step | None:
    """The step whose momentum points outward most; None if the run has not finished."""
    items = [x for x in runs if x.place == Place("", METHOD) and not x.diverged]
    if not items:
        return None
    path = items[0].arrays["w"][:200]
    moves = np.diff(path, axis=0)
    lengths = np.linalg.norm(path[:-1], axis=1) * np.linalg.norm(moves, axis=1)
    outward = (path[:-1] * moves).sum(1) / lengths
    step = 1 + int(np.argmax(outward[1:]))
    w, earlier, momentum = path[step], -moves[step - 1] / LR, -moves[step] / LR
    gradient, radial = momentum - BETA * earlier, (w @ momentum) / (w @ w) * w
    return _Step(w, gradient, momentum, momentum - radial)


def _turn(step: _Step) -> float:
    """The angle of the projected step over that of the plain one; 0 if they turn apart."""
    plain, straight = step.w - LR * step.momentum, step.w - LR * step.projected
    if _side(step.w, plain) != _side(step.w, straight):
        return 0.0
    return _angle(step.w, straight) / _angle(step.w, plain)


def _of(number: Callable[[_Step], float]) -> Callable[[Runs], float | None]:
    """A number of the step."""

    def of(runs: Runs) -> float | None:
        step = _step(runs)
        return None if step is None else number(step)

    return of


def _arrows(step: _Step) -> Picture:
    """Draw the weight, the circle of its norm, and the directions as arrows."""
    w, radius = step.w, float(np.linalg.norm(step.w))
    scale = 0.5 * radius / float(np.linalg.norm(step.momentum))
    figure = empty_figure("w₁", "w₂")
    angle = np.linspace(-0.7, 0.4, 60) + np.arctan2(w[1], w[0])
    circle = (radius * np.array([np.cos(angle), np.sin(angle)])).round(4)
    dotted = {"color": "#999", "dash": "dot", "width": 1}
    figure.add_scatter(x=circle[0], y=circle[1], name="same norm", line=dotted)
    start, line = 0.55 * w, {"color": "#999999", "width": 1}
    ray = {"x": [start[0], w[0]], "y": [start[1], w[1]]}
    figure.add_scatter(**ray, name="w, from the origin", mode="lines", line=line)
    for name, direction, color, times in (
        ("minus gradient, × 5", step.gradient, "#777777", 5),
        ("minus momentum", step.momentum, color_of("sgd"), 1),
        ("minus projected", step.projected, color_of("sgdp"), 1),
    ):
        tip = w - scale * direction * times
        style = {
            "mode": "lines+markers",
            "line": {"color": color, "width": 3},
            "marker": {"symbol": "arrow", "size": [0, 14], "angleref": "previous", "color": color},
        }
        figure.add_scatter(x=[w[0], tip[0]], y=[w[1], tip[1]], name=name, **style)
    figure.update_yaxes(scaleanchor="x", scaleratio=1)
    caption = (
        "The gradient is tangent to the circle; the momentum, a sum of gradients that were tangent "
        "elsewhere, points outward; projected it is tangent again."
    )
    return Picture(figure, caption, height=440)


def _cosine(w: Vector, v: Vector) -> float:
    return float(w @ v / np.linalg.norm(w) / np.linalg.norm(v))


def _angle(w: Vector, v: Vector) -> float:
    return float(np.arccos(np.clip(_cosine(w, v), -1, 1)))


def _side(w: Vector, v: Vector) -> bool:
    """True if v lies counterclockwise of w."""
    return bool(w[0] * v[1] - w[1] * v[0] > 0)
