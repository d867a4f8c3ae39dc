"""The report: one page with everything in it, that a browser draws without complaint."""

import base64
import gzip
import html
import html.parser
import json
import re
import shutil
import subprocess

import plotly.graph_objects as go
import pytest
from fabricated import compared, fabricated
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Arm, Results
from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page import Section, sections, write_report
from spherenorm_experiments.report.pictures import Picture
from spherenorm_experiments.study import Plan, Request, find_study, read_requests, study_classes

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

ORDER = [
    "matched-step",  # the question that the page opens with
    *("f1", "f2", "f3", "t1", "t2", "t3", "f4", "t4", "t5", "t6", "c1", "d1", "d2", "d3"),
    *("weight-decay", "g1", "h6", "h7", "detector", "end-of-training", "equilibrium"),
    *("lr-transfer", "norm-control", "warm-up"),
]
SHOWN = ["f2", "t1", "t3", "weight-decay", "g1", "tiny"]


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
    made += [Section(find_study(n), plan, fabricated(n, 0)) for n in ("t1", "weight-decay", "g1")]
    made.insert(2, Section(find_study("t3"), plan, compared(find_study("t3"), plan)))
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
    assert seen.sections == ["thirteen", "statements", *SHOWN, "scorecard"]
    assert seen.loaded == []
    text = path.read_text()
    assert "Plotly.newPlot" in text
    assert len(text) < 3e6
    assert unpacked(text, "library").startswith("/**\n* plotly.js")
    assert text.count('<tr data-verdict="') == len(claims)
    figures = json.loads(unpacked(text, "figures"))
    assert len(figures) == seen.plots >= 20
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


def test_readers_who_do_not_see_the_figures_are_told_of_them(page):
    text = page[0].read_text()
    labels = re.findall(r'class="plot" role="img" aria-label="([^"]+)" aria-describedby', text)
    assert len(labels) == outline(page[0]).plots
    assert "Figure: norm ‖w‖ against step. SGD, SGDP, AdamW, AdamP" in labels
    assert all(f'aria-label="{title}"' in text for title in ("Sections", "Statements of the paper"))
    assert "<th>" not in text  # each has its scope


def test_what_a_study_says_is_escaped(page, tmp_path):
    class Marked(TinyStudy):
        """<b>bold</b> & more

        About.
        """

        claims = ()

    write_report([Section(Marked(), Plan("smoke"), Results([]))], tmp_path / "page.html")
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in (tmp_path / "page.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
@pytest.mark.parametrize(
    ("width", "medium", "scheme"),
    [
        (1280, "screen", "light"),
        (1280, "screen", "dark"),
        (390, "screen", "light"),
        (740, "print", "light"),
    ],
)
def test_a_browser_draws_every_figure_without_errors(page, tmp_path, width, medium, scheme):
    path, _ = page
    # A browser window is at least 500 pixels wide; a frame may be as narrow as a phone. It reports
    # to the page around it.
    probe = """<script>{
      let broken = "";
      window.addEventListener("error", event => broken = event.message);
      const all = () => [...document.querySelectorAll(".plot")];
      const drawnNow = () => all().filter(plot => plot.querySelector(".main-svg")).length;
      const until = (done, then) => done() ? then() : setTimeout(() => until(done, then), 100);
      const first = () => document.querySelector(".plot").scrollIntoView();
      let early = 0;
      const print = () => {
        early = drawnNow();
        window.dispatchEvent(new Event("beforeprint"));
        until(() => drawnNow() === all().length, report);
      };
      window.addEventListener("load", () => {
        setTimeout(first, 2000);
        until(() => drawnNow() > 0, () => setTimeout(print, 2000));
      });
      const report = () => {
        const plots = [...document.querySelectorAll(".plot")], root = document.documentElement;
        const drawn = plots.filter(plot => plot.querySelector(".main-svg"));
        const right = plot => plot.querySelector(".main-svg").getBoundingClientRect().right;
        const fits = drawn.filter(plot => right(plot) <= innerWidth);
        const overflow = root.scrollWidth - innerWidth;
        const level = (a, b) => a.bottom > b.top && b.bottom > a.top;
        const meet = (a, b) => a && b && level(a, b) && a.right > b.left && b.right > a.left;
        const box = (plot, name) => {
          const found = plot.querySelector(name);
          return found && found.getBoundingClientRect();
        };
        const touch = plot => meet(box(plot, ".legend"), box(plot, ".xtitle"));
        const collisions = drawn.filter(touch).length;
        const tables = [...document.querySelectorAll(".scroll")];
        const clipped = tables.filter(table => table.scrollWidth > table.clientWidth).length;
        const heads = [...document.querySelectorAll(".numbers td:first-child .word")];
        const cut = heads.filter(word => word.getClientRects().length > 1).length;
        const sum = ([r, g, b]) => r + g + b;
        const bright = color => sum(color.match(/[0-9]+/g).map(Number)) > 382;
        const words = [...document.querySelectorAll(".xtitle, .ytitle, .xtick text, .legendtext")];
        const inks = [...new Set(words.map(word => bright(getComputedStyle(word).fill)))];
        const light = { page: bright(getComputedStyle(document.body).backgroundColor), inks };
        const lazy = early < plots.length;
        const seen = { lazy, light, fits: fits.length, overflow, collisions, clipped, cut, broken };
        parent.postMessage({ width: innerWidth, drawn: drawn.length, ...seen }, "*");
      };
    }</script>"""
    text = path.read_text().replace(
        "@media print", "@media all" if medium == "print" else "@media print"
    )
    (tmp_path / "inner.html").write_text(text.replace("<body>", "<body>" + probe))
    watched = tmp_path / "watched.html"
    watched.write_text(f"""<body>
    <iframe src="inner.html" width="{width}" height="900"></iframe>
    <script>
      window.addEventListener("message", event => {{
        document.body.dataset.found = JSON.stringify(event.data);
      }});
    </script></body>""")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
    ]
    flags += [f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}"]
    flags += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1400,1000",
        "--virtual-time-budget=200000",
    ]
    flags += ["--enable-logging=stderr", "--v=0", "--dump-dom"]
    result = subprocess.run(
        [CHROMIUM, *flags, watched.as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    body = re.search(r"<body[^>]*>", result.stdout).group()
    found = json.loads(html.unescape(re.search(r'data-found="([^"]*)"', body).group(1)))
    plots = outline(path).plots
    expected = {
        "width": width,
        "lazy": True,
        "drawn": plots,
        "fits": plots,
        "overflow": 0,
        "collisions": 0,
        "clipped": 0,
        "cut": 0,
        "broken": "",
    }
    expected["light"] = {"page": scheme == "light", "inks": [scheme == "dark"]}
    expected["clipped"] = (
        found["clipped"] if width == 390 else 0
    )  # on a telephone wide tables scroll
    assert {**found, "overflow": max(found["overflow"], 0)} == expected
    complaints = [
        line
        for line in result.stderr.splitlines()
        if "CONSOLE" in line and ("rror" in line or "Uncaught" in line)
    ]
    assert not complaints
