"""`roles`: the part that each parameter plays in a model, measured in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm.audit.model import Point, Subject, tensors_of, unwrap
from spherenorm.audit.uses import MATRICES, ROLES, RoleName, Uses
from spherenorm.support import columns


@dataclass(frozen=True)
class Role:
    """The part that a parameter plays.

    Attributes:
        name, shape: the parameter's.
        role: "matrix", a hidden one; "head", a last one; "embedding"; "tied", an embedding that is
            a matrix too; "vector", what acts entry by entry; "convolution"; "experts", a stack of
            matrices along dimension 0; "other", what acts in another way; "unmeasured".
        reason: for it.

    Example:
        >>> found = sn.roles(torch.nn.Linear(4, 3), torch.randn(8, 4))
        >>> found[0].name, found[0].role, found[0].reason
        ('weight', 'head', 'a factor of a product (addmm); its product is an output')
    """

    name: str
    shape: tuple[int, ...]
    role: RoleName
    reason: str


class Roles(tuple[Role, ...]):
    """A `Role` for each parameter, in the model's order; prints as a table.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        >>> found = sn.roles(model, torch.randn(8, 4))
        >>> [each.role for each in found]
        ['matrix', 'vector', 'head', 'vector']
    """

    def groups(
        self,
        model: nn.Module,
        options: Mapping[RoleName | tuple[RoleName, ...], Mapping[str, Any]],
    ) -> list[dict[str, Any]]:
        """The param_groups of any `torch.optim` optimizer: one for each entry, and one of the rest.

        Args:
            model: whose roles these are.
            options: entries of a group, such as `lr`, by a role or a tuple of roles.

        Returns:
            The groups in this order, the last without options; each may be empty. The first ones
            may go to one optimizer, and the others to another.

        Raises:
            ValueError: there is no such role, or two entries name it; the roles are of another
                model.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            >>> found = sn.roles(model, torch.randn(8, 4))
            >>> matrices, vectors, rest = found.groups(model, {"matrix": {}, "vector": {"lr": 0.1}})
            >>> matrices["param_names"], vectors["lr"], rest["param_names"]
            (['0.weight'], 0.1, ['2.weight'])
            >>> optimizers = torch.optim.Muon([matrices]), torch.optim.AdamW([vectors, rest])
        """
        parameters = dict(model.named_parameters())
        if {each.name: each.shape for each in self} != {
            name: tuple(x.shape) for name, x in parameters.items()
        }:
            raise ValueError("the roles are of another model: its parameters have other names")
        place: dict[str, int] = {}
        for index, key in enumerate(options):
            for role in (key,) if isinstance(key, str) else key:
                if role not in ROLES or role in place:
                    raise ValueError(
                        f"options must name each role once, of {', '.join(ROLES)}, got {role!r}"
                    )
                place[role] = index
        found: list[dict[str, Any]] = [
            {"params": [], "param_names": [], **entries} for entries in (*options.values(), {})
        ]
        for each in self:
            group = found[place.get(each.role, len(options))]
            group["params"].append(parameters[each.name])
            group["param_names"].append(each.name)
        return found

    def __str__(self) -> str:
        rows = [("parameter", "shape", "role", "why")]
        for each in self:
            rows.append((each.name, size(each.shape), each.role, each.reason))
        return columns(rows)

    __repr__ = __str__


def size(shape: Sequence[int]) -> str:
    """A shape in a table."""
    return " x ".join(map(str, shape)) or "()"


def roles(
    model: nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], Any] | None = None,
    dtype: torch.dtype = torch.float64,
) -> Roles:
    """The role of each parameter of a model, measured in one forward pass and not guessed by name.

    - **embedding**: rows are looked up by numbers; **tied**: and it is a factor of a product, too.
    - **matrix**: a factor of a product with what depends on the batch, or with constants before the
      result meets it, as of coordinates. **head**: a matrix, or a
      convolution, whose product reaches an output, and neither another weight of two or more
      dimensions nor a sum with other products comes between.
    - **experts**: of three dimensions, a factor of products that sum over 1 or 2 of them alone.
    - **convolution**; one with a filter for each channel by itself is a **vector**.
    - **vector**: of at most one dimension, or it acts entry by entry.
    - **other**: of three or more dimensions, and a product sums over several of them.

    A parameter that the pass does not reach has the role of its module, where that has one;
    otherwise it is **unmeasured**.

    Args:
        model: is copied, and runs in its present mode, in `dtype`.
        batch, loss, dtype: as for `audit`.

    Raises:
        ValueError: the model cannot be copied.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 8))
        >>> [each.role for each in roles(model, torch.arange(8))]
        ['embedding', 'matrix', 'vector', 'head', 'vector']
    """
    model = unwrap(model)
    with torch.inference_mode(False), torch.enable_grad():
        subject = Subject(model, batch, loss, dtype)
        seen = Uses(subject.parameters, tensors_of(subject.batch))
        subject.outputs(Point(), watch=seen)
        return measured_roles(model, seen)


def measured_roles(model: nn.Module, seen: Uses) -> Roles:
    """The roles of the parameters of `model` by a pass of a copy of it."""
    owners = {id(x): module for module in model.modules() for x in module._parameters.values()}
    found = []
    for name, weight in model.named_parameters():
        role: tuple[RoleName, str] | None = ("vector", f"{weight.ndim}-d")
        if weight.ndim > 1:
            role = _by_uses(seen.roles[name], name in seen.last)
        shape, owner = tuple(weight.shape), owners[id(weight)]
        found.append(Role(name, shape, *(role or _by_module(weight, owner))))
    return Roles(found)


def _by_uses(uses: Mapping[RoleName, str], last: bool) -> tuple[RoleName, str] | None:
    """The role of a parameter, and the reason; None if there is no use."""
    acts = next((role for role in (*MATRICES, "other") if role in uses), None)
    if acts is not None:
        if "embedding" in uses:
            return "tied", f"{uses['embedding']}; {uses[acts]}"
        return ("head", f"{uses[acts]}; its product is an output") if last else (acts, uses[acts])
    return next(((role, uses[role]) for role in ROLES if role in uses), None)


def _by_module(weight: Tensor, owner: nn.Module) -> tuple[RoleName, str]:
    """The role of a parameter that no operation has used."""
    if weight.ndim > 2 and sum(length > 1 for length in weight.shape) < 2:
        return "vector", f"not used on this batch; {weight.ndim}-d"
    reason = f"not used on this batch; by its module, {type(owner).__name__}"
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        return "embedding", reason
    if hasattr(owner, "kernel_size") and weight.ndim > 2:
        return ("vector" if weight.shape[1] == 1 else "convolution"), reason
    return ("matrix" if "Linear" in type(owner).__name__ else "unmeasured"), reason
