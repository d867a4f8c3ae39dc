"""The sphere of the Rosenbrock toy to turn: its loss, and the directions of descents on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from spherenorm_experiments.pictures import Picture, color_of, rounded
from spherenorm_experiments.runs import Result
from spherenorm_paper.shared import toys

DRAWN_METHODS = ("GDM", "GDM + WD", "GDP")
"""The methods of Figure 3, which are shown at first; others are picked in the legend."""


def draw_sphere(items: Mapping[str, Result], dashes: Mapping[str, str]) -> Picture:
    """Draw the loss on the hemisphere, trajectories w / |w| on it, the start and the optimum."""
    figure = go.Figure()
    _add_loss(figure)
    for name, item in items.items():
        figure.add_scatter3d(
            **_coordinates(_thinned(item.arrays["w"])), name=name, mode="lines",
            visible=True if name in DRAWN_METHODS else "legendonly",
            line={"color": color_of(item.spec.recipe), "width": 5, "dash": dashes[name]},
        )  # fmt: skip
    for name, a, b, color in (("start", -2.0, 2.0, "#f2b705"), ("optimum", 1.0, 1.0, "#00a000")):
        place = 1.02 * np.array([toys.sphere_point(a, b)])
        marker = {"size": 7, "color": color, "line": {"color": "#222222", "width": 2}}
        figure.add_scatter3d(**_coordinates(place), name=name, mode="markers", marker=marker)
    axis = {"showticklabels": False, "title": {"text": ""}, "showgrid": False, "zeroline": False}
    camera = {"eye": {"x": 0.1, "y": 0.45, "z": 1.55}, "up": {"x": 0, "y": 1, "z": 0}}
    figure.update_layout(
        scene={"xaxis": axis, "yaxis": axis, "zaxis": axis, "camera": camera, "aspectmode": "data"},
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
        legend={"orientation": "h", "y": 0.0, "yanchor": "top"},
        paper_bgcolor="rgba(0,0,0,0)",
    )
    caption = (
        "The loss and the directions w / ‖w‖ at each optimizer's best learning rate. On the page "
        "of `spherenorm report` the sphere turns, and the legend adds optimizers."
    )
    return Picture(figure, caption, height=600, wide=True, shows="Figure 3, upper row")


def _add_loss(figure: go.Figure) -> None:
    """Draw the logarithm of the loss as the color of the hemisphere."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 72)
    psi, phi = np.meshgrid(angles, angles)
    x, y, z = np.cos(phi) * np.sin(psi), np.sin(phi), np.cos(phi) * np.cos(psi)
    loss = np.log10(1e-2 + toys.valley(toys.STRETCH * psi, toys.STRETCH * phi))
    figure.add_surface(
        x=x.round(4), y=y.round(4), z=z.round(4), surfacecolor=loss.round(3),
        colorbar={"title": {"text": "log₁₀ loss"}, "len": 0.6, "thickness": 10, "x": 1.0},
        colorscale="Blues", reversescale=True, opacity=0.9, hoverinfo="skip", name="log₁₀ loss",
    )  # fmt: skip


def _thinned(w: np.ndarray) -> np.ndarray:
    """The directions of a trajectory at its first 60 steps and 140 later ones, just above 1."""
    last = len(w) - 1
    later = np.geomspace(min(60, last), last, 140).astype(int)
    points = w[np.unique(np.concatenate([np.arange(min(60, last)), later]))]
    directions: np.ndarray = 1.012 * points / np.linalg.norm(points, axis=-1, keepdims=True)
    return directions


def _coordinates(points: np.ndarray) -> dict[str, Any]:
    return {axis: rounded(column) for axis, column in zip("xyz", points.T, strict=True)}
