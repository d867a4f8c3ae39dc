"""Tasks, studies and data sets by name: those of installed packages, and a user's own.

A package that has some says so in its `pyproject.toml`:

    [project.entry-points."spherenorm.studies"]
    mine = "my_package"

The `__init__` of the package, and of each folder in it, lists what it has as `module:Name` below
itself:

    TASKS = {"detection": "detection:Detection"}
    STUDIES = {"t3": "t3:T3"}
    LAYOUTS = {"coco": "coco:LAYOUT"}

So a list of names imports no task, and a task imports no other. Without a package, a task or a
study has the name `module:Name`, and a study also that of its file, `path/to/study.py`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from spherenorm import Bound, Rule, bind, sphere_of
from spherenorm.schedule import is_scheduled
from spherenorm.support import (
    describe_with_user_line,
    did_you_mean,
    is_raised_here,
    look_up,
    require_module,
    unknown_name,
)
from spherenorm_experiments.spec import EUCLIDEAN_REST, Spec

if TYPE_CHECKING:
    from spherenorm_experiments.task import AnyTask

EXTRAS = {
    "PIL": "data",
    "faster_coco_eval": "data",
    "kaleido": "pictures",
    "matplotlib": "data",
    "pandas": "experiments",
    "pyarrow": "data",
    "pytorch_metric_learning": "data",
    "ray": "ray",
    "skimage": "data",
    "sklearn": "experiments",
    "soundfile": "data",
    "submitit": "slurm",
    "torch": "tensorboard",
}
"""The extra of `pyproject.toml` that installs a package; of torch, what its board needs."""


class RecipeError(ValueError):
    """There is no such recipe, or its module cannot be imported."""


@contextmanager
def users_code(kind: str, name: str, raised: type[ValueError] = ValueError) -> Iterator[None]:
    """Raise all that a user's module raises, `sys.exit` included, as an error that names it.

    An error of the type `raised` that these packages raise has its message already.

    Args:
        kind: of thing, such as "task".
        name: of the thing.
        raised: the type of the error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, raised) and is_raised_here(error):
            raise
        is_named = repr(name) in str(error)
        raise raised(
            str(error) if is_named else f"{kind} {name!r}: {describe_with_user_line(error)}"
        ) from error


def describe_source(cls: type, method: str = "") -> str:
    """Return a user's class, or a method of it, with its file and line."""
    thing: Any = inspect.unwrap(getattr(cls, method)) if method else cls
    name, place = f"{method}() of {cls.__name__}" if method else cls.__name__, ""
    with suppress(OSError, TypeError):  # a class of an interactive session has no file
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
        place = f" ({Path(file or '').name}, line {line})"
    return f"{name}{place}"


def require_extra(module: str, purpose: str) -> Any:
    """Import an optional module.

    Args:
        module: its name, whose package is a key of `EXTRAS`.
        purpose: the feature that needs it; the error begins with it.

    Raises:
        MissingExtraError: the module is missing; it is a ValueError too.
    """
    extra = EXTRAS[module.partition(".")[0]]
    missing = f"{purpose} needs the extra {extra} ({{error}}): pip install 'spherenorm[{extra}]'"
    return require_module(module, missing)


GROUP = "spherenorm.studies"
"""The group of entry points: each names a package with tasks, studies or layouts of data sets."""

Kind = Literal["TASKS", "STUDIES", "LAYOUTS"]

LENIENT = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=True)


@functools.cache
def study_packages() -> tuple[ModuleType, ...]:
    """Import the packages that are registered as having studies, in the order of their names."""
    names = dict.fromkeys(entry.value for entry in sorted(entry_points(group=GROUP)))
    packages = []
    for name in names:
        with users_code("package of studies", name):
            packages.append(importlib.import_module(name))
    return tuple(packages)


@functools.cache
def registered(kind: Kind) -> dict[str, str]:
    """Return `module:Name` of everything of a kind, by its name; the modules are not imported.

    Example:
        >>> registered("TASKS")["detection"]
        'spherenorm_paper.detection.detection:Detection'
    """
    addresses: dict[str, str] = {}
    for top in study_packages():
        folders = [info.name for info in pkgutil.iter_modules(top.__path__) if info.ispkg]
        inner = [importlib.import_module(f"{top.__name__}.{name}") for name in folders]
        for package in (top, *inner):
            entries: dict[str, str] = getattr(package, kind, {})
            for name, address in entries.items():
                addresses[name] = f"{package.__name__}.{address}"
    return dict(sorted(addresses.items()))


def load_registered(kind: Kind, name: str) -> Any:
    """Import the task, study or layout that is registered under a name.

    Raises:
        KeyError: nothing is.

    Example:
        >>> load_registered("TASKS", "digits").__name__
        'Digits'
    """
    module, _, attribute = registered(kind)[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def import_file(path: Path) -> ModuleType:
    """Import a Python file as a module, here and in processes that start from now on.

    Its folder comes first on the import path, so that it may import its neighbors.

    Raises:
        ValueError: there is no such file, or another module has its name.
        Exception: of any type, which the file itself raises.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, inherited)])
    importlib.invalidate_caches()
    module = importlib.import_module(path.stem)
    origin = Path(module.__file__ or "").resolve()
    if origin != path.resolve():
        raise ValueError(f"{path}: {origin} is imported by the same name; rename the file")
    return module


def find_task_class(name: str) -> type[AnyTask]:
    """Return the class of the task called `name`, or `module:Class`.

    Raises:
        ValueError: there is none.
    """
    if ":" in name:
        with users_code("task", name):
            return look_up("task", name, "class", inspect.isclass)  # type: ignore[no-any-return]
    addresses = registered("TASKS")
    if name not in addresses:
        raise unknown_name("task", name, addresses, "(your own: module:Class)")
    return load_registered("TASKS", name)  # type: ignore[no-any-return]


def find_task(name: str, options: Mapping[str, Any] | None = None) -> AnyTask:
    """Return the task called `name` (or `module:Class`) with these options.

    Raises:
        ValueError: an unknown task or option, or an option's value that is none of its choices.
    """
    cls: Any = find_task_class(name)
    hints, option_names = get_type_hints(cls), [f.name for f in fields(cls)]
    values = {}
    for option, value in (options or {}).items():
        if option not in option_names:
            right = did_you_mean(option, option_names) if option_names else "it has none"
            raise ValueError(f"task {name!r} has no option {option!r}; {right}")
        values[option] = as_hinted(value, hints[option], f"task {name!r}", option)
    task: AnyTask = cls(**values)
    return task


def as_hinted(value: Any, hint: Any, owner: str, name: str) -> Any:
    """Return a value from a command line or a JSON file as its type hint has it: a list as a tuple.

    Raises:
        ValueError: it is of another type; the message has owner, name, value and the reason.
    """
    adapter = _adapter(hint)
    try:
        return value if adapter is None else adapter.validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise ValueError(f"{name}={json.dumps(value)} is no value for {owner}: {reason}") from None


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return the validator of a type; None for one that pydantic does not know."""
    try:
        return TypeAdapter(hint, config=LENIENT)
    except Exception:  # of many types; it takes no configuration for a model, either
        return None


def hints_of(function: Callable[..., Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The type hints of a function's arguments; the type of the default where there is none."""
    try:
        hints = get_type_hints(function)
    except NameError:  # a name that only a type checker imports
        hints = {}
    return {name: hints.get(name, _kind(default)) for name, default in defaults.items()}


def _kind(default: Any) -> Any:
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, int | float):
        return float | None  # None often stands for "without"
    return list[Any] if isinstance(default, list | tuple) else Any


def load_recipe(name: str) -> Bound:
    """Return the recipe called `name`, a registered name or `module:function`, at its defaults.

    Raises:
        RecipeError: the name or its module is wrong; the message has the name.
    """
    with users_code("recipe", name, RecipeError):
        return bind(name)


def bind_recipe(recipe: Bound, name: str, values: Mapping[str, Any], schedule: str) -> Bound:
    """Bind a recipe to the hyper-parameters of a run; its rule is made already.

    Raises:
        ValueError: an unknown hyper-parameter, a value outside its interval or of another type, a
            schedule for a recipe without a learning rate or with a schedule of its own, or a recipe
            that makes another rule each time.
    """
    bound = recipe.replace(**values)
    if schedule != "constant" and "lr" not in bound.defaults:
        lack = f"recipe {name!r} has no lr for the schedule {schedule!r}"
        raise ValueError(f"{lack}; use schedule=constant")
    hints = hints_of(bound.recipe, bound.defaults)
    for hyper, value in values.items():
        if isinstance(value, bool) and hints[hyper] == float | None:
            raise ValueError(f"{hyper}={json.dumps(value)} is no value for recipe {name!r}")
        as_hinted(value, hints[hyper], f"recipe {name!r}", hyper)
    try:
        text, second_text = rule_text(bound.rule), rule_text(bound.replace().rule)
        scheduled_name = find_scheduled_rate(with_total_steps(bound, MANY_STEPS).rule)
    except (Exception, SystemExit) as error:  # a user's recipe may raise anything
        settings = ", ".join(f"{hyper}={json.dumps(x)}" for hyper, x in values.items())
        listed = settings or "its defaults"
        raise ValueError(
            f"recipe {name!r} with {listed}: {describe_with_user_line(error)}"
        ) from error
    if text != second_text:  # a resumed run would go on with another one
        differs = f"makes another rule each time: {text}, then {second_text}"
        raise ValueError(f"recipe {name!r} {differs}; let its hyper-parameters decide")
    _require_one_schedule(name, scheduled_name, schedule)
    return bound


def _require_one_schedule(name: str, scheduled_name: str, schedule: str) -> None:
    """Refuse a run's schedule of the learning rate for a recipe that has one in its rule."""
    if schedule != "constant" and scheduled_name:
        raise ValueError(
            f"recipe {name!r} has a schedule of its own ({scheduled_name}), and the run's, "
            f"{schedule!r}, would multiply its learning rate once more; give "
            f"--set {name.rpartition(':')[2]}:schedule=constant"
        )


MANY_STEPS = 10**6
"""In the place of a run's number of steps, as long as the data are not known."""


def leaves_steps_to_run(bound: Bound) -> bool:
    """Return True for a recipe whose `total_steps` is None: its run fills in the number."""
    return bound.hyper_parameters.get("total_steps", 0) is None


def with_total_steps(bound: Bound, steps: int) -> Bound:
    """Return a recipe with the number of steps of its run, if it leaves that to the run."""
    return bound.replace(total_steps=steps) if leaves_steps_to_run(bound) else bound


def find_scheduled_rate(rule: Rule) -> str:
    """Return the first schedule of a rule that may scale its steps, as "StepSize.lr"; "" for none.

    A number of [0, 1] such as a momentum weights an average, and scales no step: it may go its own
    way beside a schedule of the learning rate.
    """
    for item in fields(rule):
        interval = item.metadata.get("interval")
        is_weight = interval is not None and interval.high <= 1
        if is_scheduled(getattr(rule, item.name)) and not is_weight:
            return f"{type(rule).__name__}.{item.name}"
    return next(filter(None, map(find_scheduled_rate, rule.children)), "")


def recipes_of(spec: Spec) -> tuple[Bound, Bound | None]:
    """Return the recipe of a run, and that of the weights which it does not take.

    Raises:
        ValueError: see `bind_recipe`.
    """
    recipe = load_recipe(spec.recipe)
    bound = bind_recipe(recipe, spec.recipe, spec.hyper_parameters, spec.schedule)
    if spec.rest is None and sphere_of(bound.rule) is None:
        return bound, None
    chosen = dict(spec.rest or EUCLIDEAN_REST)
    name = chosen.pop("recipe")
    rest = load_recipe(name).replace(**chosen)
    scheduled_name = find_scheduled_rate(with_total_steps(rest, MANY_STEPS).rule)
    _require_one_schedule(name, scheduled_name, spec.schedule)
    return bound, rest


def rule_text(rule: Rule) -> str:
    """Return the composition with its numbers, without addresses in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(rule))


FOLDER = "SPHERENORM_DATA"
"""The environment variable with the folder of all data sets. Processes that train inherit it."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """The official layout of a data set.

    Attributes:
        name: of its folder, such as "imagenet".
        title: such as "ImageNet-1k".
        tree: the expected tree, as an error shows it.
        paths: files and folders that must be there, relative to the data set's folder; of "a or b"
            one of the two.
        source: where the data set comes from.
    """

    name: str
    title: str
    tree: str
    paths: tuple[str, ...]
    source: str

    def error(self, folder: Path, wrong: str) -> ValueError:
        """Return an error about the folder, with the expected tree."""
        return ValueError(f"{self.title}: {folder} {wrong}; expected\n{self.tree.strip()}")

    def require(self, folder: Path) -> Path:
        """Return the folder, if it has all paths.

        Raises:
            ValueError: one is missing; the message shows the expected tree.
        """
        for path in self.paths:
            if not any((folder / either).exists() for either in path.split(" or ")):
                raise self.error(folder, f"lacks {path}")
        return folder

    def folder(self) -> Path:
        """The data set's folder in that of all data sets, which `--data` names; see `require`."""
        return self.require(data_folder(self.title) / self.name)

    def reader(self, read_folder: Callable[Concatenate[Path, P], T]) -> Callable[P, T]:
        """The function without its first argument, which is the data set's folder, if complete.

        A process reads the same of a folder once.
        """
        once = functools.lru_cache(maxsize=8)(read_folder)

        @functools.wraps(read_folder)
        def read_registered(*args: P.args, **options: P.kwargs) -> T:
            return once(self.folder(), *args, **options)  # type: ignore[arg-type]

        return read_registered


def use_folder(folder: Path) -> None:
    """Take the data sets from this folder, here and in processes that start from now on.

    Raises:
        ValueError: there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"--data {str(folder)!r}: there is no such folder")
    os.environ[FOLDER] = str(folder.resolve())


def data_folder(wanted: str = "this task") -> Path:
    """Return the folder of all data sets.

    Args:
        wanted: the data set for which it is needed; errors name it.

    Raises:
        ValueError: none was given.
    """
    if FOLDER not in os.environ:
        raise ValueError(f"{wanted} lies on disk: give its folder by --data DIR (or {FOLDER}=DIR)")
    return Path(os.environ[FOLDER])


def layouts() -> dict[str, Layout]:
    """Return every registered layout, by name."""
    return {name: load_registered("LAYOUTS", name) for name in registered("LAYOUTS")}
