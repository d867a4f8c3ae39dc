"""The report: one page with everything in it."""

import base64
import gzip
import html
import html.parser
import json
import re

import plotly.graph_objects as go
import pytest
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Arm, Results
from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page import Section, sections, write_report
from spherenorm_experiments.report.pictures import Picture
from spherenorm_experiments.study import Plan, Request, find_study, read_requests, study_classes
from tests.experiments.fabricated import fabricated

ORDER = [
    "matched-step",  # the question that the page opens with
    *("f1", "f2", "f3", "t1", "t2", "t3", "f4", "t4", "t5", "t6", "c1", "d1", "d2", "d3"),
    *("weight-decay", "g1", "h6", "h7", "detector", "end-of-training", "equilibrium"),
    *("lr-transfer", "norm-control", "warm-up"),
]
SHOWN = ["f2", "t1", "tiny"]


class Drawing(TinyStudy):
    """A surface, and a path"""

    def pictures(self, results):
        surface = go.Figure(go.Surface(z=[[0.0, 1.0], [1.0, 2.0]]))
        path = go.Figure(go.Scatter(x=[0, 1], y=[0, 1], name="path"))
        return [Picture(surface, "A surface."), Picture(path, "A path.", wide=True)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of fabricated results, and of one study that ran."""
    folder, plan = tmp_path_factory.mktemp("report"), Plan("small")
    study, _, ran = run_study("f2", Store(folder))
    made = [Section(study, plan, ran)]
    made.append(Section(find_study("t1"), plan, fabricated("t1", 0)))
    made.append(Section(Drawing(), plan, Results([])))
    page = write_report(made, folder / "report.html")
    assert not page.problems
    return folder / "report.html", page.claims


class Outline(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections, self.plots, self.loaded, self.open = [], 0, [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.sections += [attrs["id"]] if tag == "section" else []
        self.plots += "data-figure" in attrs
        self.loaded += [attrs[name] for name in ("src",) if name in attrs]
        self.loaded += [attrs["href"]] if tag == "link" else []


def outline(path):
    parser = Outline()
    parser.feed(path.read_text())
    return parser


def unpacked(text, name):
    (packed,) = re.findall(rf'<script type="application/gzip" id="{name}">(.*?)</script>', text)
    return gzip.decompress(base64.b64decode(packed)).decode()


def test_the_page_holds_everything_and_loads_nothing(page):
    path, claims = page
    seen = outline(path)
    assert seen.sections == ["statements", *SHOWN, "scorecard"]
    assert seen.loaded == []
    text = path.read_text()
    assert "Plotly.newPlot" in text
    assert len(text) < 3e6
    assert unpacked(text, "library").startswith("/**\n* plotly.js")
    assert text.count('<tr data-verdict="') == len(claims)
    figures = json.loads(unpacked(text, "figures"))
    assert len(figures) == seen.plots >= 4
    assert all(figure["data"] for figure in figures.values())
    assert any(trace["type"] == "surface" for trace in figures["figure-tiny-1"]["data"])
    for figure in figures.values():
        axes = [axis for name, axis in figure["layout"].items() if re.match("[xy]axis", name)]
        assert all(axis["exponentformat"] == "power" for axis in axes if axis.get("type") == "log")


def test_sections_are_in_the_order_of_the_paper(tmp_path):
    store = Store(tmp_path)
    for name in sorted(study_classes()):
        asked = {name: [(Arm("SGD", "sgd"), "not-run")]}
        for plan in (Plan("smoke"), Plan("small", overrides={"lr": 1.0}), Plan("small")):
            Request([name], plan, asked).save(store)
    made = sections(store, read_requests(store)[0])
    assert [section.study.name for section in made[::3]] == ORDER
    assert [section.label for section in made[3:6]] == ["f1", "f1 (smoke)", "f1 (lr=1.0)"]


def test_what_a_study_says_is_escaped(page, tmp_path):
    class Marked(TinyStudy):
        """<b>bold</b> & more

        About.
        """

        claims = ()

    write_report([Section(Marked(), Plan("smoke"), Results([]))], tmp_path / "page.html")
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in (tmp_path / "page.html").read_text()
