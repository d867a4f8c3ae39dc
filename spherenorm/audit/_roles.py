"""`roles`: the part that each parameter plays in a model, measured in one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm.audit._model import Point, Subject, tensors_of, unwrap
from spherenorm.audit._uses import MATRICES, ROLES, RoleName, Uses
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
        >>> sn.roles(model).unmeasured
        ('0.weight', '1.weight')
    """

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The names of the parameters whose role could not be measured."""
        return tuple(each.name for each in self if each.role == "unmeasured")

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
                model, or a parameter's role is unmeasured.

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
        if self.unmeasured:
            names = ", ".join(self.unmeasured[:5])
            raise ValueError(f"the roles of {names} are unmeasured: give sn.roles a batch")
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
    batch: Any = None,
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
    otherwise it is **unmeasured**. Without a batch there is no pass, and a `Linear` is unmeasured,
    since it may be a head.

    Args:
        model: is copied, and runs in its present mode, in `dtype`.
        batch: as for `audit`; None for a look at the modules alone.
        loss, dtype: as for `audit`.

    Raises:
        ValueError: the model cannot be copied.

    Example:
        >>> model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 8))
        >>> [each.role for each in roles(model, torch.arange(8))]
        ['embedding', 'matrix', 'vector', 'head', 'vector']
        >>> roles(model).unmeasured
        ('1.weight', '3.weight')
    """
    model = unwrap(model)
    if batch is None:
        return roles_by_modules(model)
    with torch.inference_mode(False), torch.enable_grad():
        subject = Subject(model, batch, loss, dtype)
        seen = Uses(subject.parameters, tensors_of(subject.batch))
        subject.outputs(Point(), watch=seen)
        return measured_roles(model, seen)


def measured_roles(model: nn.Module, seen: Uses) -> Roles:
    """The roles of the parameters of `model` by a pass of a copy of it."""
    return Roles(
        _measured(each, seen.roles[each.name], each.name in seen.last)
        for each in roles_by_modules(model)
    )


def _measured(fallback: Role, uses: Mapping[RoleName, str], last: bool) -> Role:
    """The role of a parameter by its uses."""
    if len(fallback.shape) < 2:
        return fallback
    acts = next((role for role in (*MATRICES, "other") if role in uses), None)
    if "embedding" in uses and acts is not None:
        return replace(fallback, role="tied", reason=f"{uses['embedding']}; {uses[acts]}")
    if acts is not None and last:
        return replace(fallback, role="head", reason=f"{uses[acts]}; its product is an output")
    rest: tuple[RoleName, ...] = ROLES if acts is None else (acts,)
    for role in rest:
        if role in uses:
            return replace(fallback, role=role, reason=uses[role])
    if fallback.role == "unmeasured" and "Linear" in fallback.reason:
        fallback = replace(fallback, role="matrix")
    return replace(fallback, reason=f"not used on this batch; {fallback.reason}")


def roles_by_modules(model: nn.Module) -> Roles:
    """The roles that the shapes of parameters and the modules that own them tell."""
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            owners.setdefault(id(parameter), []).append(module)
    found = []
    for name, weight in model.named_parameters():
        role, reason = _by_owners(weight, owners.get(id(weight), []))
        found.append(Role(name, tuple(weight.shape), role, reason))
    return Roles(found)


def _by_owners(weight: Tensor, owners: Sequence[nn.Module]) -> tuple[RoleName, str]:
    if sum(length > 1 for length in weight.shape) < 2 and weight.ndim != 2:
        return "vector", f"{weight.ndim}-d"
    kinds = {type(owner).__name__ for owner in owners}
    by = f"by its module, {' and '.join(sorted(kinds))}"
    table = any(isinstance(owner, nn.Embedding | nn.EmbeddingBag) for owner in owners)
    if table:
        return ("tied" if len(kinds) > 1 else "embedding"), by
    if any(hasattr(owner, "kernel_size") and weight.ndim > 2 for owner in owners):
        return ("vector" if weight.shape[1] == 1 else "convolution"), by
    return "unmeasured", by
