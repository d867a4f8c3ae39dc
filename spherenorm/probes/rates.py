"""Learning rates of the next step, by which a probe tells a schedule from a step that dies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim.optimizer import Optimizer

from spherenorm.optim import RecipeOptimizer
from spherenorm.optim.param_groups import PART
from spherenorm.optim.schedules import SCHEDULES
from spherenorm.rule import Rule
from spherenorm.rules import StepSize
from spherenorm.schedule import schedules_in


def learning_rates_of(optimizer: Optimizer, rules: Sequence[Rule | None]) -> list[float | Tensor]:
    """Return the learning rate of each group's next step; nan for a group without one.

    It is the `lr` of the group. A recipe may also schedule the rate itself: then it is the number
    of that schedule, times the other step sizes of the rule; nan if there are several. The group of
    a partition's label has its rate in the rule alone.

    Args:
        optimizer: the optimizer.
        rules: the rule of each of its groups at the next step; None for another library's.
    """
    rates = []
    for group, rule in zip(optimizer.param_groups, rules, strict=True):
        rate: Any = group.get("lr", math.nan)
        if isinstance(optimizer, RecipeOptimizer) and rule is not None:
            own_rate = _own_rate(group, rule, optimizer.rule_with_schedules(group))
            rate = rate if own_rate is None else own_rate
        # A later step may write into a tensor; to read it here would wait for its device.
        rates.append(rate.detach().clone() if isinstance(rate, Tensor) else float(rate))
    return rates


def _own_rate(group: Mapping[str, Any], rule: Rule, with_schedules: Rule) -> Any:
    """Return the rate by the rule itself; None where it is the `lr` of the group.

    Args:
        group: the param_group.
        rule: its rule at the next step.
        with_schedules: the rule with schedules in the place of numbers.
    """
    schedule_of_lr = group.get(SCHEDULES, {}).get("lr")
    parts = [*zip(with_schedules.walk(), rule.walk(), strict=False)]
    rates = [(getattr(x, "lr", None), getattr(y, "lr", None)) for x, y in parts]
    numbers = {  # of the rule's own schedules, by the id of each
        id(scheduled): number
        for scheduled, number in rates
        if any(x is not schedule_of_lr for x in schedules_in(scheduled))
    }
    if not numbers and PART not in group:
        return None
    if len(numbers) > 1:
        return math.nan
    others = [
        number
        for (_, part), (scheduled, number) in zip(parts, rates, strict=True)
        if isinstance(part, StepSize) and id(scheduled) not in numbers
    ]
    return math.prod([*numbers.values(), *others])
