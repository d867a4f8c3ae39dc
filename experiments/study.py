"""Studies: one file in `experiments/studies/` per table or figure of the paper, named after it.

A study is a function from what is known to what is still to be run: `trials(plan, results)` is asked again after every
round, so that a later stage (the best learning rate, say) may depend on an earlier one. Then it makes tables, pictures
and claims of the results.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from experiments.claims import Claim
from experiments.plots import Picture, curves
from experiments.results import Key, Results, Trial, place, standing_in
from experiments.spec import Spec, load_recipe, locate, nearest
from experiments.task import Budget, Task, find_task
from spherenorm.registry import defaults

__all__ = ["TIERS", "Plan", "Study", "StudyError", "Table", "cell", "find_study", "study_classes"]

TIERS = ("smoke", "small", "full")


@dataclass(frozen=True)
class Plan:
    """What is asked for, of every study alike.

    Attributes:
        tier: smoke | small | full.
        seeds: None for the study's own.
        optimizers: only these recipes; one that the study does not have joins it. None for the study's own.
        device: a torch device.
        settings: `--set`: values for fields of `Spec`, options of the task and hyper-parameters of the recipes.
    """

    tier: str = "small"
    seeds: tuple[int, ...] | None = None
    optimizers: tuple[str, ...] | None = None
    device: str = "cpu"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise ValueError(f"no tier is named {self.tier!r}; {nearest(self.tier, TIERS)}")

    @property
    def setting(self) -> Plan:
        """The plan without its choice of optimizers and seeds: results under one setting belong together."""
        return replace(self, seeds=None, optimizers=None)

    @property
    def departures(self) -> list[str]:
        """What of the setting is not the default, in words."""
        words = [] if self.tier == Plan.tier else [self.tier]
        words += [] if self.device == Plan.device else [self.device]
        return words + [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in sorted(self.settings.items())
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        def as_tuple(value: Any) -> Any:
            return None if value is None else tuple(value)

        return cls(
            **{
                **content,
                "seeds": as_tuple(content["seeds"]),
                "optimizers": as_tuple(content["optimizers"]),
            }
        )

    def apply(
        self, trials: Sequence[Trial], own: Sequence[str] = (), first: Sequence[Trial] | None = None
    ) -> list[Trial]:
        """The study's trials as this plan wants them: its optimizers, device and settings.

        Args:
            own: settings that the study takes itself.
            first: the trials of its first round, if these are of a later one.

        Raises:
            ValueError: a setting that no trial knows, or a wrong value.
        """
        first = trials if first is None else first
        chosen = (
            list(trials)
            if self.optimizers is None
            else _with_optimizers(trials, self.optimizers, first)
        )
        early = {trial.arm for trial in first}
        used: set[str] = set()
        result = []
        for trial in chosen:
            later = (place(trial) or trial.arm) not in early
            result.append(
                Trial(trial.arm, self._set(replace(trial.spec, device=self.device), used, later))
            )
        result = _without_repetitions(result)
        for name in self.settings:
            if chosen and name not in used and name not in own:
                known = {*_SETTABLE, *own}.union(
                    *((*_options(t.spec), *defaults(load_recipe(t.spec.recipe))) for t in chosen)
                )
                raise ValueError(f"no run has a setting {name!r}; {nearest(name, sorted(known))}")
        return result

    def _set(self, spec: Spec, used: set[str], later: bool) -> Spec:
        """The spec with the settings that it knows, which `used` collects; a later round has chosen among several values."""
        hyper_parameters, options, direct = dict(spec.hyper_parameters), dict(spec.options), {}
        for name, value in self.settings.items():
            if name in _SETTABLE:
                direct[name] = value
            elif name in _options(spec):
                options[name] = value
            elif name in defaults(load_recipe(spec.recipe)):
                chosen = (
                    later
                    and isinstance(value, list)
                    and set(spec.points.get(name, [None])) <= set(value)
                )
                hyper_parameters |= {} if chosen else _on_grid(spec.points, name, value)
            else:
                continue
            used.add(name)
        return replace(spec, hyper_parameters=hyper_parameters, options=options, **direct)


def _on_grid(points: Mapping[str, list[float]], name: str, value: Any) -> dict[str, Any]:
    """A hyper-parameter's value beside the swept ones: one number for a swept one holds at each point, and points that are then
    alike are one."""
    if name not in points or isinstance(value, list):
        return {name: value}
    fixed = {**points, name: [value] * len(points[name])}
    rows = dict.fromkeys(zip(*fixed.values(), strict=True))
    return {
        swept: list(column) for swept, column in zip(fixed, zip(*rows, strict=True), strict=True)
    }


_SETTABLE = ("epochs", "batch_size", "schedule")


def _options(spec: Spec) -> list[str]:
    return [f.name for f in fields(find_task(spec.task, spec.options))]  # type: ignore[arg-type]


def _with_optimizers(
    trials: Sequence[Trial], wanted: Sequence[str], first: Sequence[Trial]
) -> list[Trial]:
    """The trials of the wanted recipes. A recipe that the study lacks takes the place, and of the settings those it knows,
    of the recipe with which it shares most hyper-parameters; its arms are called "<recipe> as <arm>".

    It takes places of the first round only: what a later one made of another's results, such as its best learning rate, is
    no setting for this one. The study makes later rounds for it as for its own recipes.
    """
    chosen = []
    for name in wanted:
        own = [trial for trial in trials if trial.spec.recipe == name]
        if all(place(trial) for trial in own):  # what a later round made of stand-ins, or nothing
            known = set(defaults(load_recipe(name)))
            recipes = list(dict.fromkeys(trial.spec.recipe for trial in first))
            kin = max(
                recipes,
                key=lambda recipe: len(known & set(defaults(load_recipe(recipe)))),
                default=None,
            )
            chosen += [standing_in(trial, name) for trial in first if trial.spec.recipe == kin]
        chosen += own
    return chosen


def _without_repetitions(trials: Sequence[Trial]) -> list[Trial]:
    """A recipe that lacks the hyper-parameter in which two arms differ stands in for both by the same runs: one arm is enough."""
    arms: dict[str, list[Spec]] = {}
    for trial in trials:
        if place(trial) and trial.spec not in arms.setdefault(trial.arm, []):
            arms[trial.arm].append(trial.spec)
    runs = list(arms.values())
    left = {
        arm: list(specs)
        for number, (arm, specs) in enumerate(arms.items())
        if specs not in runs[:number]
    }
    kept = []
    for trial in trials:
        if place(trial) is None:
            kept.append(trial)
        elif trial.spec in left.get(trial.arm, ()):
            left[trial.arm].remove(trial.spec)  # once: a later round may ask for it again
            kept.append(trial)
    return kept


@dataclass(frozen=True)
class Table:
    """A table: numbers of ours beside the paper's.

    Attributes:
        columns: headings; those that start with "paper" hold the paper's numbers.
        rows: formatted cells.
        note: what one must know to read it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def cell(value: float, form: str) -> str:
    """A number in a table; a dash where there is none."""
    return "–" if math.isnan(value) else format(value, form)


class StudyError(ValueError):
    """A study raised something that no command line can be blamed for."""


class Study:
    """One table or figure. The class docstring's first line is its title; the rest says what is done and why."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[str, ...]] = ()
    """What `--set` may set of the study itself; it reads them from `plan.settings`."""
    seeds: ClassVar[Mapping[str, int]] = {"smoke": 1, "small": 3, "full": 10}
    """How many seeds each tier takes."""
    compared: ClassVar[Mapping[str, Key]] = {
        "last norm": "norm_last",
        "path on sphere": "total_effective_step",
        "score": "test",
    }
    """What is shown of recipes that stand in for the study's own; nothing where `tables` has a row for every arm anyway."""

    def trials(self, plan: Plan, results: Results) -> list[Trial]:
        """What to run, given what is known; the same trials, and possibly more, when more is known."""
        raise NotImplementedError

    def tables(self, results: Results) -> list[Table]:
        return []

    def pictures(self, results: Results) -> list[Picture]:
        return []

    def claims(self, results: Results) -> list[Claim]:
        raise NotImplementedError

    def every_table(self, results: Results) -> list[Table]:
        """The study's tables, and one for the recipes that stand in for its own."""
        return [*self.tables(results), *_beside(results, self.compared)]

    def every_picture(self, results: Results) -> list[Picture]:
        """The study's pictures, and those of the recipes that stand in for its own."""
        own = {item.arm: place(item) for item in results}
        shown = results.where(lambda item: bool(own[item.arm]) or item.arm in own.values())
        pictures = [
            curves(
                shown,
                "norm",
                "norm ‖w‖",
                "The norm of the scale-invariant channels: recipes that stand in, and those in whose place.",
            ),
            curves(
                shown,
                "effective_step",
                "effective step ‖Δŵ‖",
                "The effective step sizes of the same runs.",
                log_y=True,
                smooth=18,
            ),
            curves(shown, "loss", "loss", "The training loss of the same runs.", smooth=18),
        ]
        chosen = pictures if self.compared and any(own.values()) else []
        return [*self.pictures(results), *(picture for picture in chosen if picture.figure.data)]

    @classmethod
    def title(cls) -> str:
        return (inspect.getdoc(cls) or cls.name).splitlines()[0]

    @classmethod
    def about(cls) -> str:
        return "\n".join((inspect.getdoc(cls) or "").splitlines()[1:]).strip()

    def seeded(
        self,
        plan: Plan,
        arm: str,
        task: str,
        recipe: str,
        hyper_parameters: Mapping[str, Any],
        **more: Any,
    ) -> list[Trial]:
        """One trial per seed, with the task's budget for the tier; `more` overrides fields of `Spec`."""
        seeds = plan.seeds if plan.seeds is not None else tuple(range(self.seeds[plan.tier]))
        budget = self.budget(plan, task)
        common = {"epochs": budget.epochs, "batch_size": budget.batch_size, **more}
        return [
            Trial(arm, Spec(task, recipe, hyper_parameters, seed=seed, **common)) for seed in seeds
        ]

    @staticmethod
    def budget(plan: Plan, task: str) -> Budget:
        return find_task(task).tiers[plan.tier]

    @staticmethod
    def metric(task: str) -> str:
        found = find_task(task)
        return found.metric if isinstance(found, Task) else "loss"


def _beside(results: Results, compared: Mapping[str, Key]) -> list[Table]:
    """Every arm that stands in for another, number by number beside it; without columns and rows that are empty."""
    own = {item.arm: of for item in results if (of := place(item))}
    columns: dict[str, list[float]] = {}
    for heading, key in compared.items():
        columns[heading] = [results.arm(arm).mean(key) for arm in own]
        columns[f"{heading} there"] = [results.arm(of).mean(key) for of in own.values()]
    columns = {
        heading: numbers
        for heading, numbers in columns.items()
        if not all(map(math.isnan, numbers))
    }
    rows = []
    for index, arm in enumerate(own):
        diverged = len(results.arm(arm).diverged)
        numbers = [cell(column[index], ".4g") for column in columns.values()]
        if diverged or any(number != "–" for number in numbers):
            rows.append((arm + (f" ({diverged} diverged)" if diverged else ""), *numbers))
    note = "Means over seeds, beside those of the arm whose place and settings it takes."
    return (
        [Table("Recipes that stand in for the study's own", ("arm", *columns), rows, note)]
        if rows
        else []
    )


def study_classes() -> dict[str, type[Study]]:
    """Every study in `experiments/studies/`, by name."""
    from experiments import studies

    found: dict[str, type[Study]] = {}
    for module_info in pkgutil.iter_modules(studies.__path__):
        module = importlib.import_module(f"{studies.__name__}.{module_info.name}")
        for cls in vars(module).values():
            if (
                inspect.isclass(cls)
                and issubclass(cls, Study)
                and cls.__module__ == module.__name__
                and hasattr(cls, "name")
            ):
                found[cls.name] = cls
    return dict(sorted(found.items()))


def find_study(name: str) -> Study:
    """The study called `name`, in upper or lower case, or `module:Class`.

    Raises:
        ValueError: there is none.
    """
    if ":" in name:
        cls = locate("study", name)
        if not (inspect.isclass(cls) and issubclass(cls, Study)):
            raise ValueError(f"{name!r} is no study")
        return cls()
    known = study_classes()
    by_alias = {alias: cls for cls in known.values() for alias in (cls.name, *cls.aliases)}
    if name.lower() not in by_alias:
        raise ValueError(f"no study is named {name!r}; {nearest(name.lower(), by_alias)}")
    return by_alias[name.lower()]()
