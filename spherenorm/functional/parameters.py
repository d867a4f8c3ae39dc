"""Step all parameters of a model by one rule, without side effects."""

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
    """Return the state of every parameter before the first step, by its name.

    Args:
        rule: the rule that is to step every parameter.
        params: the parameters by name, as `torch.func.functional_call` takes them.

    Raises:
        TypeError: a parameter is complex or integer.

    Example:
        >>> init(sn.recipes.sgd(momentum=0.9), {"w": torch.ones(2)})
        {'w': {'momentum_buffer': tensor([0., 0.])}}
    """
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    return {name: initial_state(rule, weight) for name, weight in params.items()}


def step(
    rule: Rule,
    params: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    state: Mapping[str, State],
) -> tuple[Params, dict[str, State]]:
    """Take one step of every parameter.

    Global sums (`Rule.global_sum_terms`) are taken over these parameters. A parameter that joins
    late, with an initial state, takes over the shared states of the others.

    Args:
        rule: the rule that steps every parameter.
        params: the parameters by name, as `torch.func.functional_call` takes them.
        grads: the gradients by name, as `torch.func.grad` returns them.
        state: the result of `init`, or of the last step.

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
    for name, weight in params.items():
        refuse_unless_real(weight, f"parameter {name!r}")
    if grads.keys() != params.keys():
        raise ValueError(f"grads and params differ in {sorted(grads.keys() ^ params.keys())}")
    for name in params:
        if name not in state:
            raise ValueError(
                f"state has no entry for parameter {name!r}; a first step takes the state that "
                "spherenorm.functional.init(rule, params) returns"
            )
    global_sums = None
    if rule.needs_global_sums:
        updates = {
            name: first_update(rule, weight, grads[name], state[name])
            for name, weight in params.items()
        }
        state = with_shared_states(rule, {name: state[name] for name in params})
        global_sums = sum_over_weights(
            (rule.at_next_step(state[name]), updates[name], state[name]) for name in params
        )
    new_params, new_state = {}, {}
    for name, weight in params.items():
        new_weight, new_weight_state = rule.step(weight, grads[name], state[name], global_sums)
        new_params[name], new_state[name] = new_weight, new_weight_state
    return new_params, new_state
