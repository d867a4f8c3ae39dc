"""The report: one page with everything in it; the table of the thirteen benchmarks."""

import base64
import gzip
import json
import math
import re
from decimal import Decimal

import pytest
from running import run_study, shown
from spherenorm_bench import SMALL_TABLE
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.comparison import Comparison, Condition, find_study, study_classes
from spherenorm_experiments.plan import Plan, Request, read_requests
from spherenorm_experiments.report import Section, sections, write_report
from spherenorm_experiments.runs import Place, Runs
from spherenorm_experiments.store import Store
from spherenorm_experiments.tables import Cell
from spherenorm_paper.thirteen import THIRTEEN, across, thirteen_table
from tests.experiments.fabricated import fabricated, result

ORDER = [
    *("f1", "f2", "f3", "t1", "t2", "t3", "f4", "t4", "t5", "t6", "c1", "d1", "d2", "d3"),
    *("weight-decay", "g1", "h6", "h7"),
]
SHOWN = ["f2", "t1"]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of fabricated results, and of one study that ran."""
    folder, plan = tmp_path_factory.mktemp("report"), Plan("small")
    study, _, ran = run_study("f2", Store(folder))
    made = [Section(study, plan, ran)]
    made.append(Section(find_study("t1"), plan, fabricated("t1", 0)))
    page = write_report(made, folder / "report.html")
    assert not page.problems
    return folder / "report.html", page.claims


def unpacked(text, name):
    (packed,) = re.findall(rf'<script type="application/gzip" id="{name}">(.*?)</script>', text)
    return gzip.decompress(base64.b64decode(packed)).decode()


def test_the_page_holds_everything_and_loads_nothing(page):
    path, claims = page
    text = path.read_text()
    sections = re.findall(r'<section id="([^"]+)"', text)
    assert sections == ["statements", *SHOWN, "scorecard"]
    assert not re.search(r"<link |<[^>]* src=", text)
    assert "Plotly.newPlot" in text
    assert len(text) < 3e6
    assert unpacked(text, "library").startswith("/**\n* plotly.js")
    assert text.count('<tr data-verdict="') == len(claims)
    figures = json.loads(unpacked(text, "figures"))
    assert len(figures) == len(re.findall(r"<[^>]* data-figure", text)) >= 2
    assert all(figure["data"] for figure in figures.values())
    for figure in figures.values():
        axes = [axis for name, axis in figure["layout"].items() if re.match("[xy]axis", name)]
        assert all(axis["exponentformat"] == "power" for axis in axes if axis.get("type") == "log")


def test_sections_are_in_the_order_of_the_paper(tmp_path):
    store = Store(tmp_path)
    for name in sorted(study_classes()):
        Request([name], Plan("smoke")).save(store)
    for plan in (Plan("small", overrides={"lr": 1.0}), Plan("small")):
        Request(["f1"], plan).save(store)
    made = sections(store, read_requests(store)[0])
    assert list(dict.fromkeys(section.study.name for section in made)) == ORDER
    assert [section.label for section in made[:3]] == ["f1", "f1 (smoke)", "f1 (lr=1.0)"]


def test_what_a_study_says_is_escaped(page, tmp_path):
    class Marked(TinyStudy):
        """<b>bold</b> & more

        About.
        """

        claims = ()

    write_report([Section(Marked(), Plan("smoke"), Runs())], tmp_path / "page.html")
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in (tmp_path / "page.html").read_text()


def section(study, items):
    return Section(study, Plan("small"), Runs(items))


def of_small_table(sgd_scores, sgdp_scores, lost=()):
    pairs = [("SGD", sgd_scores), ("SGDP", sgdp_scores)]
    made = [
        result(Place("plain", arm), seed, test=score, validation=score, test_metrics={})
        for arm, scores in pairs
        for seed, score in enumerate(scores)
    ]
    return [*made, *(result(Place("plain", "SGDP"), seed, diverged_at=3) for seed in lost)]


def test_the_table_has_a_row_for_each_and_counts_verdicts():
    made = section(SMALL_TABLE, of_small_table([50.0, 52.0, 51.0], [51.0, 52.5, 50.0]))
    table = thirteen_table([made])
    rows = shown(table)
    assert [row[0].partition(":")[0] for row in rows] == list(THIRTEEN)
    assert rows[0][:2] == ["ImageNet: plain (small-table)", "SGD → SGDP"]
    assert rows[0][4] == made.decisions[0].number_text
    assert rows[1][0] == "MS-COCO: not run"
    assert rows[0][-2:] == ["70.47 → 70.70", "+0.23"]
    assert "Of 1 comparisons: 1 not tested." in table.about
    assert thirteen_table([section(SMALL_TABLE, [])]) is None


def test_the_table_has_no_mean_over_the_seeds_that_were_not_lost():
    """Over them alone an optimizer that often diverges would look better than one that does not."""
    items = of_small_table([50.0 + seed for seed in range(8)], [90.0, 90.0], lost=range(2, 7))
    row = shown(thirteen_table([section(SMALL_TABLE, items)]))[0]
    assert row[2:4] == ["53.0 ± 2.2", "– (5 diverged)"]  # seeds 0 to 6 have ended in both


def of_benchmarks(gains, rows=1, few=()):
    """A comparison on as many benchmarks, each with these gains in deviations, in several rows.

    Args:
        few: the benchmarks whose rows have two seeds.
    """
    conditions = [
        Condition(f"{name} {row}", "digits", benchmark=name,
                  paper={"accuracy": {"adam": Cell(Decimal(0)), "adamp": Cell(Decimal(1))}})
        for name in THIRTEEN[: len(gains)] for row in range(rows)
    ]  # fmt: skip
    study = Comparison(
        "thirteen", arms=["adam", "adamp"], tune={"lr": [0.1, 0.2]}, conditions=conditions
    )
    away = math.sqrt(5 / 6)
    scores = [50.0 - away, 50.0 + away] * 3  # of deviation 1
    items = [
        result(Place(condition.label, arm), seed, recipe=arm, validation=score,
               test=score + (gain if arm == "adamp" else 0.0))
        for condition, gain in zip(conditions, [g for g in gains for _ in range(rows)], strict=True)
        for arm in ("adam", "adamp")
        for seed, score in enumerate(scores[: 2 if condition.benchmark in few else 6])
    ]  # fmt: skip
    return across([section(study, items)])


@pytest.mark.parametrize("rows", [1, 4])
def test_a_benchmark_counts_once_however_many_rows_it_has(rows):
    (over_spread,) = of_benchmarks([2.0] * 11 + [-0.5] * 2, rows)
    assert (over_spread.seeds, over_spread.verdict) == (13, "supported")
    assert over_spread.detail == "11 of 13 benchmarks; not on In-Shop, SOP"
    (none,) = of_benchmarks([0.5] * 9 + [-0.5] * 4, rows)
    assert none.verdict == "contradicted"


def test_few_benchmarks_decide_nothing():
    assert {claim.verdict for claim in of_benchmarks([2.0] * 5)} == {"not tested"}
    assert not any(claim.has_results for claim in across([]))


def test_a_row_of_few_seeds_speaks_for_no_benchmark():
    """Without any gain the mean of two is above their deviation in a quarter of all cases."""
    gains = [2.0] * 9 + [-0.5, 9.0, 9.0, 9.0]
    for claim in of_benchmarks(gains, rows=2, few=THIRTEEN[10:]):
        assert claim.seeds == 10
        below, few = THIRTEEN[9], ", ".join(THIRTEEN[10:])
        assert claim.detail == f"9 of 10 benchmarks; not on {below}; no row with 6 seeds of {few}"
    assert not any(claim.has_results for claim in of_benchmarks([2.0], few=THIRTEEN[:1]))
