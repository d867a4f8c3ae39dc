"""`Comparison`: optimizers, each tuned alike by every seed, and compared seed by seed.

    T3 = Comparison(
        "t3", "Table 3: ...", arms=["Adam", "AdamP"], tune={"lr": [1e-3, 2e-3, 4e-3, 8e-3]},
        conditions=[Condition("centernet", "detection", {"detector": "centernet"}), ...],
    )

The paper's benchmarks and the command `compare` are instances. With `--data DIR` the runs are the
paper's: its data, networks, hyper-parameters and budgets, without a search.
"""

from __future__ import annotations

import math
from dataclasses import replace

from spherenorm_experiments.claims import MARGIN, Claim, Decision, measure, undecided
from spherenorm_experiments.design import Arm, Condition, Design, Setup, metric_of, score_claim
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.shown import notes_of, pictures_of, tables_of
from spherenorm_experiments.stats import detectable
from spherenorm_experiments.tables import Table

__all__ = ["INTERIM", "Arm", "Comparison", "Condition", "Setup", "metric_of", "score_claim"]

INTERIM = "interim: no verdict before all runs of both have ended"


class Comparison(Design):
    """Optimizers, each tuned in as many trials, compared on every condition.

    Every point of an arm's grid trains on every seed. A seed takes the point with its best
    validation score; tables and claims are of the test scores of these runs. Arms with the same
    values share a grid, which grows, up to three times, by its own spacing at an end where the best
    mean validation score of one of them is.

    Args:
        name: of the study.
        about: its title, an empty line, and a text.
        arms: the optimizers, or their recipes; others are compared with the first.
        tune: the search of those that have none of their own; a mapping lists the values of each
            hyper-parameter.
        conditions: where they are compared; the smoke tier has the first one alone.
        claims: rows beside those about the scores.
        scored: False for a study without a claim about the scores of each pair.
        measures: further numbers of the chosen runs in the tables, by heading: a column or a
            function of a run, and a format.
        departures: settings that differ from the paper's: the setting, the paper's, ours, and why.
        first_seed: studies that share a task have different seeds.
        seeds: their number in each tier, where it is not the usual one.

    Raises:
        ValueError: two conditions or arms of one name, one that is compared with an unknown one, or
            values for all in place of those of a search.
    """

    def tables(self, runs: Runs) -> list[Table]:
        return tables_of(self, runs)

    def pictures(self, runs: Runs) -> list[Picture]:
        return pictures_of(self, runs)

    def evaluated(self, runs: Runs) -> list[Decision]:
        """Each claim by itself; a score whose unit is not given has the one that its runs note."""
        decisions = [measure(claim, runs) for claim in self._completed(runs)]
        seeds, asked = {item.spec.seed for item in runs}, {each.condition for each in runs.places}
        asked |= {place.condition for place in runs.lacking}
        for i, (condition, pair) in enumerate(self.comparisons if self.scored else []):
            ran = [Place(condition.label, arm.name) for arm in pair]
            if any(runs.lacking.get(place) for place in ran):
                decisions[i] = undecided(decisions[i], INTERIM)
            if asked and condition.label not in asked and not math.isnan(condition.spread):
                # What the tier leaves out has the verdict that its runs would have.
                expected = detectable(condition.spread, len(seeds))
                decisions[i] = replace(decisions[i], expected=expected)
        return decisions

    def _completed(self, runs: Runs) -> list[Claim]:
        """The claims with the units of their scores, and the notes of their searches."""
        claims = list(self.claims)
        for i, (condition, pair) in enumerate(self.comparisons if self.scored else []):
            unit, margin = condition.unit, condition.margin
            if unit is None:  # percentage points, or none
                unit = "pp" if "%" in metric_of(runs, condition) else ""
            if margin is None and unit == "pp":
                margin = MARGIN
            notes = [note for arm in pair[::-1] for note in notes_of(self, runs, condition, arm)]
            note = "; ".join(filter(None, notes))
            claims[i] = replace(claims[i], unit=unit, margin=margin, note=note)
        if self._on_papers_data(runs):  # expected spreads are of the embedded data
            claims = [replace(claim, spread=math.nan) for claim in claims]
        return claims

    def _on_papers_data(self, runs: Runs) -> bool:
        """True if the runs have the options of the paper's setups."""
        real = {each.label: each.real for each in self.conditions if each.real is not None}
        return any(
            (setup := real.get(item.place.condition)) is not None
            and setup.options.items() <= item.spec.options.items()
            for item in runs
        )
