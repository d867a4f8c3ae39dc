"""The course of each measured weight over a run, and notes that can be read off it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from spherenorm.probes.measurement import Measurement

MOST = 200
"""Points that a course keeps; beyond it every other one is dropped, so that memory is bounded."""
FEWEST = 8
"""Points from which on a course is read."""
DEAD = 0.1
"""An effective step dies if its share of its start is below this part of the median weight's."""
FAR = 2.0
"""A turn is far from its equilibrium beyond this factor."""
GROWN = 1.1
"""A norm has grown beyond this factor; without momentum's inflation it stays within it."""
STEEP = 5.0
"""First turns ask for a warm-up beyond this factor of the median turn."""

Equilibrium = Callable[[Measurement], float]
"""The turn at which a measured weight would settle; nan if there is none."""


@dataclass
class Course:
    """The measurements of one weight, thinned out, and its turn in equilibrium at each.

    Attributes:
        points: measurements, the first and the last among them.
        equilibrium: the turn in equilibrium at each point; nan where there is none.
    """

    points: list[Measurement] = field(default_factory=list)
    equilibrium: list[float] = field(default_factory=list)
    _every: int = 1
    _seen: int = 0

    def add(self, measured: Measurement, equilibrium: float) -> None:
        """Append a measurement; the one before it goes, unless it is one of every `_every`."""
        if self._seen % self._every != 1 % self._every and len(self.points) > 1:
            self.points.pop()
            self.equilibrium.pop()
        self.points.append(measured)
        self.equilibrium.append(equilibrium)
        self._seen += 1
        if len(self.points) > MOST:
            self.points, self.equilibrium = self.points[::2], self.equilibrium[::2]
            self._every *= 2

    def drop_from(self, step: int) -> None:
        """Drop the points of this step and later ones."""
        while self.points and self.points[-1].step >= step:
            self.points.pop()
            self.equilibrium.pop()

    @property
    def last(self) -> Measurement:
        return self.points[-1]

    @property
    def early(self) -> float:
        """The median effective step of the first quarter."""
        return median(p.effective_step for p in self.points[: max(1, len(self.points) // 4)])

    @property
    def left(self) -> float:
        """The present effective step as a share of the early one; nan if that is 0."""
        now = median(p.effective_step for p in self.points[-3:])
        return now / self.early if self.early else math.nan


class History:
    """The courses of all measured weights.

    Args:
        equilibrium: the turn in equilibrium of a measurement, such as
            `spherenorm_theory.run_law(optimizer).turn`.

    Attributes:
        courses: by the name of the weight.
    """

    def __init__(self, equilibrium: Equilibrium | None = None) -> None:
        self.courses: dict[str, Course] = {}
        self._equilibrium = equilibrium

    def add(self, measured: Sequence[Measurement]) -> None:
        """Append a block. A step that was measured before, as by a run that resumes, replaces it
        and what came after it."""
        for each in measured:
            course = self.courses.setdefault(each.weight, Course())
            course.drop_from(each.step)
            course.add(each, math.nan if self._equilibrium is None else self._equilibrium(each))

    def notes(self) -> dict[str, list[str]]:
        """Notes on each weight's course, in words; a weight without any is left out."""
        read = {n: c for n, c in self.courses.items() if len(c.points) >= FEWEST}
        shares = [c.left for c in read.values() if not math.isnan(c.left)]
        usual = median(shares) if shares else math.nan
        found = {name: _read(course, usual) for name, course in read.items()}
        return {name: notes for name, notes in found.items() if notes}


def _read(course: Course, usual: float) -> list[str]:
    """Notes on one course; `usual` is the share of effective steps that is left, by the median."""
    last, notes = course.last, []
    if last.effective_step == 0:
        notes.append("its effective step is 0: it no longer moves")
    elif course.left < DEAD * usual:
        notes.append(
            f"its effective step dies: {course.left:.1%} of its start is left, "
            f"of the median weight's {usual:.1%}"
        )
    first, turns = course.points[0], [p.turn for p in course.points]
    growth = last.norm / first.norm_before if first.norm_before else math.nan
    if growth > GROWN and last.invariant_view is not None:
        projected = last.predicted is not None and not math.isnan(last.predicted)
        mend = "smaller steps" if projected else "a projection (AdamP, SGDP)"
        notes.append(
            f"scale-invariant, and its norm has grown {growth:.2f}-fold, which shrinks its "
            f"effective step: {mend} or more decay would change that"
        )
    if turns[0] > STEEP * median(turns):
        notes.append(
            f"it turned by {turns[0]:.2g} at first, {turns[0] / median(turns):.0f} times its "
            "median: a warm-up would change that"
        )
    settled = course.equilibrium[-1]
    if settled > 0 and last.turn > 0 and not 1 / FAR <= last.turn / settled <= FAR:
        notes.append(f"it turns {last.turn / settled:.2g} times as far as in equilibrium")
    return notes
