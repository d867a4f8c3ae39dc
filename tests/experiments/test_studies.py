"""Every study runs in the smoke tier and makes its tables, pictures and claims; what the claims decide is tested on its own."""

import json

import numpy as np
import pytest
import torch
from spherenorm_tiny import TinyStudy, tiny_spec

from experiments.engine import Engine
from experiments.report import Section, write_report
from experiments.results import Results
from experiments.runner import execute
from experiments.spec import Spec
from experiments.store import Store
from experiments.studies.equilibrium import _swept, predicted
from experiments.study import Plan, find_study, study_classes
from experiments.tasks.toys import Cosine, Rosenbrock

STUDIES = [
    "c1",
    "detector",
    "equilibrium",
    "f1",
    "f2",
    "f3",
    "g1",
    "h6",
    "h7",
    "t1",
    "t2",
    "weight-decay",
]


def run(name_or_study, store, **plan):
    study = find_study(name_or_study) if isinstance(name_or_study, str) else name_or_study
    engine = Engine([study], Plan("smoke", **plan), store)
    engine.check()
    report = engine.run(lambda *_: None)
    assert not report.failed, report.failed
    return study, *engine.trials(study)


def test_every_study_is_here():
    assert sorted(study_classes()) == STUDIES


@pytest.mark.parametrize("name", STUDIES)
def test_smoke(name, store):
    study, trials, results = run(name, store)
    assert len(results) == len(trials) > 0
    claims, tables, pictures = study.claims(results), study.tables(results), study.pictures(results)
    assert claims
    assert tables or pictures
    for claim in claims:
        assert claim.outcome in ("reproduced", "not reproduced", "inconclusive")
        assert claim.ours != "no results", claim.text
        if claim.seeds == 1 or claim.kind == "performance":
            assert claim.outcome != "reproduced", claim.text
    ours_alone = name in ("f2", "detector", "equilibrium", "weight-decay")
    assert ours_alone or any(
        column.startswith("paper") for table in tables for column in table.columns
    )
    for table in tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
        assert not any(cell == "nan" for row in table.rows for cell in row), table
    for picture in pictures:
        assert picture.figure.data, picture.caption
        json.loads(picture.figure.to_json())
    for recipe in {item.spec.recipe for item in results}:  # as much as `--optimizers` may leave
        part = results.where(lambda item, recipe=recipe: item.spec.recipe == recipe)
        study.claims(part), study.tables(part), study.pictures(part)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_without_results_says_so(name):
    study = find_study(name)
    assert all(claim.outcome == "inconclusive" for claim in study.claims(Results([])))
    study.tables(Results([]))
    study.pictures(Results([]))


def test_a_later_stage_depends_on_an_earlier_one(tmp_path):
    _, trials, results = run(TinyStudy(), Store(tmp_path))
    assert results.arms == ["SGD", "SGDP", "longer"]
    better = max(("SGD", "SGDP"), key=lambda arm: results.arm(arm).mean("validation"))
    assert results.arm("longer").items[0].spec.recipe == better.lower()
    assert len({trial.spec.id for trial in trials}) == 6


def test_a_recipe_of_ones_own_takes_the_setting_of_its_kin(tmp_path):
    _, trials, results = run(
        TinyStudy(), Store(tmp_path), optimizers=("sgd", "spherenorm_tiny:careful")
    )
    assert {trial.spec.recipe for trial in trials} == {"sgd", "spherenorm_tiny:careful"}
    own = results.where(lambda item: item.spec.recipe == "spherenorm_tiny:careful").items
    assert own[0].spec.hyper_parameters == {"lr": 0.1, "momentum": 0.9}
    assert own[0].arm == "spherenorm_tiny:careful as SGDP"


def test_a_recipe_of_ones_own_goes_through_every_stage(store):
    _, _, results = run("f3", store, optimizers=("sgd", "spherenorm_tiny:careful"))
    arms = [arm for arm in results.arms if "careful" in arm]
    assert arms == ["spherenorm_tiny:careful as GDP: search", "spherenorm_tiny:careful as GDP"]
    assert "lr" in results.arm(arms[1]).items[0].spec.points
    assert len(results.arm(arms[1]).items[0].spec.points["lr"]) == 1


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("recipe", ["spherenorm_tiny:careful", "rmsprop"])
def test_a_recipe_that_stands_in_is_shown_in_every_study(name, recipe, store):
    study, trials, results = run(name, store, optimizers=(recipe,))
    assert len(results) == len(trials) > 0
    assert {item.spec.recipe for item in results} == {recipe}
    tables, pictures = study.every_table(results), study.every_picture(results)
    shown = [cell for table in tables for row in table.rows for cell in row]
    assert any(recipe in cell for cell in shown), tables
    assert not any("nan" in cell for cell in shown), tables
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    if name != "f2":  # whose picture is of one step of heavy-ball momentum
        assert any(
            recipe in (trace.name or "") for picture in pictures for trace in picture.figure.data
        )
    assert all(picture.figure.data for picture in pictures)
    study.claims(results)


def test_a_recipe_that_stands_in_is_beside_the_one_in_whose_place_it_is(store):
    study, _, results = run("h6", store, optimizers=("sgd", "sgdp", "spherenorm_tiny:careful"))
    (beside,) = (table for table in study.every_table(results) if "stand in" in table.title)
    assert len(beside.rows) == 5
    row = dict(zip(beside.columns, beside.rows[0], strict=True))
    assert row["arm"] == "spherenorm_tiny:careful as SGDP β=0.5"
    assert row["last norm there"] == f"{results.arm('SGDP β=0.5').mean('norm_last'):.4g}"
    assert row["last norm"] == f"{results.arm(row['arm']).mean('norm_last'):.4g}"
    _, _, alone = run("h6", store, optimizers=("sgd", "sgdp"))
    assert not any("stand in" in table.title for table in study.every_table(alone))


def test_of_a_studys_own_optimizers_only_those_that_ran_have_columns(store):
    own = "spherenorm_tiny:careful"
    study, _, results = run("t2", store, optimizers=("sgd", own))
    columns = [
        column for column in study.tables(results)[0].columns if not column.startswith("paper")
    ]
    assert columns == ["network", "SGD", f"{own} as SGDP"]
    assert not any(
        cell == "–" for table in study.tables(results) for row in table.rows for cell in row
    )


@pytest.mark.parametrize("search", ["halton", "optuna"])
@pytest.mark.parametrize(
    "optimizers", [("spherenorm_tiny:careful",), ("sgdp", "spherenorm_tiny:careful")]
)
def test_a_recipe_that_stands_in_is_tuned_by_its_own_scores_in_equal_trials(
    search, optimizers, store
):
    if search == "optuna":
        pytest.importorskip("optuna")
    own = "spherenorm_tiny:careful"
    run(
        "g1", store, optimizers=("sgdp",), settings={"search": search}
    )  # what its kin has found is known from the start
    study, _, results = run("g1", store, optimizers=optimizers, settings={"search": search})
    for arm in [f"{own} as search: sgdp", *(["search: sgdp"] if "sgdp" in optimizers else [])]:
        searched = results.arm(arm)
        assert len(searched) == len({item.spec.hyper_parameters["lr"] for item in searched}) == 2
        best = max(searched, key=lambda item: item.summary["validation"])
        tuned = results.arm(arm.replace("search", "tuned"))
        assert [item.spec.hyper_parameters["lr"] for item in tuned] == [
            best.spec.hyper_parameters["lr"]
        ]
    rows = {
        row[0]: row
        for table in study.tables(results)
        for row in table.rows
        if "equal trials" in table.title
    }
    assert rows[f"{own} as sgdp"][3] == "2"


@pytest.mark.parametrize(
    ("recipe", "has_law"),
    [
        ("adam", False),
        ("sgdg", False),
        ("adamg", False),
        ("spherenorm_tiny:careful", False),
        ("sgdw", True),
    ],
)
def test_equilibrium_says_which_recipes_have_no_law(recipe, has_law, store):
    study, _, results = run("equilibrium", store, optimizers=(recipe,))
    (table,) = study.tables(results)
    for row in table.rows:
        assert (row[3] == "no law", row[6] == "no law") == (not has_law, not has_law)
        assert float(row[4]) > 0
        assert float(row[7]) > 0
    captions = [picture.caption.split(",")[0] for picture in study.pictures(results)]
    assert captions[-1].startswith("The norm on its way")
    assert len(captions) == (3 if has_law else 1)
    assert all(claim.ours == "no results" for claim in study.claims(results))


def test_the_norm_in_equilibrium_is_predicted_from_the_gradients(store):
    """Where the weights stand at the end, |w|^4 is what the recursion's fixed point says of gradients like those there."""
    _, _, results = run("equilibrium", store, optimizers=("sgd",))
    (item,) = results
    for index, (lr, decay) in enumerate(_swept(item)):
        law = predicted("sgd", {"lr": lr, "weight_decay": decay, "momentum": 0.9})
        # By hand, for a small eta lambda: |w|^4 = gamma^2 eta / (2 lambda (1 - beta)), step^2 = 2 eta lambda / (1 + beta).
        assert law.norm(item, index) == pytest.approx(
            (item.summary["gamma_squared"][index] * lr / (2 * decay) / 0.1) ** 0.25, rel=0.01
        )
        assert law.step == pytest.approx((2 * lr * decay / 1.9) ** 0.5, rel=0.01)


def test_each_figure_of_appendix_f_has_norm_step_and_accuracy(store):
    study, _, results = run("weight-decay", store)
    captions = [picture.caption for picture in study.pictures(results)]
    for figure in ("F.1", "F.2", "F.3", "F.4", "F.5", "F.6"):
        shown = [
            caption.rpartition(": ")[2]
            for caption in captions
            if caption.startswith(f"Figure {figure}")
        ]
        assert shown == ["norm.", "effective step size.", "accuracy after each epoch."]
    accuracy = next(
        picture for picture in study.pictures(results) if "accuracy after" in picture.caption
    ).figure.data
    assert accuracy[0].name == "SGD, step, wd × 0"
    assert list(accuracy[0].x) == [
        results.items[0].summary["steps_per_epoch"]
    ]  # one epoch in this tier
    assert list(accuracy[0].y) == pytest.approx([results.items[0].summary["validation"]], abs=1e-3)


def test_the_detector_shows_both_kinds_of_errors(store):
    study, _, results = run("detector", store)
    for picture, what, kinds in zip(
        study.pictures(results), ("False", "Missed"), (3, 2), strict=True
    ):  # the transformer has none to miss
        assert picture.caption.startswith(what)
        assert len(picture.figure.data) == 2 * kinds


def test_the_search_may_learn_and_keeps_its_budget(tmp_path):
    pytest.importorskip("optuna")
    _, trials, results = run(
        "g1",
        Store(tmp_path),
        optimizers=("sgd", "sgdg"),
        settings={"search": "optuna", "epochs": 1},
    )
    for recipe, dimensions in (("sgd", 1), ("sgdg", 2)):
        searched = results.arm(f"search: {recipe}")
        assert len(searched) == 2  # the smoke tier's trials
        assert len({trial.spec.id for trial in trials if trial.arm == f"search: {recipe}"}) == 2
        assert all((item.spec.rest is not None) == (dimensions == 2) for item in searched)
        best = max(searched, key=lambda item: item.summary["validation"])
        assert (
            results.arm(f"tuned: {recipe}").items[0].spec.hyper_parameters
            == best.spec.hyper_parameters
        )
    with pytest.raises(ValueError, match="no search method is named 'optna'; did you mean optuna"):
        run("g1", Store(tmp_path), settings={"search": "optna"})


def test_settings_reach_the_runs_that_know_them():
    study = TinyStudy()
    trials = Plan("smoke", settings={"lr": 0.3, "epochs": 1, "delta": 0.2, "scale": 2.0}).apply(
        study.trials(Plan("smoke"), Results([]))
    )
    by_recipe = {trial.spec.recipe: trial.spec for trial in trials}
    assert by_recipe["sgd"].hyper_parameters == {"lr": 0.3, "momentum": 0.9}
    assert by_recipe["sgdp"].hyper_parameters == {"lr": 0.3, "momentum": 0.9, "delta": 0.2}
    assert by_recipe["sgd"].epochs == 1
    assert by_recipe["sgd"].options == {"scale": 2.0}
    with pytest.raises(ValueError, match="no run has a setting 'momentun'; did you mean momentum"):
        Plan("smoke", settings={"momentun": 0.3}).apply(study.trials(Plan("smoke"), Results([])))


def test_a_setting_of_a_swept_hyper_parameter_holds_at_every_point(tmp_path):
    study, _, results = run(
        "f3", Store(tmp_path), optimizers=("sgd", "adamp"), settings={"lr": 0.03}
    )
    points = {item.arm: item.spec.points for item in results}
    assert points["GDM: search"] == points["GDM"] == {"lr": [0.03]}
    decays = points["GDM + WD: search"]["weight_decay"]
    assert points["GDM + WD: search"] == {"lr": [0.03] * 3, "weight_decay": decays}
    assert len(set(decays)) == 3
    assert {row[1] for table in study.tables(results) for row in table.rows} == {"0.03"}
    study.pictures(results), study.claims(results)


def test_swept_values_may_be_set_where_they_fit(tmp_path):
    study, _, results = run(
        "f3", Store(tmp_path), optimizers=("adamp",), settings={"lr": [0.01, 0.03]}
    )
    assert results.arm("AdamP: search").items[0].spec.points == {"lr": [0.01, 0.03]}
    assert results.arm("AdamP").items[0].spec.points["lr"] in ([0.01], [0.03])
    for settings, counts in (
        ({"lr": [0.01, 0.03]}, "lr has 2, weight_decay has 15"),
        ({"lr": []}, "lr has 0"),
    ):
        with pytest.raises(
            ValueError, match=f"the points of a sweep need one value .* of 'sgd': {counts}"
        ):
            run(study, Store(tmp_path), optimizers=("sgd",), settings=settings)


def test_points_that_diverge_are_crosses_in_the_search_and_noted(tmp_path):
    study, _, results = run(
        "f3", Store(tmp_path), optimizers=("sgdp",), settings={"lr": [0.01, 1e300]}
    )
    assert results.arm("GDP").items[0].spec.points["lr"] == [0.01]
    (search,) = (
        picture for picture in study.pictures(results) if picture.caption.startswith("The search")
    )
    (crosses,) = (trace for trace in search.figure.data if trace.name == "diverged")
    assert list(crosses.x) == [1e300]
    assert "Points that diverged: GDP: search (1)." in study.tables(results)[0].note
    study, _, results = run("f3", Store(tmp_path), optimizers=("sgdp",), settings={"lr": 1e300})
    assert results.arms == ["GDP: search"]
    assert [len(picture.figure.data) for picture in study.pictures(results)] == [
        2
    ]  # a line without points, and the cross
    assert all(claim.outcome == "inconclusive" for claim in study.claims(results))


@pytest.mark.parametrize("name", ["f1", "f2", "equilibrium"])
def test_sweeps_of_which_all_points_diverge_are_shown(name, tmp_path):
    study, _, results = run(
        name,
        Store(tmp_path),
        settings={"lr": 1e300},
        **({"optimizers": ("sgd",)} if name == "equilibrium" else {}),
    )
    assert results.diverged
    page = write_report([Section(study, Plan("smoke"), results)], tmp_path / "page.html")
    assert not page.problems
    assert (
        "diverged" in (tmp_path / "page.html").read_text().partition('<section id="scorecard">')[2]
    )


def test_a_partly_diverged_sweep_is_in_the_table_with_what_survived(tmp_path):
    study, _, results = run(
        "equilibrium", Store(tmp_path), optimizers=("sgd",), settings={"lr": [0.1, 0.2, 0.1, 1e300]}
    )
    rows = study.tables(results)[0].rows
    assert (
        [row[4] == "diverged" for row in rows]
        == [row[7] == "diverged" for row in rows]
        == [False, False, False, True]
    )
    study.pictures(results)
    assert study.claims(results)[0].ours == "no results"  # of a claim on the worst point


def test_a_sweep_of_another_hyper_parameter_has_a_schedule_too(tmp_path):
    for hyper_parameters in ({"momentum": [0.0, 0.9]}, {"momentum": [0.0, 0.9], "lr": 0.02}, {}):
        outcome = execute(
            Spec("cosine", "sgd", hyper_parameters, epochs=5, schedule="linear", probes=()),
            tmp_path,
        )
        assert outcome.state == "finished", outcome.error


def test_the_identity_of_a_run_is_everything_that_decides_it():
    ids = {
        tiny_spec().id,
        tiny_spec(seed=1).id,
        tiny_spec(epochs=4).id,
        tiny_spec("sgd").id,
        tiny_spec(lr=0.2).id,
        Spec(
            "spherenorm_tiny:Tiny",
            "sgdp",
            {"lr": 0.1, "momentum": 0.9},
            {"scale": 2.0},
            epochs=3,
            batch_size=16,
        ).id,
    }
    assert len(ids) == 6


def test_the_toy_is_the_rosenbrock_function_on_the_sphere():
    toy = Rosenbrock()
    for c_psi, c_phi in ((-2.0, 2.0), (1.0, 1.0), (0.3, -0.4)):
        point = 2.5 * toy.point(c_psi, c_phi)
        expected = (1 - c_psi) ** 2 + 300 * (c_phi - c_psi**2) ** 2
        assert toy.value(torch.tensor(point)).item() / toy.scale == pytest.approx(
            expected, abs=1e-9
        )
        assert np.linalg.norm(toy.point(c_psi, c_phi)) == pytest.approx(1)
        assert toy.angles(point) == pytest.approx((c_psi, c_phi))


def test_a_toy_descends_as_torch_does(tmp_path):
    """The sweep's trajectory against torch.optim.SGD on the same loss."""

    spec = Spec(
        "cosine",
        "sgd",
        {"lr": [0.02, 0.1], "momentum": 0.9},
        epochs=50,
        schedule="linear",
        probes=(),
    )
    assert execute(spec, tmp_path).state == "finished"
    arrays = Store(tmp_path).folder(spec).arrays()
    w = torch.tensor([0.001, 1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
    for step in range(50):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 50)
        optimizer.zero_grad()
        Cosine().value(w).backward()
        optimizer.step()
    np.testing.assert_allclose(arrays["w"][-1, 1], w.detach().numpy(), rtol=1e-10)
