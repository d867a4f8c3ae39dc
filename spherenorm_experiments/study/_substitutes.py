"""Tables and pictures of the recipes that substitute for a study's own, beside these."""

from __future__ import annotations

from collections.abc import Mapping

from spherenorm_experiments.analysis import (
    Arm,
    Cell,
    Key,
    Results,
    Row,
    Sample,
    Table,
    column,
    difference,
    spans,
)
from spherenorm_experiments.report.pictures import Picture, curves, drawn

__all__ = ["means_of", "substitute_pictures", "substitute_tables"]

TITLE = "Recipes that substitute for the study's own"
NOTE = (
    "Means over the seeds that all of them have ± standard deviation, beside those of the arm that "
    "the recipe substitutes for; and the differences, paired by the seeds that the two have, with "
    "Student's 95 % intervals."
)


def means_of(samples: Mapping[Arm, Sample], form: str) -> list[Cell]:
    """The means of arms over the same seeds; substitutes do not narrow those of the others."""
    own = [sample for arm, sample in samples.items() if arm.substitutes_for is None]
    if not own:
        return column(list(samples.values()), form)
    cells = iter(column(own, form))
    return [
        next(cells) if arm.substitutes_for is None else column([*own, sample], form)[-1]
        for arm, sample in samples.items()
    ]


def substitute_tables(results: Results, compared: Mapping[str, Key]) -> list[Table]:
    """Every arm that substitutes for another, number by number beside it, and their difference.

    Arms that share other seeds with those that they substitute for have a table of their own.
    Columns and rows without numbers are left out.
    """
    groups: dict[tuple[int, ...], dict[Arm, Arm]] = {}
    for arm in results.arms:
        if arm.substitutes_for is not None:
            seeds = _seeds(results, arm)
            shared = seeds & (_seeds(results, arm.substitutes_for) or seeds)
            groups.setdefault(tuple(sorted(shared)), {})[arm] = arm.substitutes_for
    tables = []
    for shared_seeds, own in groups.items():
        title = TITLE if len(groups) == 1 else f"{TITLE}: seeds {spans(shared_seeds) or 'apart'}"
        tables.append(_table(title, results, own, compared))
    return [table for table in tables if table.rows]


def _table(
    title: str, results: Results, own: Mapping[Arm, Arm], compared: Mapping[str, Key]
) -> Table:
    columns: dict[str, dict[Arm, Cell]] = {}
    for heading, key in compared.items():
        values = {arm: results.arm(arm).values(key) for arm in [*own, *own.values()]}
        means = dict(zip(values, column(list(values.values()), ".4g"), strict=True))
        columns[heading] = {arm: means[arm] for arm in own}
        columns[f"{heading} there"] = {arm: means[of] for arm, of in own.items()}
        columns[f"{heading}, difference"] = {
            arm: difference(values[arm], values[of]) for arm, of in own.items()
        }
    known = {
        heading: cells
        for heading, cells in columns.items()
        if any(cell.known for cell in cells.values())
    }
    rows: list[Row] = []
    for arm in own:
        numbers = [cells[arm] for cells in known.values()]
        diverged = len(results.arm(arm).diverged)
        if diverged or any(cell.known for cell in numbers):
            rows.append((Cell(arm.label, diverged=diverged), *numbers))
    return Table(title, ("arm", *known), rows, NOTE)


def _seeds(results: Results, arm: Arm) -> set[int]:
    return {item.spec.seed for item in results.arm(arm)}


def substitute_pictures(results: Results) -> list[Picture]:
    """Norm, effective step and loss of the arms that substitute for others, and of the latter."""
    own = {arm: arm.substitutes_for for arm in results.arms}
    if not any(own.values()):
        return []
    shown = results.where(lambda item: bool(own[item.arm]) or item.arm in own.values())
    caption = (
        "The norm of the scale-invariant channels: recipes that substitute for the study's own, "
        "and those that they substitute for."
    )
    steps = "The effective step sizes of the same runs."
    return drawn(
        [
            curves(shown, "norm", "norm ‖w‖", caption),
            curves(shown, "effective_step", "effective step ‖Δŵ‖", steps, log_y=True, smooth=18),
            curves(shown, "loss", "loss", "The training loss of the same runs.", smooth=18),
        ]
    )
