"""Cells and columns of tables: numbers as they were meant, means over the same seeds."""

import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spherenorm_experiments.tables import (
    Cell,
    Table,
    format_cells,
    paper_columns,
    parse_cells,
    parse_table,
    subtract_printed,
)
from spherenorm_experiments.verdict import paired_difference


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(97.9167, ".2f"), "97.92"),
        (Cell(97.9167, ".2f", spread=0.4811, n=5), "97.92 ± 0.48"),
        (Cell(92.0, ".4g", spread=0.6325, n=5), "92.00 ± 0.63"),
        (Cell(92.0, ".4g", spread=0.0996, n=5), "92.00 ± 0.10"),
        (Cell(230.4, "+.3g", spread=31.6, n=5), "+230 ± 32"),
        (Cell(1.0, ".4g", spread=7e-17, n=5), "1 ± 7e-17"),
        (Cell(1.2e-6, ".4g", spread=3.45e-7, n=5), "1.2e-06 ± 3.45e-07"),
        (Cell(92.5, ".4g", spread=0.0, n=5), "92.5 ± 0"),
        (Cell(97.9167, ".2f", spread=math.nan, n=1), "97.92"),
        (Cell(97.9167, ".2f", spread=0.4811, n=5, diverged=2), "97.92 ± 0.48 (2 diverged)"),
        (Cell(1.0101, "+.3g", interval=(1, 1.02), unit="pp"), "+1.01 [+1, +1.02] pp"),
        (Cell(0.5, ".3g", prefix="×"), "× 0.5"),
        (Cell(None, ".2g", interval=(0.001, 0.5)), "[0.001, 0.5]"),
        (Cell(math.nan, ".2f"), "–"),
        (Cell(None, missing="no law"), "no law"),
        (Cell(None, missing="", diverged=1), "(1 diverged)"),
        (Cell("SGDP", diverged=1), "SGDP (1 diverged)"),
        (Cell(Decimal("66.00")), "66.00"),
        (Cell(12), "12"),
    ],
)
def test_a_cell_is_shown(cell, text):
    assert str(cell) == text


def test_the_papers_numbers_keep_their_digits():
    first, last = parse_cells("1.30 55.9")
    assert (str(first), str(last)) == ("1.30", "55.9")
    assert str(subtract_printed(last, first)) == "+54.60"


def test_a_table_written_as_text_has_numbers_with_their_spreads_and_words():
    (row,) = parse_table("""
        row     wide   none  AdamW       AdamP  label
        a long  False  -     23.38±0.05  1e-4   x
    """)
    assert [str(x) for x in row.values()] == [
        "a long",
        "False",
        "None",
        "23.38 ± 0.05",
        "1e-4",
        "x",
    ]
    with pytest.raises(ValueError, match="shorter"):
        parse_table("a  b\n1")


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="Norms: 2 cells in a row of 3 columns"):
        Table("Norms", ("arm", "norm", *paper_columns("norm")), [("SGD", Cell(1.0))])


def test_a_column_of_means_over_other_seeds_says_so():
    cells = [Cell(1.0, "g", n=3), Cell(2.0, "g", n=2), Cell("text"), Cell(None), Cell(4.0, "g")]
    uneven = Table("Norms", ("norm", "even"), [(cell, Cell(5.0, "g", n=6)) for cell in cells])
    assert [str(row[0]) for row in uneven.rows] == ["1 (n = 3)", "2 (n = 2)", "text", "–", "4"]
    assert [str(row[1]) for row in uneven.rows] == ["5"] * 5
    assert uneven.about == ""
    even = Table("Norms", ("norm",), [(Cell(1.0, n=6),), (Cell(2.0, n=6),)], "A note.")
    assert even.about == "A note. n = 6 seeds."


NUMBERS = st.floats(-1e3, 1e3)
SERIES = st.builds(
    lambda numbers, lost: pd.Series({**numbers, **dict.fromkeys(lost, -math.inf)}, dtype=float),
    st.dictionaries(st.integers(0, 7), NUMBERS),
    st.frozensets(st.integers(0, 7), max_size=2),
)


@given(st.lists(SERIES, min_size=1, max_size=4))
def test_every_mean_of_a_column_is_over_the_same_seeds(parts):
    ended = [set(each.index) for each in parts]
    shared = set.intersection(*(seeds for seeds in ended if seeds)) if any(ended) else set()
    for each, cell in zip(parts, format_cells(parts, "g"), strict=True):
        own = each[[seed for seed in each.index if seed in shared]]
        lost = int(np.isinf(own).sum())
        assert cell.diverged == lost
        if cell.number is None:
            assert own.empty or lost
        else:
            assert cell.n == len(shared)
            assert math.isclose(cell.number, own.mean(), rel_tol=1e-12, abs_tol=1e-12)


def test_a_difference_is_of_the_seeds_that_both_have():
    a = pd.Series({0: 1.0, 1: 2.0, 2: 4.0, 9: 1e6})
    b = pd.Series({0: 0.5, 1: 1.0, 2: 1.0, 8: -1e6, 9: -math.inf})
    cell = paired_difference(a, b)
    gaps = [0.5, 1.0, 3.0]
    low, high = stats.t.interval(0.95, 2, np.mean(gaps), stats.sem(gaps))
    assert (cell.n, cell.diverged) == (3, 1)
    assert np.allclose([cell.number, *cell.interval], [1.5, low, high])


def test_one_seed_has_no_interval_and_none_no_number():
    two, one = pd.Series({0: 2.0}), pd.Series({0: 1.0})
    assert paired_difference(two, one).interval is None
    assert str(paired_difference(two, pd.Series({1: 1.0}))) == "–"
