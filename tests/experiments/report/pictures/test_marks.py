"""Figures for readers who see no colors, or other ones: marks, palette, shared axes."""

import itertools

import numpy as np
import pytest

from spherenorm_experiments.analysis import Arm, Tried
from spherenorm_experiments.report.pictures import (
    best_scores,
    color_of,
    finished,
    lines,
    tried,
)
from spherenorm_experiments.report.pictures._figures import COLORS, OTHERS, line_styles
from tests.experiments.fabricated import result

# Machado et al. 2009, severity 1: linear sRGB as a reader without one kind of cone sees it.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)


def linear(color):
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(color, vision):
    scaled = TO_XYZ @ np.clip(VISIONS[vision] @ linear(color), 0, 1) / WHITE
    x, y, z = np.where(scaled > 216 / 24389, np.cbrt(scaled), (24389 / 27 * scaled + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
def test_the_palette_stays_apart_for_every_reader(vision):
    palette = {*COLORS.values(), *OTHERS}
    assert len(palette) == 10
    seen = {color: lab(color, vision) for color in palette}
    gaps = [np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(palette, 2)]
    assert min(gaps) > 11  # 2.3 is just noticeable


@pytest.mark.parametrize("page", ["#ffffff", "#191f29"])
def test_the_palette_shows_on_both_pages(page):
    def luminance(color):
        return float(TO_XYZ[1] @ linear(color)) + 0.05

    for color in {*COLORS.values(), *OTHERS}:
        dark, light = sorted([luminance(color), luminance(page)])
        assert light / dark > 2.2


def test_own_recipes_have_colors_of_their_own():
    names = [f"mine:recipe_{i}" for i in range(len(OTHERS))]
    assert len({color_of(name) for name in names}) == len(OTHERS)
    assert [color_of(name) for name in names] == [color_of(name) for name in names]
    assert not {color_of(name) for name in names} & {color_of(n) for n in ("sgd", "sgdp", "adamp")}


MANY = [f"mine:many_{i}" for i in range(7)]


@pytest.mark.parametrize(
    "recipes",
    [
        [*COLORS, *MANY[:3]],
        [*MANY, "sgdw", "adam", "sgdg", "adamg", "rmsprop"],
        [f"yours:recipe_{i}" for i in range(12)],
        ["sgdw", "sgdw", *MANY, "sgdw", "mine:many_0", "mine:many_0"],
    ],
)
def test_no_two_of_twelve_arms_are_alike(recipes):
    """Neither line nor mark, in any picture of a search: an arm is told by either."""
    arms = [Arm(f"arm {i}", recipe, {"lr": i}) for i, recipe in enumerate(recipes)]
    points = [{"lr": 0.1}, {"lr": 1.0}]
    runs = [{0: result(arms[0], validation=score)} for score in (1.0, 2.0)]
    made = finished(
        [
            tried(dict.fromkeys(arms, Tried(points, runs)), "lr", "score", ""),
            best_scores({arm: [1.0, 2.0] for arm in arms}, "score", ""),
        ]
    )
    for picture in made:
        traces = picture.figure.data
        assert len({(trace.line.color, trace.line.dash) for trace in traces}) == 12
        assert len({trace.marker.symbol for trace in traces}) == len(traces) == 12


def test_own_recipes_never_look_like_a_built_in_one():
    own = {style for i in range(30) for style in line_styles([f"hers:recipe_{i}"])}
    assert not own & {style for name in COLORS for style in line_styles([name])}


def line(y, name="a", title="norm", log=False):
    return lines({name: (range(len(y)), y)}, "step", title, "", {name: "#0072b2"}, log_y=log)


def test_lines_of_one_color_differ_in_their_marks_and_a_name_keeps_its_own():
    names = "abcdefgh"
    series = {name: ([0, 1, 2], [i, i, i]) for i, name in enumerate(names)}
    both = lines(series, "step", "norm", "", dict.fromkeys(names, "#0072b2"))
    first, second = finished([both, line([1, 2, 3], "c")])
    marks = {trace.name: trace.marker.symbol for trace in first.figure.data}
    assert len(set(marks.values())) == len(names)
    assert second.figure.data[0].marker.symbol == marks["c"]
    assert both.figure.data[0].marker.symbol is None  # the study's own figure is left alone


def test_figures_with_the_same_axes_have_the_same_ranges():
    low, high, other = finished([line([1, 2]), line([5, 9]), line([1, 2], title="loss")])
    assert low.figure.layout.yaxis.range == high.figure.layout.yaxis.range
    assert low.figure.layout.yaxis.range[0] < 1
    assert low.figure.layout.yaxis.range[1] > 9
    assert other.figure.layout.yaxis.range is None
    a, _ = finished([line([1, 10], log=True), line([100, 0, 1000], log=True)])
    assert a.figure.layout.yaxis.range == pytest.approx((-0.12, 3.12))


def test_best_of_k_is_the_mean_over_all_choices_of_k_trials():
    scores = [3.0, 1.0, 4.0, 1.5, 5.0]
    drawn = best_scores({Arm("SGD", "sgd"): scores}, "score", "").figure.data[0].y
    for k in range(1, 6):
        exact = np.mean([max(chosen) for chosen in itertools.combinations(scores, k)])
        assert drawn[k - 1] == pytest.approx(exact, rel=1e-4)
