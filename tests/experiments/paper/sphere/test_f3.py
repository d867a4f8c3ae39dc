"""Figure 3 and those like it."""

import pytest
from running import labels, run_study, shown

from spherenorm_experiments.analysis import grid_of
from spherenorm_experiments.engine import Store


def test_a_setting_of_a_swept_hyper_parameter_holds_at_every_point(tmp_path):
    study, _, results = run_study(
        "f3", Store(tmp_path), only=("sgd", "adamp"), overrides={"lr": 0.03}
    )
    points = {arm.label: grid_of(results, arm).points for arm in results.arms}
    assert points["GDM: search"] == points["GDM"] == [{"lr": 0.03, "momentum": 0.9}]
    assert {point["lr"] for point in points["GDM + WD: search"]} == {0.03}
    assert len({point["weight_decay"] for point in points["GDM + WD: search"]}) == 3
    assert {row[1] for row in shown(study.tables(results)[0])} == {"0.03"}
    study.pictures(results), study.evaluated(results)


def test_swept_values_may_be_set_where_they_fit(tmp_path):
    study, _, results = run_study(
        "f3", Store(tmp_path), only=("adamp",), overrides={"lr": [0.01, 0.03]}
    )
    points = grid_of(results, results.arm("AdamP: search").arms[0]).points
    assert points == [{"lr": 0.01}, {"lr": 0.03}]
    assert results.arm("AdamP").items[0].spec.hyper_parameters["lr"] in (0.01, 0.03)
    for settings, counts in (
        ({"lr": [0.01, 0.03]}, "lr has 2, weight_decay has 9"),
        ({"lr": []}, "lr has 0"),
    ):
        with pytest.raises(
            ValueError, match=f"the points of a sweep need one value .* of 'sgd': {counts}"
        ):
            run_study(study, Store(tmp_path), only=("sgd",), overrides=settings)


def test_points_that_diverge_are_crosses_in_the_search_and_noted(tmp_path):
    study, _, results = run_study(
        "f3", Store(tmp_path), only=("sgdp",), overrides={"lr": [0.01, 1e300]}
    )
    assert results.arm("GDP").items[0].spec.hyper_parameters["lr"] == 0.01
    (search,) = (
        picture for picture in study.pictures(results) if picture.caption.startswith("The search")
    )
    (crosses,) = (trace for trace in search.figure.data if trace.name == "diverged")
    assert list(crosses.x) == [1e300]
    assert "Descents that diverged: GDP: search (3)." in study.tables(results)[0].note
    study, _, results = run_study("f3", Store(tmp_path), only=("sgdp",), overrides={"lr": 1e300})
    assert labels(results) == ["GDP: search"]
    assert [len(picture.figure.data) for picture in study.pictures(results)] == [
        2
    ]  # a line without points, and the cross
    assert all(claim.verdict == "inconclusive" for claim in study.evaluated(results))
