"""Tables as text; axes and lengths as a reader wants them."""

import csv
import io
import math

import pytest

from spherenorm_experiments.comparison_report import training_of
from spherenorm_experiments.pictures import empty_figure, within_percent
from spherenorm_experiments.spec import Spec
from spherenorm_experiments.tables import (
    Cell,
    Table,
    paper_columns,
    parse_cells,
    to_csv,
    to_latex,
    to_markdown,
)
from spherenorm_experiments.verdict import claims_table
from tests.experiments.fabricated import decided, result

THIRD = 1 / 3
TABLE = Table(
    "Norms & scores",
    ("arm", "norm", *paper_columns("norm"), "score"),
    [
        (
            "SGD_α",
            Cell(THIRD, ".2f"),
            *parse_cells("1.30"),
            Cell(97.123456, ".2f", spread=THIRD, n=5),
        ),
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


def test_claims_export_with_their_numbers():
    claims = [decided([1.0, 1.0, 1.1], unit="pp", text="a > b"), decided(None, text="c")]
    head, first, second = read(to_csv(claims_table(claims)))
    row = dict(zip(head, first, strict=True))
    assert "a > b" in first
    assert float(row["number"]) == pytest.approx((1.0 + 1.0 + 1.1) / 3)
    assert float(row["number: low"]) < float(row["number"]) < float(row["number: high"])
    assert (row["verdict"], row["seeds"]) == ("supported", "3")
    assert dict(zip(head, second, strict=True))["ours in words"] == "no results"


@pytest.mark.parametrize("write", [to_latex, to_markdown])
def test_latex_and_markdown_have_the_numbers_as_meant_in_a_line_per_row(write):
    text = write(TABLE)
    assert all(number in text for number in ("0.33", "1.30", "97.12", "98.0 [97.5, 98.5]"))
    assert len([line for line in text.splitlines() if "SGD" in line]) == 2


@pytest.mark.parametrize(
    ("title", "highest", "most"),
    [("accuracy (%)", 99.0, 100), ("error rate (%)", 120.0, None), ("loss", 2.0, None)],
)
def test_the_axis_of_a_score_in_percent_ends_at_a_hundred_if_the_score_does(title, highest, most):
    figure = empty_figure("step", title)
    figure.add_scatter(x=[1, 2], y=[50.0, highest])
    within_percent(figure)
    assert figure.layout.yaxis.maxallowed == most


def test_one_epoch_is_one():
    runs = [
        result("SGD", spec=Spec("digits", "sgd", {"lr": 0.1}, epochs=count, batch_size=8),
               steps_per_epoch=5)
        for count in (1, 2, 1)
    ]  # fmt: skip
    said = "1 epoch of batches of 8, cosine schedule; 2 epochs of batches of 8, cosine schedule"
    assert training_of(runs) == said


def test_a_length_or_schedule_that_some_recipes_have_alone_names_them():
    runs = [
        result("SGD", spec=Spec("digits", recipe, {"lr": 0.1}, epochs=2, batch_size=8,
                                schedule=schedule), steps_per_epoch=5)
        for recipe, schedule in (("sgd", "cosine"), ("mine:soft", "constant"), ("adam", "cosine"))
    ]  # fmt: skip
    assert training_of(runs) == (
        "2 epochs of batches of 8, constant schedule (mine:soft); "
        "2 epochs of batches of 8, cosine schedule (adam, sgd)"
    )
