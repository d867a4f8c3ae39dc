"""`Spec`: everything that decides the outcome of one run, and the hash of it that names the run's folder."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from experiments.sources import digest, source_digest
from experiments.typed import fits, hints_of
from spherenorm.chain import Chain
from spherenorm.geometry import Sphere
from spherenorm.registry import Recipe, build, defaults, find_recipe, load_module
from spherenorm.rule import Rule

__all__ = [
    "EUCLIDEAN_REST",
    "SCHEDULES",
    "RecipeError",
    "Spec",
    "load_recipe",
    "locate",
    "nearest",
    "one_line",
    "sphere_of",
]

FORMAT = 2
"""Part of every hash; raise it when what runs the rules changes what a run computes, and every run is computed anew."""

EUCLIDEAN_REST = {"recipe": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True}
"""Cho and Lee's choice for what is not on the sphere: biases, gains and the last layer."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress: 1 - progress,
    "step": lambda progress: 0.1 ** sum(progress >= milestone for milestone in (0.3, 0.6, 0.9)),
}
"""Factor on the learning rate against progress in [0, 1): cosine and step are the paper's on ImageNet, linear its toys'."""


@dataclass(frozen=True)
class Spec:
    """One run: two equal specs give the same numbers to the last bit on the same kind of machine.

    Attributes:
        task: a task's name, or `module:Class`.
        recipe: a recipe's name, or `module:function`.
        hyper_parameters: what the recipe is called with. For a pure task some may be lists of one length: a vmap sweep.
        options: the task's own (its dataclass fields).
        rest: for a recipe on the sphere, recipe and hyper-parameters of what is not on it: biases, gains, the last layer.
        seed: of three separate streams: initial weights, data order, noise in training (augmentation, dropout).
        epochs: passes over the training data; steps for a pure task.
        batch_size: ignored by a pure task.
        schedule: of the learning rates, see `SCHEDULES`.
        probes: what to measure at each step beyond the loss, see `experiments.probes`.
        device: a torch device.
    """

    task: str
    recipe: str
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[str, Any] | None = None
    seed: int = 0
    epochs: int = 1
    batch_size: int = 64
    schedule: str = "cosine"
    probes: tuple[str, ...] = ("norms",)
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"no schedule is named {self.schedule!r}; {nearest(self.schedule, SCHEDULES)}"
            )
        for name, least in (("seed", 0), ("epochs", 1), ("batch_size", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Spec:
        """The inverse of `to_json`; entries that are not fields, such as fingerprints, are left out."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in content.items() if name in known}
        return cls(**{**values, "probes": tuple(values.get("probes", ()))})

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers; a recipe's tuples become lists."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @property
    def points(self) -> dict[str, list[float]]:
        """The swept hyper-parameters: those that are lists (betas, a pair of numbers, is one value)."""
        return {
            name: list(value)
            for name, value in self.hyper_parameters.items()
            if isinstance(value, list) and name != "betas"
        }

    def rule(self) -> Rule:
        """The recipe's rule, at the first point of a sweep.

        Raises:
            ValueError, TypeError: an unknown recipe or hyper-parameter, or a value outside its interval.
        """
        function = load_recipe(self.recipe)
        known = defaults(function)
        for name in self.hyper_parameters:
            if name not in known:
                raise ValueError(
                    f"recipe {self.recipe!r} has no hyper-parameter {name!r}; {nearest(name, known)}"
                )
        if self.schedule != "constant" and "lr" not in known:
            raise ValueError(
                f"recipe {self.recipe!r} has no lr for the schedule {self.schedule!r}; use schedule=constant"
            )
        points = self.points
        hints = hints_of(function, known)
        for name, value in self.hyper_parameters.items():
            if not all(
                fits(single, hints[name]) for single in (value if name in points else [value])
            ):
                raise ValueError(
                    f"{name}={json.dumps(value)} is no value for recipe {self.recipe!r}; one is {_shown(known[name])}"
                )
        if len({len(values) for values in points.values()}) > 1 or [] in points.values():
            counts = ", ".join(f"{name} has {len(values)}" for name, values in points.items())
            raise ValueError(
                f"the points of a sweep need one value of each swept hyper-parameter of {self.recipe!r}: {counts}"
            )
        first = {
            name: value[0] if name in points else value
            for name, value in self.hyper_parameters.items()
        }
        try:
            return build(function, first)
        except Exception as error:  # whatever a recipe of one's own may raise
            given = ", ".join(f"{name}={json.dumps(value)}" for name, value in first.items())
            raise ValueError(
                f"recipe {self.recipe!r} with {given or 'its defaults'}: {one_line(error)}"
            ) from error

    def euclidean(self, rule: Rule) -> Mapping[str, Any] | None:
        """Recipe and hyper-parameters of the weights that a rule on the sphere is not for; None for any other rule."""
        return (self.rest or EUCLIDEAN_REST) if sphere_of(rule) else None

    def fingerprints(self) -> dict[str, Any]:
        """What the fields do not say: the sources behind the names, and the data."""
        from experiments.task import find_task

        task = find_task(self.task, self.options)
        rules, recipes = [self.rule()], [self.recipe]
        if rest := self.euclidean(rules[0]):
            recipes.append(rest["recipe"])
            rules.append(
                build(
                    load_recipe(rest["recipe"]),
                    {name: value for name, value in rest.items() if name != "recipe"},
                )
            )
        parts = [part for name in recipes for part in _recipe_parts(name)]
        return {
            "format": FORMAT,
            "recipe_source": source_digest(*parts, *_parts(rules)),
            # As built, at the first point of a sweep: the repr is the whole composition with all its numbers.
            "rule": re.sub(r" at 0x[0-9a-f]+", "", repr(rules[0])),
            "task_source": source_digest(*_parts(task)),
            "data": _data_fingerprint(task),
        }

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The whole configuration; its hash is the run's identity. Computed once: sources and data are read."""
        return {**self.to_json(), **self.fingerprints()}

    @property
    def id(self) -> str:
        """The name of the run's folder: task, recipe, and 16 hexadecimal digits of the configuration's SHA-256."""
        readable = re.sub(r"[^\w-]+", "_", f"{self.task}-{self.recipe}")
        return f"{readable}-{digest(self.config)[:16]}"


@functools.lru_cache(maxsize=64)
def _data_fingerprint(task: Any) -> str:
    return task.fingerprint()  # type: ignore[no-any-return]


def sphere_of(rule: Rule) -> Sphere | None:
    """The sphere that a rule keeps weights on."""
    return rule.geometry if isinstance(rule, Chain) and isinstance(rule.geometry, Sphere) else None


class RecipeError(ValueError):
    """There is no such recipe, or its module cannot be imported."""


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`; RecipeError, which names it, for whatever is wrong with it or its module."""
    try:
        return find_recipe(name)
    except Exception as error:  # whatever a module of one's own may raise
        text = str(error)
        raise RecipeError(
            text if repr(name) in text else f"recipe {name!r}: {one_line(error)}"
        ) from error


def one_line(error: BaseException) -> str:
    """The first line of an error's message, with its kind where the message alone says little."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def _shown(value: Any) -> str:
    return (
        "of its own choice" if value is inspect.Parameter.empty else json.dumps(value, default=str)
    )


def nearest(name: str, known: Any) -> str:
    """The end of an error message about a wrong name: the nearest right ones, or all."""
    import difflib

    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(sorted(known))}"


def locate(what: str, name: str) -> Any:
    """What `module:name` stands for; ValueError if there is no such module or no such name in it."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise  # the module exists, something that it imports does not
        raise ValueError(
            f"{what} {name!r}: there is no module {module_name!r} on the import path"
        ) from None
    if not hasattr(module, attribute):
        raise ValueError(
            f"{what} {name!r}: module {module_name!r} has no {attribute!r}; {nearest(attribute, vars(module))}"
        )
    return getattr(module, attribute)


def _recipe_parts(name: str) -> list[Any]:
    """A recipe, and the module that it is asked of, which may have it from another one."""
    module, colon, _ = name.partition(":")
    return [load_recipe(name), *([load_module(module)] if colon else [])]


def _parts(whole: Any) -> list[Any]:
    """The classes of a rule, or of a task, and of everything that it is composed of, and the functions among its parts."""
    if isinstance(whole, tuple | list):
        return [found for part in whole for found in _parts(part)]
    if inspect.isfunction(whole):
        return [whole]
    inner = [getattr(whole, f.name) for f in fields(whole)] if is_dataclass(whole) else []
    return [
        *([type(whole)] if isinstance(whole, Rule) or is_dataclass(whole) else []),
        *_parts(inner),
    ]
