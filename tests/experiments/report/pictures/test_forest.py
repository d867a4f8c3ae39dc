"""The forest plot: each line on its own scale, the side on which the claim is true to the right."""

import pytest
from deciding import decided

from spherenorm_experiments.analysis import Cell, Statement
from spherenorm_experiments.report.pictures import forest

SAYS = Statement("paper", "Table 1", "so")
VALUES = dict(enumerate([0.2, 0.3, 0.4]))


def drawn(*claims):
    rows = [{"label": f"t1.{i}", **claim.to_json()} for i, claim in enumerate(claims, 1)]
    return forest(rows)


def test_a_number_is_right_of_the_bound_where_the_claim_is_true():
    picture = drawn(
        decided(VALUES, "<", 0.5, cites=SAYS, paper=Cell(0.28), text="smaller"),
        decided(VALUES, ">", 0.5, cites=SAYS, text="larger"),
        decided(VALUES, "=", 0.3, margin=0.4, cites=SAYS, text="near"),
    )
    bars, *dots, theirs = picture.figure.data
    assert list(bars.x) == [0.0, 1.0, None, 0.0, 1.0, None, -1.0, 1.0, None]
    places = {label: x for trace in dots for label, x in zip(trace.y, trace.x, strict=True)}
    assert places["t1.1"] == pytest.approx(-places["t1.2"], rel=1e-3)
    assert places["t1.1"] > 0 > places["t1.2"]
    assert places["t1.3"] == pytest.approx(0.0, abs=1e-9)
    assert (theirs.name, list(theirs.y)) == ("paper", ["t1.1"])
    assert theirs.x[0] > places["t1.1"] * 0.9
    low = places["t1.1"] - dots[0].error_x.arrayminus[0]
    assert -1.0 <= low <= places["t1.1"]
