"""The weights of an optimizer that a probe watches, with their names, views and tests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from torch import Tensor
from torch.optim.optimizer import Optimizer

from spherenorm.manifolds import sphere_of
from spherenorm.numerics import can_never_be_stepped
from spherenorm.optim import RecipeOptimizer
from spherenorm.rule import Rule
from spherenorm.rules import InvarianceTest, ScaleInvarianceTest
from spherenorm.support import did_you_mean
from spherenorm.views import View, ViewLike, as_view

Views = ViewLike | Mapping[str, ViewLike | None] | None
"""The view that is measured, for all weights or by name; see `probe`."""

RuleAndTest = tuple[Rule | None, InvarianceTest]
"""Of a group: its rule, if it has one, and the test in it, or else the paper's."""


@dataclass(frozen=True, eq=False)
class Watched:
    """A weight that is measured.

    Attributes:
        weight: the parameter.
        name: in measurements.
        view: splits it into the units that are measured.
        test: decides which of its units are scale-invariant.
        place: among those that are measured.
    """

    weight: Tensor
    name: str
    view: View
    test: InvarianceTest
    place: int


def watched_weights(
    optimizer: Optimizer, rules: Sequence[RuleAndTest], names: Mapping[Tensor, str], views: Views
) -> list[Watched]:
    """The weights of two or more dimensions, as the optimizer has them now.

    Args:
        optimizer: has the weights.
        rules: of its groups, by `rules_of`.
        names, views: as for `probe`.

    Raises:
        TypeError: one is complex.
        ValueError: a view has no units in a weight.
    """
    found: list[Watched] = []
    for number, weight, name in _named(optimizer, names):
        rule, test = rules[number]
        view = _view(views, name, rule, test)
        if weight.ndim < 2 or not weight.numel() or view is None or can_never_be_stepped(weight):
            continue
        if not weight.is_floating_point():
            message = f"weight {name!r} must be real and floating-point, got {weight.dtype}"
            raise TypeError(message)
        for each in (view, *test.views):
            try:
                each.size(weight)
            except ValueError as error:
                raise ValueError(f"weight {name!r}: {error}") from error
        found.append(Watched(weight, name, view, test, len(found)))
    return found


def arrangement(optimizer: Optimizer, rules: Sequence[RuleAndTest]) -> Hashable:
    """A value that changes when other weights are watched, or in another way.

    It tells weights apart by their identity, so the weights must be kept as long as the value. A
    tensor among the hyper-parameters of a test may have changed, and is a new one each time.
    """
    found: list[Hashable] = []
    for group, (rule, test) in zip(optimizer.param_groups, rules, strict=True):
        of_test = [getattr(test, each.name) for each in fields(test)]
        of_test = [object() if isinstance(x, Tensor) else x for x in of_test]
        found.append((sphere_of(rule), type(test), *of_test, *group.get("param_names", ())))
        found.extend((id(p), p.shape, p.dtype, p.device) for p in group["params"])
    return tuple(found)


def check_names(optimizer: Optimizer, names: Mapping[Tensor, str], views: Views) -> None:
    """Refuse views of weights that neither the optimizer nor the model has.

    Raises:
        ValueError: a name is unknown.
    """
    if isinstance(views, Mapping):
        known = dict.fromkeys([*(n for *_, n in _named(optimizer, names)), *names.values()])
        for name in views:
            if name not in known:
                raise ValueError(f"views: no weight is named {name!r}; {did_you_mean(name, known)}")


def _named(optimizer: Optimizer, names: Mapping[Tensor, str]) -> Iterator[tuple[int, Tensor, str]]:
    """The index of its group, the weight and the name of each parameter."""
    index = 0
    for number, group in enumerate(optimizer.param_groups):
        own = group.get("param_names", [None] * len(group["params"]))
        for weight, given in zip(group["params"], own, strict=True):
            yield number, weight, names.get(weight) or given or str(index)
            index += 1


def rules_of(optimizer: Optimizer) -> list[RuleAndTest]:
    """The rule and the test of each group."""
    if not isinstance(optimizer, RecipeOptimizer):
        return [(None, ScaleInvarianceTest())] * len(optimizer.param_groups)
    rules = [optimizer.rule_of(group) for group in optimizer.param_groups]
    return [(rule, _test_of(rule)) for rule in rules]


def _view(views: Views, name: str, rule: Rule | None, test: InvarianceTest) -> View | None:
    """The view that is measured: the declared one, the manifold's, or the first tested."""
    if isinstance(views, Mapping):
        if name in views:
            declared = views[name]
            return None if declared is None else as_view(declared)
    elif views is not None:
        return as_view(views)
    if (sphere := sphere_of(rule)) is not None:
        return as_view(sphere.view)
    return as_view(test.views[0]) if test.views else View()


def _test_of(rule: Rule) -> InvarianceTest:
    tests = (each for each in rule.walk() if isinstance(each, InvarianceTest))
    return next(tests, ScaleInvarianceTest())
