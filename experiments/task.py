"""Tasks: what is trained. One file in `experiments/tasks/` defines one: data, model, loss, metrics and budget.

Three kinds. A `Task` trains a torch module on batches. A `PureTask` is a pure loss of a few small tensors; a whole grid of
hyper-parameters trains as one vmap sweep. A `Measurement` takes a number.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from experiments.spec import Spec, locate, nearest
from experiments.typed import fits
from spherenorm.functional import Sweep

__all__ = [
    "Budget",
    "Measurement",
    "PureTask",
    "Split",
    "Splits",
    "Task",
    "find_task",
    "generator",
    "stream",
    "task_classes",
]

Split = tuple[Tensor, ...]
"""Tensors with one common leading length, inputs first, targets last."""


class Splits(NamedTuple):
    """The data. Hyper-parameters are chosen on `validation`; `test` is only reported."""

    train: Split
    validation: Split
    test: Split


@dataclass(frozen=True)
class Budget:
    """What one run of a tier costs: passes over the data (steps for a pure task), and the batch size."""

    epochs: int
    batch_size: int = 64


class _Named:
    """What all kinds share: dataclass fields are the task's options, `name` and `tiers` its identity and its cost."""

    name: ClassVar[str]
    tiers: ClassVar[Mapping[str, Budget]]
    """The budget of each tier: smoke (seconds; tests), small (the default), full (a GPU)."""

    def fingerprint(self) -> str:
        """A hash of the data."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise whatever a run would for options that make no sense: `find_task` only knows their types."""


class Task(_Named):
    """A torch module trained on batches. Subclasses are frozen dataclasses; a field is an option."""

    metric: ClassVar[str] = "accuracy (%)"
    """What `score` measures; higher is better."""

    def data(self) -> Splits:
        """The splits, the same on every call; cache what is expensive."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """A new model, initialized from torch's global random state."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Split) -> Tensor:
        """The scalar to descend on. Randomness (augmentation) comes from torch's global state, seeded for each step."""
        raise NotImplementedError

    def score(self, model: nn.Module, split: Split) -> float:
        """The metric of a model in eval mode, without gradients."""
        raise NotImplementedError

    def audit_inputs(self) -> tuple[Tensor, ...]:
        """A batch for the audit of which weights are scale-invariant."""
        return tuple(x[:64] for x in self.data().train[:-1])

    def check(self) -> None:
        with torch.random.fork_rng(devices=[]):
            self.loss(self.model(), tuple(x[:8] for x in self.data().train))

    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for split in self.data():
            for tensor in split:
                digest.update(
                    str((tensor.dtype, tuple(tensor.shape))).encode()
                    + tensor.contiguous().numpy().tobytes()
                )
        return digest.hexdigest()


class PureTask(_Named):
    """A pure loss of a dict of small tensors."""

    def start(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """The initial parameters, each with a leading dimension, one entry per seed."""
        raise NotImplementedError

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        """The scalar to descend on, without side effects."""
        raise NotImplementedError

    def batches(self, seeds: Sequence[int]) -> Callable[[int], Any] | None:
        """`batches(t)` is step t's batch, with a leading dimension, one entry per seed; None without data."""
        return None

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        """What to measure at each step of one point; see `spherenorm.functional.sweep`."""
        return dict(after)

    def summarize(
        self, start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The summary (lists over points, JSON) and the arrays to keep (numpy), of a finished sweep."""
        raise NotImplementedError

    def check(self) -> None:
        batches = self.batches((0,))
        batch = () if batches is None else (tree_map(lambda x: x[0], batches(0)),)
        self.loss({name: value[0] for name, value in self.start((0,)).items()}, *batch)

    def fingerprint(self) -> str:
        return "none"


class Measurement(_Named):
    """A number that is taken rather than trained for, such as a time; the one kind that differs from run to run."""

    def measure(self, spec: Spec) -> dict[str, Any]:
        """The summary of `spec.epochs` rounds."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        return "none"


AnyTask = Task | PureTask | Measurement


def task_classes() -> dict[str, type[AnyTask]]:
    """Every task in `experiments/tasks/`, by name."""
    from experiments import tasks

    found: dict[str, type[AnyTask]] = {}
    for module_info in pkgutil.iter_modules(tasks.__path__):
        module = importlib.import_module(f"{tasks.__name__}.{module_info.name}")
        for cls in vars(module).values():
            own = inspect.isclass(cls) and cls.__module__ == module.__name__
            if own and issubclass(cls, Task | PureTask | Measurement) and hasattr(cls, "name"):
                found[cls.name] = cls
    return dict(sorted(found.items()))


def find_task(name: str, options: Mapping[str, Any] | None = None) -> AnyTask:
    """The task called `name` (or `module:Class`) with these options.

    Raises:
        ValueError: an unknown task or option, or an option's value that is none of its choices.
    """
    cls = locate("task", name) if ":" in name else task_classes().get(name)
    if cls is None:
        raise ValueError(
            f"no task is named {name!r}; {nearest(name, task_classes())} (your own: module:Class)"
        )
    given, hints = dict(options or {}), get_type_hints(cls)
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    for option, value in given.items():
        if option not in known:
            raise ValueError(
                f"task {name!r} has no option {option!r}; {nearest(option, known) if known else 'it has none'}"
            )
        choices = get_args(hints[option]) if get_origin(hints[option]) is Literal else ()
        if choices and value not in choices:
            raise ValueError(
                f"task {name!r}: {option} is one of {', '.join(map(str, choices))}, got {value!r}"
            )
        if not fits(value, hints[option]):
            raise ValueError(
                f"{option}={json.dumps(value)} is no value for task {name!r}; one is {json.dumps(getattr(cls, option, None))}"
            )
    return cls(**given)


def stream(seed: int, name: str, index: int = 0) -> int:
    """A seed for one of the separate streams of a run (init, data, noise), and for its `index`-th use."""
    return int.from_bytes(
        hashlib.sha256(f"{seed}/{name}/{index}".encode()).digest()[:8], "little"
    ) & (2**63 - 1)


def generator(seed: int, name: str, index: int = 0) -> torch.Generator:
    """A CPU generator seeded by `stream`."""
    return torch.Generator().manual_seed(stream(seed, name, index))
