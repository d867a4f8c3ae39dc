"""A run seen live: one HTML page that renews itself."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from spherenorm.probes.history import Course, Equilibrium, History
from spherenorm.probes.measurement import Measurement, Sink
from spherenorm.support import atomic_write

WIDTH, HEIGHT = 220, 48
"""Of a curve, in pixels."""

STYLE = """
:root { color-scheme: light dark; --line: #1f6feb; --law: #d1480f; --rule: #8884; --note: #b35900 }
@media (prefers-color-scheme: dark) { :root { --line: #6cb6ff; --law: #ff9b5e; --note: #ffb86b } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 72rem;
  padding: 0 1rem }
h1 { font-size: 1.25rem; margin: 0 } p { margin: .4rem 0 }
ul { color: var(--note); padding-left: 1.2rem }
article { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; padding: .7rem 0;
  border-top: 1px solid var(--rule); align-items: flex-start }
header { flex: 1 1 11rem; min-width: 11rem; overflow-wrap: anywhere }
figure { margin: 0; flex: 0 1 auto } figcaption, small { opacity: .75; font-size: 12px }
svg { display: block; width: 100%; max-width: 220px; height: 48px }
path { fill: none; stroke: var(--line); stroke-width: 1.5 }
path.law { stroke: var(--law); stroke-dasharray: 4 3 }
"""


class Page(Sink):
    """Show a run on one HTML page that renews itself: norm, effective step and turn per weight.

    The page is self-contained: open the file in a browser while the loop trains. A dashed curve
    is the law's norm (`probe(law=...)`), or the turn in equilibrium. Weights whose effective step
    dies, that are far from equilibrium, or for which a projection, a decay or a warm-up would
    change something are named at the top. The file is written whole or not at all.

    Args:
        path: of the file; its folder is made, if need be.
        equilibrium: a function of a measurement: the turn at which the weight would settle, or
            nan. `spherenorm_theory.run_law(optimizer, model=model).turn` derives it.
        title: of the page.
        seconds: the page is written, and renews itself, at most once in so many.

    Raises:
        ValueError: `seconds` is not positive.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = sn.optim.SGDP([weight], lr=0.1)
        >>> with sn.probe(optimizer, every=1, to=Page("runs/probe.html")):
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> "Step 1, 1 weights, ended" in Path("runs/probe.html").read_text()
        True
    """

    block = 1

    def __init__(
        self,
        path: str | Path,
        *,
        equilibrium: Equilibrium | None = None,
        title: str = "A run, weight by weight",
        seconds: float = 2.0,
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds!r}")
        self._path, self._title, self._seconds = Path(path), title, seconds
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._history, self._written = History(equilibrium), -math.inf

    def __call__(self, measured: Sequence[Measurement]) -> None:
        self._history.add(measured)
        if time.monotonic() - self._written >= self._seconds:
            self._write(live=True)

    def close(self) -> None:
        """Write the page with all measurements; it no longer renews itself."""
        self._write(live=False)

    def _write(self, live: bool) -> None:
        atomic_write(self._path, _page(self._title, self._history, self._seconds if live else None))
        self._written = time.monotonic()


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def _page(title: str, history: History, seconds: float | None) -> str:
    """The HTML; with `seconds` it asks the browser to read it again after so many."""
    courses, notes = history.courses, history.notes()
    step = max((course.last.step for course in courses.values()), default=0)
    again = "" if seconds is None else f'<meta http-equiv="refresh" content="{math.ceil(seconds)}">'
    state = "ended" if seconds is None else "running"
    named = "".join(
        f"<li><b>{html.escape(name)}</b>: {html.escape('; '.join(each))}</li>"
        for name, each in notes.items()
    )
    verdict = f"<ul>{named}</ul>" if named else "<p>Nothing to note on any weight.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        f"<p>Step {step}, {len(courses)} weights, {state}. Numbers: the first and the last of a "
        f"curve. Dashed, where it is known: the norm by the law, the turn in equilibrium.</p>"
        f"{verdict}{''.join(map(_article, courses.values()))}"
        "</body></html>\n"
    )


def _article(course: Course) -> str:
    last, points = course.last, course.points
    view = last.invariant_view
    found = f"scale-invariant ({view}: {last.invariant:.0%})" if view else "not found invariant"
    law = [math.nan if p.predicted is None else p.predicted for p in points]
    steps = [p.step for p in points]

    def curve(name: str, of: Callable[[Measurement], float], expected: Sequence[float]) -> str:
        values = [of(p) for p in points]
        beside = _number(expected[-1])
        ends = f"{name} {_number(values[0])} → {_number(values[-1])}"
        caption = ends + (f" (expected {beside})" if beside else "")
        return (
            f"<figure>{_curves(steps, values, expected)}<figcaption>{caption}</figcaption></figure>"
        )

    nothing = [math.nan] * len(points)
    return (
        f"<article><header><b>{html.escape(last.weight)}</b><br>"
        f"<small>units: {html.escape(last.view)}; {found}</small></header>"
        + curve("norm", lambda p: p.norm, law)
        + curve("effective step", lambda p: p.effective_step, nothing)
        + curve("turn", lambda p: p.turn, course.equilibrium)
        + "</article>"
    )


def _curves(steps: Sequence[int], measured: Sequence[float], expected: Sequence[float]) -> str:
    """Two curves over steps in one small picture, on one scale."""
    known = [y for y in (*measured, *expected) if math.isfinite(y)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    pad = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad
    span = max(1, steps[-1] - steps[0])

    def path(values: Sequence[float], kind: str) -> str:
        spots = [
            f"{WIDTH * (x - steps[0]) / span:.1f} {HEIGHT * (high - y) / (high - low):.1f}"
            for x, y in zip(steps, values, strict=True)
            if math.isfinite(y)
        ]
        return f'<path class="{kind}" d="M{" L".join(spots)}"/>' if spots else ""

    both = path(measured, "run") + path(expected, "law")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{both}</svg>'
