"""`TunedComparison`: optimizers, each tuned alike by every seed, and compared seed by seed.

    T3 = TunedComparison(
        "t3", "Table 3: ...", baseline=Contender("Adam"), contenders=[Contender("AdamP")],
        tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
        on=[Condition("centernet", "detection", {"detector": "centernet"}), ...],
    )

The paper's benchmarks and the command `compare` are instances. With `--data DIR` the runs are the
paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from spherenorm_experiments.claims import MARGIN, Claim, Of, slug
from spherenorm_experiments.condition import Condition, Contender, arm_of
from spherenorm_experiments.decisions import Decision, evaluate, undecided
from spherenorm_experiments.design import Design
from spherenorm_experiments.entries import differing, entry_of, metric_of
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.recipes import load_recipe
from spherenorm_experiments.results import Results
from spherenorm_experiments.shown import pictures_of, tables_of
from spherenorm_experiments.stats import detectable
from spherenorm_experiments.tables import Table
from spherenorm_experiments.tuning import with_tuned

Pair = tuple[Contender, Contender]

INTERIM = "interim: no verdict before all runs of both have ended"


class TunedComparison(Design):
    """Optimizers, each tuned in as many trials, compared on every condition.

    Every point of a contender's grid trains on every seed. A seed takes the point with its best
    validation score; tables and claims are of the test scores of these runs. Contenders with the
    same values share a grid, which grows, up to three times, by its own spacing at an end where the
    best mean validation score of one of them is.

    Args:
        name: of the study.
        about: its title, an empty line, and a text.
        baseline: the contender, or the recipe, that others are compared with.
        contenders: the others.
        tune: the search of those that have none of their own; a mapping lists the values of each
            hyper-parameter.
        on: the conditions; the smoke tier has the first one alone.
        claims: rows beside those about the scores.
        scored: False for a study without a claim about the scores of each pair.
        measures: further numbers of the chosen runs in the tables, by heading: an entry of the
            summary or a function of a result, and a format.
        departures: settings that differ from the paper's: the setting, the paper's, ours, and why.
        first_seed: studies that share a task have different seeds.
        seeds: their number in each tier, where it is not the usual one.

    Raises:
        ValueError: two conditions or contenders of one name, whose runs would be one arm's; one
            that is compared with an unknown one; or values for all in place of those of a search.
    """

    def differences(self, plan: Plan) -> list[str]:
        """The hyper-parameters that nobody tunes and in which contenders differ, with values."""
        chosen = self.with_added(plan)
        values = {each.name: {**load_recipe(each.recipe).defaults, **each.fixed} for each in chosen}
        fixed = {*plan.overrides, *(name for each in chosen for name in self.search(each).names)}
        return [
            f"{name}: " + ", ".join(f"{contender} {value!r}" for contender, value in of.items())
            for name, of in differing(values).items()
            if name not in fixed
        ]

    def tables(self, results: Results) -> list[Table]:
        return tables_of(self, with_tuned(results))

    def pictures(self, results: Results) -> list[Picture]:
        return pictures_of(self, with_tuned(results))

    @property
    def claims(self) -> Sequence[Claim]:
        """The scores of each condition and pair, then the others."""
        scores = [
            score_claim(condition, *pair, caveat=partial(self._caveats, condition, pair))
            for condition, pair in self._scored
        ]
        return [*scores, *self.rows]

    @property
    def _scored(self) -> list[tuple[Condition, Pair]]:
        """The comparisons whose scores have a claim."""
        return self.comparisons if self.scored else []

    def evaluated(self, results: Results) -> list[Decision]:
        """Each claim by itself; a score whose unit is not given has the one that its runs note."""
        claims, results = list(self.claims), with_tuned(results)
        for i, (condition, _) in enumerate(self._scored):
            unit, margin = condition.unit, condition.margin
            if unit is None:  # percentage points, or none
                unit = "pp" if "%" in metric_of(results, condition) else ""
            if margin is None and unit == "pp":
                margin = MARGIN
            claims[i] = replace(claims[i], unit=unit, equivalent=margin)
        if self._on_papers_data(results):  # expected spreads are of the embedded data
            claims = [replace(claim, spread=math.nan) for claim in claims]
        decisions = [evaluate(claim, results) for claim in claims]
        for i, (condition, pair) in enumerate(self._scored):
            grids = [entry_of(self, results, condition, contender).grid for contender in pair]
            if any(results.lacking.get(grid) for grid in grids if grid is not None):
                decisions[i] = undecided(decisions[i], INTERIM)
        asked = {arm.settings.get("condition") for arm in (*results.arms, *results.lacking)}
        if asked:  # what the tier leaves out has the verdict that its runs would have
            seeds = len({item.spec.seed for item in results})
            for i, (condition, _) in enumerate(self._scored):
                if condition.label not in asked and not math.isnan(claims[i].spread):
                    expected = detectable(condition.spread, seeds)
                    decisions[i] = replace(decisions[i], expected=expected)
        return decisions

    def _on_papers_data(self, results: Results) -> bool:
        """True if the runs have the options of the paper's setups."""
        return any(
            condition.real is not None
            and condition.real.options.items() <= item.spec.options.items()
            for condition in self.on
            for item in results.having(condition=condition.label)
        )

    def _caveats(self, condition: Condition, pair: Pair, results: Results) -> str:
        entries = [entry_of(self, results, condition, contender) for contender in reversed(pair)]
        return "; ".join(caveat for entry in entries for caveat in entry.caveats(results))


def score_claim(condition: Condition, baseline: Contender, ours: Contender, **more: Any) -> Claim:
    """The claim about the scores of a pair."""
    parts = (condition.label, "score", ours.name, baseline.name)
    given = {"cites": condition.cites, "primary": True, "spread": condition.spread}
    fields = {**given, **more}
    return Claim(
        ".".join(filter(None, map(slug, parts))),
        f"{ours.name} scores higher than {baseline.name} ({condition.place})",
        Of(arm_of(condition, ours), "test"), ">", Of(arm_of(condition, baseline), "test"),
        paper=condition.gap(ours.name, baseline.name) or "", **fields,
    )  # fmt: skip
