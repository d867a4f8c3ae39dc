"""`audit`: which weights of a model are scale-invariant, and in which view."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from spherenorm.audit.audited_model import (
    SMALL_EPS_FACTOR,
    AuditedModel,
    Point,
    find_tensors,
    unwrap,
)
from spherenorm.audit.roles import Roles, UseTracer, format_shape, roles_from_uses
from spherenorm.audit.sensitivity import (
    InnerProducts,
    Sensitivity,
    find_scaling_failures,
    measure_sensitivity,
)
from spherenorm.audit.verdict import Finding, Verdict, WeightEvidence, dims_of_views, judge
from spherenorm.support import columns
from spherenorm.views import View, ViewLike, as_view

_MIN_JITTERED_POINTS = 2
_MAX_JITTERED_POINTS = 8
"""More points than the minimum are measured until two show each weight, and one shows each unit."""
_MIN_UNITS_FOR_ONE_DIRECTION = 16
"""With this many units, one random direction of the outputs is enough to show the share of eps."""
_MIN_RELATIVE_CHANGE = 1e-5
"""A relative change by this much is not made by an eps alone, which is 1e10 times smaller."""
_JITTER_SIZES = ((1.0, 1.0), (1.0, 0.0), (0.3, 0.0), (0.1, 0.0))
"""Sizes of the jitter of parameters and batch, tried until the model gives finite outputs."""


@dataclass(frozen=True)
class Audit(Sequence[Finding]):
    """The findings of `audit`, one for each weight in the model's order; prints as a table.

    Attributes:
        findings: findings on the weights of two or more dimensions that take a gradient.
        skipped: for each other parameter, by name, the reason why it was skipped: "frozen", "0-d",
            "1-d", "complex", "empty".
        caveats: sentences that say why the findings may be wrong.
        parameters: number of entries of all parameters.
        roles: the role of each parameter; see `roles`.

    Example:
        >>> layers = torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3)
        >>> result = sn.audit(torch.nn.Sequential(*layers), torch.randn(32, 4))
        >>> len(result), result[0].name, f"{result.invariant_share:.2f}"
        (1, '0.weight', '0.67')
    """

    findings: tuple[Finding, ...]
    skipped: dict[str, str]
    caveats: tuple[str, ...]
    parameters: int
    roles: Roles

    @property
    def invariant_share(self) -> float:
        """The scale-invariant share of all parameters (the paper: 95.5 % of a ResNet-18)."""
        invariant = sum(math.prod(f.shape) for f in self.findings if f.view is not None)
        return invariant / max(self.parameters, 1)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as numbers, strings, lists and dicts for JSON; nan becomes None."""
        entries: dict[str, Any] = _without_nan(
            {"invariant_share": self.invariant_share, **asdict(self)}
        )
        return entries

    def __str__(self) -> str:
        rows = [("weight", "shape", "verdict", "view", "own point", "jittered", "why")]
        for finding in self:
            row = (
                finding.name,
                format_shape(finding.shape),
                str(finding.verdict),
                finding.view or "",
                _format_statistic(finding.at_own_point),
                _format_statistic(finding.at_jittered_points),
                finding.reason,
            )
            rows.append(row)
        lines = [columns(rows), ""]
        lines.append(
            f"{100 * self.invariant_share:.1f} % of {self.parameters:,} parameters scale-invariant"
        )
        if self.skipped:
            counts = Counter(self.skipped.values())
            lines.append("skipped: " + ", ".join(f"{n} {reason}" for reason, n in counts.items()))
        lines.extend(f"doubtful: {caveat}" for caveat in self.caveats)
        return "\n".join(lines)

    __repr__ = __str__


def _format_statistic(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1g}"


def _without_nan(value: Any) -> Any:
    """Return nested lists and dicts with None for nan and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    It is measured at the model's own point, and at points where the other parameters (zeros too)
    and the batch are jittered; each time with every eps that a normalization adds, or that is added
    to a tensor, made 1e10 times smaller. So the audit tells apart a weight that is invariant up to
    eps, or only while a bias is 0. The weights that pass are scaled by random factors, which must
    not change the outputs.

    The model is copied and runs in its present mode (train or eval), in `dtype` throughout. The
    caller's model, batch and random states stay as they are. Hooks that are functions run, too;
    what they write to variables outside of the model is not undone.

    Args:
        model: any module; dropout and the like draw the same random numbers in passes that are
            compared.
        batch: a tensor, a tuple or list of the model's arguments, or a mapping of its keyword
            arguments; nested at will. It should be large enough that batch statistics vary.
        views: one or several, tried in order where they fit; the first in which the weight is
            invariant is reported. None tries all dimensions (not those of a kernel), all groups of
            equal size, and the layer.
        loss: a function of the model's output; None takes all real tensors in the output.
        tolerance: the statistic at the model's own eps above which a weight is "up to eps".
        dtype: dtype of the arithmetic: `torch.float32` for a model that cannot run in float64.
        seed: seed for the jitter, and for the model's own random numbers.

    Returns:
        The findings, in the model's order; prints as a table.

    Raises:
        ValueError: the output has no finite entry; the model cannot be copied, has parameters that
            share memory, does not run in `dtype`, has lazy parameters or parameters on the meta
            device, or checkpoints by a function of its own (torch's is run as a plain call).
        TypeError: `model` is no module; `batch` is None; `dtype` is neither float64 nor float32.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> [(w.name, str(w.verdict), w.view) for w in audit(model, torch.randn(32, 4))]
        [('0.weight', 'invariant', 'channel'), ('2.weight', 'not invariant', None)]
    """
    model = unwrap(model)
    if batch is None:
        raise TypeError(
            "batch must be a tensor, a tuple of the model's arguments or a mapping of its keyword "
            "arguments, got None; () is for a model without arguments"
        )
    if dtype not in (torch.float64, torch.float32):
        raise TypeError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
    requested_views: list[View] | None = None
    if views is not None:
        view_list = [views] if isinstance(views, str | View) else views
        requested_views = [as_view(view) for view in view_list]
    skipped = _skipped_parameters(model)
    names = [name for name, _ in model.named_parameters() if name not in skipped]
    zero_tolerance = 64 * torch.finfo(dtype).eps ** 0.5
    with torch.inference_mode(False), torch.enable_grad():
        audited = AuditedModel(model, batch, loss, dtype)
        tracer = UseTracer(audited.parameters, find_tensors(audited.batch))
        try:
            evidence, check_point = collect_evidence(
                audited, names, requested_views, zero_tolerance, seed, tracer
            )
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
        findings = [
            judge(name, evidence[name], requested_views, zero_tolerance, tolerance)
            for name in names
        ]
        invariant_views = {f.name: as_view(f.view) for f in findings if f.view is not None}
        failures = find_scaling_failures(audited, check_point, invariant_views)
    for index, finding in enumerate(findings):
        if finding.name in failures:
            findings[index] = replace(
                finding,
                verdict=Verdict.NOT_INVARIANT,
                view=None,
                reason="scaling it changes the outputs, though its gradient is tangential",
            )
    return Audit(
        tuple(findings),
        skipped,
        tuple(audited.caveats),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        roles=roles_from_uses(model, tracer),
    )


def _skipped_parameters(model: nn.Module) -> dict[str, str]:
    """Return the parameters that are not audited, by name, and why.

    Raises:
        ValueError: a parameter has no shape, or no values.
    """
    skipped = {}
    for name, weight in model.named_parameters():
        if nn.parameter.is_lazy(weight):
            raise ValueError(f"{name} has no shape yet: run the model on a batch before the audit")
        if weight.is_meta:
            raise ValueError(f"{name} is on the meta device, without values: move the model first")
        if not weight.requires_grad:
            skipped[name] = "frozen"
        elif weight.is_complex():
            skipped[name] = "complex"
        elif weight.ndim < 2:
            skipped[name] = f"{weight.ndim}-d"
        elif not weight.numel():
            skipped[name] = "empty"
    return skipped


def collect_evidence(
    model: AuditedModel,
    names: Sequence[str],
    views: Sequence[View] | None,
    zero_tolerance: float,
    seed: int,
    tracer: UseTracer,
) -> tuple[dict[str, WeightEvidence], Sensitivity]:
    """Measure the sensitivity at the model's own point and at jittered ones.

    Jittered points are measured only if the own point shows candidates, and the model's own eps
    only if it can matter.

    Args:
        model: the model.
        names: names of the weights.
        views: the views to try; None tries all.
        zero_tolerance: the statistic up to which a unit is invariant.
        seed: seed for the jitter and the model's random numbers.
        tracer: records the uses of parameters in the first pass.

    Returns:
        The evidence on each weight, and the sensitivity at the point where scaling is checked: the
        first jittered point, or else the model's own.

    Raises:
        ValueError: no output, or no gradient, is finite at the model's own point.
    """
    dims = {name: dims_of_views(model.parameters[name].shape, views) for name in names}
    own_point = Point(seed, eps_factor=SMALL_EPS_FACTOR)
    at_tiny_eps = measure_sensitivity(model, own_point, dims, zero_tolerance, tracer=tracer)
    directions = 2
    if at_tiny_eps is not None:
        evidence = {
            name: WeightEvidence(products) for name, products in at_tiny_eps.products[0].items()
        }
        counts = [weight.count_candidates(views, zero_tolerance) for weight in evidence.values()]
        if not any(counts) and _outputs_respond_without_eps(at_tiny_eps):
            return evidence, at_tiny_eps
        # Eps may have a small share in one random direction for some units, but not for many.
        fewest_units = min((count for count in counts if count), default=0)
        directions = 1 if fewest_units >= _MIN_UNITS_FOR_ONE_DIRECTION else 2
        dims = {name: list(at_tiny_eps.products[0][name].by_dim) for name in dims}
    with_eps = measure_sensitivity(
        model, Point(seed), dims, 0.0, same_point=at_tiny_eps, directions=directions
    )
    at_own_point = with_eps or at_tiny_eps
    if at_own_point is None:
        raise ValueError(
            "the model's output on this batch, or its gradient, is not finite; the audit needs one"
            " finite entry"
        )
    jittered: list[Sensitivity] = []
    evidence = _combine_evidence(names, at_tiny_eps, at_own_point, jittered)
    if any(weight.count_candidates(views, zero_tolerance) for weight in evidence.values()):
        while len(jittered) < _MAX_JITTERED_POINTS:
            enough = all(weight.is_sufficient for weight in evidence.values())
            if len(jittered) >= _MIN_JITTERED_POINTS and enough:
                break
            sensitivity = _measure_jittered(
                model, seed + len(jittered) + 1, SMALL_EPS_FACTOR, dims, zero_tolerance
            )
            if sensitivity is None:
                model.caveats["the model gives no finite output when its parameters move"] = None
                break
            jittered.append(sensitivity)
            evidence = _combine_evidence(names, at_tiny_eps, at_own_point, jittered)
    jittered_with_eps = None
    if jittered and not all(weight.is_conclusive_at_own_point for weight in evidence.values()):
        jittered_with_eps = _measure_jittered(model, seed + 1, 1.0, dims, 0.0)
    evidence = _combine_evidence(names, at_tiny_eps, at_own_point, jittered, jittered_with_eps)
    return evidence, jittered[0] if jittered else at_tiny_eps or at_own_point


def _combine_evidence(
    names: Sequence[str],
    at_tiny_eps: Sensitivity | None,
    at_own_point: Sensitivity,
    jittered: Sequence[Sensitivity],
    jittered_with_eps: Sensitivity | None = None,
) -> dict[str, WeightEvidence]:
    """Return the evidence on each weight from all points; see `WeightEvidence`."""
    with_eps: list[dict[str, InnerProducts]] = []
    if jittered_with_eps is not None:
        with_eps.append(jittered_with_eps.products[0])
    return {
        name: WeightEvidence(
            (at_tiny_eps or at_own_point).products[0][name],
            at_own_point=[products[name] for products in at_own_point.products],
            at_jittered_points=[point.products[0][name] for point in jittered],
            at_jittered_point_with_eps=[products[name] for products in with_eps],
        )
        for name in names
    }


def _outputs_respond_without_eps(at_tiny_eps: Sensitivity) -> bool:
    """Return True if the outputs, and all weights, clearly act in the limit of eps."""
    pairs = zip(at_tiny_eps.outputs, at_tiny_eps.output_scales, strict=True)
    moves = any(bool((scale > _MIN_RELATIVE_CHANGE * x.abs()).any()) for x, scale in pairs)
    sensitivities = [products.sensitivity for products in at_tiny_eps.products[0].values()]
    smallest = min(sensitivities, default=0.0)
    return moves and smallest > _MIN_RELATIVE_CHANGE * max(sensitivities, default=0.0)


def _measure_jittered(
    model: AuditedModel,
    seed: int,
    eps_factor: float,
    dims: dict[str, list[int]],
    zero_tolerance: float,
) -> Sensitivity | None:
    """Measure at a jittered point, with the largest jitter that the model takes; None if none."""
    for jitter, batch_jitter in _JITTER_SIZES:
        point = Point(seed, jitter, batch_jitter, eps_factor)
        try:
            sensitivity = measure_sensitivity(model, point, dims, zero_tolerance)
        except Exception:  # Jittered values may be outside of what the model takes.
            continue
        if sensitivity is not None:
            return sensitivity
    return None


def _runs_in_float32(model: nn.Module, batch: Any, loss: Any, names: Sequence[str]) -> bool:
    """Return True if a forward and a backward pass succeed in float32."""
    try:
        audited = AuditedModel(model, batch, loss, torch.float32)
        measure_sensitivity(audited, Point(), {name: [0] for name in names}, 0.0)
    except Exception:
        return False
    return True
