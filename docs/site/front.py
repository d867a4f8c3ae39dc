"""Generate the picture, recipe, law and number of the front page from the code."""

from __future__ import annotations

import inspect
import math
import re

import sympy as sp

import spherenorm as sn
from spherenorm import rules as r
from spherenorm_theory import growth_ratio, norm_growth

WIDTH, HEIGHT, RADIUS, ORIGIN = 460, 340, 190.0, (210.0, 300.0)
MOMENTUM = "9/10"

Point = tuple[float, float]


@sn.recipe
def sgdp_nesterov(lr=0.1, momentum=0.9, weight_decay=0.0, delta=0.1, wd_ratio=0.1):
    return sn.chain(
        r.HeavyBall(momentum, nesterov=True),
        r.ScaleInvarianceTest(delta),
        r.RadialProjection(),
        r.DecoupledDecay(weight_decay, invariant_ratio=wd_ratio),
        r.StepSize(lr),
    )


def pages() -> dict[str, str]:
    """Return the generated parts of the front page, by file name."""
    return {
        "front/recipe.py": inspect.getsource(sgdp_nesterov),
        "front/law.txt": law(),
        "front/sphere.html": sphere(),
        "front/number.html": number(),
    }


def law() -> str:
    """Return the law of the recipe with one line for each sentence."""
    text = str(norm_growth(sgdp_nesterov).proposition()).replace(f"{__name__}:", "")
    folded = re.compile(r"^((?:Setting|Assume|Status)\..*)\n +", re.MULTILINE)
    while folded.search(text):
        text = folded.sub(r"\1 ", text)
    return f"{text}\n"


def number() -> str:
    """Return the ratio of growths of |w|^2 with and without its radial part: Corollary 2.3."""
    ratio = growth_ratio("sgd", weight_decay=0.0)
    (beta,) = ratio.free_symbols
    growth = ratio.subs(beta, sp.Rational(MOMENTUM))
    if norm_growth(sgdp_nesterov, weight_decay=0.0).cross != 0:
        raise ValueError("the recipe of the front page has a cross term")
    return (
        f'<p class="number"><b>{growth} : 1</b> So much more does |w|² grow under SGD with a '
        f"momentum of {float(sp.Rational(MOMENTUM))} than with the radial part removed, for steps "
        "of the same length.</p>\n"
    )


def sphere() -> str:
    """Draw a weight on its sphere, and a step with its radial and tangential parts."""
    angle, radial, tangential = math.radians(58), 62.0, 118.0
    w = _at(RADIUS, angle)
    out = (math.cos(angle), -math.sin(angle))  # y points down on a page
    side = (-math.sin(angle), -math.cos(angle))
    outer = (w[0] + radial * out[0], w[1] + radial * out[1])
    along = (w[0] + tangential * side[0], w[1] + tangential * side[1])
    new_weight = (outer[0] + tangential * side[0], outer[1] + tangential * side[1])
    turn = math.atan2(tangential, RADIUS)
    landed = _at(RADIUS, angle + turn)
    short = _at(RADIUS, angle + math.atan2(tangential, RADIUS + radial))
    ends = f"M{_xy(_at(RADIUS, math.pi))} A{RADIUS} 34 0 0"
    parts = [
        f'<path class="ball" d="{_arc(RADIUS, 0, math.pi)}"/>',
        f'<path class="equator" d="{ends} 0 {_xy(_at(RADIUS, 0))}"/>',
        f'<path class="equator far" d="{ends} 1 {_xy(_at(RADIUS, 0))}"/>',
        f'<path class="turn" d="{_arc(64, angle, angle + turn)}"/>',
        _line("weight", ORIGIN, w),
        _line("thin", ORIGIN, landed),
        _line("thin", ORIGIN, new_weight),
        _line("thin dashed", along, new_weight),
        _line("thin dashed", outer, new_weight),
        _line("step", w, new_weight),
        _line("radial", w, outer),
        _line("tangential", w, along),
        _dot(w, "weight"),
        _dot(landed, "tangential"),
        _dot(short, "step"),
        _text(w, "w", 16, 16, "weight"),
        _text(outer, "radial part", 10, -4, "radial"),
        _text(outer, "lengthens w", 10, 11, "radial"),
        _text(along, "tangential part", -14, 18, "tangential", "end"),
        _text(along, "turns w", -14, 33, "tangential", "end"),
        _text(new_weight, "step", 2, -8, "step", "middle"),
        _text(_at(74, angle + turn / 2), "turn", 0, -4, "turn", "middle"),
    ]
    label = "A weight on its sphere; its step has a radial part, outward, and a tangential part"
    heads = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path class="head {kind}" d="M0 0 L8 4 L0 8 z"/></marker>'
        for kind in ("weight", "step", "radial", "tangential")
    )
    return (
        f'<svg class="sphere" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"<defs>{heads}</defs>{''.join(parts)}</svg>\n"
    )


def _at(radius: float, angle: float) -> Point:
    return ORIGIN[0] + radius * math.cos(angle), ORIGIN[1] - radius * math.sin(angle)


def _xy(point: Point) -> str:
    return f"{point[0]:.1f} {point[1]:.1f}"


def _arc(radius: float, start: float, end: float) -> str:
    return f"M{_xy(_at(radius, start))} A{radius} {radius} 0 0 0 {_xy(_at(radius, end))}"


def _line(kind: str, start: Point, end: Point) -> str:
    head = "" if "thin" in kind else f' marker-end="url(#head-{kind})"'
    return f'<path class="{kind}" d="M{_xy(start)} L{_xy(end)}"{head}/>'


def _dot(at: Point, kind: str) -> str:
    return f'<circle class="{kind}" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"/>'


def _text(at: Point, text: str, right: float, down: float, kind: str, anchor: str = "start") -> str:
    x, y = at[0] + right, at[1] + down
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
