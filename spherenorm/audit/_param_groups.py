"""`param_groups`: from the audit of a model to the groups of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spherenorm._chain import sphere_of
from spherenorm._manifold import Sphere
from spherenorm._registry import Bound, Recipe, bind
from spherenorm._text import columns
from spherenorm._views import View, ViewLike
from spherenorm.audit._audit import audit_batch, unwrap
from spherenorm.audit._report import Audit
from spherenorm.audit._treatment import Override, Treatment, treat
from spherenorm.rules import InvarianceTest, OrthogonalityRegularization, RadialProjection

__all__ = ["Assignment", "ParamGroups", "param_groups"]

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
        reason: for the treatment.
    """

    name: str
    shape: tuple[int, ...]
    group: int
    treatment: str
    view: str | None
    reason: str


class ParamGroups(list[dict[str, Any]]):
    """The groups for an optimizer, as it takes them; prints as a table.

    Attributes:
        assignments: one for each parameter, in the model's order.
        audit: the audit behind them.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], assignments: Sequence[Assignment], audit: Audit
    ) -> None:
        super().__init__(groups)
        self.assignments, self.audit = tuple(assignments), audit

    def __str__(self) -> str:
        rows = [("parameter", "shape", "group", "treatment", "view", "why")]
        for each in self.assignments:
            shape = " x ".join(map(str, each.shape)) or "()"
            place = (str(each.group), each.treatment, each.view or "", each.reason)
            rows.append((each.name, shape, *place))
        lines = [columns(rows), ""]
        for index, group in enumerate(self):
            entries = (f"{name}={value!r}" for name, value in group.items() if name != "params")
            lines.append(f"group {index}: {len(group['params'])} parameters, {', '.join(entries)}")
        return "\n".join([*lines, *(f"doubtful: {doubt}" for doubt in self.audit.doubts)])

    __repr__ = __str__


@dataclass(frozen=True)
class _Plan:
    """The recipes, and what they do to scale-invariant weights.

    Attributes:
        main: the recipe that was asked for.
        rest: for weights that `main` does not suit.
        sphere: the manifold of `main`, if it is a sphere.
        fixed: the view that `main` projects in without a test, if any.
        orthogonal: `main` turns the units of a weight apart by an `alpha` that the user did not
            choose. It is 0 where units outnumber entries: they cannot be orthogonal, and the term
            competes with the loss for good.
    """

    main: Bound
    rest: Bound
    sphere: Sphere | None
    fixed: View | None
    orthogonal: bool

    @classmethod
    def of(cls, main: Bound, rest: Bound | None, chosen: Collection[str]) -> _Plan:
        """The plan; `chosen` are the hyper-parameters that the user gave."""
        sphere = sphere_of(main.rule)
        projections = [r.view for r in main.rule.tree() if isinstance(r, RadialProjection)]
        fixed = next((view for view in projections if view is not None), None)
        fixed = sphere.view if sphere is not None else fixed
        usual = bind("sgd", lr=0.01, momentum=0.9, nesterov=True) if fixed is not None else main
        orthogonal = (
            any(isinstance(rule, OrthogonalityRegularization) for rule in main.rule.tree())
            and "alpha" not in chosen
            and main.hyper_parameters.get("alpha", 0) == main.defaults.get("alpha") != 0
        )
        for bound in filter(None, (main, rest)):
            _without_test(bound)  # called for its errors
        return cls(main, usual if rest is None else rest, sphere, fixed, orthogonal)

    def group(self, weight: Tensor, treatment: Treatment) -> tuple[str, Bound, View | None, str]:
        """Treatment, recipe, view and reason of one weight."""
        view, reason = treatment.view, treatment.reason
        if view is not None and self.fixed is not None:
            if "view" not in self.main.defaults and view != self.fixed:
                reason, view = f"{reason}; the recipe's view is {self.fixed}", None
            elif self.sphere is not None and bool((view.norm(weight.detach()) == 0).any()):
                reason, view = f"{reason}; a zero unit cannot move on a sphere", None
        if view is None:
            bound = self.rest
            return "euclidean", _without_test(bound), None, reason
        if self.fixed is not None:
            bound = self.main.replace(view=str(view)) if "view" in self.main.defaults else self.main
            size = view.size(weight)
            units = weight.numel() // size
            if self.orthogonal and units > size:
                bound = bound.replace(alpha=0)
                reason += f"; alpha=0: {units} units of {size} entries cannot be orthogonal"
            return ("projected" if self.sphere is None else "sphere"), bound, view, reason
        if "views" in self.main.defaults:
            return "projected", self.main.replace(views=(str(view),)), view, reason
        return "euclidean", self.main, view, reason


def param_groups(
    model: nn.Module,
    batch: Any,
    recipe: str | Recipe | Bound,
    *,
    rest: str | Recipe | Bound | None = None,
    decay: float | Mapping[Kind, float] | None = None,
    overrides: Mapping[str, Override] | None = None,
    views: Sequence[ViewLike] | None = None,
    loss: Callable[[Any], Any] | None = None,
    **hyper_parameters: Any,
) -> ParamGroups:
    """The param_groups of a model for a recipe, from an audit of which weights are invariant.

    - A recipe on the sphere (sgdg, adamg) steps the invariant weights, in their views. **They are
      put on the sphere here**: w becomes w / |w| in each unit. All others get `rest`. Weights of
      more units than entries in each get `alpha=0`, unless you give an `alpha`: no such units are
      orthogonal.
    - A recipe that tests for invariance (sgdp, adamp) tests the invariant weights in their views,
      and projects no others.
    - A recipe that projects without a test steps the invariant weights; all others get `rest`.
    - Any other recipe steps all weights.

    Biases, gains, weights that are not invariant, or invariant at one point only, and those without
    evidence, are Euclidean. Frozen parameters too; they have groups, so that they may be unfrozen.

    Args:
        model: is audited in its present mode. Its weights change only for a recipe on the sphere.
        batch: a tensor, a tuple of the model's arguments, or a mapping of its keyword arguments;
            or the `audit` of this model.
        recipe: its name, a function, or a bound recipe.
        rest: the recipe of what `recipe` does not suit; None: Nesterov SGD with lr 0.01 and
            momentum 0.9 (Cho and Lee's choice) where there is such.
        decay: the weight decay: of all parameters, or by kind: "invariant"; "weights", the others
            of two or more dimensions; "vectors", biases and gains. None, or a kind that is not
            named: as the recipe has it.
        overrides: by name or pattern, such as "blocks.*.qkv.weight": a view in which the weight
            counts as invariant; "euclidean"; or a mapping of entries for its group, such as
            {"lr": 0.1}, in which "as" may be one of the former. Later ones prevail.
        views, loss: as for `audit`.
        **hyper_parameters: of `recipe`.

    Returns:
        The groups; print them to see the reason for each parameter.

    Raises:
        ValueError: an unknown recipe, hyper-parameter or kind; a value outside its interval; an
            override that matches nothing or does not fit; a recipe that tests for invariance and
            has no hyper-parameter `views`; as `audit`. Nothing changes then.

    Example:
        >>> layers = nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1)
        >>> groups = param_groups(nn.Sequential(*layers), torch.randn(32, 4), "sgdg", lr=0.1)
        >>> [(each.name, each.treatment) for each in groups.assignments[:2]]
        [('0.weight', 'sphere'), ('1.weight', 'euclidean')]
        >>> optimizer = sn.optim.SGDG(groups)

    Source: Cho and Lee 2017, for `rest`.
    """
    main = _bound(recipe, hyper_parameters)
    plan = _Plan.of(main, None if rest is None else _bound(rest, {}), hyper_parameters)
    model = unwrap(model)
    parameters = dict(model.named_parameters())
    audited = batch
    if not isinstance(batch, Audit):
        audited = audit_batch(model, batch, views=views, loss=loss)
    treatments = treat(parameters, audited, overrides or {})
    groups: dict[str, dict[str, Any]] = {}
    assignments, on_sphere = [], []
    for name, weight in parameters.items():
        treatment, bound, view, reason = plan.group(weight, treatments[name])
        kind: Kind = (
            "invariant" if view is not None else "weights" if weight.ndim > 1 else "vectors"
        )
        entries = {**_decay_of(decay, kind, bound), **treatments[name].entries}
        entries = _entries(bound, entries, name, apart=bound.recipe is not main.recipe)
        group = groups.setdefault(repr((treatment, entries)), {"params": [], **entries})
        group["params"].append(weight)
        index = list(groups).index(repr((treatment, entries)))
        shown = None if view is None else str(view)
        shape = tuple(weight.shape)
        assignments.append(Assignment(name, shape, index, treatment, shown, reason))
        if treatment == "sphere" and view is not None:
            on_sphere.append((weight, view))
    with torch.no_grad():
        for weight, view in on_sphere:
            weight.copy_(Sphere(view).normalize(weight))
    return ParamGroups(list(groups.values()), assignments, audited)


def _without_test(bound: Bound) -> Bound:
    """The recipe with no test for invariance, so that it projects nothing.

    Raises:
        ValueError: it has a test whose views it does not take.
    """
    if "views" in bound.defaults:
        bound = bound.replace(views=())
    if any(isinstance(rule, InvarianceTest) and rule.views for rule in bound.rule.tree()):
        raise ValueError(
            f"recipe {bound.name!r} tests views that cannot be set, so that it might project"
            " weights that are not invariant; give it a hyper-parameter views"
        )
    return bound


def _bound(recipe: str | Recipe | Bound, hyper_parameters: Mapping[str, Any]) -> Bound:
    if isinstance(recipe, Bound):
        bound = recipe.replace(**hyper_parameters)
    else:
        bound = bind(recipe, **hyper_parameters)
    bound.rule  # noqa: B018  (made now, for its errors)
    return bound


def _decay_of(
    decay: float | Mapping[Kind, float] | None, kind: Kind, bound: Bound
) -> dict[str, float]:
    """The entry of a group that the user's decay makes."""
    if isinstance(decay, Mapping):
        if unknown := [name for name in decay if name not in KINDS]:
            raise ValueError(f"decay must name {', '.join(KINDS)}, got {unknown[0]!r}")
        value = decay.get(kind)
        if value and "weight_decay" not in bound.defaults:
            raise ValueError(f"decay: recipe {bound.name!r} of {kind} parameters has none")
    else:
        value = decay
    known = "weight_decay" in bound.defaults
    return {} if value is None or not known else {"weight_decay": value}


def _entries(bound: Bound, entries: Mapping[str, Any], name: str, apart: bool) -> dict[str, Any]:
    """The entries of a group: all hyper-parameters, and the recipe where it is not the main one."""
    try:
        complete = bound.replace(**entries)
        complete.rule  # noqa: B018  (made now, for its errors)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    own = {"recipe": bound.name} if apart else {}
    return {**own, **complete.hyper_parameters}
