"""Tables as CSV, LaTeX and Markdown: the same table, from its numbers."""

import csv
import io
import math

import pytest

from spherenorm_experiments.analysis import Cell, Table, missing, paired, paper, printed
from spherenorm_experiments.report.pictures import (
    FORMATS,
    claims_table,
    to_csv,
    to_latex,
    to_markdown,
)

THIRD = 1 / 3
TABLE = Table(
    "Norms & scores",
    ("arm", "norm", *paper("norm"), "score"),
    [
        ("SGD_α", Cell(THIRD, ".2f"), *printed("1.30"), Cell(97.123456, ".2f", spread=THIRD, n=5)),
        (
            Cell("SGDP|x", diverged=1),
            Cell(math.nan, ".2f"),
            None,
            Cell(98.0, ".1f", unit="%", interval=(97.5, 98.5), n=3, diverged=2),
        ),
    ],
)


def read(text):
    return list(csv.reader(io.StringIO(text)))


def test_csv_has_every_number_in_full():
    head, first, second = read(to_csv(TABLE))
    score = [f"score: {aspect}" for aspect in ("spread", "low", "high", "seeds", "diverged")]
    assert head == ["arm", "arm: diverged", "norm", "paper norm", "score", *score]
    assert first == ["SGD_α", "", repr(THIRD), "1.30", "97.123456", repr(THIRD), "", "", "5", ""]
    assert second == ["SGDP|x", "1", "", "", "98.0", "", "97.5", "98.5", "3", "2"]


def test_latex_is_escaped_and_shows_the_numbers_as_meant():
    lines = to_latex(TABLE).splitlines()
    assert lines[1] == r"\begin{tabular}{lrrr}"
    assert lines[3] == r"arm & norm & paper norm & score \\"
    assert lines[5] == r"SGD\_$\alpha$ & 0.33 & 1.30 & 97.12 $\pm$ 0.33 (n = 5) \\"
    assert lines[6] == r"SGDP|x (1 diverged) & -- &  & 98.0 [97.5, 98.5] \% (2 diverged) (n = 3) \\"
    assert lines[-1] == r"\end{tabular}"


def test_markdown_has_a_line_per_row():
    assert to_markdown(TABLE).splitlines() == [
        "| arm | norm | paper norm | score |",
        "| --- | ---: | ---: | ---: |",
        "| SGD_α | 0.33 | 1.30 | 97.12 ± 0.33 (n = 5) |",
        r"| SGDP\|x (1 diverged) | – |  | 98.0 [97.5, 98.5] % (2 diverged) (n = 3) |",
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_claims_export_with_their_numbers(form):
    a, b = {0: 2.0, 1: 2.25, 2: 2.1}, {0: 1.0, 1: 1.25, 2: 1.0}
    claims = [paired("a > b", a, b, ">", source="here", unit="pp"), missing("c", "there")]
    text = FORMATS[form](claims_table(claims))
    assert "a > b" in text
    if form == "csv":
        head, first, second = read(text)
        row = dict(zip(head, first, strict=True))
        assert float(row["number"]) == pytest.approx((1.0 + 1.0 + 1.1) / 3)
        assert float(row["number: low"]) < float(row["number"]) < float(row["number: high"])
        assert (row["verdict"], row["seeds"]) == ("holds", "3")
        assert dict(zip(head, second, strict=True))["ours in words"] == "no results"
