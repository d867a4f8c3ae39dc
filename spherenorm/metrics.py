"""The paper's measurements on a weight, for each unit of a view; all return shape (units,).

They are computed in float64 (where the device has it), in which squares neither overflow nor
underflow, except for float64 weights beyond 1e150 or below 1e-150. They carry no graph, and are
returned in the weight's type, in float32 for half precision.

The formulas at the end are in the arithmetic of their arguments. Probes and audits, which have the
inner products of many weights already, call these directly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spherenorm.numerics import accumulation_dtype, compute_dtype, safe_divide
from spherenorm.views import View, ViewLike, as_view

__all__ = ["angular_update", "cosine", "effective_step", "norm"]


def norm(weight: Tensor, view: ViewLike = "channel") -> Tensor:
    """Return |w|_2 of each unit.

    Args:
        weight: a weight of any shape.
        view: splits it into units, here and below.

    Raises:
        TypeError: the weight is complex or integer, here and below.

    Example:
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.])
    """
    view = as_view(view)
    (w,) = _to_accumulation_dtype(weight=weight)
    return _per_unit(view, view.inner(w, w).sqrt(), weight)


def effective_step(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """Return the effective step size |w'/|w'| - w/|w||_2 of each unit, in [0, 2].

    It is exact for small steps, too, and 0 where w or w' is 0, which has no direction.

    Args:
        before, after: w and w', of one shape.

    Raises:
        ValueError: the shapes differ, here and below.

    Example:
        >>> effective_step(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
        tensor([1.4142])

    Source: Heo et al. 2021 (AdamP), Eq. 5.
    """
    view = as_view(view)
    angle = angle_between(view, *_to_accumulation_dtype(before=before, after=after))
    return _per_unit(view, chord(angle), before)


def angular_update(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """Return the angle between w and w' of each unit, in radians: 2 arcsin(effective step / 2).

    It is exact for small angles, too, and 0 where w or w' is 0, which has no direction.

    Args:
        before, after: w and w', of one shape.

    Example:
        >>> angular_update(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
        tensor([1.5708])
    """
    view = as_view(view)
    angle = angle_between(view, *_to_accumulation_dtype(before=before, after=after))
    return _per_unit(view, angle, before)


def cosine(weight: Tensor, grad: Tensor, view: ViewLike = "channel") -> Tensor:
    """Return cos(w, g) = <w, g> / (|w| |g|) of each unit, in [-1, 1]; nan where either is 0.

    The scale-invariance test compares |cos| with its threshold.

    Args:
        weight, grad: w and g, of one shape.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([0.7071])
    """
    view = as_view(view)
    w, g = _to_accumulation_dtype(weight=weight, grad=grad)
    cosines = cosine_from_products(view.inner(w, g), view.inner(w, w), view.inner(g, g))
    return _per_unit(view, cosines, weight)


def _to_accumulation_dtype(**tensors: Tensor) -> list[Tensor]:
    """Return tensors of one shape in the type that is computed in, without a graph.

    Raises:
        TypeError: one is complex or integer.
        ValueError: their shapes differ.
    """
    first_name, *_ = tensors
    shape = tensors[first_name].shape
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise TypeError(f"{name} must be real and floating-point, got {x.dtype}")
        if x.shape != shape:
            raise ValueError(
                f"{name} must have the shape of {first_name}, {tuple(shape)}, got {tuple(x.shape)}"
            )
    return [x.detach().to(accumulation_dtype(x.device)) for x in tensors.values()]


def _per_unit(view: View, values: Tensor, weight: Tensor) -> Tensor:
    """Return values that broadcast against a weight as one value per unit, in the weight's type."""
    return view.units(values).to(compute_dtype(weight.dtype))


# Formulas


def angle_between(view: View, before: Tensor, after: Tensor) -> Tensor:
    """Return the angle between w and w' of each unit, in radians; 0 where either is 0.

    With d = w' - w, of which a is the radial share <w, d> / <w, w>, and t = d - a w the tangent
    part, it is atan2(|t|, (1 + a) |w|). A small d is exact, and so is a small angle.
    """
    squared_norm, step = view.inner(before, before), after - before
    along = safe_divide(view.inner(before, step), squared_norm)
    tangent = torch.addcmul(step, -along, before)
    return torch.atan2(*_tangential_and_radial(squared_norm, along, view.inner(tangent, tangent)))


def norm_and_angle(
    squared_norm: Tensor, product: Tensor, squared_step: Tensor
) -> tuple[Tensor, Tensor]:
    """Return |w'| and the angle between w and w' = w + d, from <w, w>, <w, d> and <d, d>.

    |t|^2 = <d, d> - <w, d>^2 / <w, w>. |t| is exact up to a share of |d| that is the root of the
    rounding: 1e-8 in float64.
    """
    along = safe_divide(product, squared_norm)
    squared_tangent = (squared_step - along * product).clamp(min=0)
    tangential, radial = _tangential_and_radial(squared_norm, along, squared_tangent)
    norm = torch.where(squared_norm > 0, torch.hypot(radial, tangential), squared_step.sqrt())
    return norm, torch.atan2(tangential, radial)


def _tangential_and_radial(
    squared_norm: Tensor, along: Tensor, squared_tangent: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the lengths of the parts of w' across w and along it."""
    # Every step of a zero weight would count as tangential, though a zero weight has no tangents.
    tangential = torch.where(squared_norm > 0, squared_tangent, 0).sqrt()
    return tangential, (1 + along) * squared_norm.sqrt()


def chord(angle: Tensor) -> Tensor:
    """Return the effective step |w'/|w'| - w/|w|| of a turn by `angle`: 2 sin(angle / 2)."""
    return 2 * torch.sin(angle / 2)


def cosine_from_products(product: Tensor, squared_norm: Tensor, squared_grad: Tensor) -> Tensor:
    """Return cos(w, g) from <w, g>, <w, w> and <g, g>, in [-1, 1]; nan where w or g is 0."""
    # The roots are multiplied, since the product of squared norms underflows much earlier.
    return (product / (squared_norm.sqrt() * squared_grad.sqrt())).clamp(-1, 1)
