"""The request of a comparison: the arguments of `compare`, checked, as the text that repeats it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.core import METHODS, RecipeError, Task, find_task_class, points
from spherenorm_experiments.engine.door import Door

__all__ = ["COMMAND", "Comparing", "parse_names", "parse_ranges"]

COMMAND = "compare"

Range = tuple[float, float]


@dataclass(frozen=True)
class Comparing:
    """Optimizers on a task, each tuned in as many trials, over the same ranges or its own.

        >>> ranges = parse_ranges(["lr=1e-4:1e-1"])
        >>> request = Comparing("digits", ("sgd", "sgdp"), ranges, 16)
        >>> str(request)
        'compare --task digits --optimizers sgd,sgdp --search lr=0.0001:0.1 --trials 16'
        >>> Comparing.from_text(str(request)) == request
        True

    Attributes:
        task: a task's name, or `module:Class`.
        optimizers: two or more recipes, by name or as `module:function`.
        search: the hyper-parameters that are tuned, with their logarithmic ranges; one that is
            named `optimizer:name` is that optimizer's own.
        count: the trials of each optimizer.
        method: a key of `METHODS`.
        baseline: the optimizer to which the others are compared; the first by default.
        margin: two mean scores that differ by less are equivalent; None for no such verdict, or
            one percentage point if the score is in percent.

    Raises:
        ValueError: an argument that is wrong by itself; the message names it and its value.
    """

    task: str
    optimizers: tuple[str, ...]
    search: Mapping[str, Range]
    count: int = 16
    method: str = "halton"
    baseline: str = ""
    margin: float | None = None

    def __post_init__(self) -> None:
        listed = ",".join(self.optimizers)
        if len(self.optimizers) < 2:
            raise ValueError(f"--optimizers {listed!r}: give two or more to compare")
        for name in self.optimizers:
            if self.optimizers.count(name) > 1:
                raise ValueError(f"--optimizers {listed!r}: {name!r} is there twice")
        if self.count < 1:
            raise ValueError(f"--trials {self.count}: give 1 or more")
        if self.method not in METHODS:
            wrong = unknown_name("search method", self.method, METHODS)
            raise ValueError(f"--method {self.method!r}: {wrong}")
        if not self.search:
            raise ValueError("--search '': give a range to tune in, such as lr=1e-4:1e-1")
        for name in self.search:
            owner = name.rpartition(":")[0]
            if owner and owner not in self.optimizers:
                raise ValueError(f"--search {name!r}: {owner!r} is none of --optimizers {listed!r}")
        for name in self.optimizers:
            _require_ranges(self, name)
        if self.baseline and self.baseline not in self.optimizers:
            raise ValueError(f"--baseline {self.baseline!r} is none of --optimizers {listed!r}")
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise ValueError(f"--margin {self.margin:g}: give a positive number")

    def __str__(self) -> str:
        ranges = ",".join(f"{name}={low!r}:{high!r}" for name, (low, high) in self.search.items())
        words = [COMMAND, "--task", self.task, "--optimizers", ",".join(self.optimizers)]
        words += ["--search", ranges, "--trials", str(self.count)]
        words += [] if self.method == Comparing.method else ["--method", self.method]
        words += ["--baseline", self.baseline] if self.baseline else []
        words += [] if self.margin is None else ["--margin", repr(self.margin)]
        return shlex.join(words)

    @property
    def reference(self) -> str:
        """The recipe to which the others are compared."""
        return self.baseline or self.optimizers[0]

    @property
    def searched(self) -> list[str]:
        """The names of the hyper-parameters that some optimizer is tuned in."""
        return list(dict.fromkeys(name.rpartition(":")[2] for name in self.search))

    def ranges_of(self, optimizer: str) -> dict[str, Range]:
        """The ranges in which an optimizer is tuned: the common ones, or its own in their place."""
        split = [(name.rpartition(":"), bounds) for name, bounds in self.search.items()]
        common = {name: bounds for (owner, _, name), bounds in split if not owner}
        return common | {name: bounds for (owner, _, name), bounds in split if owner == optimizer}

    @classmethod
    def from_text(cls, text: str) -> Comparing:
        """The inverse of `str`.

        Raises:
            ValueError: the text is of something else.
        """
        words = shlex.split(text)[1:]
        given = dict(zip(words[::2], words[1::2], strict=True))
        try:
            return cls(
                given["--task"],
                parse_names(given["--optimizers"]),
                parse_ranges([given["--search"]]),
                int(given["--trials"]),
                given.get("--method", cls.method),
                given.get("--baseline", ""),
                float(given["--margin"]) if "--margin" in given else None,
            )
        except KeyError as error:
            raise ValueError(f"{text!r} is no comparison: it lacks {error}") from None

    def require(self, door: Door) -> None:
        """Look up the task and the recipes.

        Raises:
            ValueError: there is no such task or recipe, the task has no score, or a recipe lacks a
                hyper-parameter of the search.
        """
        _require_task(self.task)
        for name in self.optimizers:
            try:
                known = door.recipe(name).defaults
            except RecipeError as error:
                raise ValueError(f"--optimizers {name!r}: {error}") from error
            _require_known(name, self.ranges_of(name), known)


def _require_known(optimizer: str, ranges: Mapping[str, Range], known: Mapping[str, Any]) -> None:
    for name in ranges:
        if name not in known:
            right = did_you_mean(name, sorted(known)) if known else "it has none"
            lack = f"recipe {optimizer!r} has no hyper-parameter {name!r}"
            raise ValueError(f"--search {name!r}: {lack}; {right}")


def _require_ranges(request: Comparing, optimizer: str) -> None:
    ranges = request.ranges_of(optimizer)
    if not ranges:
        right = f"such as {optimizer}:lr=1e-4:1e-1"
        raise ValueError(f"--search: no range for {optimizer!r}; give one, {right}")
    if request.method == "grid":
        try:
            points(ranges, request.count, "grid")
        except ValueError as error:
            raise ValueError(f"--trials {request.count}: {error}") from error


def _require_task(name: str) -> None:
    try:
        task = find_task_class(name)
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"--task {name!r}: {error}") from error
    if not (isinstance(task, type) and issubclass(task, Task)):
        need = "give a task that trains on batches (a subclass of Task)"
        raise ValueError(f"--task {name!r} has no score to compare: {need}")
    if task.evaluate is Task.evaluate:
        raise ValueError(f"--task {name!r} has no metric: it does not define `evaluate`")


def parse_names(text: str) -> tuple[str, ...]:
    """The names of "a, b,module:c".

    Raises:
        ValueError: an empty name.
    """
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        raise ValueError(f"--optimizers {text!r}: a name is empty")
    return names


def parse_ranges(entries: Sequence[str]) -> dict[str, Range]:
    """The ranges of "lr=1e-4:1e-1,weight_decay=1e-5:1e-2", in one entry or several.

    A name may have an optimizer before it, "sgd:lr" or "module:recipe:lr".

    Raises:
        ValueError: an entry of another form, a name that is there twice, or a range that is not
            positive and rising.
    """
    ranges: dict[str, Range] = {}
    for entry in (part.strip() for text in entries for part in text.split(",")):
        name, _, bounds = entry.partition("=")
        try:
            low, high = (float(end) for end in bounds.split(":"))
        except ValueError:
            raise ValueError(
                f"--search {entry!r}: give name=low:high, such as lr=1e-4:1e-1"
            ) from None
        if not name or name in ranges:
            fault = f"{name!r} is there twice" if name else "it names no hyper-parameter"
            raise ValueError(f"--search {entry!r}: {fault}")
        if not 0 < low < high < math.inf:
            raise ValueError(
                f"--search {entry!r}: a logarithmic range is positive and rising, "
                f"got {low:g} to {high:g}"
            )
        ranges[name] = low, high
    return ranges
