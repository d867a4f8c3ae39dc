"""Figures: the parts of which pictures are drawn with plotly.

The page colors text, grid and background, since it knows if it is light or dark.

A study draws its pictures one by one; these functions give them one look: metrics against steps,
scores against a hyper-parameter, best of k trials, named lines and clouds of points.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import plotly.graph_objects as go

from spherenorm_experiments.lookup import require_extra
from spherenorm_experiments.runs import Result, curves_of

COLORS = {
    "sgd": "#0072b2",
    "sgdp": "#ee6677",
    "adamw": "#009e73",
    "adamp": "#aa3377",
    "adam": "#999933",
    "sgdw": "#56b4e9",
    "sgdg": "#8f7fe0",
    "adamg": "#a06a00",
    "rmsprop": "#cc79a7",
}
USER_COLORS = ("#e69f00", "#8f7fe0", "#56b4e9", "#cc79a7", "#a06a00", "#999933")
"""The colors of a user's own recipes: the first is orange, which no built-in one has.

They stay apart for readers with any color blindness, by the simulations of G. Machado et al., *A
physiologically-based model for simulation of color vision deficiency*, 2009: the colors of the
recipes that are compared most often, and the orange, by at least 14 in CIELAB. All of them show on
white and on the dark page.
"""

WIDTH = {False: 640, True: 1000}
"""Pixels of a picture in a file; of one that takes the whole width."""

WHITE = {"template": "plotly_white", "paper_bgcolor": "white", "plot_bgcolor": "white"}
"""A file does not know if the page around it is dark."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True)
class Picture:
    """A figure with its caption.

    Attributes:
        figure: plotly's.
        caption: a description.
        height: in pixels.
        wide: takes the page's whole width.
        shows: the paper's figure that it reproduces; such pictures stand in the results, too.
    """

    figure: go.Figure
    caption: str
    height: int = 380
    wide: bool = False
    shows: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of its file: a surface is no vector graphic."""
        return ".webp" if any(trace.type == "surface" for trace in self.figure.data) else ".svg"


def image_files(pictures: Mapping[str, Picture]) -> dict[str, bytes]:
    """Return the content of a file for each picture, by its name, with the format of its suffix.

    Raises:
        MissingExtraError: kaleido is missing.
    """
    require_extra("kaleido", "drawing pictures into files")
    from plotly import io

    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in pictures]
        sizes = {"width": [WIDTH[picture.wide] for picture in pictures.values()],
                 "height": [picture.height for picture in pictures.values()]}  # fmt: skip
        on_white = [go.Figure(picture.figure).update_layout(WHITE) for picture in pictures.values()]
        io.write_images(on_white, paths, **sizes)
        return {path.name: path.read_bytes() for path in paths}


def drawn(pictures: Iterable[Picture]) -> list[Picture]:
    """Return the pictures whose figures have anything in them."""
    return [picture for picture in pictures if picture.figure.data]


_PLACES: dict[str, int] = {}
"""Recipes of a user's own, in the order in which they were drawn."""


def color_of(recipe: str) -> str:
    """Return the recipe's color, the same in every picture that this process draws.

    A user's own recipes have their colors in turn, the first one orange.
    """
    if recipe in COLORS:
        return COLORS[recipe]
    place = _PLACES.setdefault(recipe, len(_PLACES))
    return USER_COLORS[place % len(USER_COLORS)]


def line_styles(recipes: Iterable[str]) -> list[tuple[str, str]]:
    """Return a color and a dash for each arm of a picture, by its recipe; no two arms share both.

    A user's own recipe is an orange line that is solid. Further ones share their colors with
    built-in recipes, so that their lines are dashed; so are further arms of one recipe.

    >>> line_styles(["sgd", "sgd", "mine:recipe"])
    [('#0072b2', 'solid'), ('#0072b2', 'dash'), ('#e69f00', 'solid')]
    """
    styles: list[tuple[str, str]] = []
    for recipe in recipes:
        color = color_of(recipe)
        has_own_color = recipe in COLORS or color == USER_COLORS[0]
        styles_of_color = [(color, dash) for dash in (DASHES if has_own_color else DASHES[1:])]
        # Where a color has no line left, a recipe takes that of another, which is not solid.
        other_styles = [(color, dash) for dash in DASHES[1:] for color in USER_COLORS]
        styles.append(
            next(
                (style for style in [*styles_of_color, *other_styles] if style not in styles),
                styles_of_color[0],
            )
        )
    return styles


def empty_figure(x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> go.Figure:
    """Return a figure with two axes, its legend below them."""
    ticks = {"exponentformat": "power"}
    return go.Figure(
        layout={
            "margin": {"l": 60, "r": 15, "t": 15, "b": 45},
            "legend": {
                **{"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0}
            },
            "hovermode": "closest",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": {"title": {"text": x}, "type": "log" if log_x else "linear", **ticks},
            "yaxis": {"title": {"text": y}, "type": "log" if log_y else "linear", **ticks},
        }
    )


def add_band(
    figure: go.Figure,
    x: Iterable[float],
    middle: Iterable[float],
    ends: Sequence[np.ndarray],
    name: str,
    color: str,
    dash: str = "solid",
    mode: str = "lines",
) -> None:
    """Draw a line, and around it a band.

    Args:
        ends: the lower and the upper end of the band; none, or nan, for no band.
        mode: plotly's, of the line.
    """
    x, band = rounded(x), list(map(rounded, ends))
    if band and np.isfinite(band).all():
        figure.add_scatter(
            x=[*x, *x[::-1]], y=[*band[1], *band[0][::-1]], mode="lines", fill="toself",
            fillcolor=_with_alpha(color, 0.15), line={"width": 0}, hoverinfo="skip",
            showlegend=False, legendgroup=name,
        )  # fmt: skip
    line = {"color": color, "dash": dash, "width": 2}
    figure.add_scatter(x=x, y=rounded(middle), name=name, legendgroup=name, mode=mode, line=line)


def within_percent(figure: go.Figure) -> None:
    """Let the axis of a score in percent end at 100, if no score is above."""
    title = figure.layout.yaxis.title.text or ""
    if "%" in title and max((y for trace in figure.data for y in trace.y), default=0) <= 100:
        figure.update_yaxes(maxallowed=100)


def add_crosses(figure: go.Figure, failed: Sequence[tuple[float, str, int | None, str]]) -> None:
    """Draw a cross on top of the figure for each run or point that diverged.

    Args:
        failed: the place on the x axis, the name of what diverged, the step if there is one, and a
            color.
    """
    if not failed:
        return
    figure.add_scatter(
        x=rounded(value for value, *_ in failed),
        y=[1.0] * len(failed),
        yaxis="y2",
        mode="markers",
        name="diverged",
        marker={"symbol": "x", "size": 9, "color": [color for *_, color in failed]},
        text=[
            f"{name} diverged" + ("" if step is None else f" at step {step}")
            for _, name, step, _ in failed
        ],
    )
    figure.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1.04], "visible": False, "fixedrange": True}
    )


def rounded(values: Iterable[float]) -> list[float]:
    """Five digits: more than a screen shows, and few enough to keep the page small."""
    return [float(f"{value:.5g}") for value in values]


def _with_alpha(color: str, alpha: float) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


POINTS = 160
"""A curve of more is thinned out to about so many."""


@dataclass(frozen=True)
class Line:
    """The runs of a line, with the recipe that gives it its color."""

    name: str
    recipe: str
    runs: Sequence[Result]


def curves(
    plotted: Sequence[Line], key: str, y: str, caption: str, *, log_y: bool = False
) -> Picture:
    """Draw a metric against steps.

    Each line has the mean over its seeds, and a band from the lowest to the highest seed.

    Args:
        key: the metric's.
        y: the axis' title.
    """
    figure = empty_figure("step", y, log_y=log_y)
    styles = line_styles(line.recipe for line in plotted)
    for line, (color, dash) in zip(plotted, styles, strict=True):
        times, values = curves_of(line.runs, key)
        if not values.size:
            continue
        count = values.shape[1]
        thinned = np.unique(np.linspace(0, count - 1, min(POINTS, count)).astype(int))
        values = values[:, thinned]
        ends = [values.min(0), values.max(0)] if len(values) > 1 else []
        add_band(figure, times[thinned], values.mean(0), ends, line.name, color, dash)
    within_percent(figure)
    return Picture(figure, caption)


Series = Mapping[str, tuple[Iterable[float], Iterable[float]]]
"""Of each name the x and the y."""


def lines(
    series: Series,
    x: str,
    y: str,
    caption: str,
    colors: Mapping[str, str],
    *,
    dashes: Mapping[str, str] | None = None,
    **axes: bool,
) -> Picture:
    """Draw named lines.

    Args:
        **axes: log_x and log_y, as of `empty_figure`.
    """
    figure = empty_figure(x, y, **axes)
    for name, (xs, ys) in series.items():
        line = {"color": colors.get(name), "dash": (dashes or {}).get(name, "solid"), "width": 2}
        figure.add_scatter(x=rounded(xs), y=rounded(ys), name=name, mode="lines", line=line)
    return Picture(figure, caption)


def points(
    series: Series,
    x: str,
    y: str,
    caption: str,
    colors: Mapping[str, str],
    *,
    diagonal: bool = False,
    **axes: bool,
) -> Picture:
    """Draw named clouds of points.

    Args:
        diagonal: also draw the line on which x and y are equal.
        **axes: log_x and log_y, as of `empty_figure`.
    """
    figure = empty_figure(x, y, **axes)
    ends: list[float] = []
    for name, (xs, ys) in series.items():
        across, up = rounded(xs), rounded(ys)
        marker = {"color": colors.get(name), "size": 6, "opacity": 0.6}
        figure.add_scatter(x=across, y=up, name=name, mode="markers", marker=marker)
        ends += across
    if diagonal and ends:
        diagonal_ends, line = [min(ends), max(ends)], {"color": "#888888", "dash": "dash"}
        figure.add_scatter(x=diagonal_ends, y=diagonal_ends, name="equal", mode="lines", line=line)
    return Picture(figure, caption)
