"""Sensitivity of a model's outputs to the norm of each weight, by gradients and by scaling.

`measure_sensitivity` takes gradients at one point: <w, g> is the radial sensitivity of a unit, and
|w| |g| the largest sensitivity of all directions. `find_scaling_failures` scales the weights that
the gradients call invariant, which must not change the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spherenorm.audit.audited_model import AuditedModel, Point, pair_with_noise
from spherenorm.views import View

_NUDGE = 1e-3
"""Jitter of all parameters that shows how much an output changes with them."""
_MIN_RELATIVE_SCALE = 1e-5
"""Smallest scale of an output that may be constant up to rounding, as a share of the largest."""
_ROUNDING_JITTER = 32
"""Jitter that shows rounding, in units of the dtype's eps."""
_MIN_RELATIVE_SENSITIVITY = 1e-13
"""Units less sensitive than this share of the weight's most sensitive unit are ignored."""

_MAX_CHANGE_OF_ONE = 1e-5
"""Largest change of an output when one weight is scaled, in units of its change when it turns."""
_MAX_CHANGE_OF_ALL = 1e-6
"""The same limit when all weights are scaled or turn. It is smaller, since a weight of a small
branch hardly shows beside the others."""
_MAX_ROUNDINGS = 64
"""Changes of an output up to this number of the dtype's eps count as rounding."""
_MAX_CHANGE_BY_EPS = 1e-9
"""Changes of an output up to this share of its scale count as what a tiny eps leaves."""
_SINGLE_WEIGHT_EPS_FACTOR = 1e-6
"""Further factor on every eps where weights are scaled one by one."""
_MAX_DOUBLINGS = 6
"""Units are scaled by factors of 8 to 64, up and down, because a norm may be bounded on one side.
Larger factors would show what is left of an eps, and in float32 all rounding."""


@dataclass(frozen=True, eq=False)
class InnerProducts:
    """<w, g>, |w|^2 and |g|^2 of one weight w, for the gradient g of the outputs in one direction.

    Attributes:
        shape: shape of the weight.
        by_dim: for a dimension, the three sums at each of its indices, shape (3, length).
    """

    shape: torch.Size
    by_dim: Mapping[int, Tensor]
    _cache: dict[View, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def compute(
        cls, weight: Tensor, grad: Tensor, dims: Sequence[int], zero_tolerance: float
    ) -> InnerProducts:
        """Compute the sums of a weight of two or more dimensions.

        Args:
            weight, grad: tensors of one shape.
            dims: the dimensions at whose indices to sum, 0 among them. If all units of dimension 0
                are invariant, the others are left out, because no view of them is finer.
            zero_tolerance: the statistic up to which a unit is invariant.
        """
        pairs = (weight, grad), (weight, weight), (grad, grad)
        # bmm sums <a, b> at each index of dimension 0 without memory for a * b.
        rows = [torch.bmm(a.flatten(1)[:, None], b.flatten(1)[:, :, None]) for a, b in pairs]
        finest = cls(weight.shape, {0: torch.stack([x.flatten() for x in rows]).cpu()})
        statistic, is_sensitive = finest.statistic(View(0))
        if len(dims) == 1:
            return finest
        if is_sensitive.any() and bool((statistic[is_sensitive] <= zero_tolerance).all()):
            return finest
        summed_dims = {dim: [d for d in range(weight.ndim) if d != dim] for dim in dims if dim}
        buffer = torch.empty_like(weight)
        sums: dict[int, list[Tensor]] = {dim: [] for dim in summed_dims}
        for a, b in pairs:
            product = torch.mul(a, b, out=buffer)
            for dim, over in summed_dims.items():
                sums[dim].append(product.sum(over))
        coarser = {dim: torch.stack(values).cpu() for dim, values in sums.items()}
        return cls(weight.shape, {**finest.by_dim, **coarser})

    @property
    def sensitivity(self) -> float:
        """|w| |g|: the largest change of the outputs when the weight turns by one radian."""
        _, squared_norm, squared_grad = next(iter(self.by_dim.values())).sum(1).tolist()
        product = squared_norm * squared_grad
        return math.sqrt(product) if math.isfinite(product) else math.inf

    def statistic(self, view: View) -> tuple[Tensor, Tensor]:
        """Return sqrt(dim(w)) |cos(w, g)| of each unit, and which units are sensitive at all.

        The statistic of a scale-invariant unit is 0 up to rounding, and that of a random direction
        about 1. A unit that is not sensitive has the statistic 0.
        """
        if view not in self._cache:
            self._cache[view] = self._compute_statistic(view)
        return self._cache[view]

    def _compute_statistic(self, view: View) -> tuple[Tensor, Tensor]:
        dim = 0 if view.dim is None else view.dim % len(self.shape)
        if dim not in self.by_dim:  # `compute` has left it out.
            count = view.groups or self.shape[dim]
            return torch.zeros(count), torch.zeros(count, dtype=torch.bool)
        product, squared_norm, squared_grad = view.sums_of_index_groups(self.by_dim[dim])
        sensitivity = squared_norm.sqrt() * squared_grad.sqrt()
        is_sensitive = sensitivity > _MIN_RELATIVE_SENSITIVITY * sensitivity.max()
        unit_size = math.prod(self.shape) / len(product)
        statistic = math.sqrt(unit_size) * product.abs() / sensitivity
        return torch.where(is_sensitive, statistic, 0), is_sensitive


@dataclass(frozen=True)
class Sensitivity:
    """The sensitivity of a model at one point.

    Attributes:
        point: the point.
        products: for each random direction of the outputs, the inner products of each weight.
        outputs: the outputs at the point.
        output_scales: for each entry of the outputs, how much it changes with the parameters.
    """

    point: Point
    products: list[dict[str, InnerProducts]]
    outputs: list[Tensor]
    output_scales: list[Tensor]


def measure_sensitivity(
    model: AuditedModel,
    point: Point,
    dims: Mapping[str, Sequence[int]],
    zero_tolerance: float,
    *,
    same_point: Sensitivity | None = None,
    directions: int = 1,
    tracer: Any = None,
) -> Sensitivity | None:
    """Measure the sensitivity of <r, outputs>, with random r, to weights at one point.

    Each entry of the outputs is divided by how much it changes with the parameters. So neither
    a mask, such as -1e9, nor a large scale hides other entries, of the same output or of another.

    Args:
        model: the model.
        point: the point.
        dims: for each weight, by name, the dimensions that may count units.
        zero_tolerance: the statistic up to which a unit is invariant; see `InnerProducts.compute`.
        same_point: the sensitivity at the same point with another eps, to reuse its output scales.
        directions: number of random r.
        tracer: a context for the first pass; see `AuditedModel.outputs_at`.

    Returns:
        The sensitivity; None if no entry of the outputs is finite, or a gradient is not.
    """
    nudged_outputs: list[Tensor] = []
    if same_point is None:
        nudged_outputs = model.outputs_at(replace(point, nudge=_NUDGE), tracer=tracer)
    model.move_to(point)
    with model.evaluation(point) as mode:
        outputs = model.forward(point, mode)
    values = [x.detach() for x in outputs]
    if outputs and not any(bool(x.isfinite().any()) for x in values):
        return None
    scales = [] if same_point is None else same_point.output_scales
    if same_point is None or shapes_of(scales) != shapes_of(values):
        scales = _measure_output_scales(model, point, values, nudged_outputs)
    products_by_direction = []
    for index in range(directions):
        scalar = _project_on_random_direction(outputs, scales, point.seed + 1 + index, model.dtype)
        weights = [model.parameters[name] for name in dims]
        grads: Sequence[Tensor | None] = [None] * len(weights)
        if scalar.requires_grad and weights:
            with model.evaluation(point):
                grads = _gradients(scalar, weights, retain_graph=index + 1 < directions)
        products = {}
        for name, weight, grad in zip(dims, weights, grads, strict=True):
            dense_grad = torch.zeros_like(weight) if grad is None else grad.to_dense()
            products[name] = InnerProducts.compute(
                weight.detach(), dense_grad, dims[name], zero_tolerance
            )
        if not all(math.isfinite(x.sensitivity) for x in products.values()):
            return None
        products_by_direction.append(products)
    return Sensitivity(point, products_by_direction, values, scales)


def _gradients(
    scalar: Tensor, weights: Sequence[Tensor], retain_graph: bool
) -> Sequence[Tensor | None]:
    """Return the gradients as `torch.autograd.grad` does, but with function modes left on.

    `torch.autograd.grad` switches function modes off, and a checkpoint would repeat its forward
    pass with another eps.
    """
    engine = torch.autograd.Variable._execution_engine
    grads: Sequence[Tensor | None] = engine.run_backward(
        (scalar,),
        (torch.ones_like(scalar),),
        retain_graph,
        False,  # create_graph
        tuple(weights),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return grads


def _project_on_random_direction(
    outputs: Sequence[Tensor], scales: Sequence[Tensor], seed: int, dtype: torch.dtype
) -> Tensor:
    """Return <r, outputs / scales> over the finite entries, with a random r."""
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), dtype=dtype)
    for output, scale in zip(outputs, scales, strict=True):
        if not output.requires_grad:
            continue
        x, x_scale = output, scale
        finite = output.isfinite()
        if not finite.all():
            x, x_scale = output[finite], scale[finite]
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x_scale)
        total = total.to(x) + (noise / x_scale * x).sum()
    return total


def shapes_of(outputs: Sequence[Tensor]) -> list[torch.Size]:
    """Return the shapes of outputs, which may depend on values, as those of a selection do."""
    return [x.shape for x in outputs]


def _measure_output_scales(
    model: AuditedModel, point: Point, outputs: Sequence[Tensor], nudged_outputs: Sequence[Tensor]
) -> list[Tensor]:
    """Return how much each entry of the outputs changes with the parameters, as a derivative.

    An entry that is constant up to rounding gets at least `_MIN_RELATIVE_SCALE` of the largest
    scale. An entry that changes by less, but clearly by more than rounding, keeps its own scale; a
    jitter of the size of rounding tells the two apart, also where cancellation enlarges rounding.

    Args:
        model: the model, which is at `point` before and after.
        point: the point.
        outputs: the outputs at the point.
        nudged_outputs: the outputs when all parameters move by `_NUDGE`.
    """
    changes = _absolute_changes(outputs, nudged_outputs)
    largest_scale = max((float(change.max()) for change in changes), default=0.0) / _NUDGE
    min_scale = _MIN_RELATIVE_SCALE * largest_scale or 1.0
    scales = [(change / _NUDGE).clamp(min=min_scale) for change in changes]
    eps = torch.finfo(model.dtype).eps
    # The geometric mean of the change of a smooth output, a nudge in units of the rounding jitter,
    # and the change by rounding alone, 1.
    clear_factor = math.sqrt(_NUDGE / (_ROUNDING_JITTER * eps))

    def find_small_but_clear(roundings: Sequence[Tensor]) -> list[Tensor]:
        """Mark the entries that change clearly, by less than the smallest scale."""
        return [
            (change > clear_factor * rounding) & (change / _NUDGE < scale)
            for change, rounding, scale in zip(changes, roundings, scales, strict=True)
        ]

    if shapes_of(outputs) != shapes_of(nudged_outputs):
        return scales
    roundings = [eps * x.abs() for x in outputs]
    if not any(map(Tensor.any, find_small_but_clear(roundings))):
        return scales
    tiny_nudge = replace(point, nudge=_ROUNDING_JITTER * eps)
    noises = _absolute_changes(outputs, model.outputs_at(tiny_nudge))
    model.move_to(point)  # Restore all bits, so that the graph of the outputs is still valid.
    roundings = [torch.maximum(*pair) for pair in zip(roundings, noises, strict=True)]
    return [
        torch.where(is_clear, change / _NUDGE, scale)
        for is_clear, change, scale in zip(
            find_small_but_clear(roundings), changes, scales, strict=True
        )
    ]


def _absolute_changes(outputs: Sequence[Tensor], nearby: Sequence[Tensor]) -> list[Tensor]:
    """Return |x - y| of all entries, or |x| if the two have other shapes; 0 if it is not finite."""
    if shapes_of(outputs) != shapes_of(nearby):
        nearby = [torch.zeros_like(x) for x in outputs]
    pairs = zip(outputs, nearby, strict=True)
    return [(x - y).abs().nan_to_num(0.0, 0.0) for x, y in pairs]


def find_scaling_failures(
    model: AuditedModel, sensitivity: Sensitivity, views: Mapping[str, View]
) -> list[str]:
    """Return the weights whose scaling changes the outputs, though their gradients are tangential.

    This finds what gradients hide: custom backward passes, and detached parts of a weight. All
    weights are scaled at once; only if this changes the outputs is each scaled alone.

    Args:
        model: the model.
        sensitivity: the sensitivity at the point of the check.
        views: for each weight, the view in which its gradients are tangential.
    """
    point = sensitivity.point
    scales = sensitivity.output_scales
    outputs = _replace_non_finite(sensitivity.outputs)
    if not views:
        return []
    if _invariant_under_scaling(model, point, outputs, scales, views, _MAX_CHANGE_OF_ALL):
        return []
    repeated = _replace_non_finite(model.outputs_at(point))
    repeatable = [
        _is_within(x, y, _MAX_CHANGE_BY_EPS * scale)
        for x, y, scale in zip(outputs, repeated, scales, strict=True)
    ]
    if not all(repeatable):
        model.caveats[
            "the model's passes differ by themselves, as with a counter or a random generator of"
            " its own: no outputs that differ show whether scaling a weight changes them"
        ] = None
        # An infinite scale makes every change of an output count as none.
        scales = [
            scale if is_repeatable else scale * torch.inf
            for scale, is_repeatable in zip(scales, repeatable, strict=True)
        ]
    # Eps has a large share in a small branch, and units that shrink by 64 would show it.
    if point.eps_factor < 1:
        point = replace(point, eps_factor=point.eps_factor * _SINGLE_WEIGHT_EPS_FACTOR)
        outputs = _replace_non_finite(model.outputs_at(point))
    return [
        name
        for name, view in views.items()
        if not _invariant_under_scaling(
            model, point, outputs, scales, {name: view}, _MAX_CHANGE_OF_ONE
        )
    ]


def _invariant_under_scaling(
    model: AuditedModel,
    point: Point,
    outputs: list[Tensor],
    scales: list[Tensor],
    views: Mapping[str, View],
    tolerance: float,
) -> bool:
    """Return True if scaling these weights changes each output far less than turning them does.

    Changes are compared with how much an output changes with the parameters, and not with its
    size: beside a mask's -1e9, or a constant, no change would show.

    Args:
        model: the model.
        point: the point.
        outputs: the outputs there.
        scales: how much each entry of the outputs changes with the parameters.
        views: the view of each weight that is scaled.
        tolerance: the largest change, in units of the change when the weights turn.
    """

    def outputs_after(change: Callable[[], None]) -> list[Tensor] | None:
        """Return the outputs, or None if the model refuses the change or the shapes differ."""
        try:
            changed = _replace_non_finite(model.outputs_at(point, change))
        except Exception:  # A model that bounds a norm may raise anything.
            return None
        return changed if shapes_of(changed) == shapes_of(outputs) else None

    def unchanged(changed: list[Tensor], shares: list[float]) -> bool:
        tensors = zip(outputs, changed, scales, shares, strict=True)
        return all(_is_within(x, y, share * scale) for x, y, scale, share in tensors)

    enlarged = outputs_after(partial(_scale_units, model, point, views, 1))
    shrunk = outputs_after(partial(_scale_units, model, point, views, -1))
    if enlarged is None or shrunk is None:
        return False
    scaled_outputs = [enlarged, shrunk]
    if all(unchanged(changed, [_MAX_CHANGE_BY_EPS] * len(scales)) for changed in scaled_outputs):
        return True
    turned_outputs = outputs_after(partial(_jitter_directions, model, point, views))
    if turned_outputs is None:
        turned_outputs = [x + scale for x, scale in zip(outputs, scales, strict=True)]
    shares = []
    for x, turned, scale in zip(outputs, turned_outputs, scales, strict=True):
        change_by_turn = float(((x - turned) / scale).abs().max())
        shares.append(max(tolerance * change_by_turn, _MAX_CHANGE_BY_EPS))
    return all(unchanged(changed, shares) for changed in scaled_outputs)


def _is_within(x: Tensor, y: Tensor, allowed: Tensor) -> bool:
    """Return True if each entry changes by at most what is allowed, and rounding."""
    rounding = _MAX_ROUNDINGS * torch.finfo(x.dtype).eps * x.abs()
    return bool(((x - y).abs() <= allowed + rounding).all())


def _jitter_directions(model: AuditedModel, point: Point, names: Mapping[str, View]) -> None:
    """Turn each weight by at most about a tenth of a radian, in a random direction."""
    values = [model.parameters[name].data for name in names]
    for _, piece, noise in pair_with_noise(values, point.seed + 2):
        piece.addcmul_(piece, noise, value=0.1)


def _scale_units(model: AuditedModel, point: Point, views: Mapping[str, View], sign: int) -> None:
    """Multiply each unit by a random factor of 8 to 64, or divide it by the factor if sign is -1.

    All units grow, or all shrink, so that each threshold that a norm may cross is crossed.
    """
    generator = torch.Generator().manual_seed(point.seed)
    for name, view in views.items():
        value = model.parameters[name].data
        n_units = value.numel() // view.size(value)
        exponents = (1 + torch.rand(n_units, generator=generator).to(value)) / 2  # in [0.5, 1]
        value.mul_(view.expand(2 ** (sign * _MAX_DOUBLINGS * exponents), value))


def _replace_non_finite(outputs: list[Tensor]) -> list[Tensor]:
    """Return the outputs with 0 for nan and infinities."""
    return [x.nan_to_num(0.0, 0.0, 0.0) for x in outputs]
