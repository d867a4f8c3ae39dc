"""The results in Markdown, and marks of results that are of other code or decide nothing."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import plotly.graph_objects as go
import pytest
from commands import invoke, run_tiny
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments import store as store_module
from spherenorm_experiments.pictures import Picture
from spherenorm_experiments.plan import Plan, read_requests
from spherenorm_experiments.report import Section, sections
from spherenorm_experiments.results import results_pages, write_results
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.store import Store
from spherenorm_experiments.verdict import Claim
from spherenorm_paper.findings import findings
from spherenorm_paper.statements import says

KNOWN = says("t1.restrain")


def around_one(results):
    return pd.Series([1.0, 1.1, 0.9])


def pages(study, results, **more):
    return results_pages([Section(study, Plan("full"), results, **more)])


def page(results, **more):
    return pages(TinyStudy(), results, **more)["index.md"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_study(TinyStudy(), Store(tmp_path_factory.mktemp("results")))[2]


class Stating(TinyStudy):
    """Two claims of one statement, and one of another"""

    name = "t1"

    claims = (
        Claim("large", "> 2", around_one, "it is large", KNOWN),
        Claim("positive", "> 0", around_one, "it is positive", KNOWN),
        Claim("more", "> 0", around_one, "it is more than nothing", says("3.steps")),
    )


def test_the_index_opens_with_statements_by_subject(results):
    """Each counts once, however many claims it has; what is contradicted is quoted there."""
    sections = [Section(Stating(), Plan("full"), results)]
    found = {each.name: each for each in findings(sections)}
    assert (found["t1.restrain"].outcome, found["3.steps"].outcome) == ("holds in part", "holds")
    assert found["1.share"].outcome == "not tested"
    assert found["d3.cause"].outcome == "not tested"
    verdicts = [claim["verdict"] for claim in found["t1.restrain"].claims]
    assert sorted(verdicts) == ["contradicted", "supported"]
    text = results_pages(sections)["index.md"]
    screen = text[: text.index("## ")]
    (row,) = re.findall(r"^\| all \|(.*)\|$", screen, re.MULTILINE)
    counts = [int(cell) if cell.strip() else 0 for cell in row.split("|")]
    assert counts[:3] == [1, 0, 1]
    assert sum(counts) == len(found)
    assert f"Holds in part: “{KNOWN.quotation}”" in screen
    assert "t1.large" in screen
    assert text.count(says("3.steps").quotation) == 2  # what holds, and the table


def test_the_versions_are_those_that_the_runs_were_made_with(results):
    """Of each that worked on one, not of the process that writes the page."""
    item = results.items[0]
    there = {**item.about, "torch": "1.2.3+cpu", "spherenorm": "0.0.9"}
    there |= {"gpu": "a GPU", "commit": "0123456789abcdef"}
    results = Runs([*results.items[1:], replace(item, about=there)])
    line = page(results).split("## Versions")[1]
    assert "spherenorm 0.0.9 (commit 0123456789), torch 1.2.3, Python 3" in line
    assert line.count("a GPU") == 1
    assert line.count(item.about["cpu"]) == 1


def test_the_command_writes_the_pages(tmp_path):
    assert run_tiny(tmp_path).exit_code == 0
    result = invoke("results", "--out", tmp_path, "--into", tmp_path / "results")
    assert result.exit_code == 0, result.output
    pages = sorted(path.name for path in (tmp_path / "results").glob("*.md"))
    assert pages == ["index.md", "tiny-smoke.md"]
    assert "SGDP's norm is smaller" in (tmp_path / "results" / "tiny-smoke.md").read_text()
    nowhere = invoke("results", "--out", tmp_path / "none", "--into", tmp_path / "x")
    assert nowhere.exit_code == 2
    assert not (tmp_path / "x").exists()


class Drawn(TinyStudy):
    """A study with a figure of the paper's, and one of its own"""

    def pictures(self, runs):
        line = go.Figure(go.Scatter(x=[1, 2], y=[3, 4]))
        surface = go.Figure(go.Surface(z=[[1, 2], [3, 4]]))
        return [Picture(line, "Of ours."), Picture(line, "A line.", shows="Figure 3"),
                Picture(surface, "A sphere.", shows="Figure 4", wide=True)]  # fmt: skip


def test_the_papers_figures_are_drawn_beside_the_claims(results, tmp_path, monkeypatch):
    asked = []

    def write(figures, paths, width, height):
        asked.extend(zip(figures, width, height, strict=True))
        for k, path in enumerate(paths):
            path.write_bytes(bytes([k]))

    sections = [Section(Drawn(), Plan("small"), results)]
    monkeypatch.setattr("plotly.io.write_images", write)
    monkeypatch.setitem(sys.modules, "kaleido", SimpleNamespace())
    write_results(sections, tmp_path, figures=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["index.md", "tiny-1.svg", "tiny-2.webp", "tiny.md"]
    assert (tmp_path / "tiny-2.webp").read_bytes() == b"\1"
    text = (tmp_path / "tiny.md").read_text()
    assert "![Figure 3](tiny-1.svg)\n\n**Figure 3.** A line." in text
    assert "Of ours." not in text
    assert [(figure.data[0].type, *size) for figure, *size in asked] == [
        ("scatter", 640, 380), ("surface", 1000, 380),
    ]  # fmt: skip
    assert all(figure.layout.paper_bgcolor == "white" for figure, *_ in asked)
    assert "Figure 3" not in results_pages(sections)["tiny.md"]


def test_without_kaleido_the_extra_is_named_before_anything_is_written(
    results, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "kaleido", None)
    with pytest.raises(ValueError, match=r"needs the extra pictures .*spherenorm\[pictures\]"):
        write_results([Section(Drawn(), Plan("small"), results)], tmp_path, figures=True)
    assert list(tmp_path.iterdir()) == []


def test_results_of_edited_code_are_marked(tmp_path, monkeypatch):
    run_tiny(tmp_path, "--seeds", "1", study="spherenorm_tiny:OwnStudy")
    requests = read_requests(Store(tmp_path))[0]
    (now,) = sections(Store(tmp_path), requests)
    assert now.notes == []
    digest = store_module.file_digest

    def edited(path):
        return "edited" if path.name == "spherenorm_tiny.py" else digest(path)

    monkeypatch.setattr(store_module, "file_digest", edited)
    (later,) = sections(Store(tmp_path), requests)
    count = len(later.results)
    assert later.notes == [
        f"{count} of {count} runs are of other code than is here; changed since: spherenorm_tiny"
    ]
    many = replace(later, older=[["a", ""], ["b", "c", "d"]])
    changed = "changed since: unknown, a, b and 2 more"
    assert many.notes == [f"2 of {count} runs are of other code than is here; {changed}"]
    for command in ("report", "export"):
        assert later.notes[0] in invoke(command, "--out", tmp_path).stderr
    told = json.loads(invoke("report", "--out", tmp_path, "--json").stdout)["notes"]
    assert told == [f"{later.label}: {note}" for note in later.notes]


def test_a_smoke_run_decides_nothing(tmp_path):
    assert invoke("run", "f1", "--tier", "smoke", "--out", tmp_path).exit_code == 0
    (section,) = sections(Store(tmp_path), read_requests(Store(tmp_path))[0])
    decided = section.study.decide_claims(section.results)
    assert {each.verdict for each in decided} - {"inconclusive"}  # the same runs, in a larger tier
    shown = json.loads(invoke("report", "--out", tmp_path, "--json").stdout)
    verdicts = {claim["verdict"] for claim in shown["claims"]}
    assert verdicts == {"not tested"}
    for mine, theirs in zip(section.decisions, decided, strict=True):
        assert mine.numbers == theirs.numbers
        assert mine.detail.startswith("the smoke tier decides nothing")
