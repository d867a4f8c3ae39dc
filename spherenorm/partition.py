"""`partition`: a rule for a whole model, which steps each parameter by the rule of its label.

    part = sn.partition({"matrix": sn.bind("muon", lr=0.02), "*": "adamw"}, sn.roles(model, batch))

It takes the place of one rule in `spherenorm.functional`, in a recipe (whose class then makes one
param_group for each label), and in sweeps. `spherenorm.param_groups(...).partition` is the
partition that an audit has found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from torch import Tensor

from spherenorm.fields import FrozenDataclass, cached_property
from spherenorm.optim import RecipeOptimizer, torch_optimizer
from spherenorm.optim.optimizer import builtin_class
from spherenorm.registry import Bound, Recipe, bind, find_recipe
from spherenorm.rule import OTHER_LABEL, Rule, State
from spherenorm.support import did_you_mean

LabelFunction = Callable[[str, Tensor], str]


class _RoleOfParameter(Protocol):
    """A finding of `spherenorm.roles` on one parameter."""

    @property
    def name(self) -> str:
        """The name of the parameter."""

    @property
    def role(self) -> str:
        """The role of the parameter, which is its label."""


Labels = Mapping[str, str] | Iterable[_RoleOfParameter] | LabelFunction
"""Labels of parameters: by pattern of the name, by role, or as a function of name and weight.

Example:
    >>> labels: Labels = {r"blocks\\..*\\.weight": "matrix"}
    >>> both = partition({"matrix": "muon", "*": "adamw"}, labels)
    >>> both.label("blocks.0.weight", torch.ones(2, 2)), both.label("head", torch.ones(2, 2))
    ('matrix', '*')
"""


@dataclass(frozen=True)
class Partition(Rule):
    """A rule for each label, and the label of each parameter. Made by `partition`.

    It has no step of one weight: `spherenorm.functional` and the optimizer classes ask it for the
    rule of each parameter.

    Attributes:
        labels: the labels, in order.
        parts: the rule of each label.
        label_of: returns the label of a parameter, by its name and weight.
        bounds: for each label the recipe, or None where a rule was given.

    Example:
        >>> both = partition({"matrix": "muon", "*": "adamw"}, {"w": "matrix"})
        >>> both.labels, both.rules["*"].state_keys
        (('matrix', '*'), ('step', 'exp_avg', 'exp_avg_sq'))
    """

    labels: tuple[str, ...]
    parts: tuple[Rule, ...]
    label_of: LabelFunction = field(repr=False)
    bounds: tuple[Bound | None, ...] = field(repr=False)

    is_partition = True

    def __post_init__(self) -> None:
        FrozenDataclass.__post_init__(self)  # a part may have a manifold of its own
        for label, rule in zip(self.labels, self.parts, strict=True):
            if rule.is_partition:
                raise ValueError(
                    f"partition: {label!r} is a partition itself; write one partition with all "
                    "labels"
                )

    @cached_property
    def children(self) -> tuple[Rule, ...]:
        return self.parts

    @property
    def rules(self) -> dict[str, Rule]:
        """The rule of each label."""
        return dict(zip(self.labels, self.parts, strict=True))

    def label(self, name: str, weight: Tensor) -> str:
        """Return the label of a parameter.

        Raises:
            ValueError: there is no rule of its label.
        """
        label = self.label_of(name, weight)
        if label not in self.labels:
            hint = did_you_mean(str(label), self.labels)
            raise ValueError(
                f"partition: no rule is for the label {label!r} of parameter {name!r}; {hint}"
            )
        return label

    def check_patterns(self, names: Collection[str]) -> None:
        """Check that each pattern of the labels names a parameter.

        Args:
            names: the names of all parameters.

        Raises:
            ValueError: a pattern names none.
        """
        if not isinstance(self.label_of, _PatternLabels) or not self.label_of.is_from_user:
            return
        for pattern, label in self.label_of.patterns:
            if not any(re.fullmatch(pattern, name) for name in names):
                raise ValueError(
                    f"partition: no parameter's whole name matches {pattern!r}, the pattern of "
                    f"{label!r}; {did_you_mean(pattern, names)}"
                )

    def rule_for(self, name: str, weight: Tensor) -> Rule:
        return self.parts[self.labels.index(self.label(name, weight))]

    def init(self, weight: Tensor) -> State:
        self._refuse_one_weight()

    def step(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse_one_weight()

    def update(self, *_: Any) -> NoReturn:
        self._refuse_one_weight()

    def _refuse_one_weight(self) -> NoReturn:
        label = self.labels[0]
        raise TypeError(
            "a partition steps the parameters of a model by their names, in spherenorm.functional "
            "or in an optimizer's class, and has no rule of one weight; take the rule of one "
            f"label, such as partition.rules[{label!r}]"
        )

    def groups(self, named_parameters: Iterable[tuple[str, Tensor]]) -> list[dict[str, Any]]:
        """Return one param_group per label, with the label's recipe as its entry "recipe".

        Args:
            named_parameters: names and parameters, such as `model.named_parameters()`.

        Raises:
            ValueError: a label has a rule and no recipe, which a checkpoint could not name; a
                parameter has no label; a pattern names no parameter.
            TypeError: the parameters have no names.

        Example:
            >>> model = torch.nn.Linear(4, 3)
            >>> both = partition({"matrix": "muon", "*": "adamw"}, {"weight": "matrix"})
            >>> [group["recipe"] for group in both.groups(model.named_parameters())]
            ['muon', 'adamw']
        """
        groups: dict[str, dict[str, Any]] = {}
        for label, bound in zip(self.labels, self.bounds, strict=True):
            if bound is None:
                raise ValueError(
                    f"partition: {label!r} has a rule, and a param_group names a recipe; give it "
                    "one, or make an optimizer's class of a recipe that returns the partition"
                )
            entries = {name: bound.hyper_parameters[name] for name in bound.explicit_names}
            groups[label] = {"params": [], "recipe": bound.name, **entries}
        labeled = label_parameters(self, named_parameters)
        self.check_patterns([name for _, (name, _) in labeled])
        for label, pair in labeled:
            groups[label]["params"].append(pair)
        return [group for group in groups.values() if group["params"]]

    def optimizer(self, named_parameters: Iterable[tuple[str, Tensor]]) -> RecipeOptimizer:
        """Return the optimizer of these param_groups; see `groups`.

        Example:
            >>> model = torch.nn.Linear(4, 3)
            >>> both = partition({"matrix": "muon", "*": "adamw"}, {"weight": "matrix"})
            >>> [group["recipe"] for group in both.optimizer(model.named_parameters()).param_groups]
            ['muon', 'adamw']
        """
        groups = self.groups(named_parameters)
        recipe = find_recipe(groups[-1]["recipe"])
        cls = builtin_class(recipe) or torch_optimizer(recipe)
        return cls(groups)


def label_parameters(
    rule: Partition, named_parameters: Iterable[tuple[str, Tensor]]
) -> list[tuple[str, tuple[str, Tensor]]]:
    """Return the label of each named parameter, with its name and itself."""
    result = []
    for pair in named_parameters:
        if not isinstance(pair, tuple):
            raise TypeError(
                "a partition needs named parameters, such as model.named_parameters(), got "
                f"{type(pair).__name__}"
            )
        result.append((rule.label(*pair), pair))
    return result


def partition(rules: Mapping[str, Rule | str | Recipe | Bound], labels: Labels) -> Partition:
    """Return a rule for a model, which steps each parameter by the rule of its label.

    Args:
        rules: for each label, a recipe (a name, a function, bound, or an optimizer class) or a
            rule. "*" is the label of all parameters that have none.
        labels: the labels of the parameters: the result of `spherenorm.roles`, whose roles are the
            labels; a dict of labels by regular expressions of the whole name, of which the first
            that matches counts; or a function of name and weight, which returns a label and
            depends on no values of the weight.

    Raises:
        ValueError: a label has no rule, or a rule no parameter; a rule is a partition itself; there
            is no such recipe.
        TypeError: `labels` is something else.

    Example:
        >>> params = {"layer.weight": torch.eye(2), "layer.bias": torch.ones(2)}
        >>> both = partition(
        ...     {"matrix": sn.bind("muon", lr=0.5), "*": sn.bind("sgd", lr=0.1)},
        ...     lambda name, weight: "matrix" if weight.ndim == 2 else "*",
        ... )
        >>> state = sn.functional.init(both, params)
        >>> grads = {name: torch.ones_like(weight) for name, weight in params.items()}
        >>> params, state = sn.functional.step(both, params, grads, state)
        >>> params["layer.bias"], list(state["layer.weight"])
        (tensor([0.9000, 0.9000]), ['momentum_buffer'])
    """
    bounds: list[Bound | None] = []
    parts: list[Rule] = []
    for rule in rules.values():
        if isinstance(rule, Rule):
            bounds.append(None)
            parts.append(rule)
        else:
            bound = rule if isinstance(rule, Bound) else bind(rule)
            bounds.append(bound)
            parts.append(bound.rule)
    label_of = _label_function(labels, tuple(rules))
    return Partition(tuple(rules), tuple(parts), label_of, tuple(bounds))


@dataclass(frozen=True)
class _PatternLabels:
    """The label of the first pattern that matches a whole name; "*" if none does.

    Attributes:
        patterns: patterns of names, with their labels.
        is_from_user: whether a pattern that matches no name is a mistake.
    """

    patterns: tuple[tuple[str, str], ...]
    is_from_user: bool = False

    def __call__(self, name: str, weight: Tensor) -> str:
        for pattern, label in self.patterns:
            if re.fullmatch(pattern, name):
                return label
        return OTHER_LABEL


def _label_function(labels: Labels, keys: tuple[str, ...]) -> LabelFunction:
    """Return a function of name and weight, after checking labels against the rules' keys."""
    if isinstance(labels, Mapping):
        for pattern in labels:
            _check_pattern(pattern)
        _check_labels(set(labels.values()), keys)
        unused = [key for key in keys if key not in labels.values() and key != OTHER_LABEL]
        if unused:
            raise ValueError(
                f"partition: no pattern gives the label {unused[0]!r}; the patterns give "
                f"{', '.join(sorted(set(labels.values())))}"
            )
        return _PatternLabels(tuple(labels.items()), is_from_user=True)
    if callable(labels):
        return labels
    if isinstance(labels, str) or not all(hasattr(item, "role") for item in labels):
        raise TypeError(
            "partition: labels must be spherenorm.roles(model, batch), a dict by pattern of the "
            f"name, or a function of name and weight, got {labels!r}"
        )
    roles = {item.name: item.role for item in labels}
    role_names = getattr(labels, "role_names", (*roles.values(),))
    for key in keys:
        if key not in role_names and key != OTHER_LABEL:
            raise ValueError(
                f"partition: no parameter has the role {key!r}; {did_you_mean(key, role_names)}"
            )
    if OTHER_LABEL not in keys:
        _check_labels(set(roles.values()), keys)
    patterns = (
        (re.escape(name), role if role in keys else OTHER_LABEL) for name, role in roles.items()
    )
    return _PatternLabels(tuple(patterns))


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(
            f"partition: {pattern!r} is no regular expression of a name ({error})"
        ) from None


def _check_labels(labels: set[str], keys: tuple[str, ...]) -> None:
    for label in sorted(labels, key=str):
        if label not in keys:
            raise ValueError(
                f"partition: no rule is for the label {label!r}; {did_you_mean(str(label), keys)}"
            )
