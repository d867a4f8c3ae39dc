"""Figure 1: the two-dimensional toy, and its animation."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from experiments.claims import Claim, close, holds, missing
from experiments.plots import DASHES, Picture, base, color_of, lines, short
from experiments.results import Result, Results, Trial
from experiments.spec import Spec
from experiments.study import Plan, Study, Table

__all__ = ["ARMS", "F1", "trial"]

LR = 0.02
ARMS: dict[str, tuple[str, float]] = {
    "GD": ("sgd", 0.0),
    "GDM 0.9": ("sgd", 0.9),
    "GDM 0.99": ("sgd", 0.99),
    "GDP 0.9": ("sgdp", 0.9),
    "GDP 0.99": ("sgdp", 0.99),
}
"""The recipe and its momentum."""

PAPER_MAX_NORM = {"GDM 0.9": 2.93, "GDM 0.99": 27.87}
FRAMES = 80


def trial(arm: str, steps: int, device: str = "cpu") -> Trial:
    """One descent; without randomness, so it has one seed."""
    recipe, momentum = ARMS[arm]
    setting = {"lr": [LR], "momentum": momentum}
    return Trial(
        arm,
        Spec(
            "cosine",
            recipe,
            setting,
            epochs=steps,
            batch_size=1,
            schedule="constant",
            probes=(),
            device=device,
        ),
    )


class F1(Study):
    """Figure 1: momentum slows descent on a circle by growing the norm

    Minimize -cos(w, w*) in the plane, from (0.001, 1) to the direction of w* = (0, -1). The paper prints the loss with the
    opposite sign, and no learning rate; 0.02 gives its norm at momentum 0.9. The update of GDP is projected, its norm can
    only grow by the square of a step.
    """

    name = "f1"
    compared = {}  # noqa: RUF012  (every arm has a row)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        return [trial(arm, self.budget(plan, "cosine").epochs) for arm in ARMS]

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for item in results:
            if item.diverged:
                rows.append(
                    (item.arm, f"diverged at step {item.summary['diverged_at']}", *[""] * 4)
                )
                continue
            steps = [item.summary[f"steps_to_{level}"][0] for level in ("0.1", "0.01", "0.001")]
            paper = PAPER_MAX_NORM.get(item.arm)
            shown = (f"{item.summary['max_norm'][0]:.2f}", f"{paper:.2f}" if paper else "")
            rows.append(
                (
                    item.arm,
                    *shown,
                    *("not reached" if step is None else str(step) for step in steps),
                )
            )
        columns = ("arm", "max norm", "paper max norm", "steps to gap 0.1", "0.01", "0.001")
        return [
            Table(
                "Norm and speed",
                columns,
                rows,
                "The gap is 1 - cos(w, w*); a number of steps is that after which it stays below.",
            )
        ]

    def pictures(self, results: Results) -> list[Picture]:
        results = results.finished
        if not results:
            return []
        colors = {item.arm: _color(item) for item in results}
        dashes = {item.arm: DASHES[0 if "0.99" not in item.arm else 1] for item in results}
        shown = {item.arm: item.arrays["norm"][:700, 0] for item in results}
        norms = {arm: (range(len(norm)), norm) for arm, norm in shown.items()}
        gaps = {
            item.arm: (range(700), np.maximum(item.arrays["gap"][:700, 0], 1e-12))
            for item in results
        }
        return [
            _animation([item for item in results if "0.99" not in item.arm]),
            lines(
                norms,
                "step",
                "norm ‖w‖",
                "The norm against steps.",
                colors,
                log_y=True,
                dashes=dashes,
            ),
            lines(
                gaps,
                "step",
                "gap 1 - cos(w, w*)",
                "The distance to the optimum against steps.",
                colors,
                log_y=True,
                dashes=dashes,
            ),
        ]

    def claims(self, results: Results) -> list[Claim]:
        def number(arm: str, key: str) -> Any:
            items = results.arm(arm).finished.items
            return items[0].summary[key][0] if items else None

        claims = []
        for arm, paper in PAPER_MAX_NORM.items():
            text, norm = (
                f"The largest norm under gradient descent with momentum {arm.split()[1]}",
                number(arm, "max_norm"),
            )
            detail = (
                "the learning rate was set so that this holds"
                if arm == "GDM 0.9"
                else "same learning rate"
            )
            claims.append(
                missing(text, "Appendix B")
                if norm is None
                else close(text, norm, paper, 0.03, source="Appendix B", detail=detail)
            )
        steps = {arm: number(arm, "steps_to_0.001") for arm in ARMS}
        if all(arm in results.finished.arms for arm in ARMS):
            words = (
                f"{arm} {'not reached' if value is None else value}" for arm, value in steps.items()
            )
            shown = ", ".join(words) + " (steps to a gap of 0.001)"
            reached = {arm: np.inf if value is None else value for arm, value in steps.items()}
            text = "The projected method converges fastest among those compared"
            best = min(reached, key=lambda arm: reached[arm])
            claims.append(holds(text, best.startswith("GDP"), shown, source="Appendix B"))
            text = "Momentum 0.99 is slower than 0.9 without the projection, and faster with it"
            good = (
                reached["GDM 0.99"] > reached["GDM 0.9"]
                and reached["GDP 0.99"] < reached["GDP 0.9"]
            )
            claims.append(holds(text, good, shown, source="Section 2.4"))
        return claims


def _color(item: Result) -> str:
    return "#777777" if item.arm == "GD" else color_of(item.spec.recipe)


def _animation(items: list[Result]) -> Picture:
    """w in the plane, from the start on: time runs the same for all."""
    last = 1 + max(item.summary["steps_to_0.001"][0] or 0 for item in items)
    times = np.unique(np.linspace(0, last, FRAMES).astype(int))
    figure = base("w₁", "w₂")
    angle = np.linspace(0, 2 * np.pi, 90)
    figure.add_scatter(
        x=short(np.cos(angle)),
        y=short(np.sin(angle)),
        name="‖w‖ = 1",
        line={"color": "#999", "dash": "dot", "width": 1},
    )

    def traces(time: int) -> list[go.Scatter]:
        drawn = []
        for item in items:
            path = item.arrays["w"][: time + 1, 0]
            color = _color(item)
            sizes = [0] * (len(path) - 1) + [11]
            marker = {"size": sizes, "color": color, "opacity": 1, "line": {"width": 0}}
            style = {
                "name": item.arm,
                "mode": "lines+markers",
                "line": {"color": color, "width": 2},
                "marker": marker,
            }
            drawn.append(go.Scatter(x=short(path[:, 0]), y=short(path[:, 1]), **style))
        return drawn

    figure.add_traces(traces(last))
    indices = list(range(1, 1 + len(items)))
    figure.frames = [
        go.Frame(name=str(time), data=traces(int(time)), traces=indices) for time in times
    ]
    frame = {"frame": {"duration": 60, "redraw": False}, "transition": {"duration": 0}}
    play = {"label": "▶ play", "method": "animate", "args": [None, {**frame, "fromcurrent": False}]}
    pause = {"label": "❚❚", "method": "animate", "args": [[None], {"mode": "immediate", **frame}]}
    steps = [
        {"label": str(t), "method": "animate", "args": [[str(t)], {"mode": "immediate", **frame}]}
        for t in times
    ]
    buttons = {
        "type": "buttons",
        "direction": "left",
        "x": 0,
        "y": 1.13,
        "xanchor": "left",
        "yanchor": "top",
        "pad": {"t": 0},
    }
    slider = {
        "active": len(times) - 1,
        "currentvalue": {"prefix": "step ", "font": {"size": 12}},
        "steps": steps,
        "pad": {"t": 45},
        "ticklen": 0,
    }
    figure.update_layout(
        updatemenus=[{**buttons, "buttons": [play, pause], "showactive": False}],
        sliders=[{**slider, "minorticklen": 0, "font": {"size": 9}}],
        legend={
            "yref": "paper",
            "y": 1.0,
            "x": 1.0,
            "xanchor": "right",
            "yanchor": "top",
            "orientation": "v",
        },
        margin={"t": 50},
    )
    figure.update_yaxes(scaleanchor="x", scaleratio=1)
    caption = (
        "The weight itself: from the top to the direction straight down. GDM swings far out and "
        "then crawls; GDP stays near the circle."
    )
    return Picture(figure, caption, height=560, wide=True)
