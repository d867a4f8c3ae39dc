"""Studies by name, and `Comparing`: the arguments of `compare`, as a text that a store keeps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from spherenorm.support import did_you_mean, look_up
from spherenorm_experiments.comparison import (
    Arm,
    Comparison,
    Condition,
    Search,
    Setup,
    require_known,
)
from spherenorm_experiments.errors import users_code
from spherenorm_experiments.lookup import (
    find_task_class,
    import_file,
    load_registered,
    registered,
)
from spherenorm_experiments.study import Study
from spherenorm_experiments.task import Task

COMMAND = "compare"

ABOUT = """Every optimizer is tuned in the same number of trials, over the same ranges if it is
given none of its own. All trials run on all seeds; each seed takes the trial with its best
validation score, and the test scores of these are compared seed by seed. Means in one column are
over the same seeds."""

MEASURED = {"probes": ("norms",), "probe_every": 1}
"""In every run, at every step."""

MOST_SEEDS = 10_000

Range = tuple[float, float]


def _names(given: Any) -> Any:
    """The names of "a, b,module:c"."""
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    if "" in names:
        raise ValueError("a name is empty")
    return names


def _ranges(given: Any) -> Any:
    """The ranges of "lr=1e-4:1e-1,weight_decay=1e-5:1e-2", in one entry or several.

    A name may have an optimizer before it, "sgd:lr" or "module:recipe:lr".
    """
    if not isinstance(given, list | tuple):
        return given
    ranges: dict[str, Range] = {}
    for entry in (part.strip() for text in given for part in text.split(",")):
        name, _, bounds = entry.partition("=")
        try:
            low, high = (float(end) for end in bounds.split(":"))
        except ValueError:
            low = high = math.nan
        if not (name and 0 < low < high < math.inf):
            right = "give name=low:high, a positive and rising range such as lr=1e-4:1e-1"
            raise ValueError(f"{entry!r}: {right}")
        if name in ranges:
            raise ValueError(f"{entry!r}: {name!r} is there twice")
        ranges[name] = low, high
    return ranges


def own(given: Mapping[str, Any], optimizer: str) -> dict[str, Any]:
    """The entries of an optimizer: those without an owner, or its own in their place.

    >>> own({"lr": (0.1, 1.0), "sgd:lr": (1.0, 2.0), "adam:eps": (0.1, 0.2)}, "sgd")
    {'lr': (1.0, 2.0)}
    """
    split = [(name.rpartition(":"), value) for name, value in given.items()]
    common = {name: value for (owner, _, name), value in split if not owner}
    return common | {name: value for (owner, _, name), value in split if owner == optimizer}


class Comparing(BaseModel):
    """Optimizers on a task, each tuned in as many trials, over the same ranges or its own.

        >>> asked = Comparing(task="digits", optimizers="sgd, sgdp", search=["lr=1e-4:1e-1"])
        >>> str(asked)
        'compare {"task": "digits", "optimizers": ["sgd", "sgdp"], "search": {"lr": [0.0001, 0.1]}}'
        >>> Comparing.from_text(str(asked)) == asked
        True

    Attributes:
        task: a task's name, or `module:Class`.
        optimizers: two or more recipes, by name or as `module:function`.
        search: the hyper-parameters that are tuned, with their logarithmic ranges; one that is
            named `optimizer:name` is that optimizer's own.
        trials: of each optimizer.
        baseline: the optimizer to which the others are compared; the first by default.
        margin: two mean scores that differ by less are equivalent; None for no such verdict, or
            one percentage point if the score is in percent.
        fixed: values of one optimizer's own hyper-parameters, by `optimizer:name`.

    Raises:
        ValidationError: an argument that is wrong by itself; it is a ValueError too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    optimizers: Annotated[tuple[str, ...], BeforeValidator(_names)]
    search: Annotated[dict[str, Range], BeforeValidator(_ranges)]
    trials: Annotated[int, Field(ge=1)] = 8
    baseline: str = ""
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    fixed: dict[str, Any] = {}

    @model_validator(mode="after")
    def _fits(self) -> Comparing:
        listed = ",".join(self.optimizers)
        if len(self.optimizers) < 2:
            raise ValueError(f"--optimizers {listed!r}: give two or more to compare")
        for name in self.optimizers:
            if self.optimizers.count(name) > 1:
                raise ValueError(f"--optimizers {listed!r}: {name!r} is there twice")
            if not own(self.search, name):
                right = f"such as {name}:lr=1e-4:1e-1"
                raise ValueError(f"--search: no range for {name!r}; give one, {right}")
        for name in (*self.search, *self.fixed):
            owner = name.rpartition(":")[0]
            if owner and owner not in self.optimizers:
                raise ValueError(f"{name!r}: {owner!r} is none of --optimizers {listed!r}")
        for name in self.optimizers:
            if both := own(self.fixed, name).keys() & own(self.search, name):
                raise ValueError(f"--set {name}:{min(both)}: --search tunes it")
        if self.baseline and self.baseline not in self.optimizers:
            raise ValueError(f"--baseline {self.baseline!r} is none of --optimizers {listed!r}")
        return self

    def __str__(self) -> str:
        return f"{COMMAND} {json.dumps(self.model_dump(mode='json', exclude_defaults=True))}"

    @classmethod
    def from_text(cls, text: str) -> Comparing:
        """The inverse of `str`."""
        return cls.model_validate_json(text.partition(" ")[2])

    def require(self) -> None:
        """Look up the task and the recipes.

        Raises:
            ValueError: there is no such task or recipe, the task has no score, or a recipe lacks a
                hyper-parameter of the search.
        """
        task = find_task_class(self.task)
        if not issubclass(task, Task):
            need = "give a task that trains on batches (a subclass of Task)"
            raise ValueError(f"--task {self.task!r} has no score to compare: {need}")
        if task.evaluate is Task.evaluate:
            raise ValueError(f"--task {self.task!r} has no metric: it does not define `evaluate`")
        for name in self.optimizers:
            require_known(name, [*own(self.search, name), *own(self.fixed, name)])


def comparison_of(asked: Comparing) -> Comparison:
    """The study that a comparison's arguments ask for."""
    short = [recipe.rpartition(":")[2] for recipe in asked.optimizers]
    arms = {
        recipe: Arm(
            name if short.count(name) == 1 else recipe,  # without its module, unless two are alike
            Search(own(asked.search, recipe), asked.trials),
            own(asked.fixed, recipe),
            recipe=recipe,
        )
        for recipe, name in zip(asked.optimizers, short, strict=True)
    }
    baseline = arms.pop(asked.baseline or asked.optimizers[0])
    every = [baseline, *arms.values()]
    study = Comparison(
        re.sub(r"[^\w.-]+", "-", f"{COMMAND}-{asked.task}"),
        f"{asked.task}: {', '.join(arm.name for arm in every)}, tuned alike\n\n{ABOUT}",
        arms=every,
        tune=Search(own(asked.search, baseline.recipe), asked.trials),
        conditions=[Condition("", asked.task, Setup(fields=MEASURED), margin=asked.margin)],
        seeds=Study.seeds,
    )
    study.found_as = str(asked)
    return study


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


def parse_seeds(text: str) -> tuple[int, ...]:
    """The seeds of "3", "0:10" or "1,4,7".

    Raises:
        ValueError: a text that is none of these, no seed, too many or too large ones.
    """
    try:
        first, colon, last = text.rpartition(":")
        listed = [int(seed) for seed in text.split(",")] if "," in text else None
        seeds = listed or range(int(first) if colon else 0, int(last))
        if 0 < len(seeds) <= MOST_SEEDS and min(seeds) >= 0 and max(seeds) < 2**63:
            return tuple(dict.fromkeys(seeds))
    except (ValueError, OverflowError):
        pass
    right = f"give a count (3), a range (0:10) or a list (1,4,7), at most {MOST_SEEDS}"
    raise ValueError(f"--seeds {text!r}: {right}")


def study_classes() -> dict[str, type[Study] | Study]:
    """Return every registered study by name: a class, or an instance of one."""
    return {name: load_registered("STUDIES", name) for name in registered("STUDIES")}


def find_study(name: str) -> Study:
    """Find a study by its name.

    Args:
        name: of a registered study, in upper or lower case; the path of a file with one study, or
            `path.py:NAME`; `module:NAME`; or the text of a `CompareRequest`.

    Raises:
        ValueError: there is no such study.
    """
    if name.startswith(f"{COMMAND} "):
        return comparison_of(Comparing.from_text(name))
    path, _, attribute = name.partition(":")
    lookup_name = name
    if path.endswith(".py"):
        with users_code("study", name):
            module = import_file(Path(path))
            found = _study_in(module, attribute)
        lookup_name = ":".join(filter(None, [_short_path(Path(path)), attribute]))
    elif ":" in name:
        with users_code("study", name):
            found = look_up("study", name, "study", _is_study)
    else:
        known = registered("STUDIES")
        if name.lower() not in known:
            raise ValueError(f"no study is named {name!r}; {did_you_mean(name.lower(), known)}")
        found = load_registered("STUDIES", name.lower())
    with users_code("study", name):
        study: Study = found() if isinstance(found, type) else found
    study.found_as = lookup_name if ":" in name or path.endswith(".py") else study.name
    return study


def _study_in(module: ModuleType, attribute: str) -> Any:
    """Return the study of a module that has this name, or its only one.

    Raises:
        ValueError: there is none, or more than one to choose from.
    """
    studies = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Study) or (_is_study(value) and value.__module__ == module.__name__)
    }
    if attribute in studies:
        return studies[attribute]
    file = Path(module.__file__ or "").name
    named = [name for name, value in studies.items() if getattr(value, "name", "")]
    if attribute:
        raise ValueError(f"{file} has no study {attribute!r}; {did_you_mean(attribute, named)}")
    if len(named) != 1:
        listed = ", ".join(f"{file}:{name}" for name in named) or "none"
        raise ValueError(f"{file} must have one study, or name it by {file}:NAME; it has {listed}")
    return studies[named[0]]


def _short_path(path: Path) -> str:
    """Return a path relative to the working directory if it lies below that, else absolute."""
    absolute = path.resolve()
    here = Path.cwd().resolve()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def _is_study(value: Any) -> bool:
    return isinstance(value, Study) or (isinstance(value, type) and issubclass(value, Study))


def name_of(study: Study) -> str:
    """Return the name by which `find_study` finds the study again."""
    if study.found_as or isinstance(study, Comparison):
        return study.found_as or study.name
    cls = type(study)
    address = f"{cls.__module__}:{cls.__name__}"
    return study.name if address in registered("STUDIES").values() else address
