"""The report: one page with everything in it, that a browser draws without complaint, wide and narrow."""

import html.parser
import json
import re
import shutil
import subprocess

import pytest
from spherenorm_tiny import TinyStudy

from experiments.engine import Engine
from experiments.report import write_report
from experiments.store import Store
from experiments.study import Plan, find_study

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STUDIES = ("f1", "f2", "f3", "h6")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    engine = Engine([TinyStudy(), *map(find_study, STUDIES)], Plan("smoke"), Store(root))
    engine.run(lambda *_: None)
    claims = write_report([(study, engine.trials(study)[1]) for study in engine.studies], root / "report.html")
    return root / "report.html", claims


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


def test_the_page_holds_everything_and_loads_nothing(page):
    path, claims = page
    found = outline(path)
    assert found.sections == ["scorecard", "f1", "f2", "f3", "h6", "tiny"]
    assert found.loaded == []
    text = path.read_text()
    assert "Plotly.newPlot" in text
    assert text.count('<tr data-outcome="') == len(claims)
    figures = re.findall(r'<script type="application/json" id="([^"]+)">(.*?)</script>', text, re.DOTALL)
    assert len(figures) == found.plots >= 9
    for _, content in figures:
        assert json.loads(content)["data"]
    animation = json.loads(dict(figures)["f1-1"])
    assert len(animation["frames"]) > 40
    assert any(trace["type"] == "surface" for trace in json.loads(dict(figures)["f3-1"])["data"])


def test_what_a_study_says_is_escaped(page, tmp_path):
    class Marked(TinyStudy):
        """<b>bold</b> & more

        About.
        """

        def claims(self, results):
            return []

    write_report([(Marked(), Engine([], Plan("smoke"), Store(tmp_path)).trials(TinyStudy())[1])], tmp_path / "page.html")
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in (tmp_path / "page.html").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_figure_without_errors(page, tmp_path, width):
    path, _ = page
    probe = """<script>
      window.addEventListener("error", event => document.body.dataset.broken = event.message);
      window.addEventListener("load", () => setTimeout(() => {
        const plots = [...document.querySelectorAll(".plot")];
        document.body.dataset.drawn = plots.filter(plot => plot.querySelector(".main-svg")).length;
        document.body.dataset.overflow = document.documentElement.scrollWidth - window.innerWidth;
      }, 4000));
    </script>"""
    watched = tmp_path / "watched.html"
    watched.write_text(path.read_text().replace("<body>", "<body>" + probe))
    flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=20000"]
    flags += ["--enable-logging=stderr", "--v=0", "--dump-dom"]
    result = subprocess.run([CHROMIUM, *flags, watched.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    body = re.search(r"<body[^>]*>", result.stdout).group()
    plots = outline(path).plots
    assert f'data-drawn="{plots}"' in body, body
    assert "data-broken" not in body
    assert int(re.search(r'data-overflow="(-?\d+)"', body).group(1)) <= 0
    complaints = [line for line in result.stderr.splitlines() if "CONSOLE" in line and ("rror" in line or "Uncaught" in line)]
    assert not complaints
