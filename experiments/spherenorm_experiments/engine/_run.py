"""`Run`: one run, or several that train as one computation, resolved."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spherenorm import Bound
from spherenorm_experiments.core import AnyTask, Sources, Spec, Splits, Task, length, splits_of
from spherenorm_experiments.engine._probes import Probe
from spherenorm_experiments.store import RunFolder, Store


@dataclass(frozen=True, eq=False)
class Run:
    """A computation of one process: every name in its spec has been looked up, once.

    That is one run, or for a pure task all runs of its spec. `spherenorm_experiments.engine.door`
    makes it. From there it only goes down: what executes, trains or stores it reads everything from
    this object.

    Attributes:
        spec: the request, as names and numbers.
        task: the task, with its options.
        bound: the recipe and its rule, at the first point.
        rest: the recipe of the weights that the spec's does not take; None if it takes all.
        config: the whole configuration, with digests of sources and data; its hash is the identity.
        folder: the run's files, under the name that is its identity.
        later: the recipes of the optimizers that follow (`Regime.then`).
        probes: the functions that measure the steps.
        sources: the functions, classes and modules that compute it.
        rows: the names of its runs, in the order of `rows_of(spec)`.
    """

    spec: Spec
    task: AnyTask
    bound: Bound
    rest: Bound | None
    config: Mapping[str, Any]
    folder: RunFolder
    later: Sequence[Bound] = ()
    probes: Sequence[Probe] = ()
    sources: Sources = field(default_factory=dict)
    rows: Sequence[str] = ()

    @property
    def id(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def store(self) -> Store:
        """The store of its folder."""
        return Store(self.folder.path.parents[1])

    @functools.cached_property
    def splits(self) -> Splits:
        """The data of a task that trains on batches."""
        assert isinstance(self.task, Task)
        return splits_of(self.task)

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        """The batches of one pass over the training data, the last one possibly smaller."""
        if not isinstance(self.task, Task):
            return 1
        return math.ceil(length(self.splits.train) / self.spec.batch_size)

    @functools.cached_property
    def steps(self) -> int:
        """The optimizer steps of the whole run."""
        return self.spec.epochs * self.steps_per_epoch
