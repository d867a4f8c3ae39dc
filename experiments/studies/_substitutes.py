"""Tables and pictures of the recipes that substitute for a study's own, beside these."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.pictures import Picture, curves, drawn
from experiments.results import Arm, Cell, Key, Results, Table

__all__ = ["substitute_pictures", "substitute_tables"]

NOTE = "Means over seeds, beside those of the arm that the recipe substitutes for."


def substitute_tables(results: Results, compared: Mapping[str, Key]) -> list[Table]:
    """Every arm that substitutes for another, number by number beside it.

    Columns and rows without numbers are left out.
    """
    own = {arm: arm.substitutes_for for arm in results.arms if arm.substitutes_for is not None}
    columns: dict[str, dict[Arm, Cell]] = {}
    for heading, key in compared.items():
        cells = {arm: results.arm(arm).cell(key, ".4g") for arm in own}
        there = {arm: results.arm(of).cell(key, ".4g") for arm, of in own.items()}
        columns |= {heading: cells, f"{heading} there": there}
    known = {
        heading: cells
        for heading, cells in columns.items()
        if any(cell.known for cell in cells.values())
    }
    rows = []
    for arm in own:
        numbers = [cells[arm] for cells in known.values()]
        diverged = len(results.arm(arm).diverged)
        if diverged or any(cell.known for cell in numbers):
            rows.append((Cell(arm.label, diverged=diverged), *numbers))
    if not rows:
        return []
    return [Table("Recipes that substitute for the study's own", ("arm", *known), rows, NOTE)]


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
