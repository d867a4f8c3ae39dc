"""`param_groups`: from the audit of a model to the groups of an optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from spherenorm._manifold import Sphere
from spherenorm._registry import Bound, Recipe
from spherenorm._views import View
from spherenorm.audit._audit import audit
from spherenorm.audit._model import unwrap
from spherenorm.audit._recipes import Override, Recipes, bound_of, wanted_of
from spherenorm.audit._report import Audit
from spherenorm.audit._roles import size
from spherenorm.audit._uses import RoleName
from spherenorm.optim import RecipeOptimizer, torch_optimizer
from spherenorm.support import columns

PRESETS = {
    "muon+adamw": ("muon", "adamw"),  # Jordan et al. 2024 (Muon)
    "hyperball": ("hyperball(adam)", "adamw"),  # Wen et al. 2026 (Hyperball), arXiv:2606.16899
}
"""The recipes of hidden matrices and of the rest, by a name for both."""

Kind = Literal["invariant", "weights", "vectors"]
KINDS: tuple[Kind, ...] = ("invariant", "weights", "vectors")


@dataclass(frozen=True)
class Assignment:
    """One parameter's place.

    Attributes:
        name, shape: the parameter's.
        group: the index of its group.
        treatment: "sphere", "projected" or "euclidean".
        view: in which it counts as scale-invariant; None if in none.
        role: that it plays in the model; see `roles`.
        reason: for the treatment, and for the role.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> groups = param_groups(model, torch.randn(32, 4), "adamp")
        >>> first = groups.assignments[0]
        >>> first.name, first.group, first.treatment, first.view
        ('0.weight', 0, 'projected', 'channel')
    """

    name: str
    shape: tuple[int, ...]
    group: int
    treatment: str
    view: str | None
    role: RoleName
    reason: str


class ParamGroups(list[dict[str, Any]]):
    """The groups for an optimizer, as it takes them; prints as a table.

    Attributes:
        assignments: one for each parameter, in the model's order.
        audit: the audit behind them.
        recipe: the recipe of the groups that name none, which the optimizer has.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> groups = param_groups(model, torch.randn(32, 4), "adamp", lr=0.1)
        >>> optimizer = sn.optim.AdamP(groups)
        >>> [len(group["params"]) for group in groups], f"{groups.audit.share:.2f}"
        ([1, 4], '0.55')
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        assignments: Sequence[Assignment],
        audit: Audit,
        recipe: str,
    ) -> None:
        super().__init__(groups)
        self.assignments, self.audit, self.recipe = tuple(assignments), audit, recipe

    def optimizer(self) -> RecipeOptimizer:
        """The optimizer of these groups.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            >>> optimizer = param_groups(model, torch.randn(8, 4), "muon+adamw").optimizer()
            >>> [group.get("recipe") for group in optimizer.param_groups]
            ['muon', 'adamw']
        """
        return torch_optimizer(self.recipe)(self)

    def __str__(self) -> str:
        rows = [("parameter", "shape", "group", "role", "treatment", "view", "why")]
        for each in self.assignments:
            place = (str(each.group), each.role, each.treatment, each.view or "")
            rows.append((each.name, size(each.shape), *place, each.reason))
        lines = [columns(rows), ""]
        for index, group in enumerate(self):
            named = {"recipe": self.recipe, **group}
            entries = (f"{name}={value!r}" for name, value in named.items() if name != "params")
            lines.append(f"group {index}: {len(group['params'])} parameters, {', '.join(entries)}")
        return "\n".join([*lines, *(f"doubtful: {doubt}" for doubt in self.audit.doubts)])

    __repr__ = __str__


def param_groups(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe | Bound,
    *,
    rest: str | Recipe | Bound | None = None,
    decay: float | Mapping[Kind, float] | None = None,
    overrides: Mapping[str, Override] | None = None,
    smallest_norm: float = 0.1,
    **hyper_parameters: Any,
) -> ParamGroups:
    """The param_groups of a model for a recipe, from an audit of which weights are invariant.

    A recipe that keeps norms is given the invariant weights, in their views; one for matrices the
    hidden ones; any other all. What is left gets `rest`, and so does what a recipe refuses:

    - on the sphere (sgdg, adamg), where they are **put here**: w becomes w / |w| in each unit. Not
      those that are invariant up to eps only, unless `overrides` or `tolerance` say so. Weights of
      more units than entries in each get `alpha=0`, unless you give an `alpha`: no such units are
      orthogonal. Running statistics of a trained model do not follow, which is a warning;
    - with a test for invariance (sgdp, adamp), or a projection without one. A recipe with a test
      tests no others;
    - for matrices (muon, adamh, nora: one that orthogonalizes, holds a norm, or makes steps of one
      length): hidden matrices, convolutions and stacks of experts, each expert by itself. Roles
      come from one forward pass: see `roles`. You must give a `rest`.

    The norm of an invariant unit is a learning rate: a step turns it by lr |g| / |w|, and |g| goes
    as 1 / |w|. Plain steps let a tiny unit grow until they turn it little; recipes that keep norms
    take that away, so they leave a weight alone whose units are smaller than `smallest_norm`.

    Args:
        model: is audited in its present mode. Its weights change only for a recipe on the sphere.
        batch: a tensor, a tuple of the model's arguments, or a mapping of its keyword arguments;
            or the `audit` of this model, such as one with a loss, or of a larger tolerance: that
            puts weights on the sphere that are invariant up to eps, by which the outputs change.
        recipe: its name, a function, or a bound recipe; or a preset: "muon+adamw" is "muon" with
            `rest="adamw"`, "hyperball" is "hyperball(adam)" with the same.
        rest: the recipe of what `recipe` does not suit; None: Nesterov SGD with lr 0.01 and
            momentum 0.9 (Cho and Lee's choice) beside a recipe that is always on a sphere or
            projects always, none beside one for matrices, and `recipe` itself otherwise.
        decay: the weight decay: of all parameters, or by kind: "invariant"; "weights", the others
            of two or more dimensions; "vectors", biases and gains. None, or a kind that is not
            named: as the recipe has it.
        overrides: by name or pattern, such as "blocks.*.qkv.weight": a view in which the weight
            counts as invariant; a role; "euclidean"; or a mapping of entries for its group, such
            as {"lr": 0.1}, in which "as" may be one of the former, and "recipe" its recipe. Later
            ones prevail.
        smallest_norm: invariant weights whose units have a smaller median norm are Euclidean for
            recipes that keep norms, unless overridden; 0 lets all pass. Ordinary initializations
            are above 0.1, at which lr / |w|^2 is 100 lr. No weight with a unit below a
            tenth of it is put on a sphere.
        **hyper_parameters: of `recipe`.

    Returns:
        The groups; print them to see the reason for each parameter.

    Raises:
        ValueError: an unknown recipe, hyper-parameter or kind; a value outside its interval; an
            override that matches nothing or does not fit; a recipe that tests for invariance and
            has no hyper-parameter `views`; a weight that `recipe` refuses, and `rest` too;
            as `audit`. Nothing changes then.

    Example:
        >>> layers = nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1)
        >>> groups = param_groups(nn.Sequential(*layers), torch.randn(32, 4), "sgdg", lr=0.1)
        >>> [(each.name, each.treatment) for each in groups.assignments[:2]]
        [('0.weight', 'sphere'), ('1.weight', 'euclidean')]
        >>> optimizer = sn.optim.SGDG(groups)

    Source: Cho and Lee 2017, for `rest`; Jordan et al. 2024 (Muon) and Wen et al. 2026 (Hyperball),
    arXiv:2606.16899, for the presets.
    """
    if isinstance(recipe, str) and recipe in PRESETS:
        recipe, usual = PRESETS[recipe]
        rest = usual if rest is None else rest
    main = bound_of(recipe, hyper_parameters)
    left = None if rest is None else bound_of(rest, {})
    recipes = Recipes(main, left, hyper_parameters, smallest_norm)
    model = unwrap(model)
    parameters = dict(model.named_parameters())
    audited = batch if isinstance(batch, Audit) else audit(model, batch)
    wanted = wanted_of(parameters, audited, overrides or {})
    groups: dict[Hashable, dict[str, Any]] = {}
    assignments, on_sphere = [], []
    for name, weight in parameters.items():
        try:
            bound, treatment, view, why = recipes.assign(weight, wanted[name])
            given = {**_decay_of(decay, weight, view, bound), **wanted[name].entries}
            entries = bound_of(bound, given).hyper_parameters
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        if bound.recipe is not main.recipe:
            entries = {"recipe": bound.name, **entries}
        key = (treatment, *(_told_apart(item) for item in entries.items()))
        groups.setdefault(key, {"params": [], **entries})["params"].append(weight)
        place, role = list(groups).index(key), wanted[name].role
        units = None if view is None else str(view)
        reason = why if why.startswith(role.reason) else f"{role.reason}; {why}"
        shape = tuple(weight.shape)
        assignments.append(Assignment(name, shape, place, treatment, units, role.role, reason))
        if treatment == "sphere" and view is not None:
            on_sphere.append((weight, view))

    with torch.no_grad():
        for weight, unit in on_sphere:
            weight.copy_(Sphere(unit).normalize(weight))
    stale = [n for n, x in model.named_buffers() if n.endswith("running_var") and (x != 1).any()]
    if on_sphere and stale:
        warnings.warn(
            f"{stale[0]} and the like do not fit the weights on the sphere: run some batches in"
            " training mode before you evaluate",
            stacklevel=2,
        )
    return ParamGroups(list(groups.values()), assignments, audited, main.name)


def _told_apart(entry: tuple[str, Any]) -> Hashable:
    """A key of a hyper-parameter; tensors are told apart, as each may change by itself."""
    name, value = entry
    return name, id(value) if isinstance(value, torch.Tensor) else repr(value)


def _decay_of(
    decay: float | Mapping[Kind, float] | None,
    weight: torch.Tensor,
    view: View | None,
    bound: Bound,
) -> dict[str, float]:
    """The entry of a group that the user's decay makes."""
    kind: Kind = "invariant" if view else "weights" if weight.ndim > 1 else "vectors"
    if isinstance(decay, Mapping):
        if unknown := [name for name in decay if name not in KINDS]:
            raise ValueError(f"decay must name {', '.join(KINDS)}, got {unknown[0]!r}")
        decay = decay.get(kind)
        if decay and "weight_decay" not in bound.defaults:
            raise ValueError(f"decay: recipe {bound.name!r} of {kind} parameters has none")
    return {} if decay is None or "weight_decay" not in bound.defaults else {"weight_decay": decay}
