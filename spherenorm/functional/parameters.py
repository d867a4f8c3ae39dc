"""One rule for all parameters of a model, by name."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from spherenorm.global_sums import sum_over_weights, with_shared_states
from spherenorm.numerics import refuse_unless_real
from spherenorm.rule import Rule, State, first_update, initial_state

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
    return {name: initial_state(rule, weight) for name, weight in params.items()}


def step(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[Params, dict[str, State]]:
    """One step of every parameter.

    What rules measure over all weights is summed over these parameters, and a parameter that joins
    late, with a state that is fresh, shares the estimates of the others.

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
    sums, state = _sums(rule, params, grads, state)
    moved, new = {}, {}
    for name, weight in params.items():
        moved[name], new[name] = rule.step(weight, grads[name], state[name], sums)
    return moved, new


def _sums(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[dict[str, Tensor] | None, Mapping[str, State]]:
    """The sums of what the rule measures of all parameters, or None if it measures nothing; and
    the states with shared numbers that agree.
    """
    _refuse_unless_real(params)
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    if missing := [name for name in params if name not in state]:
        first = "a first step takes the state that spherenorm.functional.init(rule, params) returns"
        raise ValueError(f"state has no entry for parameter {missing[0]!r}; {first}")
    if not rule.needs_global_sums:
        return None, state
    begin = {name: first_update(rule, w, grads[name], state[name]) for name, w in params.items()}
    state = with_shared_states(rule, {name: state[name] for name in params})
    return sum_over_weights((rule, update, state[name]) for name, update in begin.items()), state


def _refuse_unless_real(params: Mapping[str, Tensor]) -> None:
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
