"""One rule for all parameters of a model, by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from spherenorm._hooks import State
from spherenorm._rule import Rule
from spherenorm._shared import measures, totals
from spherenorm._step import Measured, begin, refuse_unless_real, second_point
from spherenorm._tree import Part
from spherenorm._watch import called

Params = dict[str, Tensor]
"""The parameters of a model, by name.

Example:
    >>> model = torch.nn.Linear(2, 1)
    >>> params: Params = dict(model.named_parameters())
    >>> list(params)
    ['weight', 'bias']
"""


def init(rule: Rule, params: Mapping[str, Tensor]) -> dict[str, State]:
    """The state of every parameter before the first step, by its name.

    Args:
        rule: steps each of them.
        params: as `torch.func.functional_call` takes them.

    Raises:
        TypeError: a parameter is complex or integer.

    Example:
        >>> init(sn.recipes.sgd(momentum=0.9), {"w": torch.ones(2)})
        {'w': {'momentum_buffer': tensor([0., 0.])}}
    """
    _refuse_unless_real(params)
    return {name: called(Part(rule, {}), rule.init, weight) for name, weight in params.items()}


def step(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[Params, dict[str, State]]:
    """One step of every parameter.

    What rules measure over all weights is summed over these parameters.

    Args:
        rule: steps each of them.
        params: as `torch.func.functional_call` takes them.
        grads: as `torch.func.grad` returns them.
        state: as `init` or the last step returned it.

    Returns:
        The new parameters and states; the arguments are left alone.

    Raises:
        ValueError: the names of `grads` differ from the parameters', or `state` lacks one.
        TypeError: a parameter is complex or integer.

    Example:
        >>> params, grads = {"w": torch.ones(2)}, {"w": torch.ones(2)}
        >>> step(sn.recipes.sgd(lr=0.5), params, grads, {"w": {}})
        ({'w': tensor([0.5000, 0.5000])}, {'w': {}})
    """
    measured = _measured(rule, params, grads, state)
    moved, new = {}, {}
    for name, weight in params.items():
        moved[name], new[name] = rule.step(weight, grads[name], state[name], measured)
    return moved, new


def evaluation_point(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> Params:
    """The parameters at which the gradients for `step` are to be computed.

    They are `params` themselves, but for a rule that evaluates the gradient elsewhere, such as that
    of sharpness-aware minimization:

        grads = gradients(params)
        grads = gradients(evaluation_point(rule, params, grads, state))
        params, state = step(rule, params, grads, state)

    Args:
        rule, params, state: as for `step`.
        grads: at `params`.

    Raises:
        ValueError, TypeError: as `step`.

    Example:
        >>> class Ahead(Rule):  # the gradient at w + 0.1 g
        ...     def evaluate_at(self, update, state):
        ...         return update.weight + 0.1 * update.grad
        ...     def update(self, update, state):
        ...         return update, {}
        >>> params, grads = {"w": torch.ones(1)}, {"w": torch.ones(1)}
        >>> evaluation_point(Ahead(), params, grads, {"w": {}})
        {'w': tensor([1.1000])}
    """
    measured = _measured(rule, params, grads, state)
    points = {}
    for name, weight in params.items():
        update = begin(rule, weight, grads[name], state[name], measured)
        point = second_point(rule, update, state[name])
        points[name] = weight if point is None else point.to(weight.dtype)
    return points


def _measured(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> Measured | None:
    """The sums of what the rule measures of all parameters; None if it measures nothing."""
    _refuse_unless_real(params)
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    if missing := [name for name in params if name not in state]:
        first = "a first step takes the state that spherenorm.functional.init(rule, params) returns"
        raise ValueError(f"state has no entry for parameter {missing[0]!r}; {first}")
    if not measures(rule):
        return None
    (sums,) = totals([(rule, [(weight, grads[n], state[n]) for n, weight in params.items()])])
    return sums


def _refuse_unless_real(params: Mapping[str, Tensor]) -> None:
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
