"""Tasks are found by name, and what they have in common."""

from dataclasses import dataclass
from itertools import combinations

import pytest

from spherenorm_experiments.core import Task, find_task, make_task, task_classes

TRAINED = [name for name, cls in task_classes().items() if issubclass(cls, Task)]


def test_tasks_are_found_by_themselves():
    assert list(task_classes()) == [
        *("adversarial", "classification", "cosine", "debiasing", "detection", "digits"),
        *("events", "keywords", "language", "mlp", "network", "retrieval"),
        *("rosenbrock", "sphere-network", "tagging"),
    ]


@pytest.mark.parametrize("name", TRAINED)
def test_splits_do_not_overlap_and_their_fingerprint_is_theirs(name):
    task = find_task(name)
    rows = [{x.numpy().tobytes() for x in split[0]} for split in task.data()]
    if name != "debiasing":  # few pixels and few colours: two writers may make the same image
        assert [len(r) for r in rows] == [len(split[0]) for split in task.data()]
        assert all(a.isdisjoint(b) for a, b in combinations(rows, 2))
    assert all(len({len(x) for x in split}) == 1 for split in task.data())
    assert task.fingerprint() == find_task(name).fingerprint()
    assert len({find_task(n).fingerprint() for n in TRAINED}) == len(TRAINED)


@dataclass(frozen=True)
class Shaped(Task):
    """A task whose options have tuples."""

    widths: tuple[int, ...] = (8,)
    sides: tuple[int, tuple[int, int]] | None = None


def test_lists_of_a_command_line_are_the_tuples_of_an_option():
    task = make_task("shaped", Shaped, {"widths": [4, 4], "sides": [1, [2, 3]]})
    assert (task.widths, task.sides) == ((4, 4), (1, (2, 3)))
    assert len({task, make_task("shaped", Shaped, {})}) == 2
    with pytest.raises(ValueError, match=r"widths=\[4, \"a\"\] is no value for task 'shaped'"):
        make_task("shaped", Shaped, {"widths": [4, "a"]})
