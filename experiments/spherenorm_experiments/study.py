"""`Study`: one table or figure of the paper, or a study of our own, in one file.

A study says which runs it needs, given what is known: `trials(plan, runs)` is asked again after
every round, so that a later stage (the best learning rate, say) may depend on an earlier one. Then
it makes tables, pictures and claims of the results.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from spherenorm_experiments.lookup import describe_source, find_task_class
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Place, Runs, Trial
from spherenorm_experiments.spec import Spec, points_of
from spherenorm_experiments.tables import Table
from spherenorm_experiments.task import Budget
from spherenorm_experiments.verdict import Claim, Decision, adjust_for_multiplicity, evaluate_claim


class Study:
    """A table or figure with its runs and claims.

    The class docstring's first line is its title; the rest says what is done and why.
    """

    name: str
    seeds: Mapping[str, int] = MappingProxyType({"smoke": 2, "small": 6, "full": 12})
    """The number of seeds of each tier."""
    first_seed: int = 0
    """The first of them: studies that share a task have different seeds."""
    uses_paper_data: bool = False
    """True if the study can run on the paper's data sets; it then reads `plan.real`."""
    lookup_name: str = ""
    """The name by which a command finds the study; a class has its own."""
    departures: Sequence[tuple[str, str, str, str]] = ()
    """Settings that differ from the paper's: the setting, the paper's, ours, and why."""

    def trials(self, plan: Plan, runs: Runs) -> list[Trial]:
        """Return the runs that are needed, given what is known.

        When more is known these are the same trials, and possibly more.
        """
        raise NotImplementedError

    def exclusions(self, plan: Plan) -> Mapping[str, str]:
        """Return the parts of the study that a plan leaves out, each with the reason."""
        return {}

    def tables(self, runs: Runs) -> list[Table]:
        """Return the study's tables; none of which no run has a number."""
        return []

    def pictures(self, runs: Runs) -> list[Picture]:
        """Return the study's pictures; none with nothing in it."""
        return []

    def summary(self, runs: Runs, decisions: Sequence[Decision]) -> Sequence[str]:
        """Return what came out, in a few sentences; none by default.

        `run` prints them in place of the first table, and the page begins with them and with the
        first picture.

        Args:
            runs: those that have ended.
            decisions: on the study's claims.
        """
        return ()

    @property
    def claims(self) -> Sequence[Claim]:
        """The study's claims, as rows; a study may also give them as an attribute."""
        return ()

    def all_tables(self, runs: Runs) -> list[Table]:
        """Return the study's tables, and the settings that differ from the paper's."""
        if not self.departures:
            return self.tables(runs)
        note = "Small tier, embedded data, unless marked --data." if self.uses_paper_data else ""
        columns = ("setting", "the paper's", "ours", "why")
        return [*self.tables(runs), Table("Settings", columns, self.departures, note)]

    def evaluate_claims(self, runs: Runs) -> list[Decision]:
        """Test each of the study's claims by itself; one without runs is not tested."""
        return [evaluate_claim(claim, runs) for claim in self.claims]

    def decide_claims(self, runs: Runs) -> list[Decision]:
        """Decide the study's claims; their p-values are adjusted for their number."""
        return adjust_for_multiplicity(self.evaluate_claims(runs))

    def title(self) -> str:
        """Return the first line of the docstring."""
        return (inspect.getdoc(self) or self.name).partition("\n")[0]

    def about(self) -> str:
        """Return the docstring without its first line."""
        return (inspect.getdoc(self) or "").partition("\n")[2].strip()

    def make_trials(
        self,
        plan: Plan,
        place: Place,
        task: str,
        recipe: str,
        hyper_parameters: Mapping[str, Any],
        seeds: Sequence[int] | None = None,
        /,
        **more: Any,
    ) -> list[Trial]:
        """The trials of a place: every point with every seed, with the task's budget for the tier.

        Args:
            hyper_parameters: lists of one length are points (but for "betas", which is one value).
            seeds: None for all that the plan or the study chooses.
            **more: other fields of `Spec`, also in place of the budget.
        """
        budget, seeds = self.budget(plan, task), seeds or self.chosen_seeds(plan)
        common = {"epochs": budget.epochs, "batch_size": budget.batch_size, **more}
        return trials_of(place, task, recipe, hyper_parameters, seeds, **common)

    def chosen_seeds(self, plan: Plan) -> Sequence[int]:
        """Return the plan's seeds, or the study's own."""
        if plan.seeds is not None:
            return plan.seeds
        count = self.seeds.get(plan.tier, self.seeds.get(plan.budget_tier, 0))
        return range(self.first_seed, self.first_seed + count)

    def budget(self, plan: Plan, task: str) -> Budget:
        """Return the budget of the task for the plan's tier.

        Raises:
            ValueError: it has none.
        """
        cls, tier = find_task_class(task), plan.budget_tier
        budget = getattr(cls, "tiers", {}).get(tier)
        if not isinstance(budget, Budget):
            lack = f"{describe_source(cls)} has no budget for the tier {tier!r}"
            raise ValueError(f"{lack}; give tiers = {{{tier!r}: Budget(epochs, batch_size)}}")
        return budget


def trials_of(
    place: Place,
    task: str,
    recipe: str,
    hyper_parameters: Mapping[str, Any],
    seeds: Sequence[int],
    /,
    **fields: Any,
) -> list[Trial]:
    """Return a trial for every point with every seed; see `Study.make_trials`.

    >>> points = {"lr": [0.1, 0.2], "momentum": 0.9}
    >>> made = trials_of(Place("", "SGD"), "cosine", "sgd", points, (0, 1))
    >>> [(trial.spec.hyper_parameters["lr"], trial.spec.seed) for trial in made]
    [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    """
    return [
        Trial(place, Spec(task, recipe, point, seed=seed, **fields))
        for point in points_of(hyper_parameters)
        for seed in seeds
    ]
