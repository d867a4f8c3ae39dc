"""`Plan`, the part of a command that all studies take alike; `Request`, what a store was asked.

Requests lie in `<root>/plans/`. `resume` asks for the same again; `report` asks the studies what
runs they have, and reads these.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from spherenorm.support import did_you_mean, unknown_name
from spherenorm_experiments.lookup import find_task_class, load_recipe
from spherenorm_experiments.spec import Regime, points_of
from spherenorm_experiments.store import Store, digest, read_json, write_json
from spherenorm_experiments.task import Task

if TYPE_CHECKING:
    from spherenorm_experiments.runs import Place, Trial

REPEAT = "repeat its `run` command: what has finished is kept and not run again"
LOST_REQUEST = f"what was asked is lost; {REPEAT}"

TIERS = ("smoke", "small", "evidence", "full")


@dataclass(frozen=True)
class Plan:
    """A command's choices, for all of its studies.

    Attributes:
        tier: smoke | small | evidence | full.
        seeds: None for the study's own.
        device: a torch device.
        real: the paper's data sets and settings, in place of embedded data; for the studies that
            have them.
        overrides: `--set`: values for fields of `Spec`, options of the task and hyper-parameters of
            the recipes.

    Raises:
        ValueError: an unknown tier.
    """

    tier: str = "small"
    seeds: tuple[int, ...] | None = None
    device: str = "cpu"
    real: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise unknown_name("tier", self.tier, TIERS)

    @property
    def without_seeds(self) -> Plan:
        """The plan without its choice of seeds.

        Results of plans that have this in common belong together.
        """
        return replace(self, seeds=None)

    @property
    def budget_tier(self) -> str:
        """The tier whose budgets runs have: that of evidence has more seeds, not longer runs."""
        return "small" if self.tier == "evidence" else self.tier

    @property
    def departures(self) -> list[str]:
        """The parts in common that are not the default, as a reader sees them."""
        parts = [] if self.tier == Plan.tier else [self.tier]
        parts += [] if self.device == Plan.device else [self.device]
        parts += ["the paper's data"] if self.real else []
        return parts + [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in sorted(self.overrides.items())
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON content."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any) -> Plan:
        """Return the inverse of `to_json`.

        Raises:
            ValueError: the content is of something else.
        """
        if content.get("optimizers"):
            raise ValueError(f"it adds the optimizers {content['optimizers']}")
        return TypeAdapter(cls).validate_python(content)


@dataclass(frozen=True)
class Request:
    """Studies under a plan.

    Attributes:
        studies: their names, or `module:Class`.
        plan: the choices for all of them.
    """

    studies: Sequence[str]
    plan: Plan

    def save(self, store: Store) -> None:
        """Write it, if the same studies were not asked for under the same plan before."""
        content = {"studies": list(self.studies), "plan": self.plan.to_json()}
        path = store.root / "plans" / f"{digest(content)[:12]}.json"
        documents = [document for document in _documents(store).values() if document]
        number = 1 + max((document["number"] for document in documents), default=0)
        if not (read_json(path) if path.exists() else None):
            write_json(path, {**content, "number": number})


def read_requests(store: Store) -> tuple[list[Request], dict[str, str]]:
    """Read every request of the store, in the order in which they were first made.

    Returns:
        Those that can be read; and for the others, by file, the reason and what to do.
    """
    requests: list[tuple[int, Request]] = []
    unusable: dict[str, str] = {}
    for name, content in _documents(store).items():
        try:
            plan = Plan.from_json(content["plan"])
            requests.append((content["number"], Request(content["studies"], plan)))
        except (KeyError, TypeError, ValueError) as error:
            unusable[name] = f"not of this version ({error}); {REPEAT}" if content else LOST_REQUEST
    return [request for _, request in sorted(requests, key=lambda numbered: numbered[0])], unusable


def _documents(store: Store) -> dict[str, Any]:
    """The requests of a store by the names of their files; None for one that cannot be read."""
    return {path.name: read_json(path) for path in sorted((store.root / "plans").glob("*.json"))}


SETTABLE = ("epochs", "batch_size", "schedule", "probe_every")
"""The fields of `Spec` that `--set` may set."""

REGIME = tuple(option.name for option in fields(Regime))
"""The options of `Regime`, which `--set` may set for tasks that train on batches."""


def split_owners(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the owner and the name of each `optimizer:name`; "" for one that is common to all.

    >>> split_owners(["lr", "sgd:lr", "module:recipe:lr"])
    [('', 'lr'), ('sgd', 'lr'), ('module:recipe', 'lr')]
    """
    parts = [name.rpartition(":") for name in names]
    return [(owner, name) for owner, _, name in parts]


def options_for_optimizer(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the entries of an optimizer: those without an owner, or its own in their place.

    Args:
        names: of the optimizer, such as its recipe's and that in tables.

    >>> options_for_optimizer({"lr": 0.1, "sgd:lr": 1.0, "adam:eps": 0.2}, "sgd")
    {'lr': 1.0}
    """
    split = [*zip(split_owners(values), values.values(), strict=True)]
    common = {name: value for (owner, name), value in split if not owner}
    return common | {name: value for (owner, name), value in split if owner in names}


def apply_plan(
    plan: Plan, trials: Sequence[Trial], first_round: Sequence[Trial] | None = None
) -> list[Trial]:
    """Return the study's trials with the device and the overrides of a plan, each once.

    A list of values makes of each trial as many; those of a later round, which has chosen among
    the values, stay as they are. A setting `optimizer:name` is that optimizer's own, in place of
    the common one.

    Args:
        trials: those that the study asks for.
        first_round: the trials of its first round, if these are of a later one.

    Raises:
        ValueError: a setting that no trial has.
    """
    from spherenorm_experiments.runs import Trial  # pandas takes time, and `status` needs none

    if not plan.overrides and plan.device == Plan.device:
        return list(trials)
    known_places = {trial.place for trial in (trials if first_round is None else first_round)}
    settable = functools.cache(_settable)
    settings: dict[str, set[str]] = {"": {*SETTABLE}}  # by optimizer; of any at ""
    applied: dict[tuple[Place, str], Trial] = {}
    for place, spec in ((trial.place, trial.spec) for trial in trials):
        parts = settable(spec.task, spec.recipe)
        for owner in ("", place.arm, spec.recipe):
            settings.setdefault(owner, set()).update(parts)
        own_values = options_for_optimizer(plan.overrides, place.arm, spec.recipe)
        overridden = {name: value for name, value in own_values.items() if name in parts}
        changed: dict[str, dict[str, Any]] = {"": {}, "options": {}, "regime": {}, "recipe": {}}
        for name, value in overridden.items():
            changed[parts[name]][name] = value
        for name, value in list(changed["recipe"].items()):  # chosen among the values already
            chosen = place not in known_places and isinstance(value, list)
            if chosen and spec.hyper_parameters.get(name) in value:
                del changed["recipe"][name]
        regime = replace(spec.regime, **changed["regime"])
        options = {**spec.options, **changed["options"]}
        changed_spec = replace(
            spec, device=plan.device, options=options, regime=regime, **changed[""]
        )
        for point in points_of({**spec.hyper_parameters, **changed["recipe"]}):
            point_spec = replace(changed_spec, hyper_parameters=point)
            applied.setdefault((place, point_spec.text), Trial(place, point_spec))
    for owner, name in split_owners(plan.overrides) if trials else ():
        if owner not in settings:
            right = did_you_mean(owner, settings.keys() - {""})
            raise ValueError(f"--set {owner}:{name}: no run is of an optimizer {owner!r}; {right}")
        if name not in settings[owner]:
            whose = f"{owner} has no" if owner else "no run has a"
            right = did_you_mean(name, settings[owner])
            raise ValueError(f"{whose} setting {name!r}; {right}")
    return list(applied.values())


def _settable(task: str, recipe: str) -> dict[str, str]:
    """Return the settings that a run has, each with the part of a spec that it belongs to.

    A regime means something where a task trains on batches.
    """
    cls: Any = find_task_class(task)
    regime = REGIME if issubclass(cls, Task) else ()
    return {
        **dict.fromkeys(regime, "regime"),
        **dict.fromkeys(load_recipe(recipe).defaults, "recipe"),
        **dict.fromkeys((option.name for option in fields(cls)), "options"),
        **dict.fromkeys(SETTABLE, ""),
    }
