"""`audit`: which weights of a model are scale-invariant, and in which view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from spherenorm.audit.model import Point, Subject, tensors_of, unwrap
from spherenorm.audit.precise import EPS_LIMIT
from spherenorm.audit.report import Audit
from spherenorm.audit.roles import measured_roles
from spherenorm.audit.scaling import fails_scaling_check
from spherenorm.audit.sensitivity import Measured, measure
from spherenorm.audit.uses import Uses
from spherenorm.audit.verdict import Evidence, Verdict, dims_of, judge
from spherenorm.views import View, ViewLike, as_view

_FEWEST_POINTS, _MOST_POINTS = 2, 8
"""Jittered points: so many in any case, and so many to see each weight at two, each unit at one."""
_MANY_UNITS = 16
"""So many units show the share of an eps in one random direction of the outputs."""
_CLEARLY = 1e-5
"""A move by this share is not made by an eps alone, which is 1e10 times smaller."""


def audit(
    model: nn.Module,
    batch: Any,
    *,
    views: ViewLike | Sequence[ViewLike] | None = None,
    loss: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Audit:
    r"""Find the weights w of two or more dimensions with f(c w) = f(w), and their views.

    A scale-invariant unit has no radial sensitivity: <w, g> = 0 for the gradient g of every
    output. The statistic is

        sqrt(dim(w)) |<w, g>| / (|w| |g|),   g the gradient of <r, f>, r random,

    0 for an invariant unit and about 1 for a random direction, however little the weight matters.
    It is taken at the model's own point, and at points where the other parameters (zeros too) and
    the batch are jittered; each time with every eps that a normalization adds, or that is added to
    a tensor, made 1e10 times smaller. So a weight is told apart that is invariant up to eps,
    or only while a bias is 0. What passes is scaled by random factors, which must not change the
    outputs.

    The model is copied and runs in its present mode (train or eval), in `dtype` throughout. The
    caller's model, batch and random states stay as they are. A hook that is a function runs, too:
    what it writes to variables of its own stays there.

    Args:
        model: any module; dropout and the like draw the same random numbers in paired passes.
        batch: a tensor, a tuple or list of the model's arguments, or a mapping of its keyword
            arguments; nested as they may be. It should be large enough that batch statistics vary.
        views: one or several, tried in order where they fit; the first that holds is reported. None
            tries all dimensions (not those of a kernel), all groups of equal size, and the layer.
        loss: a function of the model's output; None takes all real tensors in the output.
        tolerance: of the statistic at the model's own eps, above which it is "up to eps".
        dtype: `torch.float32` for a model that cannot compute in float64.
        seed: of the jitter, and of the model's own random numbers.

    Returns:
        The findings, in the model's order; prints as a table.

    Raises:
        ValueError: the output has no finite entry, which tells nothing; the model cannot be
            copied, has parameters that share memory, does not run in `dtype`, has lazy
            parameters or ones on the meta device, or checkpoints by a function of its own (that
            of torch is read as a plain call).
        TypeError: `model` is no module; `dtype` is neither float64 nor float32.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> [(each.name, str(each.verdict), each.view) for each in audit(model, torch.randn(32, 4))]
        [('0.weight', 'invariant', 'channel'), ('2.weight', 'not invariant', None)]
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
    asked = [views] if isinstance(views, str | View) else views
    wanted = None if asked is None else [as_view(view) for view in asked]
    model = unwrap(model)
    skipped = _skipped(model)
    names = [name for name, _ in model.named_parameters() if name not in skipped]
    exact = 64 * torch.finfo(dtype).eps ** 0.5
    with torch.inference_mode(False), torch.enable_grad():
        subject = Subject(model, batch, loss, dtype)
        uses = Uses(subject.parameters, tensors_of(subject.batch))
        try:
            evidence, nearby = _gather(subject, names, wanted, exact, seed, uses)
        except (RuntimeError, TypeError) as error:
            if "checkpoint" in str(error).lower():
                raise ValueError(
                    "a part of the model runs under a checkpointing function of its own, whose"
                    f" backward pass cannot give chosen gradients ({error}): switch checkpointing"
                    " off for the audit"
                ) from error
            if dtype is torch.float64 and _runs_in_float32(model, batch, loss, names):
                raise ValueError(
                    f"the model does not run in float64 ({error}), but in float32: pass"
                    " dtype=torch.float32"
                ) from error
            raise
        findings = [judge(name, evidence[name], wanted, exact, tolerance) for name in names]
        found = {each.name: as_view(each.view) for each in findings if each.view is not None}
        wrong = fails_scaling_check(subject, nearby, found)
    why = "scaling it changes the outputs, though its gradient is tangential"
    findings = [
        replace(each, verdict=Verdict.NOT_INVARIANT, view=None, reason=why)
        if each.name in wrong
        else each
        for each in findings
    ]
    total = sum(parameter.numel() for parameter in model.parameters())
    roles = measured_roles(model, uses)
    return Audit(tuple(findings), skipped, tuple(subject.doubts), total, roles)


def _skipped(model: nn.Module) -> dict[str, str]:
    """The parameters that are not audited, and why.

    Raises:
        ValueError: one has no shape, or no values.
    """
    found = {}
    for name, weight in model.named_parameters():
        if nn.parameter.is_lazy(weight):
            raise ValueError(f"{name} has no shape yet: run the model on a batch before the audit")
        if weight.is_meta:
            raise ValueError(f"{name} is on the meta device, without values: move the model first")
        if not weight.requires_grad:
            found[name] = "frozen"
        elif weight.is_complex():
            found[name] = "complex"
        elif weight.ndim < 2:
            found[name] = f"{weight.ndim}-d"
        elif not weight.numel():
            found[name] = "empty"
    return found


def _gather(
    subject: Subject,
    names: Sequence[str],
    views: Sequence[View] | None,
    exact: float,
    seed: int,
    watch: Uses,
) -> tuple[dict[str, Evidence], Measured]:
    """The sensitivities at the own point and at jittered ones, and a point for the scaling check.

    That is the first jittered point, or else the own one.

    Raises:
        ValueError: nothing finite is at the own point.
    """
    dims = {name: dims_of(subject.parameters[name].shape, views) for name in names}
    limit = measure(subject, Point(seed, eps_factor=EPS_LIMIT), dims, exact, watch=watch)
    directions = 2
    if limit is not None:
        evidence = {name: Evidence(sums) for name, sums in limit.sums[0].items()}
        counts = [each.candidates(views, exact) for each in evidence.values()]
        if not any(counts) and _acts_clearly(limit):
            return evidence, limit
        # The share of an eps may be small in one random direction for some units, not for many.
        directions = 1 if min(filter(None, counts), default=0) >= _MANY_UNITS else 2
        dims = {name: list(limit.sums[0][name].along) for name in dims}
    own = measure(subject, Point(seed), dims, 0.0, near=limit, directions=directions) or limit
    if own is None:
        raise ValueError(
            "the model's output on this batch, or its gradient, is not finite; the audit needs one"
            " finite entry"
        )
    nearby, plain = list[Measured](), list[Measured]()

    def known() -> dict[str, Evidence]:
        first = (limit or own).sums[0]
        others = [own.sums, [x.sums[0] for x in nearby], [x.sums[0] for x in plain]]
        return {n: Evidence(first[n], *([x[n] for x in sums] for sums in others)) for n in names}

    evidence = known()
    if any(each.candidates(views, exact) for each in evidence.values()):
        while len(nearby) < _FEWEST_POINTS or not all(each.suffices for each in evidence.values()):
            if len(nearby) == _MOST_POINTS:
                break
            found = _measure_nearby(subject, seed + len(nearby) + 1, EPS_LIMIT, dims, exact)
            if found is None:
                subject.doubts["the model gives no finite output when its parameters move"] = None
                break
            nearby.append(found)
            evidence = known()
    if nearby and not all(each.tells_here for each in evidence.values()):
        with_eps = _measure_nearby(subject, seed + 1, 1.0, dims, 0.0)
        plain += [with_eps] if with_eps is not None else []
    return known(), nearby[0] if nearby else limit or own


def _acts_clearly(limit: Measured) -> bool:
    """True if no weight acts through an eps alone: all are seen in its limit, as outputs are."""
    pairs = zip(limit.outputs, limit.units, strict=True)
    moving = any(bool((unit > _CLEARLY * x.abs()).any()) for x, unit in pairs)
    seen = [sums.sensitivity for sums in limit.sums[0].values()]
    return moving and min(seen, default=0.0) > _CLEARLY * max(seen, default=0.0)


def _measure_nearby(
    subject: Subject, seed: int, eps_factor: float, dims: dict[str, list[int]], exact: float
) -> Measured | None:
    """Measure at a jittered point, as near as it must be for the model to take it."""
    for jitter, batch_jitter in ((1.0, 1.0), (1.0, 0.0), (0.3, 0.0), (0.1, 0.0)):
        point = Point(seed, jitter, batch_jitter, eps_factor)
        try:
            found = measure(subject, point, dims, exact)
        except Exception:  # jittered values may be outside of what the model takes
            continue
        if found is not None:
            return found
    return None


def _runs_in_float32(model: nn.Module, batch: Any, loss: Any, names: Sequence[str]) -> bool:
    """True if a forward and a backward pass succeed in float32."""
    try:
        subject = Subject(model, batch, loss, torch.float32)
        measure(subject, Point(), {name: [0] for name in names}, 0.0)
    except Exception:
        return False
    return True
