"""The studies of the small network: tables, pictures, and what a report shows of them."""

from running import shown

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.cli import _report
from spherenorm_experiments.core import rows_of
from spherenorm_experiments.study import Plan, find_study
from tests.experiments.fabricated import fabricated


def test_the_headline_has_the_rows_without_decay():
    study, results = find_study("t1"), fabricated("t1", 0)
    rows = {}
    for table in study.tables(results)[:2]:
        for row in table.rows:
            cells = zip(map(str, table.columns), row, strict=True)
            rows.setdefault(str(row[0]), {}).update(cells)
    headline = study.headline(results)
    for row in headline.rows:
        same = rows[f"digits: {row[0]}"]
        for column, cell in list(zip(map(str, headline.columns), row, strict=True))[1:]:
            assert cell.number == same[column].number, column
    assert [str(row[0]) for row in headline.rows] == ["SGD", "SGDP", "AdamW", "AdamP"]


def test_a_terminal_counts_many_claims_and_lists_few(tmp_path, monkeypatch, capsys):
    decided = find_study("t1").decided(fabricated("t1", 0))
    page = [decision.to_json() | {"study": "t1"} for decision in decided]
    for count, lines in ((len(page), 1), (3, 6)):
        monkeypatch.setattr(
            "spherenorm_experiments.report.page.write_report",
            lambda *_, count=count: (page[:count], []),
        )
        monkeypatch.setattr("spherenorm_experiments.cli._progress.show_headlines", lambda _: None)
        _report.show_page([], tmp_path / "page.html")
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == lines + 1
    assert shown[0].strip().endswith(page[0]["text"])


def test_each_figure_of_appendix_f_has_norm_and_step():
    study = find_study("weight-decay")
    captions = [picture.caption for picture in study.pictures(fabricated("weight-decay", 0))]
    places = [condition.place for condition in study.on]
    assert len(places) == 6
    for place in places:
        own = [text.partition(",")[0] for text in captions if text.endswith(f": {place}.")]
        assert own[:2] == ["Norm of the scale-invariant units", "Effective step sizes"]


def test_a_high_decay_has_the_runs_of_the_cosine_at_the_reference():
    """So that they are computed once."""
    trials = find_study("weight-decay").trials(Plan("small"), Results([]))
    runs = {
        trial.arm.label: [spec.to_json() for spec in rows_of(trial.spec)]
        for trial in trials
        if trial.arm.settings["contender"] == "SGD, wd × 1"
    }
    assert (
        runs["SGD, cosine: SGD, wd × 1, every point"]
        == runs["SGD, high decay: SGD, wd × 1, every point"]
        != runs["SGD, step: SGD, wd × 1, every point"]
    )


def test_the_projected_optimizers_have_92_percent_of_the_steps():
    trials = find_study("h7").trials(Plan("small"), Results([]))
    steps = {trial.arm.settings["contender"]: trial.spec.epochs for trial in trials}
    assert steps["SGD"] == steps["AdamP"] == 240
    assert steps["SGDP, 92 %"] == steps["AdamP, 92 %"] == round(0.92 * 240)


def test_the_laws_of_momentum_stand_beside_the_numbers():
    """1 + 2 beta / (1 - beta) for heavy ball, and 1 with the projection."""
    norms = next(
        table for table in find_study("h6").tables(fabricated("h6", 0)) if "Norms" in table.title
    )
    column = list(map(str, norms.columns)).index("paper growth / steps²")
    laws = {row[0]: row[column] for row in shown(norms)}
    for beta in (0.5, 0.8, 0.9, 0.95, 0.975):
        assert float(laws[f"heavy ball: SGD, β = {beta:g}"]) == round(1 + 2 * beta / (1 - beta))
        assert laws[f"heavy ball: SGDP, β = {beta:g}"] == "1"
