"""Running statistics, which follow the weights before them onto the sphere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm.audit._precise import EPS_LIMIT
from spherenorm.audit._sensitivity import nudged, units_of
from spherenorm.audit._subject import Point, Subject

_POINT = Point(eps_factor=EPS_LIMIT)
_NOTICED = 1e-2
"""A change of the outputs in eval mode, in units of how much they move with the parameters."""
_FIRST = "run some batches in training mode before you evaluate"


def change_with_statistics(
    model: nn.Module,
    batch: tuple[Sequence[Any], Mapping[str, Any]] | None,
    dtype: torch.dtype,
    change: Callable[[], None],
) -> None:
    """Change weights so that the outputs stay the same, in training and in evaluation.

    A scaled weight scales and shifts the inputs of a BatchNorm, channel by channel. Its running
    statistics must follow: they are scaled and shifted as the statistics of the batch are, measured
    on copies before and after the change. Warns if the outputs in eval mode change nevertheless, or
    if there is no batch.

    Args:
        model: in its mode; statistics of its parts in training mode follow.
        batch: the arguments and keyword arguments of the model; None if there are none.
        dtype: of the arithmetic.
        change: of the weights.
    """
    kept = [name for name, module in model.named_modules() if _keeps_statistics(module)]
    if batch is None:
        change()
        made = [n for n in kept if model.get_buffer(f"{n}.running_var").ne(1).any()]
        if made:
            warnings.warn(
                f"the running statistics of {made[0]!r} do not fit its weights on the sphere: give"
                f" param_groups the batch in place of its audit, or {_FIRST}",
                stacklevel=3,
            )
        return
    inputs, keywords = batch
    norms = [name for name in kept if model.get_submodule(name).training]
    subject = Subject(model, inputs, keywords, None, dtype)
    evaluated = _in_eval_mode(Subject(model, inputs, keywords, None, dtype))
    before = _batch_statistics(subject, norms)
    change()
    with torch.no_grad():
        for name, old, new in zip(norms, before, _batch_statistics(subject, norms), strict=True):
            _follow(model.get_submodule(name), old, new)
    now = _in_eval_mode(Subject(model, inputs, keywords, None, dtype))
    if evaluated is None or now is None:
        return
    pairs = zip(evaluated[0], now[0], units_of(*evaluated), strict=True)
    moved = max((float(((x - y) / unit).abs().max()) for x, y, unit in pairs), default=0.0)
    if moved > _NOTICED:
        warnings.warn(
            f"in eval mode the outputs change by {moved:.1g} of what they move with the parameters:"
            " they depend on norms of the weights that are now on the sphere, by statistics that"
            f" the model keeps or by an override; {_FIRST}",
            stacklevel=3,
        )


def _keeps_statistics(module: nn.Module) -> bool:
    """True for BatchNorm and the like."""
    kept = all(module._buffers.get(name) is not None for name in ("running_mean", "running_var"))
    return kept and hasattr(module, "momentum")


def _batch_statistics(subject: Subject, norms: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    """Mean and variance of the batch before each normalization."""
    modules = [subject.model.get_submodule(name) for name in norms]
    for module in modules:
        vars(module)["momentum"] = 1.0  # the statistics of the last batch alone
    subject.outputs(_POINT)
    return [(m._buffers["running_mean"], m._buffers["running_var"]) for m in modules]  # type: ignore[misc]


def _follow(norm: nn.Module, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> None:
    """Scale and shift running statistics as those of a batch, from `old` to `new`."""
    factor = torch.where(old[1] > 0, new[1] / old[1], 1)  # no variance shows nothing
    scale = factor.sqrt()
    mean, variance = norm._buffers["running_mean"], norm._buffers["running_var"]
    assert mean is not None
    assert variance is not None
    mean.copy_(scale * mean + new[0] - scale * old[0])
    variance.mul_(factor)


def _in_eval_mode(subject: Subject) -> tuple[list[Tensor], list[Tensor]] | None:
    """The outputs in eval mode, there and nearby; None if the model does not run in it."""
    subject.model.eval()
    try:
        return subject.outputs(_POINT), nudged(subject, _POINT)
    except Exception:  # what a model does in eval mode only is not asked for
        return None
