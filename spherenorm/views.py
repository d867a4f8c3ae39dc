"""Views: the ways in which a weight tensor splits into the vectors whose norm matters.

A *unit* is one such vector. Known views, by the layer that makes their units scale-invariant:

| layer | weight | view |
|---|---|---|
| Linear or Conv, then BatchNorm or InstanceNorm | (out, in, ...) | `"channel"`, `View(0)` |
| Linear, then LayerNorm or an l2-normalized output | (out, in) | `"layer"`, `View(None)` |
| ConvTranspose, then BatchNorm | (in, out, ...) | `"dim=1"`, `View(1)` |
| Conv, then GroupNorm of 8 groups | (out, in, ...) | `"groups=8"`, `View(0, 8)` |
| Linear to 8 heads whose queries or keys are normalized | (out, in) | `"groups=8"` |

A view never reshapes the weight for an ordinary reduction, so channels_last, transposed, vmapped
and DTensor weights all work; only a view of grouped indices unflattens one dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spherenorm.numerics import is_concrete, safe_divide, safe_sqrt


@dataclass(frozen=True)
class View:
    """The units of a weight: one per index or group of indices of `dim`, or the whole tensor.

    A 1-d weight under "channel" has one entry per unit; a 0-d weight is one unit in every view.

    Args:
        dim: the dimension that counts the units; None makes the whole tensor one unit.
        groups: how many equal runs of consecutive indices of `dim` make one unit each; None makes
            each index a unit.

    Raises:
        ValueError: `groups` is not positive, or is given without a `dim`.

    Example:
        >>> View(0).norm(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        tensor([[5.],
                [2.]])
    """

    dim: int | None = 0
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and (self.dim is None or self.groups < 1):
            raise ValueError(
                "groups must be a positive count beside a dim, got "
                f"dim={self.dim!r}, groups={self.groups!r}"
            )

    @property
    def name(self) -> str:
        """The name that `as_view` turns into this view."""
        if self.dim is None:
            return "layer"
        if self.groups is None:
            return "channel" if self.dim == 0 else f"dim={self.dim}"
        return f"groups={self.groups}" if self.dim == 0 else f"dim={self.dim},groups={self.groups}"

    def __str__(self) -> str:
        return self.name

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """Return <a, b> of each unit, for tensors of the weight's shape; broadcasts against it."""
        return self.unit_sums(a * b)

    def unit_sums(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over each unit; the result broadcasts against `x`."""
        if x.ndim == 0:
            return x
        if self.dim is None:
            return x.sum(tuple(range(x.ndim)), keepdim=True)
        dim = _dim(self, x)
        other_dims = tuple(d for d in range(x.ndim) if d != dim)
        # `sum` over an empty tuple of dimensions would sum over all of them.
        per_index = x.sum(other_dims, keepdim=True) if other_dims else x
        if self.groups is None or not x.shape[dim]:  # DTensor cannot unflatten an empty dimension
            return per_index
        grouped = torch.unflatten(replicate(per_index), dim, (_groups(self, x), -1))
        return grouped.sum(dim + 1).repeat_interleave(x.shape[dim] // _groups(self, x), dim=dim)

    def units(self, per_unit: Tensor) -> Tensor:
        """Reduce a result of `inner` or `unit_sums` to one value per unit, shape (units,)."""
        values = replicate(per_unit).flatten()
        if self.groups is None:
            return values
        # No unflatten: torch 2.9 may give a DTensor the shape that it had before.
        return values[:: max(len(values) // self.groups, 1)]

    def expand(self, values: Tensor, like: Tensor) -> Tensor:
        """Reshape one value per unit, shape (units,), so that it broadcasts against `like`."""
        if self.dim is None or like.ndim == 0:
            return values.reshape([1] * like.ndim)
        dim = _dim(self, like)
        if self.groups is not None:
            values = values.repeat_interleave(like.shape[dim] // _groups(self, like))
        return values.reshape([-1 if d == dim else 1 for d in range(like.ndim)])

    def sums_of_index_groups(self, sums: Tensor) -> Tensor:
        """Add up sums at each index of `dim` to sums over units, along the last dimension."""
        if self.dim is None:
            return sums.sum(-1, keepdim=True)
        if self.groups is None:
            return sums
        return torch.unflatten(sums, -1, (self.groups, -1)).sum(-1)

    def rows(self, x: Tensor) -> Tensor:
        """Return `x` as a matrix with one unit per row, shape (units, entries of a unit)."""
        x = replicate(x)
        if self.dim is None or x.ndim == 0:
            return x.reshape(1, x.numel())
        units = x.shape[_dim(self, x)] if self.groups is None else _groups(self, x)
        return x.movedim(_dim(self, x), 0).reshape(units, self.size(x))

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        """Invert `rows` for a tensor of the shape of `like`."""
        if self.dim is None or like.ndim == 0:
            return rows.reshape(like.shape)
        dim = _dim(self, like)
        return rows.reshape(like.movedim(dim, 0).shape).movedim(0, dim)

    def size(self, x: Tensor) -> int:
        """Return the number of entries of one unit of `x`: dim(w) in the paper.

        Raises:
            ValueError: `x` has no such units.
        """
        if self.dim is None or x.ndim == 0:
            return x.numel()
        dim, size = _dim(self, x), 1
        for d, length in enumerate(x.shape):
            if d != dim:
                size *= length
        return size if self.groups is None else size * (x.shape[dim] // _groups(self, x))

    def norm(self, x: Tensor) -> Tensor:
        """Return |x| of each unit, broadcastable against `x`."""
        return safe_sqrt(self.inner(x, x))

    def radial_coefficient(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return <w, x> / <w, w> of each unit: the radial part of `x` is this multiple of w.

        It is 0 for a zero unit, and broadcasts against the weight.
        """
        return safe_divide(self.inner(weight, x), self.inner(weight, weight))


ViewLike = Any
"""A `View` or its name. A field of a rule accepts both and holds a View, which types cannot say."""


def replicate(x: Tensor) -> Tensor:
    """Replicate a DTensor, because uneven shards cannot be reshaped; return others as they are."""
    mesh = getattr(x, "device_mesh", None)
    if mesh is None:
        return x
    from torch.distributed.tensor import Replicate

    placements = [Replicate()] * mesh.ndim
    replicated: Tensor = x.redistribute(placements=placements)  # type: ignore[attr-defined]
    return replicated


def has_zero(x: Tensor) -> bool:
    """Return True if an entry of `x` is 0; False where its values cannot be read, as under vmap."""
    any_zero = (replicate(x.detach()) == 0).any()
    return is_concrete(any_zero) and bool(any_zero)


def _dim(view: View, x: Tensor) -> int:
    assert view.dim is not None
    if not -x.ndim <= view.dim < x.ndim:
        raise ValueError(
            f"view {view} needs a weight with dimension {view.dim}, got shape {tuple(x.shape)}"
        )
    return view.dim % x.ndim


def _groups(view: View, x: Tensor) -> int:
    assert view.groups is not None
    length = x.shape[_dim(view, x)]
    if length % view.groups:
        raise ValueError(
            f"view {view} needs dimension {view.dim} divisible by {view.groups}, "
            f"got shape {tuple(x.shape)}"
        )
    return view.groups


_NAME = re.compile(r"(?:dim=(?P<dim>-?\d+))?(?:(?(dim),)groups=(?P<groups>\d+))?")


def as_view(view: ViewLike) -> View:
    """Return the view of a name; a `View` is returned as it is.

    Names, unlike objects, survive in a state_dict that loads with `weights_only=True`.

    Args:
        view: "channel", "layer", "dim=1", "groups=8", "dim=1,groups=8", or a `View`.

    Raises:
        ValueError: there is no view of that name.

    Example:
        >>> as_view("dim=1")
        View(dim=1, groups=None)
    """
    if isinstance(view, View):
        return view
    if view == "channel":
        return View(0)
    if view == "layer":
        return View(None)
    match = _NAME.fullmatch(view) if isinstance(view, str) and view else None
    if match is None:
        raise ValueError(
            'a view is "channel", "layer", "dim=1", "groups=8", "dim=1,groups=8" or a View, '
            f"got {view!r}"
        )
    return View(int(match["dim"] or 0), int(match["groups"]) if match["groups"] else None)
