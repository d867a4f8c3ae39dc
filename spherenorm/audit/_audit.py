"""`audit`: which weights of a model are scale-invariant, and in which view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm._views import View, ViewLike, as_view
from spherenorm.audit._precise import EPS_LIMIT
from spherenorm.audit._report import Audit, Skipped
from spherenorm.audit._roles import measure_roles, roles_by_modules
from spherenorm.audit._scaling import fails_scaling_check
from spherenorm.audit._sensitivity import Measured, Sums, default_dims, measure
from spherenorm.audit._subject import Point, Subject, unwrap
from spherenorm.audit._units import Evidence, all_shown
from spherenorm.audit._verdict import Finding, judge, reject

_FEWEST_POINTS, _MOST_POINTS = 2, 8
"""Jittered points: so many in any case, and so many to see each weight at two, each unit at one."""


def audit(
    model: nn.Module,
    *inputs: Any,
    views: Sequence[ViewLike] | None = None,
    loss: Callable[[Any], Any] | None = None,
    tolerance: float = 1e-3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **keywords: Any,
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
    caller's model, inputs and random states stay as they are.

    Args:
        model: any module; dropout and the like draw the same random numbers in paired passes.
        *inputs, **keywords: a batch, as the model takes it: tensors of any type, nested as they
            may be. It should be large enough that batch statistics vary.
        views: tried in order, those that fit a weight; the first that holds is reported. None
            tries all dimensions (not those of a kernel), all groups of equal size, and the layer.
        loss: a function of the model's output; None takes all real tensors in the output.
        tolerance: of the statistic at the model's own eps, above which it is "up to eps".
        dtype: `torch.float32` for a model that cannot compute in float64.
        seed: of the jitter, and of the model's own random numbers.

    Returns:
        The findings, in the model's order; prints as a table.

    Raises:
        ValueError: the output has no finite entry, which tells nothing; the model cannot be
            copied, does not run in `dtype`, or has lazy parameters or ones on the meta device.
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
    wanted = None if views is None else [as_view(view) for view in views]
    model = unwrap(model)
    audited, skipped = _divide(model)
    dims = {name: _dims(weight.ndim, wanted) for name, weight in audited.items()}
    exact = 64 * torch.finfo(dtype).eps ** 0.5
    with torch.inference_mode(False), torch.enable_grad():
        subject = Subject(model, inputs, keywords, loss, dtype)
        try:
            gathered = _gather(subject, dims, exact, seed)
        except Exception as error:
            if dtype is torch.float64 and _runs_in_float32_alone(model, inputs, keywords, loss):
                raise ValueError(
                    f"the model does not run in float64 ({error}), but in float32: pass"
                    " dtype=torch.float32"
                ) from error
            raise
        if gathered is None:
            raise ValueError(
                "the model's output on this batch, or its gradient, is not finite; the audit needs"
                " one finite entry"
            )
        evidence, nearby = gathered
        findings = [
            judge(name, weight.shape, evidence[name], wanted, exact, tolerance)
            for name, weight in audited.items()
        ]
        if nearby is not None:
            findings = apply_scaling_check(subject, findings, nearby)
        roles = measure_roles(subject, model)
    total = sum(parameter.numel() for parameter in model.parameters())
    return Audit(tuple(findings), tuple(skipped), tuple(subject.doubts), total, roles)


def audit_batch(model: nn.Module, batch: Any, **options: Any) -> Audit:
    """`audit` on a batch in one piece.

    Args:
        model, **options: as for `audit`.
        batch: a tensor, a tuple of the model's arguments, or a mapping of its keyword arguments.

    Example:
        >>> audit_batch(nn.Linear(2, 1), {"input": torch.randn(8, 2)}).share
        0.0
    """
    inputs, keywords = arguments_of(batch)
    return audit(model, *inputs, **options, **keywords)


def unaudited(model: nn.Module) -> Audit:
    """An audit without a batch: no findings, and the roles that the modules tell."""
    parameters = list(model.named_parameters())
    skipped = tuple(Skipped(name, tuple(x.shape), "no batch") for name, x in parameters)
    total = sum(x.numel() for _, x in parameters)
    return Audit((), skipped, (), total, roles_by_modules(model))


def arguments_of(batch: Any) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments and keyword arguments of a model in one batch."""
    keywords = dict(batch) if isinstance(batch, Mapping) else {}
    return () if keywords else batch if isinstance(batch, tuple | list) else (batch,), keywords


def _divide(model: nn.Module) -> tuple[dict[str, Tensor], list[Skipped]]:
    """The weights to audit, and those to skip."""
    audited: dict[str, Tensor] = {}
    skipped = []
    for name, weight in model.named_parameters():
        if nn.parameter.is_lazy(weight):
            raise ValueError(f"{name} has no shape yet: run the model on a batch before the audit")
        if weight.is_meta:
            raise ValueError(f"{name} is on the meta device, without values: move the model first")
        reason = _reason_to_skip(weight)
        if reason is None:
            audited[name] = weight
        else:
            skipped.append(Skipped(name, tuple(weight.shape), reason))
    return audited, skipped


def _reason_to_skip(weight: Tensor) -> str | None:
    if not weight.requires_grad:
        return "frozen"
    if weight.is_complex():
        return "complex"
    if weight.ndim < 2:
        return f"{weight.ndim}-d"
    return None if weight.numel() else "empty"


def _dims(ndim: int, views: Sequence[View] | None) -> list[int]:
    if views is None:
        return list(default_dims(ndim))
    asked = {view.dim for view in views if view.dim is not None and -ndim <= view.dim < ndim}
    return sorted({0, *(dim % ndim for dim in asked)})


def _gather(
    subject: Subject, dims: dict[str, list[int]], exact: float, seed: int
) -> tuple[dict[str, Evidence], Measured | None] | None:
    """The sensitivities at the own point and at jittered ones, and what the first of these shows.

    None if there are none at the own point.
    """
    limit = _sums(measure(subject, Point(seed, eps_factor=EPS_LIMIT), dims, exact))
    left = {name: [*(limit[name].along if limit else by)] for name, by in dims.items()}
    # The share of an eps may be small in one random direction, hardly in two.
    here = [_sums(measure(subject, Point(draw), left, 0.0)) for draw in (seed, seed + 1)]
    at = [sums for sums in here if sums is not None]
    if not at:
        return None
    elsewhere: list[dict[str, Sums]] = []
    nearby = None
    for number in range(1, _MOST_POINTS + 1):
        shown = (all_shown((limit or at[0])[n], [sums[n] for sums in elsewhere]) for n in dims)
        if number > _FEWEST_POINTS and all(shown):
            break
        found = _measure_nearby(subject, seed + number, EPS_LIMIT, dims, exact)
        if found is None:
            subject.doubts["the model gives no finite output when its parameters move"] = None
            break
        nearby = nearby or found
        elsewhere.append(found.sums)

    def gathered(plain: Sequence[dict[str, Sums]]) -> dict[str, Evidence]:
        return {
            name: Evidence(
                here=[sums[name] for sums in at],
                limit=(limit or at[0])[name],
                elsewhere=[sums[name] for sums in elsewhere],
                plain=[sums[name] for sums in plain],
            )
            for name in dims
        }

    evidence = gathered([])
    if elsewhere and not all(each.tells_here for each in evidence.values()):
        plain = _measure_nearby(subject, seed + 1, 1.0, dims, 0.0)
        evidence = gathered([] if plain is None else [plain.sums])
    return evidence, nearby


def _sums(measured: Measured | None) -> dict[str, Sums] | None:
    """The sums alone; the outputs need not stay in memory."""
    return None if measured is None else measured.sums


def _runs_in_float32_alone(
    model: nn.Module, inputs: Sequence[Any], keywords: Mapping[str, Any], loss: Any
) -> bool:
    """True if the model gives outputs in float32, but not in float64."""

    def runs(dtype: torch.dtype) -> bool:
        try:
            Subject(model, inputs, keywords, loss, dtype).outputs(Point())
        except Exception:
            return False
        return True

    return runs(torch.float32) and not runs(torch.float64)


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


def apply_scaling_check(
    subject: Subject, findings: list[Finding], measured: Measured
) -> list[Finding]:
    """Reject the findings whose weights change the outputs when they are scaled at this point."""
    found = {each.name: as_view(each.view) for each in findings if each.view is not None}
    wrong = set(fails_scaling_check(subject, measured, found))
    return [reject(each) if each.name in wrong else each for each in findings]
