"""Cells show a number as it was meant, and keep the number."""

import math
from decimal import Decimal

import pytest

from spherenorm_experiments.analysis import Cell, Table, paper, printed


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell(97.9167, ".2f"), "97.92"),
        (Cell(97.9167, ".2f", spread=0.4811, n=5), "97.92 ± 0.48"),
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
    first, last = printed("1.30 55.9")
    assert (str(first), str(last)) == ("1.30", "55.9")
    assert str(Cell(last - first, "+.2f")) == "+54.60"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="Norms: 2 cells in a row of 3 columns"):
        Table("Norms", ("arm", "norm", *paper("norm")), [("SGD", Cell(1.0))])


def test_a_column_of_means_over_other_seeds_says_so():
    cells = [Cell(1.0, "g", n=3), Cell(2.0, "g", n=2), Cell("text"), Cell(None), Cell(4.0, "g")]
    uneven = Table("Norms", ("norm", "even"), [(cell, Cell(5.0, "g", n=6)) for cell in cells])
    assert [str(row[0]) for row in uneven.rows] == ["1 (n = 3)", "2 (n = 2)", "text", "–", "4"]
    assert [str(row[1]) for row in uneven.rows] == ["5"] * 5
    assert uneven.about == ""
    even = Table("Norms", ("norm",), [(Cell(1.0, n=6),), (Cell(2.0, n=6),)], "A note.")
    assert even.about == "A note. n = 6 seeds."
