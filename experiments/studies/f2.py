"""Figure 2: gradient, momentum and projected step, drawn from a real step of the two-dimensional toy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from experiments.claims import Claim, holds, missing
from experiments.plots import Picture, base, color_of
from experiments.results import Results, Trial
from experiments.studies.f1 import LR, trial
from experiments.study import Plan, Study, Table

__all__ = ["F2"]

BETA = 0.9
Vector = NDArray[np.float64]


class F2(Study):
    """Figure 2: a momentum step has a radial part, its projection has none

    The step of GDM with momentum 0.9 on Figure 1's toy whose momentum points outward most. The momentum is read off the
    trajectory, the gradient off it and the one before. Arrows share one scale, the gradient's is five times that.
    """

    name = "f2"
    compared = {  # noqa: RUF012
        "max norm": lambda item: item.summary["max_norm"][0],
        "gap left": lambda item: item.summary["final_gap"][0],
    }

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [trial("GDM 0.9", self.budget(plan, "cosine").epochs)]

    def tables(self, results: Results) -> list[Table]:
        if not _shown(results):
            return []
        w, gradient, momentum, projected = _step(results)
        rows = []
        for name, v in (
            ("gradient", gradient),
            ("momentum", momentum),
            ("projected momentum", projected),
        ):
            growth, angle = np.linalg.norm(w - LR * v) - np.linalg.norm(w), _angle(w, w - LR * v)
            rows.append(
                (
                    name,
                    f"{np.linalg.norm(v):.4f}",
                    f"{_cosine(w, v):+.2e}",
                    f"{growth:+.2e}",
                    f"{angle:.6f}",
                )
            )
        note = "Change of the norm and angle (in radians): of a step of the learning rate along minus the direction."
        return [
            Table(
                "The step in numbers",
                ("direction", "length", "cosine with w", "change of the norm", "angle turned"),
                rows,
                note,
            )
        ]

    def pictures(self, results: Results) -> list[Picture]:
        if not _shown(results):
            return []
        w, gradient, momentum, projected = _step(results)
        radius = float(np.linalg.norm(w))
        scale = 0.5 * radius / float(np.linalg.norm(momentum))
        figure = base("w₁", "w₂")
        angle = np.linspace(-0.7, 0.4, 60) + np.arctan2(w[1], w[0])
        circle = radius * np.array([np.cos(angle), np.sin(angle)])
        figure.add_scatter(
            x=circle[0].round(4),
            y=circle[1].round(4),
            name="same norm",
            line={"color": "#999", "dash": "dot", "width": 1},
        )
        start = 0.55 * w
        line = {"color": "#999999", "width": 1}
        figure.add_scatter(
            x=[start[0], w[0]],
            y=[start[1], w[1]],
            name="w, from the origin",
            mode="lines",
            line=line,
        )
        arrows = {
            "gradient": (gradient, "#777777"),
            "momentum": (momentum, color_of("sgd")),
            "projected": (projected, color_of("sgdp")),
        }
        for name, (direction, color) in arrows.items():
            tip = w - scale * direction * (5 if name == "gradient" else 1)
            marker = {"symbol": "arrow", "size": [0, 14], "angleref": "previous", "color": color}
            style = {
                "mode": "lines+markers",
                "line": {"color": color, "width": 3},
                "marker": marker,
            }
            figure.add_scatter(
                x=[w[0], tip[0]],
                y=[w[1], tip[1]],
                name=f"minus {name}" + (", × 5" if name == "gradient" else ""),
                **style,
            )
        figure.update_yaxes(scaleanchor="x", scaleratio=1)
        caption = (
            "The gradient is tangent to the circle; the momentum, a sum of gradients that were tangent elsewhere, points outward; "
            "projected it is tangent again."
        )
        return [Picture(figure, caption, height=440)]

    def claims(self, results: Results) -> list[Claim]:
        source = "Section 2, Lemma 2.1, Proposition 3.1"
        if not _shown(results):
            return [missing("The gradient is orthogonal to the weight", source)]
        w, gradient, momentum, projected = _step(results)
        radial, outward, left = _cosine(w, gradient), _cosine(w, -momentum), _cosine(w, projected)
        plain, straight = w - LR * momentum, w - LR * projected
        turned = f"{_angle(w, straight):.5f} against {_angle(w, plain):.5f} rad"
        better = _side(w, plain) == _side(w, straight) and _angle(w, straight) > _angle(w, plain)
        return [
            holds(
                "The gradient is orthogonal to the weight",
                abs(radial) < 1e-9,
                f"cosine {radial:.1e}",
                source=source,
            ),
            holds(
                "The momentum step points outward",
                outward > 0.01,
                f"cosine {outward:.3f}",
                source=source,
            ),
            holds(
                "The projected step is tangent",
                abs(left) < 1e-9,
                f"cosine {left:.1e}",
                source=source,
            ),
            holds(
                "It turns the weight to the same side, and further", better, turned, source=source
            ),
        ]


def _shown(results: Results) -> Results:
    """The run that is drawn; its momentum is heavy ball's, which that of a recipe that stands in need not be."""
    return results.arm("GDM 0.9").finished


def _step(results: Results) -> tuple[Vector, Vector, Vector, Vector]:
    """Weight, gradient, momentum and projected momentum of the step whose momentum points outward most."""
    path = _shown(results).items[0].arrays["w"][:200, 0]
    moves = np.diff(path, axis=0)
    outward = (
        (path[:-1] * moves).sum(1)
        / np.linalg.norm(path[:-1], axis=1)
        / np.linalg.norm(moves, axis=1)
    )
    step = 1 + int(np.argmax(outward[1:]))
    w, earlier, momentum = path[step], -moves[step - 1] / LR, -moves[step] / LR
    return w, momentum - BETA * earlier, momentum, momentum - (w @ momentum) / (w @ w) * w


def _cosine(w: Vector, v: Vector) -> float:
    return float(w @ v / np.linalg.norm(w) / np.linalg.norm(v))


def _angle(w: Vector, v: Vector) -> float:
    return float(np.arccos(np.clip(_cosine(w, v), -1, 1)))


def _side(w: Vector, v: Vector) -> bool:
    """Whether v lies counterclockwise of w."""
    return bool(w[0] * v[1] - w[1] * v[0] > 0)
