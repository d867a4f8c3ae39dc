"""Table 1: what a terminal shows of it, and what a report counts."""

from fabricated import fabricated

from spherenorm_experiments.cli import _report
from spherenorm_experiments.study import find_study


def test_the_headline_has_the_rows_without_decay():
    study, results = find_study("t1"), fabricated("t1", 0)
    table, headline = study.tables(results)[0], study.headline(results)
    rows = {str(row[0]): row for row in table.rows}
    places = [list(map(str, table.columns)).index(str(name)) for name in headline.columns[1:]]
    for row in headline.rows:
        same = [rows[f"{row[0]}, wd 0"][place].number for place in places]
        assert [cell.number for cell in row[1:]] == same
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
