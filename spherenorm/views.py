"""Views: how a weight tensor splits into the vectors whose norm matters.

A *unit* is one such vector. A view never reshapes the weight for an ordinary reduction, so channels_last, transposed,
vmapped and DTensor weights all work; only a view of grouped indices unflattens one dimension.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from spherenorm.numerics import ratio, root

__all__ = ["View", "ViewLike", "as_view", "uncut"]


@dataclass(frozen=True)
class View:
    """The units of a weight: one per index of `dim`, one per group of indices of `dim`, or the whole tensor.

    | layer | weight | view |
    |---|---|---|
    | Linear or Conv followed by BatchNorm or InstanceNorm | (out, in, ...) | `"channel"`, `View(0)` |
    | followed by LayerNorm; an l2-normalized output | (out, in) | `"layer"`, `View(None)` |
    | ConvTranspose followed by BatchNorm | (in, out, ...) | `"dim=1"`, `View(1)` |
    | Conv followed by GroupNorm of 8 groups; 8 heads whose queries or keys are normalized | (out, in, ...) | `"groups=8"`, `View(0, 8)` |

    Args:
        dim: the dimension that counts the units; None makes the whole tensor one unit.
        groups: how many equal runs of consecutive indices of `dim` make one unit each; None is one unit per index.

    A 1-d weight under `"channel"` has one entry per unit, a 0-d weight is one unit under every view.
    """

    dim: int | None = 0
    groups: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and (self.dim is None or self.groups < 1):
            raise ValueError(
                f"groups must be a positive count beside a dim, got dim={self.dim!r}, groups={self.groups!r}"
            )

    def inner(self, a: Tensor, b: Tensor) -> Tensor:
        """<a, b> of each unit; `a`, `b` have the weight's shape, the result broadcasts against it."""
        return self.total(a * b)

    def total(self, x: Tensor) -> Tensor:
        """The sum of `x` over each unit; the result broadcasts against `x`."""
        if x.ndim == 0:
            return x
        if self.dim is None:
            return x.sum(dim=tuple(range(x.ndim)), keepdim=True)
        dim = self._dim(x)
        others = tuple(d for d in range(x.ndim) if d != dim)
        # `sum` over an empty tuple of dimensions would sum over all of them.
        per_index = x.sum(dim=others, keepdim=True) if others else x
        if self.groups is None:
            return per_index
        if not x.shape[dim]:
            return per_index  # of which DTensor cannot make groups
        per_group = torch.unflatten(uncut(per_index), dim, (self._groups(x), -1)).sum(dim + 1)
        return per_group.repeat_interleave(x.shape[dim] // self._groups(x), dim=dim)

    def units(self, per_unit: Tensor) -> Tensor:
        """One value per unit, shape (units,), of a result of `inner` or `total`."""
        values = uncut(per_unit).flatten()
        if self.groups is None:
            return values
        return torch.unflatten(values, 0, (self.groups, -1))[:, 0]

    def rows(self, x: Tensor) -> Tensor:
        """`x` as a matrix with one unit per row, shape (units, entries of a unit)."""
        x = uncut(x)
        if self.dim is None or x.ndim == 0:
            return x.reshape(1, x.numel())
        units = x.shape[self._dim(x)] if self.groups is None else self._groups(x)
        return x.movedim(self._dim(x), 0).reshape(units, self.size(x))

    def from_rows(self, rows: Tensor, like: Tensor) -> Tensor:
        """The inverse of `rows` for a tensor shaped as `like`."""
        if self.dim is None or like.ndim == 0:
            return rows.reshape(like.shape)
        dim = self._dim(like)
        return rows.reshape(like.movedim(dim, 0).shape).movedim(0, dim)

    def size(self, x: Tensor) -> int:
        """dim(w): how many entries one unit of `x` has."""
        if self.dim is None or x.ndim == 0:
            return x.numel()
        size = 1
        for d, length in enumerate(x.shape):
            size *= length if d != self._dim(x) else 1
        return size if self.groups is None else size * (x.shape[self._dim(x)] // self._groups(x))

    def norm(self, x: Tensor) -> Tensor:
        """|x| of each unit, broadcastable against `x`."""
        return root(self.inner(x, x))

    def radial_coefficient(self, weight: Tensor, x: Tensor) -> Tensor:
        """<w, x> / <w, w> of each unit: the multiple of `weight` that is the radial part of `x`; 0 for a zero unit."""
        return ratio(self.inner(weight, x), self.inner(weight, weight))

    def _dim(self, x: Tensor) -> int:
        assert self.dim is not None
        if not -x.ndim <= self.dim < x.ndim:
            raise ValueError(
                f"view {self} needs a weight with dimension {self.dim}, got shape {tuple(x.shape)}"
            )
        return self.dim % x.ndim

    def _groups(self, x: Tensor) -> int:
        assert self.groups is not None
        length = x.shape[self._dim(x)]
        if length % self.groups:
            raise ValueError(
                f"view {self} needs dimension {self.dim} divisible by {self.groups}, got shape {tuple(x.shape)}"
            )
        return self.groups

    def __str__(self) -> str:
        if self.dim is None:
            return "layer"
        if self.groups is None:
            return "channel" if self.dim == 0 else f"dim={self.dim}"
        return f"groups={self.groups}" if self.dim == 0 else f"dim={self.dim},groups={self.groups}"


ViewLike = str | View


def uncut(x: Tensor) -> Tensor:
    """`x`, whole in each process if it is a DTensor, which cannot reshape what is cut unevenly."""
    mesh = getattr(x, "device_mesh", None)
    if mesh is None:
        return x
    from torch.distributed.tensor import Replicate

    everywhere = [Replicate()] * mesh.ndim
    whole: Tensor = x.redistribute(placements=everywhere)  # type: ignore[attr-defined]
    return whole


_SPELLING = re.compile(r"(?:dim=(?P<dim>-?\d+))?(?:(?(dim),)groups=(?P<groups>\d+))?")


def as_view(view: ViewLike) -> View:
    """The view that a name stands for: `"channel"`, `"layer"`, `"dim=1"`, `"groups=8"` or `"dim=1,groups=8"`.

    Names, unlike objects, survive in a state_dict that loads with `weights_only=True`.
    """
    if isinstance(view, View):
        return view
    if view == "channel":
        return View(0)
    if view == "layer":
        return View(None)
    match = _SPELLING.fullmatch(view) if isinstance(view, str) and view else None
    if match is None:
        raise ValueError(
            f'a view is "channel", "layer", "dim=1", "groups=8", "dim=1,groups=8" or a View, got {view!r}'
        )
    return View(int(match["dim"] or 0), int(match["groups"]) if match["groups"] else None)
