"""`coordinate_check`: whether a step changes a module's output alike at every width."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spherenorm.audit.param_groups import ParamGroups
from spherenorm.support import columns

MAX_SLOPE = 0.3
"""A slope beyond this size counts as growing or vanishing.

Small widths alone cause up to 0.2: a batch's gradient has more rank than a narrow layer, so that
steps are less aligned than at a large width.
"""


@dataclass(frozen=True)
class ModuleSlopes:
    """Slopes that say how the output of one module depends on the width.

    Attributes:
        name: the module's name; "(output)" is the whole model.
        start: slope of log rms(output) over log width before the first step.
        first_change, last_change: slopes of the change of the output since the start, after the
            first and after the last step. 0: the same at every width; 1: in proportion to it.
        changes: the root mean square of that last change by width, as a mean over seeds.
    """

    name: str
    start: float
    first_change: float
    last_change: float
    changes: Mapping[int, float] = field(compare=False)

    @property
    def holds(self) -> bool:
        """True if the changes after the first and the last step neither grow nor vanish."""
        return all(abs(slope) <= MAX_SLOPE for slope in (self.first_change, self.last_change))


class CoordinateCheck(tuple[ModuleSlopes, ...]):
    """A table of `ModuleSlopes`, one for each module, with a verdict.

    Example:
        >>> check = CoordinateCheck([ModuleSlopes("0", 0.0, 0.0, 0.9, {32: 0.1, 64: 0.19})])
        >>> check.holds
        False
        >>> check.verdict
        'a rate does not transfer: the changes of 0 grow with the width (slope +0.90)'
    """

    @property
    def holds(self) -> bool:
        """True if no module's change grows or vanishes with the width."""
        return all(slopes.holds for slopes in self)

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        worst = max(self, key=lambda slopes: max(abs(x) for x in _changes(slopes)))
        slope = max(_changes(worst), key=abs)
        if self.holds:
            return (
                f"changes are alike at every width: the largest slope is {slope:+.2f} "
                f"({worst.name}), of at most {MAX_SLOPE}"
            )
        direction = "grow" if slope > 0 else "vanish"
        return (
            f"a rate does not transfer: the changes of {worst.name} {direction} with the width "
            f"(slope {slope:+.2f})"
        )

    def svg(self) -> str:
        """Return a picture: the change of each module's output over the width, on log axes.

        Example:
            >>> check = CoordinateCheck([ModuleSlopes("0", 0.0, 0.0, 0.9, {32: 0.1, 64: 0.19})])
            >>> check.svg().startswith("<svg")
            True
        """
        return _draw(self)

    _repr_svg_ = svg

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = []
        rows.append(("module", "output, start", "change, first step", "change, last step", ""))
        for slopes in self:
            cells = (slopes.start, slopes.first_change, slopes.last_change)
            note = "" if slopes.holds else "depends on the width"
            rows.append((slopes.name, *(f"{x:+.2f}" for x in cells), note))
        return f"slopes of log rms over log width\n{columns(rows)}\n\n{self.verdict}"

    __repr__ = __str__


def coordinate_check(
    make_model: Callable[[int], nn.Module],
    batch: Any,
    loss: Callable[[Any], Tensor],
    *,
    groups: Callable[[nn.Module], ParamGroups | Optimizer],
    widths: Sequence[int] = (32, 64, 128, 256),
    steps: int = 4,
    seeds: int = 2,
) -> CoordinateCheck:
    """Measure how each module's output, and its change in the first steps, depends on the width.

    If a learning rate is to transfer from one width to the next, the change of every output since
    the start must have entries of the same size at every width: a slope of log rms over log width
    near 0. A slope of 1 says that the change grows in proportion to the width.

    Args:
        make_model: a function of the width that makes a freshly initialized model.
        batch: a tensor, a tuple of the model's arguments, or a mapping of its keyword arguments.
        loss: a scalar function of the model's output.
        groups: a function of a model that returns `sn.param_groups(...)` for it, or any optimizer.
        widths: at least two widths.
        steps: the number of steps, all on this batch.
        seeds: the number of initializations at each width.

    Raises:
        ValueError: fewer than two widths, no step or no seed; a model without modules in common
            with the others; an output that is not finite.

    Example:
        >>> make = lambda width: nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        >>> check = coordinate_check(
        ...     make,
        ...     torch.randn(8, 4),
        ...     lambda output: output.square().mean(),
        ...     groups=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
        ...     widths=(64, 256),
        ... )
        >>> check.holds
        False

    Source: Yang et al. 2022 (Tensor Programs V), Appendix D.1.
    """
    if len(set(widths)) < 2 or steps < 1 or seeds < 1:
        raise ValueError(
            "coordinate_check needs two widths, a step and a seed, got "
            f"widths={tuple(widths)!r}, steps={steps!r}, seeds={seeds!r}"
        )
    runs: dict[int, list[_Run]] = {}
    with torch.random.fork_rng(devices=[]):
        for width in widths:
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = make_model(width)
                runs.setdefault(width, []).append(_run(model, batch, loss, groups, steps))
    names = list(runs[widths[0]][0].sizes)
    common = [name for name in names if all(name in run.sizes for w in runs for run in runs[w])]
    if not common:
        raise ValueError("coordinate_check: the models have no modules in common")
    return CoordinateCheck(_slopes_of_module(name, runs) for name in common)


@dataclass(frozen=True)
class _Run:
    """The root mean squares of each module's outputs at the start, and of their changes by step."""

    sizes: dict[str, float]
    changes: dict[str, list[float]]


def _run(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any], Tensor],
    groups: Callable[[nn.Module], ParamGroups | Optimizer],
    steps: int,
) -> _Run:
    """Train a model for some steps on one batch, and measure the outputs of its modules."""
    optimizer = groups(model)
    if isinstance(optimizer, ParamGroups):
        optimizer = optimizer.optimizer()
    initial, _ = _outputs(model, batch)
    run = _Run({name: _rms(x) for name, x in initial.items()}, {name: [] for name in initial})
    for _ in range(steps):
        optimizer.zero_grad()
        _, result = _outputs(model, batch, grad=True)
        torch.autograd.backward(loss(result))
        optimizer.step()
        now, _ = _outputs(model, batch)
        for name, start in initial.items():
            run.changes[name].append(_rms(now[name] - start))
    for name, changes in run.changes.items():
        if not all(map(math.isfinite, changes)):
            raise ValueError(f"coordinate_check: the output of {name} is not finite: a lower lr")
    return run


def _outputs(model: nn.Module, batch: Any, grad: bool = False) -> tuple[dict[str, Tensor], Any]:
    """Return the outputs of the modules without children and of the model, and the result.

    A module that runs several times has the output of its last run.
    """
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.is_floating_point():
                outputs[name] = output.detach().clone()

        return hook

    watched = [(name, x) for name, x in model.named_modules() if name and not list(x.children())]
    watched.append(("(output)", model))
    handles = [module.register_forward_hook(keep(name)) for name, module in watched]
    try:
        with torch.set_grad_enabled(grad):
            if isinstance(batch, Mapping):
                result = model(**batch)
            else:
                result = model(*(batch if isinstance(batch, tuple | list) else (batch,)))
    finally:
        for handle in handles:
            handle.remove()
    return outputs, result


def _rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def _slopes_of_module(name: str, runs: Mapping[int, Sequence[_Run]]) -> ModuleSlopes:
    """Return the slopes of one module over the widths."""

    def by_width(value_of: Callable[[_Run], float]) -> dict[int, float]:
        return {
            width: statistics.fmean(value_of(run) for run in runs_of_width)
            for width, runs_of_width in runs.items()
        }

    last_changes = by_width(lambda run: run.changes[name][-1])
    return ModuleSlopes(
        name,
        _slope(by_width(lambda run: run.sizes[name])),
        _slope(by_width(lambda run: run.changes[name][0])),
        _slope(last_changes),
        last_changes,
    )


def _slope(values: Mapping[int, float]) -> float:
    """Return the slope of log value over log width by least squares; 0 where a value is 0."""
    if min(values.values()) == 0:
        return 0.0
    logs_of_width = [math.log(width) for width in values]
    logs_of_value = [math.log(value) for value in values.values()]
    return statistics.linear_regression(logs_of_width, logs_of_value).slope


def _changes(slopes: ModuleSlopes) -> tuple[float, float]:
    return slopes.first_change, slopes.last_change


def _draw(check: Sequence[ModuleSlopes]) -> str:
    """Draw the last changes over the width; modules whose change depends on it are orange."""
    width, height, margin, label_width, bottom = 520, 300, 60, 130, 36
    curves = {x.name: x.changes for x in check if min(x.changes.values()) > 0}
    logs = [math.log10(y) for curve in curves.values() for y in curve.values()] or [0.0]
    low, high = min(logs) - 0.1, max(logs) + 0.1
    widths = sorted({w for slopes in check for w in slopes.changes})

    def x_of(value: int) -> float:
        share = math.log(value / widths[0]) / math.log(widths[-1] / widths[0])
        return margin + share * (width - margin - label_width)

    def y_of(value: float) -> float:
        share = (high - math.log10(value)) / (high - low)
        return 10 + share * (height - 10 - bottom)

    text = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    parts = [
        f'<text x="{margin - 6}" y="{y_of(10**y):.0f}" text-anchor="end" {text}>{10**y:.1e}</text>'
        for y in (low + 0.1, high - 0.1)
    ]
    parts += [
        f'<text x="{x_of(w):.0f}" y="{height - 18}" text-anchor="middle" {text}>{w}</text>'
        for w in widths
    ]
    parts.append(
        f'<text x="{margin}" y="{height - 3}" {text}>width; change of the output (rms)</text>'
    )
    for slopes in check:
        if slopes.name not in curves:
            continue
        color = "#0969da" if slopes.holds else "#c2591a"
        spots = [f"{x_of(w):.1f} {y_of(y):.1f}" for w, y in sorted(slopes.changes.items())]
        parts.append(
            f'<path d="M{" L".join(spots)}" fill="none" stroke="{color}" stroke-width="1.6"/>'
        )
        x, y = spots[-1].split()
        parts.append(
            f'<text x="{float(x) + 5:.1f}" y="{y}" {text}>{slopes.name} '
            f"{slopes.last_change:+.2f}</text>"
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="change of each output over the width">{"".join(parts)}</svg>'
    )
