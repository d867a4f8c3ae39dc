"""The paper's measurements on a weight, for each unit of a view; all return shape (units,).

They are computed in float64 (where the device has it), in which squares neither overflow nor
underflow, but for float64 weights beyond 1e150 or below 1e-150. They carry no graph, and are
returned in the weight's type, in float32 for half precision.
"""

from __future__ import annotations

from torch import Tensor

from spherenorm.numerics import accumulation_dtype, compute_dtype
from spherenorm.unit_measures import angle_of, chord, cosine_of
from spherenorm.views import View, ViewLike, as_view

__all__ = ["angular_update", "cosine", "effective_step", "norm"]


def norm(weight: Tensor, view: ViewLike = "channel") -> Tensor:
    """|w|_2 of each unit.

    Args:
        weight: of any shape.
        view: splits it into units, here and below.

    Raises:
        TypeError: the weight is complex or integer, here and below.

    Example:
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([5., 1.])
    """
    v, (w,) = as_view(view), _widened(weight=weight)
    return _narrowed(v, v.inner(w, w).sqrt(), weight)


def effective_step(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """The effective step size |w'/|w'| - w/|w||_2 of each unit, in [0, 2].

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
    v = as_view(view)
    return _narrowed(v, chord(angle_of(v, *_widened(before=before, after=after))), before)


def angular_update(before: Tensor, after: Tensor, view: ViewLike = "channel") -> Tensor:
    """The angle between w and w' of each unit, in radians: 2 arcsin(effective step / 2).

    It is exact for small angles, too, and 0 where w or w' is 0, which has no direction.

    Args:
        before, after: w and w', of one shape.

    Example:
        >>> angular_update(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 3.0]]))
        tensor([1.5708])
    """
    v = as_view(view)
    return _narrowed(v, angle_of(v, *_widened(before=before, after=after)), before)


def cosine(weight: Tensor, grad: Tensor, view: ViewLike = "channel") -> Tensor:
    """cos(w, g) = <w, g> / (|w| |g|) of each unit, in [-1, 1]; nan where either is 0.

    The scale-invariance test compares |cos| with its threshold.

    Args:
        weight, grad: w and g, of one shape.

    Example:
        >>> cosine(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([0.7071])
    """
    v, (w, g) = as_view(view), _widened(weight=weight, grad=grad)
    return _narrowed(v, cosine_of(v.inner(w, g), v.inner(w, w), v.inner(g, g)), weight)


def _widened(**tensors: Tensor) -> list[Tensor]:
    """The tensors in the type that is computed in, without a graph.

    Raises:
        TypeError: one is complex or integer.
        ValueError: their shapes differ.
    """
    first, *_ = tensors
    for name, x in tensors.items():
        if not x.is_floating_point():
            raise TypeError(f"{name} must be real and floating-point, got {x.dtype}")
        if x.shape != tensors[first].shape:
            own = tuple(tensors[first].shape)
            raise ValueError(f"{name} must have the shape of {first}, {own}, got {tuple(x.shape)}")
    return [x.detach().to(accumulation_dtype(x.device)) for x in tensors.values()]


def _narrowed(view: View, per_unit: Tensor, like: Tensor) -> Tensor:
    return view.units(per_unit).to(compute_dtype(like.dtype))
