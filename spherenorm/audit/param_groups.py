"""`param_groups`: from the audit of a model to the groups of an optimizer.

For each parameter there is a `ParameterDecision` (its role and view, by the audit or by an override
of the user), and `RecipeAssigner` chooses the recipe that suits it. Parameters of equal recipe,
treatment and entries share a group.
"""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from spherenorm import metrics
from spherenorm.audit.audit import Audit, audit
from spherenorm.audit.audited_model import unwrap
from spherenorm.audit.roles import MATRIX_ROLES, ROLES, Role, RoleName, format_shape
from spherenorm.audit.transfer import Factor, Growth, Policy, growths, transfer_rate
from spherenorm.audit.verdict import Verdict
from spherenorm.manifolds import Sphere, sphere_of
from spherenorm.numerics import can_never_be_stepped
from spherenorm.optim import GroupsOfRecipe, RecipeOptimizer, torch_optimizer
from spherenorm.partition import Partition, partition
from spherenorm.registry import Bound, Recipe, bind, defaults_of, find_recipe
from spherenorm.rule import Rule
from spherenorm.rules import (
    FixedNorm,
    InvarianceTest,
    NormalizedUpdate,
    OrthogonalityRegularization,
    Orthogonalize,
    RadialProjection,
)
from spherenorm.support import columns, did_you_mean, unknown_name
from spherenorm.views import View, ViewLike, as_view

PRESETS: dict[str, tuple[Bound, Bound]] = {
    # Jordan et al. 2024 (Muon): 0.02 for matrices.
    "muon+adamw": (bind("muon", lr=0.02), bind("adamw", lr=1e-3)),
    # Wen et al. 2026 (Hyperball), arXiv:2606.16899: a matrix turns by about lr.
    "hyperball": (bind("hyperball(adam)", lr=0.02), bind("adamw", lr=1e-3)),
}
"""For each preset, the recipe of hidden matrices and the recipe of the rest, with their rates."""

EUCLIDEAN = "euclidean"
_MIN_RELATIVE_NORM = 0.1
"""A weight with a unit below this share of `smallest_norm`, such as a pruned channel, is not put on
a sphere."""

DecayKind = Literal["invariant", "weights", "vectors"]
DECAY_KINDS: tuple[DecayKind, ...] = ("invariant", "weights", "vectors")

Override = ViewLike | Mapping[str, Any]
"""A view; a role; "euclidean"; or entries of a param_group, of which "as" may be one of these, and
"recipe" the recipe of the weight."""


@dataclass(frozen=True)
class Assignment:
    """The group of one parameter, and how its recipe treats it.

    Attributes:
        name, shape: name and shape of the parameter.
        group: index of its group; None if it is left out, because no optimizer can step it.
        treatment: "sphere", "projected", "euclidean", or "left out".
        view: the view in which it counts as scale-invariant; None if in none.
        role: its role in the model; see `roles`.
        reason: the reason for the role and the treatment, in words.
        growth: how it grows from the base model; None without a `transfer`.
        factor: the factor of its learning rate from the base model to this one.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> groups = param_groups(model, torch.randn(32, 4), "adamp")
        >>> weight = groups.assignments[0]
        >>> weight.name, weight.group, weight.treatment, weight.view
        ('0.weight', 0, 'projected', 'channel')
    """

    name: str
    shape: tuple[int, ...]
    group: int | None
    treatment: str
    view: str | None
    role: RoleName
    reason: str
    growth: Growth | None = None
    factor: float = 1.0


class ParamGroups(GroupsOfRecipe):
    """The param_groups for an optimizer, which takes them as its first argument; prints as a table.

    A group has the entries that were given or decided. A group without a recipe takes the
    optimizer's arguments for all others. The table shows every hyper-parameter.

    Attributes:
        assignments: one `Assignment` for each parameter, in the model's order.
        audit: the audit from which the groups were made.
        recipe: the recipe of the groups that name none, which is the optimizer's.
        caveats: sentences that say why the groups may be wrong.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
        >>> groups = param_groups(model, torch.randn(32, 4), "adamp", lr=0.1)
        >>> optimizer = sn.optim.AdamP(groups)
        >>> [len(group["params"]) for group in groups], f"{groups.audit.invariant_share:.2f}"
        ([1, 4], '0.55')
    """

    def __init__(
        self,
        groups: Sequence[tuple[dict[str, Any], frozenset[str]]],
        assignments: Sequence[Assignment],
        audit: Audit,
        recipe: str,
        defaults: Mapping[str, Mapping[str, Any]],
        names: Mapping[Tensor, str],
        caveats: Sequence[str] = (),
    ) -> None:
        super().__init__(groups, recipe, names)
        self.caveats = (*audit.caveats, *caveats)
        self.assignments = tuple(assignments)
        self.audit = audit
        self._defaults = defaults

    def optimizer(self) -> RecipeOptimizer:
        """Return the optimizer of these groups.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            >>> optimizer = param_groups(model, torch.randn(8, 4), "muon+adamw").optimizer()
            >>> [group.get("recipe") for group in optimizer.param_groups]
            ['muon', 'adamw']
        """
        return torch_optimizer(self.recipe)(self)

    @property
    def partition(self) -> Partition:
        """The partition of these groups, for `spherenorm.functional` and sweeps.

        The label of a group is its recipe; further groups of one recipe have a number behind it.

        Example:
            >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
            >>> both = param_groups(model, torch.randn(8, 4), "muon+adamw").partition
            >>> params = dict(model.named_parameters())
            >>> {name: both.label(name, weight) for name, weight in params.items()}
            {'0.weight': 'muon', '0.bias': 'adamw', '2.weight': 'adamw', '2.bias': 'adamw'}
        """
        rules: dict[str, Bound] = {}
        labels: list[str] = []
        for group in self:
            recipe = find_recipe(group.get("recipe", self.recipe))
            entries = {name: group[name] for name in defaults_of(recipe) if name in group}
            bound = bind(recipe, **entries)
            label, number = bound.name, 1
            while label in rules:
                number += 1
                label = f"{bound.name} {number}"
            labels.append(label)
            rules[label] = bound
        patterns = {
            re.escape(assignment.name): labels[assignment.group]
            for assignment in self.assignments
            if assignment.group is not None
        }
        return partition(rules, patterns)

    def __str__(self) -> str:
        transfers = any(assignment.growth is not None for assignment in self.assignments)
        growth_titles = ("grows", "factor") if transfers else ()
        rows = [("parameter", "shape", "group", "role", "treatment", "view", *growth_titles, "why")]
        for assignment in self.assignments:
            growth_cells = (str(assignment.growth or ""), f"{assignment.factor:.4g}")
            row = (
                assignment.name,
                format_shape(assignment.shape),
                "-" if assignment.group is None else str(assignment.group),
                assignment.role,
                assignment.treatment,
                assignment.view or "",
                *(growth_cells if transfers else ()),
                assignment.reason,
            )
            rows.append(row)
        lines = [columns(rows), ""]
        for index, group in enumerate(self):
            recipe = group.get("recipe", self.recipe)
            entries = {"recipe": recipe, **self._defaults.get(recipe, {}), **group}
            settings = ", ".join(f"{key}={x!r}" for key, x in entries.items() if key != "params")
            lines.append(f"group {index}: {len(group['params'])} parameters, {settings}")
        lines.extend(f"doubtful: {caveat}" for caveat in self.caveats)
        return "\n".join(lines)

    __repr__ = __str__


def param_groups(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe | Bound,
    *,
    rest: str | Recipe | Bound | None = None,
    decay: float | Mapping[DecayKind, float] | None = None,
    overrides: Mapping[str, Override] | None = None,
    smallest_norm: float = 0.1,
    base: nn.Module | None = None,
    transfer: Policy | None = None,
    **hyper_parameters: Any,
) -> ParamGroups:
    """Make the param_groups of a model for a recipe, from an audit of which weights are invariant.

    A recipe that keeps norms gets the invariant weights, in their views; a recipe for matrices the
    hidden ones; any other recipe all. All other parameters get `rest`, and so does what a recipe
    refuses:

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
        model: the model; it is audited in its present mode. Its weights change only for a recipe on
            the sphere.
        batch: a tensor, a tuple of the model's arguments, or a mapping of its keyword arguments;
            or the `audit` of this model, such as one with a loss, or of a larger tolerance: that
            puts weights on the sphere that are invariant up to eps, by which the outputs change.
        recipe: its name, a function, or a bound recipe; or a preset, which has learning rates to
            start from: "muon+adamw" is "muon" at 0.02 with "adamw" at 0.001 as its rest,
            "hyperball" is "hyperball(adam)" at 0.02 with the same.
        rest: the recipe of what `recipe` does not suit; None: Nesterov SGD with lr 0.01 and
            momentum 0.9 (Cho and Lee's choice) beside a recipe that is always on a sphere or
            projects always, none beside one for matrices, and `recipe` itself otherwise.
        decay: the weight decay of all parameters, or a mapping by kind: "invariant"; "weights", the
            others of two or more dimensions; "vectors", biases and gains. None, or a kind that is
            not in the mapping, leaves the recipe's own.
        overrides: by name or pattern, such as "blocks.*.qkv.weight": a view in which the weight
            counts as invariant; a role; "euclidean"; or a mapping of entries for its group, such
            as {"lr": 0.1}, in which "as" may be one of the former, and "recipe" its recipe. Later
            ones prevail.
        smallest_norm: invariant weights whose units have a smaller median norm are Euclidean for
            recipes that keep norms, unless overridden; 0 lets all pass. Ordinary initializations
            are above 0.1, at which lr / |w|^2 is 100 lr. No weight with a unit below a
            tenth of it is put on a sphere.
        base: a narrower model of the same code, at which the learning rates were tuned; its
            parameters have the same names.
        transfer: how a rate goes from `base` to `model`: `sn.transfer.mup("adam")`,
            `sn.transfer.spectral()` or `sn.transfer.turn()`. Weight decay follows, so that
            lr weight_decay stays. The printed groups show how each parameter grows and its factor.
            A rate in `overrides` stays as it is.
        **hyper_parameters: hyper-parameters of `recipe`. Those that are not given are left open:
            the optimizer's call may give them, `sn.optim.Muon(groups, lr=1e-2)`, a preset's rate
            too.

    Returns:
        The groups; print them to see the reason for each parameter. Frozen weights of a type in
        which no optimizer can step (integer, packed 4-bit, 8-bit floats, complex) are left out.

    Raises:
        TypeError: `model` is no module, `batch` is None, or `transfer` is no policy.
        ValueError: an unknown recipe, hyper-parameter or kind; a value outside its interval; an
            override that matches nothing or does not fit; a recipe that tests for invariance and
            has no hyper-parameter `views`; a weight that `recipe` refuses, and `rest` too; or an
            error of `audit`; `base` without `transfer`, or the reverse; a base with other
            parameters; a policy that refuses a recipe. Nothing changes then.

    Example:
        >>> layers = nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1)
        >>> groups = param_groups(nn.Sequential(*layers), torch.randn(32, 4), "sgdg", lr=0.1)
        >>> [(w.name, w.treatment) for w in groups.assignments[:2]]
        [('0.weight', 'sphere'), ('1.weight', 'euclidean')]
        >>> optimizer = sn.optim.SGDG(groups)

    Source: Cho and Lee 2017, for `rest`; Jordan et al. 2024 (Muon) and Wen et al. 2026 (Hyperball),
    arXiv:2606.16899, for the presets.
    """
    model = unwrap(model)
    main, fallback, preset_names = _bind_recipes(recipe, rest, hyper_parameters)
    assigner = RecipeAssigner(main, fallback, smallest_norm)
    parameters = dict(model.named_parameters())
    model_audit = batch if isinstance(batch, Audit) else audit(model, batch)
    decisions = make_decisions(parameters, model_audit, overrides or {})
    rate_transfer = RateTransfer.from_base(model, base, transfer, model_audit)

    groups: dict[Hashable, dict[str, Any]] = {}
    preset_names_by_group: dict[Hashable, frozenset[str]] = {}
    defaults = {main.name: main.defaults}
    assignments = []
    weights_on_sphere = []
    for name, weight in parameters.items():
        decision = decisions[name]
        role = decision.role
        shape = tuple(weight.shape)
        if can_never_be_stepped(weight):
            reason = f"{role.reason}; frozen, of {weight.dtype}, which no optimizer can step"
            assignments.append(Assignment(name, shape, None, "left out", None, role.role, reason))
            continue
        try:
            bound, treatment, view, why = assigner.assign(weight, decision)
            given_entries = {**_decay_entry(decay, weight, view, bound), **decision.entries}
            bound = _bind_checked(bound, given_entries)
            bound, factor = rate_transfer.transfer_rate(name, bound, decision)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error
        entries = _explicit_entries(bound, main)
        group_preset_names = frozenset[str]()
        if bound.recipe is main.recipe and decision.recipe is None:
            group_preset_names = preset_names.difference(given_entries, rate_transfer.fixed_names)
        defaults[bound.name] = bound.defaults
        group_key = (treatment, group_preset_names, *map(_key_of_entry, entries.items()))
        groups.setdefault(group_key, {"params": [], **entries})["params"].append(weight)
        preset_names_by_group[group_key] = group_preset_names
        index = list(groups).index(group_key)
        view_name = None if view is None else str(view)
        reason = why if why.startswith(role.reason) else f"{role.reason}; {why}"
        growth = rate_transfer.growth_by_name.get(name)
        assignments.append(
            Assignment(
                name, shape, index, treatment, view_name, role.role, reason, growth, factor.value
            )
        )
        if treatment == "sphere" and view is not None:
            weights_on_sphere.append((weight, view))

    if weights_on_sphere:
        _put_on_sphere(weights_on_sphere)
        _warn_of_running_statistics(model)
    groups_with_presets = [(group, preset_names_by_group[key]) for key, group in groups.items()]
    names: dict[Tensor, str] = {weight: name for name, weight in parameters.items()}
    return ParamGroups(
        groups_with_presets,
        assignments,
        model_audit,
        main.name,
        defaults,
        names,
        rate_transfer.caveats,
    )


def _explicit_entries(bound: Bound, main: Bound) -> dict[str, Any]:
    """Return the entries of a group: its recipe, unless it is the main one, and what was given."""
    recipe_entry = {} if bound.recipe is main.recipe else {"recipe": bound.name}
    explicit = {key: x for key, x in bound.hyper_parameters.items() if key in bound.explicit_names}
    return {**recipe_entry, **explicit}


@dataclass
class RateTransfer:
    """The transfer of learning rates from a base model to the model.

    Without a base, or with one of equal widths, it changes no rate.

    Attributes:
        growth_by_name: how each parameter grows from the base; empty without one.
        policy: the policy; None without a base.
        caveats: sentences that say why rates may be wrong.
    """

    growth_by_name: Mapping[str, Growth]
    policy: Policy | None
    caveats: list[str] = field(default_factory=list)

    @classmethod
    def from_base(
        cls, model: nn.Module, base: nn.Module | None, policy: Policy | None, model_audit: Audit
    ) -> RateTransfer:
        """Return the transfer of rates from a base to a model.

        Raises:
            TypeError: the policy is none.
            ValueError: a base or a policy is given alone, or the base has other parameters.
        """
        if base is None and policy is None:
            return cls({}, None)
        if base is None or policy is None:
            present, missing = ("transfer", "base") if base is None else ("base", "transfer")
            raise ValueError(
                f"param_groups: {present} needs {missing}, as in base=make_model(width=64), "
                "transfer=sn.transfer.spectral()"
            )
        if not callable(getattr(policy, "factor", None)):
            raise TypeError(
                "param_groups: transfer must be sn.transfer.mup(...), sn.transfer.spectral() or "
                f"sn.transfer.turn(), got {policy!r}"
            )
        all_growths = growths(model, unwrap(base), model_audit.roles)
        return cls({growth.name: growth for growth in all_growths}, policy)

    @property
    def grows(self) -> bool:
        """True if any parameter is larger or smaller than the base's."""
        return any(str(growth) for growth in self.growth_by_name.values())

    @property
    def fixed_names(self) -> tuple[str, ...]:
        """The hyper-parameters that an optimizer's call cannot set for all groups at once."""
        return ("lr",) if self.grows else ()

    def transfer_rate(
        self, name: str, bound: Bound, decision: ParameterDecision
    ) -> tuple[Bound, Factor]:
        """Return a parameter's recipe at the rate of this width, and the factor of the rate.

        Raises:
            ValueError: the policy refuses the recipe.
        """
        if self.policy is None or not self.grows:
            return bound, Factor(1.0, "")
        growth = self.growth_by_name[name]
        bound, factor = transfer_rate(bound, growth, self.policy, "lr" in decision.entries)
        if factor.caveat:
            self.caveats.append(f"{name}: {factor.caveat}")
        return bound, factor


def _bind_recipes(
    recipe: str | Recipe | Bound,
    rest: str | Recipe | Bound | None,
    hyper_parameters: Mapping[str, Any],
) -> tuple[Bound, Bound | None, frozenset[str]]:
    """Return the main recipe, the rest, and the hyper-parameters that a preset has set.

    Raises:
        ValueError: there is no such recipe or preset, or a hyper-parameter does not fit.
    """
    preset_names = frozenset[str]()
    if isinstance(recipe, str):
        recipe, preset_rest = _find_preset(recipe)
        rest = preset_rest if rest is None else rest
        preset_names = recipe.explicit_names.difference(hyper_parameters)
    main = _bind_checked(recipe, hyper_parameters)
    return main, None if rest is None else _bind_checked(rest, {}), preset_names


def _find_preset(name: str) -> tuple[Bound, Bound | None]:
    """Return a preset's two recipes, or the recipe of this name and None.

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
        if "+" in name:
            raise unknown_name("preset", name, PRESETS) from None
        presets = ", ".join(map(repr, PRESETS))
        raise ValueError(f"{error}, nor a preset: {presets}") from None


def _key_of_entry(entry: tuple[str, Any]) -> Hashable:
    """Return a key of a group's entry; tensors are keyed by id, since each may change by itself."""
    name, value = entry
    return name, id(value) if isinstance(value, Tensor) else repr(value)


def _decay_entry(
    decay: float | Mapping[DecayKind, float] | None, weight: Tensor, view: View | None, bound: Bound
) -> dict[str, float]:
    """Return the weight decay of a weight's group as an entry; empty to leave the recipe's own."""
    if isinstance(decay, Mapping):
        unknown = [name for name in decay if name not in DECAY_KINDS]
        if unknown:
            raise ValueError(f"decay must name {', '.join(DECAY_KINDS)}, got {unknown[0]!r}")
        kind: DecayKind = "invariant" if view else "weights" if weight.ndim > 1 else "vectors"
        decay = decay.get(kind)
        if decay and "weight_decay" not in bound.defaults:
            raise ValueError(f"decay: recipe {bound.name!r} of {kind} parameters has none")
    if decay is None or "weight_decay" not in bound.defaults:
        return {}
    return {"weight_decay": decay}


@torch.no_grad()
def _put_on_sphere(weights: Sequence[tuple[Tensor, View]]) -> None:
    """Divide each unit of these weights by its norm, in place."""
    for weight, view in weights:
        weight.copy_(Sphere(view).normalize(weight))


def _warn_of_running_statistics(model: nn.Module) -> None:
    """Warn of running variances, which do not follow weights that were put on a sphere."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_var") and (buffer != 1).any():
            warnings.warn(
                f"{name} and the like do not fit the weights on the sphere: run some batches in"
                " training mode before you evaluate",
                stacklevel=3,
            )
            return


@dataclass(frozen=True)
class ParameterDecision:
    """The role and view of one parameter, by the audit or by an override of the user.

    Attributes:
        role: its role in the model.
        view: the view in which it counts as scale-invariant; None if in none.
        reason: the reason for the view, in words.
        up_to_eps: True if it is invariant in the limit of eps only.
        view_is_override: True if the user has chosen the view, or that there is none.
        entries: entries of its param_group that the user has set.
        recipe: the recipe that the user has set; None if he has not.
    """

    role: Role
    view: View | None
    reason: str
    up_to_eps: bool = False
    view_is_override: bool = False
    entries: Mapping[str, Any] = field(default_factory=dict)
    recipe: Bound | None = None

    def apply_override(self, override: Override, weight: Tensor) -> ParameterDecision:
        """Return the decision with an override in place of the audit's word.

        Raises:
            ValueError: a view does not fit the weight; there is no such recipe.
        """
        entries = dict(override) if isinstance(override, Mapping) else {"as": override}
        view_or_role = entries.pop("as", None)
        recipe = entries.pop("recipe", None)
        decision = replace(self, entries={**self.entries, **entries})
        if recipe is not None:
            decision = replace(decision, recipe=_remove_test(_bind_checked(recipe, {})))
        if view_or_role is None:
            return decision
        if view_or_role in ROLES:
            return replace(
                decision, role=replace(self.role, role=view_or_role, reason="as you say")
            )
        view = None if view_or_role == EUCLIDEAN else as_view(view_or_role)
        if view is not None:
            view.size(torch.empty(weight.shape, device="meta"))  # Raises if it does not fit.
        return replace(
            decision, view=view, reason="as you say", view_is_override=True, up_to_eps=False
        )


def make_decisions(
    parameters: Mapping[str, Tensor], model_audit: Audit, overrides: Mapping[str, Override]
) -> dict[str, ParameterDecision]:
    """Return the decision on each parameter, by name.

    Raises:
        ValueError: the audit is of another model; a pattern matches no parameter; a view does not
            fit a weight.
    """
    audited_shapes = {role.name: role.shape for role in model_audit.roles}
    if audited_shapes != {name: tuple(weight.shape) for name, weight in parameters.items()}:
        raise ValueError("the audit is of another model: its parameters have other names or shapes")
    decisions = {}
    for role in model_audit.roles:
        decisions[role.name] = ParameterDecision(role, None, model_audit.skipped.get(role.name, ""))
    for finding in model_audit:
        decisions[finding.name] = ParameterDecision(
            decisions[finding.name].role,
            None if finding.view is None else as_view(finding.view),
            f"{finding.verdict}: {finding.reason}",
            up_to_eps=finding.verdict is Verdict.UP_TO_EPS,
        )
    for pattern, override in overrides.items():
        names = fnmatch.filter(parameters, pattern)
        if not names:
            hint = did_you_mean(pattern, parameters, "it takes * for any letters")
            raise ValueError(f"overrides: no parameter is named {pattern!r}; {hint}")
        for name in names:
            try:
                decisions[name] = decisions[name].apply_override(override, parameters[name])
            except ValueError as error:
                raise ValueError(
                    f"overrides: {name}: {error} (or {EUCLIDEAN!r}, or a role: {', '.join(ROLES)})"
                ) from error
    return decisions


class AssignedRecipe(NamedTuple):
    """The recipe of one parameter, bound to its view, with the treatment and the reason."""

    bound: Bound
    treatment: str
    view: View | None
    reason: str


class RecipeAssigner:
    """The recipes of an optimizer, and which of them suits a parameter.

    Args:
        main: the recipe that the user asked for.
        fallback: the recipe of weights that `main` does not suit; None takes the usual one beside
            `main`, see `param_groups`.
        smallest_norm: weights with smaller units are Euclidean if `main` keeps norms.

    Raises:
        ValueError: a recipe has a test whose views cannot be set; `smallest_norm` is negative.
    """

    def __init__(self, main: Bound, fallback: Bound | None, smallest_norm: float) -> None:
        if not smallest_norm >= 0:
            raise ValueError(f"smallest_norm must be in [0, ∞), got {smallest_norm!r}")
        _remove_test(main)  # Raises if the test's views cannot be set.
        self._main = main
        self._smallest_norm = smallest_norm
        self._is_for_matrices = _is_for_matrices(main.rule)
        rules = list(main.rule.walk())
        sphere = sphere_of(main.rule)
        self._on_sphere = sphere is not None
        # The view that the recipe projects in, or keeps on the sphere, without a test.
        self._fixed_view = None if sphere is None else sphere.view
        if sphere is None:
            projections = [rule for rule in rules if isinstance(rule, RadialProjection)]
            self._fixed_view = next((rule.view for rule in projections if rule.view), None)
        self._keeps_norms = self._fixed_view is not None or "views" in main.defaults
        if fallback is None and not self._is_for_matrices:
            fallback = main
            if self._fixed_view is not None:
                fallback = bind("sgd", lr=0.01, momentum=0.9, nesterov=True)
        self._fallback = None if fallback is None else _remove_test(fallback)
        # Units that outnumber their entries cannot be orthogonal, and a term that asks for it would
        # compete with the loss for good. So an `alpha` that the user did not choose is 0 there.
        regularizes = any(isinstance(rule, OrthogonalityRegularization) for rule in rules)
        alpha_is_default = "alpha" not in main.explicit_names and main.defaults.get("alpha", 0) != 0
        self._chooses_alpha = regularizes and alpha_is_default

    def assign(self, weight: Tensor, decision: ParameterDecision) -> AssignedRecipe:
        """Return the recipe of a weight.

        Raises:
            ValueError: all recipes refuse the weight.
        """
        if decision.recipe is not None:
            decision.recipe.rule.init(weight.detach())  # Raises if the rule refuses the weight.
            reason = "the recipe is your choice"
            return AssignedRecipe(decision.recipe, EUCLIDEAN, decision.view, reason)
        try:
            assigned = self._assign_main(weight, decision)
            assigned.bound.rule.init(weight.detach())
            return assigned
        except ValueError as error:
            objection = f"{self._main.name}: {error}"
        try:
            if self._fallback is None:
                raise ValueError("there is no rest")
            self._fallback.rule.init(weight.detach())
        except ValueError as error:
            raise ValueError(f'{objection}; {error}; give a rest, such as rest="adamw"') from error
        if self._is_for_matrices:
            return AssignedRecipe(self._fallback, EUCLIDEAN, decision.view, objection)
        return AssignedRecipe(self._fallback, EUCLIDEAN, None, f"{decision.reason}; {objection}")

    def _assign_main(self, weight: Tensor, decision: ParameterDecision) -> AssignedRecipe:
        """Return the main recipe, bound to suit a weight.

        Raises:
            ValueError: it does not suit the weight.
        """
        main, view, reason = self._main, decision.view, decision.reason
        if decision.view_is_override and view is None:
            raise ValueError("the weight is Euclidean, as you say")
        if self._is_for_matrices:
            return AssignedRecipe(self._bind_for_matrix(decision), EUCLIDEAN, view, reason)
        if not self._keeps_norms:
            return AssignedRecipe(main, EUCLIDEAN, view, reason)
        if view is None:
            raise ValueError("it keeps the norms of invariant weights alone")
        self._check_norms_and_view(weight, decision, view)
        if self._fixed_view is None:
            return AssignedRecipe(main.replace(views=(str(view),)), "projected", view, reason)
        bound = main.replace(view=str(view)) if "view" in main.defaults else main
        if self._chooses_alpha:
            unit_size = max(view.size(weight), 1)
            n_units = weight.numel() // unit_size
            if n_units > unit_size:
                bound = bound.replace(alpha=0)
                reason += f"; alpha=0: {n_units} units of {unit_size} entries cannot be orthogonal"
            else:
                bound = bound.replace(alpha=main.defaults["alpha"])
        treatment = "sphere" if self._on_sphere else "projected"
        return AssignedRecipe(bound, treatment, view, reason)

    def _bind_for_matrix(self, decision: ParameterDecision) -> Bound:
        """Return the recipe for matrices; each expert of a stack is a matrix by itself.

        Raises:
            ValueError: the weight is no matrix, or the recipe takes no view.
        """
        role = decision.role.role
        if role not in MATRIX_ROLES:
            raise ValueError(f"it is for hidden matrices, not {role}")
        view_name = str(decision.view) if decision.view_is_override else None
        if view_name is None and role == "experts":
            view_name = "channel"
        if view_name is None:
            return self._main
        if "view" not in self._main.defaults:
            raise ValueError(f"it takes no view, such as {view_name}")
        return self._main.replace(view=view_name)

    def _check_norms_and_view(
        self, weight: Tensor, decision: ParameterDecision, view: View
    ) -> None:
        """Check that the recipe has the view of an invariant weight, and may keep its norms.

        Raises:
            ValueError: it lacks the view, or the norms should change.
        """
        view_is_fixed = self._fixed_view is not None and "view" not in self._main.defaults
        if view_is_fixed and view != self._fixed_view:
            raise ValueError(f"the recipe's view is {self._fixed_view}")
        if self._on_sphere and decision.up_to_eps:
            raise ValueError(
                f"on the sphere it would change the outputs; an override {str(view)!r}, or a larger"
                " tolerance, puts it there"
            )
        norms = metrics.norm(weight.detach(), view)
        min_norm = float(norms.min()) if norms.numel() else 0.0
        median_norm = float(norms.median()) if norms.numel() else 0.0
        if self._on_sphere and min_norm == 0:
            raise ValueError("a zero unit cannot move on a sphere")
        if decision.view_is_override:
            return
        if median_norm < self._smallest_norm:
            raise ValueError(
                f"its norm of {median_norm:.2g} is below smallest_norm; the fallback recipe lets it"
                " grow first"
            )
        if self._on_sphere and min_norm < _MIN_RELATIVE_NORM * self._smallest_norm:
            raise ValueError(
                f"a unit of norm {min_norm:.2g}, which an eps may outweigh, would be scaled up to"
                " norm 1"
            )


def _bind_checked(recipe: str | Recipe | Bound, hyper_parameters: Mapping[str, Any]) -> Bound:
    """Return a recipe with these hyper-parameters, after building its rule once for its errors."""
    bound = recipe if isinstance(recipe, Bound) else bind(recipe)
    bound = bound.replace(**hyper_parameters)
    bound.rule  # noqa: B018  (a property, which raises)
    return bound


def _is_for_matrices(rule: Rule) -> bool:
    """Return True for a rule that orthogonalizes, holds a norm, or makes steps of length 1."""
    for part in rule.walk():
        if isinstance(part, Orthogonalize | FixedNorm):
            return True
        if isinstance(part, NormalizedUpdate) and part.length == "one":
            return True
    return False


def _remove_test(bound: Bound) -> Bound:
    """Return the recipe without its test for invariance, so that it projects nothing.

    Raises:
        ValueError: it has a test whose views cannot be set.
    """
    if "views" in bound.defaults:
        bound = bound.replace(views=())
    if any(isinstance(rule, InvarianceTest) and rule.views for rule in bound.rule.walk()):
        raise ValueError(
            f"recipe {bound.name!r} tests views that cannot be set, so that it might project"
            " weights that are not invariant; give it a hyper-parameter views, as in"
            f' {bound.recipe.__name__}(..., views=("channel", "layer")), and pass it to its test'
        )
    return bound
