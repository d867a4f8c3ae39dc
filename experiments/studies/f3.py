"""Figures 3, H.1, G.1 and G.2: the Rosenbrock function on a sphere in three dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.claims import Claim, close, holds
from experiments.plots import DASHES, Picture, color_of, crosses, lines, short
from experiments.results import Result, Results, Trial
from experiments.spec import Spec
from experiments.study import Plan, Study, Table
from experiments.tasks.toys import Rosenbrock

__all__ = ["F3"]


@dataclass(frozen=True)
class Arm:
    """A recipe with what is fixed of it; `decays` are searched beside the learning rates."""

    recipe: str
    setting: dict[str, Any]
    decays: tuple[float, ...] = ()


MOMENTUM, BETAS = {"momentum": 0.9}, {"betas": [0.9, 0.999]}
DECAYS = tuple(np.geomspace(1e-3, 1e-1, 13).tolist())
ARMS = {
    "GDM": Arm("sgd", MOMENTUM),
    "GDM + WD": Arm("sgd", MOMENTUM, DECAYS),
    "GDP": Arm("sgdp", MOMENTUM),
    "Adam": Arm("adam", BETAS),
    "Adam + WD": Arm("adamw", BETAS, DECAYS),
    "AdamP": Arm("adamp", BETAS),
    "SGDG": Arm("sgdg", {**MOMENTUM, "nu": 0.1, "alpha": 0.0}),
    "SGDG, no clip": Arm("sgdg", {**MOMENTUM, "nu": None, "alpha": 0.0}),
    "AdamG": Arm("adamg", {"betas": [0.9, 0.99], "nu": 0.1, "alpha": 0.0}),
    "AdamG, no clip": Arm("adamg", {"betas": [0.9, 0.99], "nu": None, "alpha": 0.0}),
}
PAPER_MAX_NORM = {
    "GDM": 3.2,
    "GDM + WD": 2.53,
    "GDP": 1.12,
    "SGDG": 1.0,
    "SGDG, no clip": 1.0,
    "AdamG": 1.0,
    "AdamG, no clip": 1.0,
}
RATES = {"smoke": 5, "small": 40, "full": 200}
"""How many learning rates are searched, from 0.001 to 0.1 as the paper says."""


class F3(Study):
    """Figures 3, H.1, G.1 and G.2: norm growth slows descent on a sphere, for ten optimizers

    The Rosenbrock function of two angles, 1000 steps, a linearly decaying learning rate. Learning rates from 0.001 to 0.1
    are searched as one vmap sweep per optimizer (with weight decay, times 13 decays from 0.001 to 0.1), and the lowest
    final loss decides. The paper does not say what its search minimized, nor that its loss must be scaled: with the loss as
    printed these learning rates explode. Ours is multiplied by 1e-4; gaps are given before that.
    """

    name = "f3"
    compared = {}  # noqa: RUF012  (every arm has a row)

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        steps, count = self.budget(plan, "rosenbrock").epochs, RATES[plan.tier]
        rates = np.geomspace(0.001, 0.1, count)
        trials = []
        for name, arm in ARMS.items():
            points = {"lr": rates.tolist()}
            if arm.decays:
                grid = np.meshgrid(
                    rates, arm.decays[:: 6 if plan.tier == "smoke" else 1], indexing="ij"
                )
                points = {"lr": grid[0].ravel().tolist(), "weight_decay": grid[1].ravel().tolist()}
            common: dict[str, Any] = {
                "epochs": steps,
                "batch_size": 1,
                "schedule": "linear",
                "probes": (),
            }
            trials.append(
                Trial(
                    f"{name}: search",
                    Spec("rosenbrock", arm.recipe, {**arm.setting, **points}, **common),
                )
            )
        for item in results:
            if item.arm.endswith(": search") and (best := _best(item)) is not None:
                hyper_parameters = {
                    key: [value[best]] if key in item.spec.points else value
                    for key, value in item.spec.hyper_parameters.items()
                }
                trials.append(
                    Trial(
                        item.arm.removesuffix(": search"),
                        replace(item.spec, hyper_parameters=hyper_parameters),
                    )
                )
        return trials

    def tables(self, results: Results) -> list[Table]:
        rows = []
        for item in _descents(results):
            paper = PAPER_MAX_NORM.get(item.arm)
            found = {key: item.spec.hyper_parameters[key][0] for key in item.spec.points}
            decay = f"{found['weight_decay']:.3g}" if "weight_decay" in found else ""
            steps = [
                "–" if (n := item.summary[f"steps_to_{level}"][0]) is None else str(n)
                for level in ("10", "1", "0.1")
            ]
            norms = (
                f"{item.summary['max_norm'][0]:.2f}",
                f"{paper:.2f}" if paper else "",
                f"{item.summary['last_norm'][0]:.2f}",
            )
            rows.append(
                (
                    item.arm,
                    f"{found['lr']:.3g}",
                    decay,
                    *norms,
                    f"{item.summary['final_gap'][0]:.2g}",
                    *steps,
                )
            )
        columns = (
            "arm",
            "best lr",
            "best wd",
            "max norm",
            "paper max norm",
            "last norm",
            "final gap",
            "steps to 10",
            "to 1",
            "to 0.1",
        )
        failed = [
            f"{item.arm} ({sum(item.points_diverged)})"
            for item in results
            if any(item.points_diverged)
        ]
        note = "Steps after which the gap stays below; – where it does not within the budget."
        note += f" Points that diverged: {', '.join(failed)}." if failed else ""
        return [Table("The best of each search", columns, rows, note)]

    def pictures(self, results: Results) -> list[Picture]:
        items = list(_descents(results))
        if not items:
            return [_searched(results, {})] if results else []
        colors = {item.arm: color_of(item.spec.recipe) for item in items}
        dashes = {item.arm: _dash(item.arm) for item in items}
        keep = np.unique(np.geomspace(1, len(items[0].arrays["norm"]) - 1, 120).astype(int))
        norms = {item.arm: (keep, item.arrays["norm"][keep, 0]) for item in items}
        gaps = {item.arm: (keep, np.maximum(item.arrays["gap"][keep, 0], 1e-9)) for item in items}
        log: dict[str, Any] = {"log_x": True, "log_y": True, "dashes": dashes}
        return [
            _sphere(items),
            lines(
                norms,
                "step",
                "norm ‖w‖",
                "Norm against steps. With weight decay it surges first, and collapses later.",
                colors,
                **log,
            ),
            lines(
                gaps,
                "step",
                "gap",
                "Distance to the optimum, each optimizer at its best learning rate.",
                colors,
                **log,
            ),
            _searched(results, dashes),
        ]

    def claims(self, results: Results) -> list[Claim]:
        best = {item.arm: item for item in _descents(results)}
        source = "Section 3.2, Figure 3"
        claims = []
        for arm, paper in (("GDM", 3.2), ("GDM + WD", 2.53), ("GDP", 1.12)):
            if arm in best:
                detail = _peaks(results, best[arm]) if "WD" in arm else ""
                claims.append(
                    close(
                        f"The largest norm under {arm}",
                        best[arm].summary["max_norm"][0],
                        paper,
                        0.05,
                        source=source,
                        detail=detail,
                    )
                )
        if {"GDM", "GDM + WD", "GDP"} <= best.keys():
            peaks = {arm: best[arm].summary["max_norm"][0] for arm in ("GDM", "GDM + WD", "GDP")}
            shown = " > ".join(f"{arm} {value:.2f}" for arm, value in peaks.items())
            good = peaks["GDM"] > peaks["GDM + WD"] > peaks["GDP"]
            claims.append(
                holds(
                    "Largest norms: GDM > GDM + WD > GDP",
                    good,
                    shown,
                    source=source,
                    paper="3.2 > 2.53 > 1.12",
                )
            )
        for slow, fast, text, where in (
            ("GDM", "GDP", "GDP gets closer to the optimum than GDM", source),
            ("Adam", "AdamP", "AdamP gets closer to the optimum than Adam", "Appendix H.1"),
            (
                "SGDG",
                "SGDG, no clip",
                "Without its clipping SGDG gets closer to the optimum",
                "Appendix G, Figure G.1",
            ),
            (
                "AdamG",
                "AdamG, no clip",
                "Without its clipping AdamG gets closer to the optimum",
                "Appendix G, Figure G.2",
            ),
        ):
            if {slow, fast} <= best.keys():
                a, b = (best[arm].summary["final_gap"][0] for arm in (slow, fast))
                claims.append(
                    holds(
                        text,
                        b < a,
                        f"final gap {b:.2g} ({fast}) against {a:.2g} ({slow})",
                        source=where,
                    )
                )
        if {"SGDG, no clip", "GDP"} <= best.keys():
            a, b = (best[arm].summary["final_gap"][0] for arm in ("SGDG, no clip", "GDP"))
            text = (
                "Without clipping SGDG converges as quickly as GDP: final gaps within a factor of 2"
            )
            claims.append(
                holds(text, 0.5 <= a / b <= 2, f"{a:.2g} against {b:.2g}", source="Appendix G")
            )
        return claims


def _best(item: Result) -> int | None:
    """The point with the lowest final gap."""
    gaps = [np.inf if gap is None else gap for gap in item.summary["final_gap"]]
    return int(np.argmin(gaps)) if np.isfinite(min(gaps)) else None


def _descents(results: Results) -> Results:
    return results.where(lambda item: not item.arm.endswith(": search"))


def _peaks(results: Results, best: Result) -> str:
    """The largest norms that other weight decays give at the best learning rate: the paper does not name its own."""
    search = results.arm(f"{best.arm}: search").items[0]
    lr = best.spec.hyper_parameters["lr"][0]
    rows = zip(
        search.spec.points["lr"],
        search.spec.points["weight_decay"],
        search.summary["max_norm"],
        strict=True,
    )
    peaks = {decay: norm for rate, decay, norm in rows if rate == lr and norm is not None}
    shown = ", ".join(f"{norm:.2f} (wd {decay:.2g})" for decay, norm in list(peaks.items())[::3])
    return f"the paper does not give its weight decay; at this learning rate the peak is {shown}"


def _searched(results: Results, dashes: Mapping[str, str]) -> Picture:
    """The searches over learning rates alone; points that diverged are crosses on top."""
    series, colors = {}, {}
    failed: list[tuple[float, str, int, str]] = []
    for item in results:
        arm = item.arm.removesuffix(": search")
        if item.arm == arm or "weight_decay" in item.spec.points:
            continue
        colors[arm] = color_of(item.spec.recipe)
        points = list(
            zip(
                item.spec.points["lr"],
                item.summary["final_gap"],
                item.summary["points_diverged_at"],
                strict=True,
            )
        )
        known = [(lr, max(gap, 1e-9)) for lr, gap, _ in points if gap is not None]
        series[arm] = ([lr for lr, _ in known], [gap for _, gap in known])
        last = item.summary["steps"] - 1
        failed += [
            (lr, arm, last if step is None else step, colors[arm])
            for lr, gap, step in points
            if gap is None
        ]
    caption = "The search: final gap against the learning rate; crosses on top diverged."
    picture = lines(
        series, "learning rate", "final gap", caption, colors, log_x=True, log_y=True, dashes=dashes
    )
    crosses(picture.figure, failed)
    return picture


def _dash(arm: str) -> str:
    return DASHES[1] if "WD" in arm or "no clip" in arm else DASHES[0]


def _sphere(items: list[Result]) -> Picture:
    """The loss on the hemisphere, and the trajectories w / |w| on it; turn it, and pick optimizers in the legend."""
    import plotly.graph_objects as go

    toy = Rosenbrock()
    psi, phi = np.meshgrid(
        np.linspace(-np.pi / 2, np.pi / 2, 72), np.linspace(-np.pi / 2, np.pi / 2, 72)
    )
    x, y, z = np.cos(phi) * np.sin(psi), np.sin(phi), np.cos(phi) * np.cos(psi)
    a, b = toy.c * psi, toy.c * phi
    loss = np.log10(1e-2 + (1 - a) ** 2 + 300 * (b - a**2) ** 2)
    figure = go.Figure()
    surface = {
        "colorscale": "Blues",
        "reversescale": True,
        "opacity": 0.9,
        "hoverinfo": "skip",
        "name": "log₁₀ loss",
    }
    bar = {"title": {"text": "log₁₀ loss"}, "len": 0.6, "thickness": 10, "x": 1.0}
    figure.add_surface(
        x=x.round(4),
        y=y.round(4),
        z=z.round(4),
        surfacecolor=loss.round(3),
        colorbar=bar,
        **surface,
    )
    for item in items:
        w = item.arrays["w"][:, 0]
        keep = np.unique(
            np.concatenate([np.arange(60), np.geomspace(60, len(w) - 1, 140).astype(int)])
        )
        on_sphere = 1.012 * w[keep] / np.linalg.norm(w[keep], axis=-1, keepdims=True)
        xs, ys, zs = (short(column) for column in on_sphere.T)
        shown = True if item.arm in ("GDM", "GDP") else "legendonly"
        style = {
            "mode": "lines",
            "line": {"color": color_of(item.spec.recipe), "width": 5, "dash": _dash(item.arm)},
        }
        figure.add_scatter3d(x=xs, y=ys, z=zs, name=item.arm, visible=shown, **style)
    for name, angles, color in (
        ("start", (-2.0, 2.0), "#f2b705"),
        ("optimum", (1.0, 1.0), "#00a000"),
    ):
        point = 1.02 * toy.point(*angles)
        marker = {"size": 7, "color": color, "line": {"color": "#222222", "width": 2}}
        figure.add_scatter3d(
            x=[point[0]], y=[point[1]], z=[point[2]], name=name, mode="markers", marker=marker
        )
    axis = {"showticklabels": False, "title": {"text": ""}, "showgrid": False, "zeroline": False}
    camera = {"eye": {"x": 0.1, "y": 0.45, "z": 1.55}, "up": {"x": 0, "y": 1, "z": 0}}
    figure.update_layout(
        scene={"xaxis": axis, "yaxis": axis, "zaxis": axis, "camera": camera, "aspectmode": "data"},
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        legend={"orientation": "h", "y": 0.0, "yanchor": "top"},
        paper_bgcolor="rgba(0,0,0,0)",
    )
    caption = (
        "The sphere to turn: the loss and the directions w / ‖w‖ at each optimizer's best learning "
        "rate. Pick optimizers in the legend."
    )
    return Picture(figure, caption, height=600, wide=True)
