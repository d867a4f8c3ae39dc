"""Studies by name, and `Comparing`: the arguments of `compare`, as a text that a store keeps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from spherenorm.support import did_you_mean, look_up, unknown_name
from spherenorm_experiments.comparison import Arm, Comparison, Condition, Setup
from spherenorm_experiments.design import require_known
from spherenorm_experiments.errors import RecipeError, users_code
from spherenorm_experiments.lookup import find_task_class, named, places
from spherenorm_experiments.plan import Range, ranges_of, require_owners
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.search import METHODS, Search, points
from spherenorm_experiments.study import Study
from spherenorm_experiments.task import Task

COMMAND = "compare"

ABOUT = """Every optimizer is tuned in the same number of trials, over the same ranges if it is
given none of its own. All trials run on all seeds; each seed takes the trial with its best
validation score, and the test scores of these are compared seed by seed. Means in one column are
over the same seeds."""

MEASURED = {"probes": ("norms",), "probe_every": 1}
"""In every run, at every step."""


@dataclass(frozen=True)
class Comparing:
    """Optimizers on a task, each tuned in as many trials, over the same ranges or its own.

        >>> ranges = parse_ranges(["lr=1e-4:1e-1"])
        >>> request = Comparing("digits", ("sgd", "sgdp"), ranges, 8)
        >>> str(request)
        'compare {"task": "digits", "optimizers": ["sgd", "sgdp"], "search": {"lr": [0.0001, 0.1]}}'
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
        fixed: values of one optimizer's own hyper-parameters, by `optimizer:name`.

    Raises:
        ValueError: an argument that is wrong by itself; the message names it and its value.
    """

    task: str
    optimizers: tuple[str, ...]
    search: Mapping[str, Range]
    count: int = 8
    method: str = "halton"
    baseline: str = ""
    margin: float | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(self)

    def __str__(self) -> str:
        given = asdict(self)
        usual = {each.name: each.default for each in fields(self)}
        kept = {name: x for name, x in given.items() if x != usual[name] and x != {}}
        return f"{COMMAND} {json.dumps(kept)}"

    @classmethod
    def from_text(cls, text: str) -> Comparing:
        """The inverse of `str`.

        Raises:
            ValueError: the text is of something else.
        """
        try:
            given = json.loads(text.partition(" ")[2])
            given["optimizers"] = tuple(given["optimizers"])
            given["search"] = {name: (low, high) for name, (low, high) in given["search"].items()}
            return cls(**given)
        except (TypeError, KeyError) as error:
            raise ValueError(f"{text!r} is no comparison: {error}") from None

    @property
    def searched(self) -> list[str]:
        """The names of the hyper-parameters that some optimizer is tuned in."""
        return list(dict.fromkeys(name.rpartition(":")[2] for name in self.search))

    def ranges_of(self, optimizer: str) -> dict[str, Range]:
        """The ranges in which an optimizer is tuned: the common ones, or its own in their place."""
        return ranges_of(self.search, optimizer)

    def fixed_of(self, optimizer: str) -> dict[str, Any]:
        """The values that are fixed for one optimizer alone."""
        split = [(name.rpartition(":"), value) for name, value in self.fixed.items()]
        return {name: value for (owner, _, name), value in split if owner == optimizer}

    def require(self) -> None:
        """Look up the task and the recipes.

        Raises:
            ValueError: there is no such task or recipe, the task has no score, or a recipe lacks a
                hyper-parameter of the search.
        """
        _require_task(self.task)
        for name in self.optimizers:
            try:
                known = load_recipe(name).defaults
            except RecipeError as error:
                raise ValueError(f"--optimizers {name!r}: {error}") from error
            for flag, names in (("search", self.ranges_of(name)), ("set", self.fixed_of(name))):
                for own in names:
                    try:
                        require_known(name, [own], known)
                    except ValueError as error:
                        raise ValueError(f"--{flag} {own!r}: {error}") from error


def comparison_of(request: Comparing) -> Comparison:
    """The study that a comparison's arguments ask for."""
    short = [recipe.rpartition(":")[2] for recipe in request.optimizers]
    arms = {
        recipe: Arm(
            name if short.count(name) == 1 else recipe,  # without its module, unless two are alike
            Search(request.ranges_of(recipe), request.count, request.method),
            request.fixed_of(recipe),
            recipe=recipe,
        )
        for recipe, name in zip(request.optimizers, short, strict=True)
    }
    baseline = arms.pop(request.baseline or request.optimizers[0])
    every = [baseline, *arms.values()]
    labels = ", ".join(arm.name for arm in every)
    study = Comparison(
        re.sub(r"[^\w.-]+", "-", f"{COMMAND}-{request.task}"),
        f"{request.task}: {labels}, tuned alike\n\n{ABOUT}",
        arms=every,
        tune=Search(request.ranges_of(baseline.recipe), request.count, request.method),
        conditions=[Condition("", request.task, Setup(fields=MEASURED), margin=request.margin)],
        seeds=Study.seeds,
    )
    study.found_as = str(request)
    return study


def _require(request: Comparing) -> None:
    """Refuse arguments that are wrong by themselves."""
    listed = ",".join(request.optimizers)
    if len(request.optimizers) < 2:
        raise ValueError(f"--optimizers {listed!r}: give two or more to compare")
    for name in request.optimizers:
        if request.optimizers.count(name) > 1:
            raise ValueError(f"--optimizers {listed!r}: {name!r} is there twice")
    if request.count < 1:
        raise ValueError(f"--trials {request.count}: give 1 or more")
    if request.method not in METHODS:
        wrong = unknown_name("search method", request.method, METHODS)
        raise ValueError(f"--method {request.method!r}: {wrong}")
    if not request.search:
        raise ValueError("--search '': give a range to tune in, such as lr=1e-4:1e-1")
    require_owners("search", request.search, request.optimizers)
    for name in request.optimizers:
        _require_ranges(request, name)
    require_owners("set", request.fixed, request.optimizers)
    for name in request.fixed:
        owner, _, own = name.rpartition(":")
        if own in request.ranges_of(owner):
            raise ValueError(f"--set {name!r}: --search tunes it")
    if request.baseline and request.baseline not in request.optimizers:
        raise ValueError(f"--baseline {request.baseline!r} is none of --optimizers {listed!r}")
    if request.margin is not None and not 0 < request.margin < math.inf:
        raise ValueError(f"--margin {request.margin:g}: give a positive number")


def _require_ranges(request: Comparing, optimizer: str) -> None:
    if not request.ranges_of(optimizer):
        right = f"such as {optimizer}:lr=1e-4:1e-1"
        raise ValueError(f"--search: no range for {optimizer!r}; give one, {right}")
    if request.method == "grid":
        try:
            points(request.ranges_of(optimizer), request.count, "grid")
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


def parse_overrides(entries: Sequence[str]) -> dict[str, Any]:
    """The values of key=value entries; a value is JSON (0.1, true, null, [0.9]) or else a word.

    Raises:
        ValueError: an entry without a key or an equals sign.
    """
    overrides: dict[str, Any] = {}
    for entry in entries:
        key, equals, text = entry.partition("=")
        if not (key and equals):
            raise ValueError(f"--set {entry!r}: give key=value, such as lr=0.05")
        try:
            overrides[key] = json.loads(text)
        except ValueError:
            overrides[key] = text
    return overrides


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
            right = "give name=low:high, such as lr=1e-4:1e-1"
            raise ValueError(f"--search {entry!r}: {right}") from None
        if not name or name in ranges:
            fault = f"{name!r} is there twice" if name else "it names no hyper-parameter"
            raise ValueError(f"--search {entry!r}: {fault}")
        if not 0 < low < high < math.inf:
            lack = "a logarithmic range is positive and rising"
            raise ValueError(f"--search {entry!r}: {lack}, got {low:g} to {high:g}")
        ranges[name] = low, high
    return ranges


MOST_SEEDS = 10_000


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of "3", "0:10" or "1,4,7".

    Raises:
        ValueError: a text that is none of these, no seed, too many or too large ones.
    """
    try:
        if "," in text:
            seeds: Sequence[int] = [int(seed) for seed in text.split(",")]
        else:
            first, colon, last = text.rpartition(":")
            seeds = range(int(first) if colon else 0, int(last))
        if not 0 < len(seeds) <= MOST_SEEDS or min(seeds) < 0 or max(seeds) >= 2**63:
            raise ValueError
    except (ValueError, OverflowError):
        right = "give a count (3), a range (0:10) or a list (1,4,7)"
        raise ValueError(f"--seeds {text!r}: {right}, at most {MOST_SEEDS}") from None
    return tuple(dict.fromkeys(seeds))


def study_classes() -> dict[str, type[Study] | Study]:
    """Every study of the folders, by name: a class, or an instance of one."""
    return {name: named("STUDIES", name) for name in places("STUDIES")}


def find_study(name: str) -> Study:
    """The study called `name`, in upper or lower case.

    Args:
        name: of one of ours; `module:name` of a user's class or instance; a comparison's text.

    Raises:
        ValueError: there is none.
    """
    if name.startswith(f"{COMMAND} "):
        return comparison_of(Comparing.from_text(name))
    if ":" in name:
        with users_code("study", name):
            study = _instance(look_up("study", name, "study", _is_study))
    else:
        known = places("STUDIES")
        if name.lower() not in known:
            raise ValueError(f"no study is named {name!r}; {did_you_mean(name.lower(), known)}")
        study = _instance(named("STUDIES", name.lower()))
    study.found_as = name if ":" in name else study.name
    return study


def _instance(given: Any) -> Study:
    study: Study = given() if isinstance(given, type) else given
    return study


def _is_study(value: Any) -> bool:
    return isinstance(value, Study) or (isinstance(value, type) and issubclass(value, Study))


def name_of(study: Study) -> str:
    """The name that finds the study again: its own for one of ours, `module:Class` for another."""
    if study.found_as or isinstance(study, Comparison):
        return study.found_as or study.name
    cls = type(study)
    place = f"{cls.__module__}:{cls.__name__}"
    return study.name if place in places("STUDIES").values() else place
