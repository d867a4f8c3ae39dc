"""Sinks: receivers of measurements, which write them to files or show them on a live page."""

from __future__ import annotations

import html
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from spherenorm.probes.meter import SCALAR_NAMES, Measurement
from spherenorm.support import atomic_write, require_module

MeasurementsFn = Callable[[Sequence[Measurement]], object]
MAX_POINTS = 200
"""Points that a trajectory keeps; beyond it every second one is dropped, which bounds memory."""
MIN_POINTS = 8
"""Points that a trajectory needs before there are notes on it."""
DYING_SHARE = 0.1
"""An effective step dies if its share of its start is below this part of the median weight's, and
all of them die if the median share is below this."""
FAR_FROM_EQUILIBRIUM = 2.0
"""A turn is far from its equilibrium beyond this factor."""
GROWN_NORM = 1.5
"""A norm has grown beyond this factor."""
MIN_RADIAL_SHARE = 0.1
"""A projection changes a growth of whose squares the radial part is more than this share."""
GROWN_SHARE = 0.95
"""A norm has settled once it is beyond this share of its last value."""
ENDS = 3
"""Points whose median stands for the start or the end of a trajectory."""
STEEP_START = 5.0
"""The first turn asks for a warm-up beyond this factor of the median turn."""
LOG_SCALE_RANGE = 10.0
"""An effective step whose largest value is beyond this factor of the smallest has a log axis."""
NAMED_WEIGHTS = 3
"""Weights that a note names; it counts the others."""
CURVE_WIDTH, CURVE_HEIGHT = 320, 48
"""Size of a curve, in pixels."""

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
@media (max-width: 56rem) { header { flex-basis: 100% } }
figure { margin: 0; flex: 1 1 12rem; max-width: 320px }
figcaption, small { opacity: .75; font-size: 12px }
svg { display: block; width: 100%; max-width: 320px; height: 48px }
path { fill: none; stroke: var(--line); stroke-width: 1.5 }
path.law { stroke: var(--law); stroke-dasharray: 4 3 }
"""

EquilibriumFn = Callable[[Measurement], float]
"""Return the turn at which a measured weight would settle; nan if there is none."""


class Sink:
    """A receiver of a probe's measurements, block by block. A plain function will do, too.

    Known sinks: `JSONLines`, `TensorBoard` and `WandB` write blocks; `Page` shows each
    measured step at once. A subclass defines `__call__`, and `close` if it has to end something.

    Args:
        function: a function that is called with each block.

    Attributes:
        block: number of measured steps in a block, unless `probe` is given another number. The
            probe waits for the device once per block.

    Example:
        >>> class Largest(sn.probes.Sink):
        ...     block = 1
        ...     def __call__(self, measurements):
        ...         print("step", measurements[-1].step, max(m.weight for m in measurements))
        ...     def close(self):
        ...         print("ended")
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = torch.optim.SGD({"w": weight}.items(), lr=1.0)
        >>> with sn.probe(optimizer, every=1, to=Largest()):
        ...     weight.grad = torch.eye(2)
        ...     optimizer.step()
        step 1 w
        ended
    """

    block: int = 64

    def __init__(self, function: MeasurementsFn | None = None) -> None:
        self._function = function

    def __call__(self, measurements: Sequence[Measurement]) -> object:
        """Receive the measurements of a block, in the order of steps."""
        if self._function is None:
            raise NotImplementedError(
                f"{type(self).__name__} does not define __call__(measurements)"
            )
        return self._function(measurements)

    def close(self) -> None:
        """End the sink; no block follows."""


class JSONLines(Sink):
    """A sink that writes each block to a new file; `cat folder/*.jsonl` is the whole run.

    A line is a measurement; numbers that are not finite are null. A file is written whole or not at
    all, and is named after its last step: a run that resumes from a checkpoint writes its files
    anew. Files of another run would stay beside them, so each run needs its own folder.

    Args:
        folder: folder of the files; it is made if it does not exist.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = sn.optim.SGDP([weight], lr=0.1)
        >>> with sn.probe(optimizer, every=1, to=JSONLines("runs/probe")):
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> [file.name for file in Path("runs/probe").iterdir()]
        ['000000001.jsonl']
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        lines = [json.dumps(m.plain(), allow_nan=False) + "\n" for m in measurements]
        atomic_write(self._folder / f"{measurements[-1].step:09d}.jsonl", "".join(lines))


class TensorBoard(Sink):
    """A sink that writes each number of a weight as a scalar `number/weight`.

    Args:
        folder: folder of the event files, or a `SummaryWriter` of yours.

    Raises:
        MissingExtraError: tensorboard is not installed.

    Example:
        >>> write = TensorBoard("runs/board")  # for sn.probe(optimizer, to=write)
        >>> write([Measurement(10, "a", "channel", 1.0, 1.5, 0.25, 0.25, 0.0, 1.0, "channel")])
        >>> [file.name.split(".")[0] for file in Path("runs/board").iterdir()]
        ['events']
    """

    def __init__(self, folder: Any) -> None:
        self._writer = folder
        if isinstance(folder, str | Path):
            tensorboard = require_module(
                "torch.utils.tensorboard",
                "TensorBoard is not there ({error}): pip install 'spherenorm[tensorboard]'",
            )
            self._writer = tensorboard.SummaryWriter(str(folder))

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        for measurement in measurements:
            for name, value in _finite_scalars(measurement).items():
                self._writer.add_scalar(name, value, measurement.step)
        self._writer.flush()


class WandB(Sink):
    """A sink that logs each number of a weight to Weights & Biases, over `probe/step`.

    The names are `number/weight`.

    Args:
        run: a run of `wandb.init`; None takes the present one.

    Raises:
        MissingExtraError: wandb is not installed.
        ValueError: there is no run.

    Example:
        >>> WandB()
        Traceback (most recent call last):
        ValueError: WandB: no run is open; call wandb.init() first, or pass its run
    """

    def __init__(self, run: Any = None) -> None:
        if run is None:
            wandb = require_module(
                "wandb", "WandB is not there ({error}): pip install 'spherenorm[wandb]'"
            )
            run = wandb.run
        if run is None:
            raise ValueError("WandB: no run is open; call wandb.init() first, or pass its run")
        self._run = run
        # The run's own step is the training loop's, which may have logged beyond a block's steps.
        run.define_metric("probe/step")
        for name in SCALAR_NAMES:
            run.define_metric(f"{name}/*", step_metric="probe/step")
        run.define_metric("watched_*", step_metric="probe/step")

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        for step, same_step in groupby(measurements, lambda m: m.step):
            scalars: dict[str, float] = {}
            for measurement in same_step:
                scalars |= _finite_scalars(measurement)
            self._run.log({"probe/step": step, **scalars})


def _finite_scalars(measurement: Measurement) -> dict[str, float]:
    """Return the finite numbers of a measurement, by `number/weight`."""
    entries = measurement.plain()
    scalars = {name: entries[name] for name in SCALAR_NAMES}
    scalars |= {f"watched_{key}": x for key, x in entries.get("watched", {}).items()}
    return {f"{name}/{measurement.weight}": x for name, x in scalars.items() if x is not None}


class Page(Sink):
    """A sink that shows a run on one HTML page: norm and effective step of each matrix.

    Vectors, such as biases and gains, are left out.
    The page is self-contained and renews itself: open the file in a browser while the loop trains.
    A dashed curve is the law's norm (`probe(law=...)`), or the effective step in equilibrium. An
    effective step that falls beyond a tenth has a logarithmic axis. Notes at the top say what goes
    wrong and what would change it, each once for all weights that it is about. The file is written
    whole or not at all.

    Args:
        path: path of the file; its folder is made if it does not exist.
        equilibrium: a function of a measurement: the turn at which the weight would settle, or
            nan. `spherenorm_theory.run_law(optimizer, model=model).turn` derives it.
        title: title of the page.
        seconds: the page is written, and renews itself, at most once in this time.

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
        equilibrium: EquilibriumFn | None = None,
        title: str = "A run, weight by weight",
        seconds: float = 2.0,
    ) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds must be positive, got {seconds!r}")
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._title = title
        self._seconds = seconds
        self._trajectories = Trajectories(equilibrium)
        self._last_write = -math.inf

    def __call__(self, measurements: Sequence[Measurement]) -> None:
        self._trajectories.add(measurements)
        if time.monotonic() - self._last_write >= self._seconds:
            self._write(live=True)

    def close(self) -> None:
        """Write the page with all measurements; it no longer renews itself."""
        self._write(live=False)

    def _write(self, live: bool) -> None:
        seconds = self._seconds if live else None
        atomic_write(self._path, _render_page(self._title, self._trajectories, seconds))
        self._last_write = time.monotonic()


@dataclass
class Trajectory:
    """The measurements of one weight over a run, thinned out.

    Attributes:
        points: measurements; the first and the last of the run are among them.
        equilibrium: the turn in equilibrium at each point; nan where there is none.
    """

    points: list[Measurement] = field(default_factory=list)
    equilibrium: list[float] = field(default_factory=list)
    _stride: int = 1
    _n_added: int = 0

    def add(self, measurement: Measurement, equilibrium: float) -> None:
        """Append a measurement. The last one before it is kept only once per `_stride`."""
        if self._n_added % self._stride != 1 % self._stride and len(self.points) > 1:
            self._drop_last()
        self.points.append(measurement)
        self.equilibrium.append(equilibrium)
        self._n_added += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.equilibrium = self.equilibrium[::2]
            self._stride *= 2

    def drop_from(self, step: int) -> None:
        """Drop the points of this step and later ones."""
        while self.points and self.points[-1].step >= step:
            self._drop_last()

    def _drop_last(self) -> None:
        self.points.pop()
        self.equilibrium.pop()

    @property
    def last(self) -> Measurement:
        """The last measurement."""
        return self.points[-1]

    @property
    def is_rate_known(self) -> bool:
        """True if all points have a learning rate."""
        return not any(math.isnan(p.lr) for p in self.points)

    @property
    def points_at_full_rate(self) -> list[int]:
        """The indices of the points whose learning rate is at least half of the largest."""
        if not self.is_rate_known:
            return [*range(len(self.points))]
        largest = max(p.lr for p in self.points)
        return [i for i, p in enumerate(self.points) if p.lr >= largest / 2]

    @property
    def remaining_share(self) -> float:
        """The present effective step as a share of the first ones; nan if they are 0.

        Where learning rates are known, each step is divided by its rate: a schedule that lowers the
        rate does what it was asked for, and is nothing to note.
        """
        rates = [p.lr if self.is_rate_known else 1.0 for p in self.points]
        steps = [
            p.effective_step / rate for p, rate in zip(self.points, rates, strict=True) if rate != 0
        ]
        first_step = median(steps[:ENDS]) if steps else 0.0
        return median(steps[-ENDS:]) / first_step if first_step else math.nan

    @property
    def growth(self) -> float:
        """The factor by which the norm has grown since the first point; nan if that was 0."""
        first_norm = self.points[0].norm
        return self.last.norm / first_norm if first_norm else math.nan

    @property
    def radial_share(self) -> float:
        """The growth of |w|^2 by the radial part of steps, 2 <w, d>, per growth by |d|^2.

        It is 0 for steps orthogonal to w, below 0 with decay, and up to 18 with a momentum of 0.9.
        """
        # Once the norm has settled, decay takes back what all parts add.
        still_small = [p.norm < GROWN_SHARE * self.last.norm for p in self.points]
        growing_points = itertools.compress(self.points, still_small)
        points = [p for p in growing_points if p.norm_before and p.relative_step > 0]
        squares = sum(p.relative_step**2 for p in points)
        growth = sum((p.norm / p.norm_before) ** 2 - 1 for p in points)
        return growth / squares - 1 if squares else math.nan

    @property
    def is_growing(self) -> bool:
        """True if the weight is scale-invariant, and its norm has grown."""
        return self.last.invariant_view is not None and self.growth > GROWN_NORM

    @property
    def remedy_of_growth(self) -> str:
        """The remedy that would keep the norm of a scale-invariant weight from growing."""
        if self.radial_share > MIN_RADIAL_SHARE:
            return "a projection (AdamP, SGDP) or more decay"
        return "more decay or smaller steps"


class Trajectories:
    """The trajectories of all measured weights, and notes on what goes wrong in them.

    Args:
        equilibrium: a function that returns the turn in equilibrium of a measurement, such as
            `spherenorm_theory.run_law(optimizer).turn`.

    Attributes:
        by_weight: the `Trajectory` of each weight, by its name.
    """

    def __init__(self, equilibrium: EquilibriumFn | None = None) -> None:
        self.by_weight: dict[str, Trajectory] = {}
        self._equilibrium = equilibrium

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Append a block, without vectors.

        A step that was measured before, as by a run that resumes, replaces it and what came after.
        """
        for measurement in measurements:
            if measurement.shape is not None and len(measurement.shape) < 2:
                continue
            trajectory = self.by_weight.setdefault(measurement.weight, Trajectory())
            trajectory.drop_from(measurement.step)
            equilibrium = math.nan
            if self._equilibrium is not None:
                equilibrium = self._equilibrium(measurement)
            trajectory.add(measurement, equilibrium)

    def notes(self) -> list[Note]:
        """Return what goes wrong, each kind once for all of the weights that it is about."""
        trajectories = [x for x in self.by_weight.values() if len(x.points) >= MIN_POINTS]
        find_notes = (_note_stopped, _note_dying, _note_growth, _note_steep_start, _note_turns)
        return [note for find in find_notes for note in find(trajectories) if note.weights]


@dataclass(frozen=True)
class Note:
    """Something that goes wrong, and what would change it.

    Attributes:
        weights: names of the weights that it is about.
        observation: what was measured.
        remedy: what would change it.
    """

    weights: Sequence[str]
    observation: str
    remedy: str

    @property
    def subject(self) -> str:
        """The weights: the names of the first ones, and the number of the others."""
        n_more = len(self.weights) - NAMED_WEIGHTS
        names = ", ".join(self.weights[:NAMED_WEIGHTS])
        return f"{names} and {n_more} more" if n_more > 0 else names


def _note_stopped(trajectories: Sequence[Trajectory]) -> list[Note]:
    """Note the weights that stand still though their learning rate is not 0."""
    stopped = [x.last for x in trajectories if x.last.effective_step == 0 and x.last.lr != 0]
    without_gradient = [x.weight for x in stopped if not x.grad_norm > 0]
    with_gradient = [x.weight for x in stopped if x.grad_norm > 0]
    observation = "the effective step is 0: no step moves it"
    return [
        Note(without_gradient, f"{observation}, and its gradient is 0 or missing", "look for it"),
        Note(with_gradient, observation, "look whether its optimizer steps it"),
    ]


def _note_dying(trajectories: Sequence[Trajectory]) -> list[Note]:
    """Note the weights whose effective steps die beside the others', or else all that die."""
    shares = {
        x.last.weight: x.remaining_share
        for x in trajectories
        if x.last.effective_step > 0 and not math.isnan(x.remaining_share)
    }
    if not shares:
        return []
    typical_share = median(shares.values())
    limit = DYING_SHARE * min(typical_share, 1.0)
    beside = f", of the median weight's {_percent(typical_share)}"
    if typical_share < DYING_SHARE:
        limit, beside = DYING_SHARE, ""
    dying = [x for x in trajectories if shares.get(x.last.weight, math.inf) < limit]
    notes = []
    for remedy, of_remedy in _group_by(dying, _remedy_of_dying).items():
        changes = any(len({p.lr for p in x.points}) > 1 for x in of_remedy if x.is_rate_known)
        remaining = _span((shares[x.last.weight] for x in of_remedy), _percent)
        observation = (
            f"the effective step{' per learning rate' if changes else ''} dies: {remaining} of its "
            f"start is left{beside}"
        )
        notes.append(Note([x.last.weight for x in of_remedy], observation, remedy))
    return notes


def _remedy_of_dying(trajectory: Trajectory) -> str:
    """Return what would keep an effective step from dying, by its cause."""
    if trajectory.is_growing:
        return f"{trajectory.remedy_of_growth}, since it dies of its norm's growth"
    remedy = "a higher learning rate for it"
    return remedy if trajectory.is_rate_known else f"unless a schedule lowers the rate, {remedy}"


def _note_growth(trajectories: Sequence[Trajectory]) -> list[Note]:
    """Note scale-invariant weights whose norms have grown."""
    growing = [x for x in trajectories if x.is_growing]
    return [
        Note(
            [x.last.weight for x in of_remedy],
            f"scale-invariant, and the norm has grown {_span(x.growth for x in of_remedy)}-fold "
            f"since step {of_remedy[0].points[0].step}, which shrinks its effective step",
            remedy,
        )
        for remedy, of_remedy in _group_by(growing, lambda x: x.remedy_of_growth).items()
    ]


def _note_steep_start(trajectories: Sequence[Trajectory]) -> list[Note]:
    """Note the weights that turned farthest at first, at a rate that was not warmed up."""
    factors = {}
    for trajectory in trajectories:
        indices, first_turn = trajectory.points_at_full_rate, trajectory.points[0].turn
        median_turn = median(trajectory.points[i].turn for i in indices)
        is_warmed_up = indices[0] > 0
        if not is_warmed_up and median_turn > 0 and first_turn > STEEP_START * median_turn:
            factors[trajectory.last.weight] = first_turn / median_turn
    times = _span(factors.values())
    return [Note([*factors], f"it turned {times} times as far at first as its median", "a warm-up")]


def _note_turns(trajectories: Sequence[Trajectory]) -> list[Note]:
    """Note the weights that have not come to their equilibrium, while a schedule gave them time.

    Norms settle in some 1 / (lr weight_decay) steps, which no schedule waits for that takes the
    rate to 0: the last point counts whose rate is at least half of the largest.
    """
    ratios = {}
    for trajectory in trajectories:
        index = trajectory.points_at_full_rate[-1]
        turn, equilibrium = trajectory.points[index].turn, trajectory.equilibrium[index]
        if equilibrium > 0 and turn > 0:
            ratios[trajectory.last.weight] = turn / equilibrium
    low, high = 1 / FAR_FROM_EQUILIBRIUM, FAR_FROM_EQUILIBRIUM
    far_ratios = {name: ratio for name, ratio in ratios.items() if not low <= ratio <= high}
    times = _span(far_ratios.values())
    observation = f"it turns {times} times as far as in equilibrium"
    return [Note([*far_ratios], observation, "more steps, or a larger lr · weight_decay")]


def _group_by(
    trajectories: Iterable[Trajectory], key: Callable[[Trajectory], str]
) -> dict[str, list[Trajectory]]:
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(key(trajectory), []).append(trajectory)
    return groups


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def _span(values: Iterable[float], write: Callable[[float], str] = "{:.3g}".format) -> str:
    """Return the least and the largest number in words; one where both read alike."""
    ordered = sorted(values)
    ends = [write(value) for value in (*ordered[:1], *ordered[-1:])]
    return " to ".join(dict.fromkeys(ends))


def _render_page(title: str, trajectories: Trajectories, seconds: float | None) -> str:
    """Return the HTML; with `seconds` it asks the browser to load it again after that time."""
    notes = trajectories.notes()
    step = max((t.last.step for t in trajectories.by_weight.values()), default=0)
    refresh = ""
    if seconds is not None:
        refresh = f'<meta http-equiv="refresh" content="{math.ceil(seconds)}">'
    state = "ended" if seconds is None else "running"
    note_items = "".join(
        f"<li><b>{html.escape(note.subject)}</b>: {html.escape(note.observation)}. "
        f"What would change it: {html.escape(note.remedy)}.</li>"
        for note in notes
    )
    summary = f"<ul>{note_items}</ul>" if notes else "<p>Nothing to note on any weight.</p>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>"
        f"<h1>{html.escape(title)}</h1>"
        f"<p>Step {step}, {len(trajectories.by_weight)} weights, {state}. Numbers: the first and "
        "the last of a curve. Dashed, where it is known: the norm by the law, the effective step "
        "in equilibrium.</p>"
        f"{summary}{''.join(map(_render_weight, trajectories.by_weight.values()))}"
        "</body></html>\n"
    )


def _render_weight(trajectory: Trajectory) -> str:
    """Return the HTML of one weight: its name, its invariance, and three figures."""
    last, points = trajectory.last, trajectory.points
    view = last.invariant_view
    invariance = "not found invariant"
    if view:
        invariance = f"scale-invariant ({view}: {last.invariant:.0%})"
    elif not last.grad_norm > 0:
        invariance = "no gradient, so that it cannot be tested"
    predicted = [math.nan if p.predicted is None else p.predicted for p in points]
    expected_steps = [2 * math.sin(turn / 2) for turn in trajectory.equilibrium]
    steps = [p.step for p in points]
    return (
        f"<article><header><b>{html.escape(last.weight)}</b><br>"
        f"<small>units: {html.escape(last.view)}; {invariance}</small></header>"
        + _render_figure("norm", steps, [p.norm for p in points], predicted)
        + _render_figure(
            "effective step", steps, [p.effective_step for p in points], expected_steps
        )
        + "</article>"
    )


def _render_figure(
    name: str, steps: Sequence[int], values: Sequence[float], expected: Sequence[float]
) -> str:
    """Return the HTML of a curve over steps with its expected curve and a caption.

    The axis is logarithmic if the values are positive and `LOG_SCALE_RANGE` apart.
    """
    caption = f"{name} {_format_number(values[0])} → {_format_number(values[-1])}"
    if not math.isnan(expected[-1]):
        caption += f" (expected {_format_number(expected[-1])})"
    positive = [y for y in values if math.isfinite(y) and y > 0]
    if positive and max(positive) > LOG_SCALE_RANGE * min(positive):
        caption += ", log axis"
        values, expected = _logarithms(values), _logarithms(expected)
    curves = _render_curves(steps, values, expected)
    return f"<figure>{curves}<figcaption>{caption}</figcaption></figure>"


def _logarithms(values: Sequence[float]) -> list[float]:
    """Return decimal logarithms; nan, which is not drawn, where there is none."""
    return [math.log10(y) if y > 0 else math.nan for y in values]


def _format_number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def _render_curves(steps: Sequence[int], values: Sequence[float], expected: Sequence[float]) -> str:
    """Return an SVG of two curves over steps, on one scale, without values that are not finite."""
    finite = [y for y in (*values, *expected) if math.isfinite(y)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    padding = 0.05 * ((high - low) or abs(high) or 1.0)
    low, high = low - padding, high + padding
    span = max(1, steps[-1] - steps[0])

    def path(curve: Sequence[float], css_class: str) -> str:
        coordinates = [
            f"{CURVE_WIDTH * (x - steps[0]) / span:.1f} "
            f"{CURVE_HEIGHT * (high - y) / (high - low):.1f}"
            for x, y in zip(steps, curve, strict=True)
            if math.isfinite(y)
        ]
        return f'<path class="{css_class}" d="M{" L".join(coordinates)}"/>' if coordinates else ""

    paths = path(values, "run") + path(expected, "law")
    return f'<svg viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" role="img">{paths}</svg>'
