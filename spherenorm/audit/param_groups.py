"""`param_groups`: from the audit of a model to the groups of an optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from spherenorm.audit.audit import audit
from spherenorm.audit.model import unwrap
from spherenorm.audit.recipes import Override, Recipes, bound_of, wanted_of
from spherenorm.audit.report import Audit
from spherenorm.audit.roles import size
from spherenorm.audit.uses import RoleName
from spherenorm.manifolds import Sphere
from spherenorm.numerics import can_never_be_stepped
from spherenorm.optim import GroupsOfRecipe, RecipeOptimizer, torch_optimizer
from spherenorm.registry import Bound, Recipe, bind
from spherenorm.support import columns
from spherenorm.views import View

PRESETS: dict[str, tuple[Bound, Bound]] = {
    # Jordan et al. 2024 (Muon): 0.02 for matrices.
    "muon+adamw": (bind("muon", lr=0.02), bind("adamw", lr=1e-3)),
    # Wen et al. 2026 (Hyperball), arXiv:2606.16899: a matrix turns by about lr.
    "hyperball": (bind("hyperball(adam)", lr=0.02), bind("adamw", lr=1e-3)),
}
"""The recipes of hidden matrices and of the rest, with their rates, by a name for both."""

Kind = Literal["invariant", "weights", "vectors"]
KINDS: tuple[Kind, ...] = ("invariant", "weights", "vectors")


@dataclass(frozen=True)
class Assignment:
    """One parameter's place.

    Attributes:
        name, shape: the parameter's.
        group: the index of its group; None if it is left out, since no optimizer can step it.
        treatment: "sphere", "projected", "euclidean", or "left out".
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
    group: int | None
    treatment: str
    view: str | None
    role: RoleName
    reason: str


class ParamGroups(GroupsOfRecipe):
    """The groups for an optimizer, as it takes them; prints as a table.

    A group has the entries that were given or decided; the optimizer's arguments are those of the
    others where the group names no recipe. The table shows every number.

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
        groups: Sequence[tuple[dict[str, Any], frozenset[str]]],
        assignments: Sequence[Assignment],
        audit: Audit,
        recipe: str,
        defaults: Mapping[str, Mapping[str, Any]],
    ) -> None:
        super().__init__(groups, recipe)
        self.assignments, self.audit = tuple(assignments), audit
        self._defaults = defaults

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
            group_index = "-" if each.group is None else str(each.group)
            place = (group_index, each.role, each.treatment, each.view or "")
            rows.append((each.name, size(each.shape), *place, each.reason))
        lines = [columns(rows), ""]
        for index, group in enumerate(self):
            name = group.get("recipe", self.recipe)
            numbers = {**self._defaults.get(name, {}), **group}
            named = {"recipe": name, **numbers}
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
        recipe: its name, a function, or a bound recipe; or a preset, which has learning rates to
            start from: "muon+adamw" is "muon" at 0.02 with "adamw" at 0.001 as its rest,
            "hyperball" is "hyperball(adam)" at 0.02 with the same.
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
        **hyper_parameters: of `recipe`. Those that are not given are left open: the optimizer's
            call may give them, `sn.optim.Muon(groups, lr=1e-2)`, a preset's rate too.

    Returns:
        The groups; print them to see the reason for each parameter. Frozen weights of a type in
        which no optimizer can step (integer, packed 4-bit, 8-bit floats, complex) are left out.

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
    preset_names = frozenset[str]()
    if isinstance(recipe, str):
        recipe, usual = _find_preset(recipe)
        rest = usual if rest is None else rest
        preset_names = recipe.given.difference(hyper_parameters)
    main = bound_of(recipe, hyper_parameters)
    left = None if rest is None else bound_of(rest, {})
    recipes = Recipes(main, left, smallest_norm)
    model = unwrap(model)
    parameters = dict(model.named_parameters())
    audited = batch if isinstance(batch, Audit) else audit(model, batch)
    wanted = wanted_of(parameters, audited, overrides or {})
    groups: dict[Hashable, dict[str, Any]] = {}
    preset_names_of: dict[Hashable, frozenset[str]] = {}
    defaults = {main.name: main.defaults}
    assignments, on_sphere = [], []
    for name, weight in parameters.items():
        role, shape = wanted[name].role, tuple(weight.shape)
        if can_never_be_stepped(weight):
            reason = f"{role.reason}; frozen, of {weight.dtype}, which no optimizer can step"
            assignments.append(Assignment(name, shape, None, "left out", None, role.role, reason))
            continue
        try:
            bound, treatment, view, why = recipes.assign(weight, wanted[name])
            given = {**_decay_of(decay, weight, view, bound), **wanted[name].entries}
            bound = bound_of(bound, given)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        entries = {key: x for key, x in bound.hyper_parameters.items() if key in bound.given}
        from_preset = preset_names.difference(given)
        if bound.recipe is not main.recipe or wanted[name].recipe is not None:
            from_preset = frozenset()
        if bound.recipe is not main.recipe:
            entries = {"recipe": bound.name, **entries}
        defaults[bound.name] = bound.defaults
        key = (treatment, from_preset, *(_told_apart(item) for item in entries.items()))
        groups.setdefault(key, {"params": [], **entries})["params"].append(weight)
        preset_names_of[key] = from_preset
        units = None if view is None else str(view)
        reason = why if why.startswith(role.reason) else f"{role.reason}; {why}"
        index = list(groups).index(key)
        assignments.append(Assignment(name, shape, index, treatment, units, role.role, reason))
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
    from_presets = [(group, preset_names_of[key]) for key, group in groups.items()]
    return ParamGroups(from_presets, assignments, audited, main.name, defaults)


def _find_preset(name: str) -> tuple[Bound, Bound | None]:
    """Return a preset's recipes, or the recipe of this name and no other.

    Raises:
        ValueError: it is neither a recipe nor a preset.
    """
    if name in PRESETS:
        return PRESETS[name]
    try:
        return bind(name), None
    except ValueError as error:
        if ":" in name or "(" in name:
            raise
        presets = ", ".join(map(repr, PRESETS))
        raise ValueError(f"{error}, nor a preset: {presets}") from None


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
