"""`Design`: what a tuned comparison compares, and on what."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from spherenorm.support import unknown_name
from spherenorm_experiments.analysis import Claim
from spherenorm_experiments.study._condition import Condition, Contender, Setup
from spherenorm_experiments.study._search import Search
from spherenorm_experiments.study._study import Study, tuning_seeds

__all__ = ["Design"]


class Design(Study):
    """The conditions, the contenders and their searches; see `TunedComparison`."""

    takes_optimizers = True

    def __init__(
        self,
        name: str,
        about: str = "",
        *,
        baseline: Contender | str,
        contenders: Sequence[Contender | str],
        tune: Search | Mapping[str, Sequence[float]],
        on: Sequence[Condition],
        claims: Sequence[Claim] = (),
        departures: Sequence[tuple[str, str, str, str]] = (),
        first_seed: int = 0,
        seeds: Mapping[str, int] | None = None,
        tuned_on: int = 2,
        smoke_points: int | None = 1,
    ) -> None:
        self.name, self.on, self.departures = name, tuple(on), departures
        self.__doc__ = about or name
        self.contenders = [_contender(each) for each in (baseline, *contenders)]
        """The baseline is the first."""
        self.first_seed, self.tuned_on, self.smoke_points = first_seed, tuned_on, smoke_points
        self.seeds = seeds or {"smoke": 1, "small": 6, "full": 12}
        self.has_real = any(condition.real for condition in self.on)
        self._tune, self.rows = tune, tuple(claims)
        """Claims beside those about the scores."""
        _require(self)

    @property
    def baseline(self) -> Contender:
        return self.contenders[0]

    @property
    def pairs(self) -> list[tuple[Contender, Contender]]:
        """Every contender after one that it is compared with."""
        known = {each.name: each for each in self.contenders}
        return [(known[name], each) for each in self.contenders for name in self.against(each)]

    def against(self, contender: Contender) -> Sequence[str]:
        """The names of the contenders that one is compared with."""
        if contender.against is not None:
            return contender.against
        return () if contender.name == self.baseline.name else (self.baseline.name,)

    def search(self, contender: Contender) -> Search:
        """The search of a contender."""
        tune = self._tune if contender.tune is None else contender.tune
        return tune if isinstance(tune, Search) else Search(tune)

    def tuning_seeds(self) -> Sequence[int]:
        """The seeds on which hyper-parameters are chosen."""
        return tuning_seeds(self)[: self.tuned_on]


def _require(design: Design) -> None:
    """Refuse names that say two things or none, before anything runs."""
    labels, names = [c.label for c in design.on], [c.name for c in design.contenders]
    for part, given in (("on", labels), ("contenders", names)):
        if twice := [name for name in given if given.count(name) > 1]:
            raise ValueError(f"{part} of {design.name!r} has {twice[0]!r} twice")
    for contender in design.contenders:
        for name in design.against(contender):
            if name not in names:
                raise unknown_name("contender", name, names)
    for condition, contender in itertools.product(design.on, design.contenders):
        own = condition.setup if isinstance(condition.setup, Setup) else Setup()
        for name in design.search(contender).names:
            if name in own.hyper_parameters:  # no search over one value would be complete
                lack = f"{condition.label!r} has a value of {name}"
                raise ValueError(f"{lack}, which {contender.name} searches")


def _contender(given: Contender | str) -> Contender:
    """A recipe's name, or `module:function`, as a contender."""
    if isinstance(given, Contender):
        return given
    return Contender(given.rpartition(":")[2], recipe=given)
