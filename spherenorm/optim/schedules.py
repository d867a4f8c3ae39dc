"""Schedules in param_groups: where they are kept, and the numbers of the next step.

A scheduled hyper-parameter has two entries in its param_group. `group["schedules"]["lr"]` is the
schedule; `group["lr"]` is a number as ever, the one that the next step takes, which loggers read.
`group["clock"]` counts the steps of the group. Schedules follow this count and not the "step" in
the state of a weight: a weight that had no gradient in some steps (an expert, a layer that was
frozen for a while) has the learning rate of all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from spherenorm.rule import STEP_KEY, State
from spherenorm.schedule import from_words, is_scheduled, to_words, value_at

SCHEDULES = "schedules"
"""The entry of a param_group that holds its schedules, by hyper-parameter."""
CLOCK = "clock"
"""The entry of a param_group that counts its steps; groups without schedules have none."""
_PLAIN = {float, int, bool, str, dict, type(None)}
"""Types of entries that are no schedules; to ask this takes less time than to look inside."""
_LISTS = ("params", "param_names")
"""Entries that have an item for each parameter, and no hyper-parameter."""
_NO_SCHEDULES: Mapping[str, Any] = {}


def with_schedules(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the entries of a group, with schedules in the place of their present numbers."""
    schedules = group.get(SCHEDULES)
    if not schedules:
        return group
    if stands_still(group):
        schedules = {name: value for name, value in schedules.items() if name != "lr"}
    return {**group, **schedules}


def next_step(group: Mapping[str, Any]) -> int:
    """Return the number of the next step of a group, from 1."""
    return int(group.get(CLOCK, 0)) + 1


def last_step(group: Mapping[str, Any]) -> int:
    """Return the number of the last step of a group; 1 before the first one."""
    return max(int(group.get(CLOCK, 0)), 1)


def numbers_at(group: Mapping[str, Any], t: int) -> dict[str, Any]:
    """Return the numbers of all scheduled hyper-parameters at step t."""
    return {name: value_at(x, t) for name, x in group.get(SCHEDULES, _NO_SCHEDULES).items()}


def set_schedules(group: dict[str, Any], steps_taken: int) -> None:
    """Move schedules from the entries of a group to `group["schedules"]`; numbers take their place.

    Args:
        group: changes in place, if it has schedules.
        steps_taken: the clock of a group that had none before.
    """
    new_schedules = {name: x for name, x in group.items() if is_scheduled(x)}
    if new_schedules or SCHEDULES in group:
        group[SCHEDULES] = {**group.get(SCHEDULES, _NO_SCHEDULES), **new_schedules}
        group.setdefault(CLOCK, steps_taken)
        group.update(numbers_at(group, next_step(group)))


def has_new_schedules(group: Mapping[str, Any]) -> bool:
    """Return True if somebody has set an entry of a group to a schedule."""
    return any(
        is_scheduled(value)
        for name, value in group.items()
        if type(value) not in _PLAIN and name not in _LISTS
    )


def steps_taken(states: Iterable[State]) -> int:
    """Return the largest step count in the states of weights; 0 if none of them counts steps."""
    return max((int(state[STEP_KEY]) for state in states if STEP_KEY in state), default=0)


def refuse_written_numbers(group: Mapping[str, Any]) -> None:
    """Refuse a scheduled hyper-parameter that somebody else writes to.

    Raises:
        ValueError: a torch scheduler drives it, too, or it was set by hand.
    """
    if SCHEDULES not in group or stands_still(group):
        return
    for name, number in numbers_at(group, next_step(group)).items():
        is_driven = name == "lr" and "initial_lr" in group
        if is_driven or not _is_same(group[name], number):
            writer = "a torch scheduler drives" if is_driven else "something else has set"
            raise ValueError(
                f"{name} of the param_group has a schedule, and {writer} {name}, too: it is "
                f"{group[name]!r}, and the schedule's number {number!r}. To set it by hand, del "
                f"group['schedules'][{name!r}] first; for another schedule, set group[{name!r}] "
                "to that"
            )


def stands_still(group: Mapping[str, Any]) -> bool:
    """Return True if the scheduled lr of a group was set to 0.

    Torch's distributed checkpoints do so for a step that only makes the states, and set it back.
    Such a step is none of the schedule's.
    """
    lr = group.get("lr")
    if type(lr) is float and lr:
        return False
    if isinstance(lr, Tensor) or lr != 0 or "lr" not in group.get(SCHEDULES, _NO_SCHEDULES):
        return False
    return bool(numbers_at(group, next_step(group))["lr"] != 0)


def _is_same(entry: Any, number: Any) -> bool:
    if type(number) in (tuple, list):
        return len(entry) == len(number) and all(map(_is_same, entry, number))
    if isinstance(number, Tensor):  # of a schedule of tensors, whose values are not read here
        return isinstance(entry, Tensor)
    return bool(entry == number)


def entries_after_step(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clock and the numbers that a group has after its next step."""
    if CLOCK not in group or stands_still(group):
        return {}
    t = next_step(group)
    return {CLOCK: t, **numbers_at(group, t + 1)}


def with_its_schedules(group: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries that a step has written into a group, and a copy of its schedules."""
    return {**entries, SCHEDULES: dict(group.get(SCHEDULES, _NO_SCHEDULES))}


def has_entries(group: Mapping[str, Any], written: Mapping[str, Any] | None) -> bool:
    """Return True if nobody has changed a group since a step: `with_its_schedules` of that step.

    A list may have changed inside, and so may an lr that a torch scheduler drives.
    """
    if written is None or "initial_lr" in group:
        return False
    for name, value in written.items():
        if name == SCHEDULES:
            if group.get(SCHEDULES, _NO_SCHEDULES) != value:
                return False
        elif group.get(name) is not value or type(value) is list:
            return False
    return True


def latest_clock(param_groups: Iterable[Mapping[str, Any]]) -> int:
    """Return the largest clock, at which a group that joins later starts; 0 without any."""
    return max((group.get(CLOCK, 0) for group in param_groups), default=0)


# Checkpoints


def schedules_to_words(group: dict[str, Any]) -> None:
    """Replace the schedules of a group in a state_dict by tuples of words and numbers."""
    if SCHEDULES in group:
        group[SCHEDULES] = {name: to_words(value) for name, value in group[SCHEDULES].items()}


def load_schedules(
    group: dict[str, Any],
    saved: Mapping[str, Any],
    present: Mapping[str, Any],
    states: Sequence[State],
    names: Iterable[str],
) -> None:
    """Give a group that loads a checkpoint its schedules, its clock and their numbers.

    The saved schedules prevail, as all saved hyper-parameters do. A checkpoint without any, such as
    one of torch.optim, leaves those of the present group.

    Args:
        group: the group after loading, which changes in place.
        saved, present: the group of the checkpoint and the one before loading.
        states: the saved states of its weights.
        names: the hyper-parameters of the group.

    Raises:
        ValueError: the checkpoint has a schedule of a function, and the present group has not.

    Warns:
        UserWarning: the saved schedules are not those of the present group; or nothing says how
            many steps the checkpoint took.
    """
    present_schedules = present.get(SCHEDULES, _NO_SCHEDULES)
    schedules = dict(present_schedules)
    if SCHEDULES in saved:
        schedules = {
            name: from_words(words, present_schedules.get(name))
            for name, words in saved[SCHEDULES].items()
            if name in names
        }
        _warn_of_other_schedules(schedules, present_schedules)
    elif "lr" in schedules:
        group.pop("initial_lr", None)  # of the torch scheduler that drove the saved run
    if not schedules and CLOCK not in present:
        group.pop(SCHEDULES, None)
        group.pop(CLOCK, None)
        return
    if CLOCK not in saved:
        group[CLOCK] = steps_taken(states)
        if states and not group[CLOCK]:
            warnings.warn(
                "the checkpoint does not say how many steps it took, so the schedules of "
                f"{', '.join(schedules) or 'the recipe'} start anew; if they should not, set "
                'group["clock"] to the number of steps, and group[name] to the schedule again',
                stacklevel=5,
            )
    group[SCHEDULES] = schedules
    group.update(numbers_at(group, next_step(group)))


def _warn_of_other_schedules(saved: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    names = [name for name in {**saved, **present} if saved.get(name) != present.get(name)]
    if names:
        texts = [f"{name}: {saved.get(name)} instead of {present.get(name)}" for name in names]
        warnings.warn(
            "the checkpoint's schedules prevail over those that the optimizer was constructed "
            f"with ({'; '.join(texts)}); to keep the latter, such as for a longer run, "
            'del group["schedules"] of the param_groups in the state_dict before loading it',
            stacklevel=5,
        )
