"""The identity of a run: a hash of everything that decides its outcome.

    digits-sgdp-9f86d081884c7d65                        a run that trains alone
    cosine-sgdp-2c26b46b68ffc68f/fcde2b2edba56bf4       a run that may train together with others

The second has two parts: its family, which is everything but the seed and the numbers among the
hyper-parameters, and these. Runs of one family may train as one vmap computation.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from spherenorm import Bound, Recipe, Rule
from spherenorm.support import load_module
from spherenorm_experiments.core._recipes import rule_text
from spherenorm_experiments.core._schedules import SCHEDULES
from spherenorm_experiments.core._sources import digest, source_digest
from spherenorm_experiments.core._spec import Spec, rows_of
from spherenorm_experiments.core._streams import preserved_randomness, seed_everything, stream
from spherenorm_experiments.core._task import AnyTask
from spherenorm_experiments.core._typed import fits

FORMAT = 4
"""Part of every hash. Raise it when what runs the rules changes a run's numbers or its files."""

FOLDER = "SPHERENORM_DATA"
"""The environment variable with the folder of all data sets.

Processes that train inherit it. It is no part of a run's identity: the data are.
"""

LONGEST = 120
"""Letters of a folder's name before the hash; file systems take 255 bytes."""


Sources = Mapping[str, Sequence[Any]]
"""The functions, classes and modules that compute a run: of recipe, task, schedule and probes."""


def sources_of(
    spec: Spec,
    task: AnyTask,
    bound: Bound,
    rest: Bound | None = None,
    later: Sequence[Bound] = (),
    probes: Sequence[Callable[..., Any]] = (),
) -> Sources:
    """All that computes a run.

    Args:
        bound: the spec's recipe, at the first point.
        rest: the recipe of the weights that the spec's does not take, if there are any.
        later: the recipes of the optimizers that follow.
        probes: the functions that measure the steps.
    """
    modules = [bound.recipe, *_asked_module(spec.recipe)]
    rules = [bound.rule]
    if rest is not None:
        modules += [rest.recipe, *_asked_module((spec.rest or {}).get("recipe", ""))]
        rules.append(rest.rule)
    for bound_later, asked in zip(later, spec.regime.then, strict=True):
        modules += [bound_later.recipe, *_asked_module(asked["recipe"])]
        rules.append(bound_later.rule)
    return {
        "recipe": [*modules, *_parts(rules)],
        "task": _parts(task),
        "schedule": [SCHEDULES[spec.schedule]],
        "probe": list(probes),
    }


def configuration(spec: Spec, task: AnyTask, bound: Bound, sources: Sources) -> dict[str, Any]:
    """The whole configuration of a run: its spec, and digests of the sources and data behind it."""
    return {
        **spec.to_json(),
        "format": FORMAT,
        **{f"{part}_source": source_digest(*things) for part, things in sources.items()},
        # As built, at the first point: the repr is the composition with its numbers.
        "rule": rule_text(bound.rule),
        "data": _data_fingerprint(task, os.environ.get(FOLDER)),
    }


def family_of(spec: Spec, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the seed, and without the numbers among the hyper-parameters.

    The rules of two points may be composed of other classes, as with a momentum of 0.
    """
    own = ("seed", "seeds", "rule", "recipe_source")
    kept = {name: x for name, x in configuration.items() if name not in own}
    given = {name: None if fits(x, float) else x for name, x in spec.first_point.items()}
    return {**kept, "hyper_parameters": given}


def row_names(family: str, spec: Spec, bound: Bound) -> tuple[list[str], list[str]]:
    """The names of a spec's runs, in the order of `rows_of`, and digests of the code of each.

    Args:
        family: the name of their family.
        bound: the recipe, at any point.
    """
    names, codes, rules = [], [], dict[str, list[str]]()
    modules = [bound.recipe, *_asked_module(spec.recipe)]
    for row in rows_of(spec):
        point = {name: x for name, x in row.hyper_parameters.items() if fits(x, float)}
        key = repr(sorted(point.items()))
        if key not in rules:
            rule = bound.replace(**point).rule
            rules[key] = [key, rule_text(rule), source_digest(*modules, *_parts(rule))]
        names.append(f"{family}/{digest([*rules[key], row.seed])[:16]}")
        codes.append(digest(rules[key])[:16])
    return names, codes


def run_name(configuration: Mapping[str, Any]) -> str:
    """The name of a run, or of a family: task, recipe, and 16 digits of the SHA-256."""
    readable = re.sub(r"[^\w-]+", "_", f"{configuration['task']}-{configuration['recipe']}")
    return f"{readable[:LONGEST]}-{digest(configuration)[:16]}"


@functools.lru_cache(maxsize=64)
def _data_fingerprint(task: Any, folder: str | None) -> str:
    """The fingerprint of the task's data, taken twice.

    Args:
        folder: of the data sets on disk: another folder has other data.

    Raises:
        ValueError: the data are drawn anew on each call.
    """
    found = [_from_seed(seed, task.fingerprint) for seed in (0, 1)]
    if len(set(found)) > 1:  # a run would not train on what its name says
        kind = type(task).__name__
        other = f"data() of {kind} is drawn anew on each call, or its items have no stable repr"
        raise ValueError(f"{other}; give it a seed, or its data set a `fingerprint()`")
    return str(found[0])


def _from_seed(seed: int, function: Callable[[], Any]) -> Any:
    with preserved_randomness():
        seed_everything(stream(seed, "fingerprint"))
        return function()


def _asked_module(recipe: str) -> list[Any]:
    """The module in `module:function`, which may have the function from another one."""
    module, colon, _ = recipe.partition(":")
    return [load_module(module)] if colon else []


def _parts(whole: Any) -> list[Recipe | type]:
    """The classes of a rule or task and of all that it is composed of, and functions among it."""
    if isinstance(whole, tuple | list):
        return [found for part in whole for found in _parts(part)]
    if inspect.isfunction(whole):
        return [whole]
    inner = [getattr(whole, f.name) for f in fields(whole)] if is_dataclass(whole) else []
    own = [type(whole)] if isinstance(whole, Rule) or is_dataclass(whole) else []
    return [*own, *_parts(inner)]
