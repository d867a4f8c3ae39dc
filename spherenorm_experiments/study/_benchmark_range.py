"""The range of a benchmark's scores: can its settings tell optimizers apart at all?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spherenorm_experiments.analysis import Arm, Cell, Row, Sample, Table, column, difference

__all__ = ["range_table"]


def range_table(scores: Mapping[str, Mapping[Arm, Sample]]) -> Table:
    """The best against the worst optimizer of each setting, both tuned.

    The two are chosen by the same scores that are compared, so that the difference is a little
    larger than that of two optimizers named before.

    Args:
        scores: of the arms of each setting, by its label.
    """
    rows: list[Row] = []
    apart = 0
    for setting, arms in scores.items():
        known = {arm: sample for arm, sample in arms.items() if len(sample) > 1}
        cells = dict(zip(known, column(list(known.values()), "g"), strict=True))
        means = {arm: float(cell.number) for arm, cell in cells.items() if cell.number is not None}
        if len(means) < 2:
            continue
        best = max(means, key=means.__getitem__)
        worst = min(reversed(means), key=means.__getitem__)  # of equal ones another than the best
        gap = difference(known[best], known[worst])
        differ = _is_beyond_zero(gap)
        apart += differ
        names = (arm.settings["contender"] for arm in (best, worst))
        rows.append((setting, *names, gap, "yes" if differ else "no"))
    columns = ("setting", "best", "worst", "best minus worst", "apart")
    about = (
        "Paired by seed, with Student's 95 % intervals; optimizers that diverged are left out. In "
        f"{apart} of {len(rows)} settings the interval does not contain 0, so that the setting "
        "tells optimizers apart."
    )
    return Table("Best against worst", columns, rows, about)


def _is_beyond_zero(gap: Cell) -> bool:
    ends: Sequence[float] = gap.interval or (0.0, 0.0)
    return ends[0] > 0 or ends[1] < 0
