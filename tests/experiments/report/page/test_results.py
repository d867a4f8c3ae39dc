"""The page of results in Markdown: verdicts by kind, statements, versions and hashes."""

import re

import pytest
from commands import invoke, run_tiny
from running import run_study
from spherenorm_tiny import TinyStudy

from spherenorm_experiments.analysis import Claim, Statement
from spherenorm_experiments.engine import Store
from spherenorm_experiments.report.page import Section, results_page
from spherenorm_experiments.study import Plan

SAID = Statement("paper", "Table 1", "norms | grow")


def around_one(results):
    return dict(enumerate([1.0, 1.1, 0.9]))


def page(results, **more):
    return results_page([Section(TinyStudy(), Plan("smoke"), results, **more)])


class Claiming(TinyStudy):
    """Claims of every kind

    For the tests.
    """

    claims = (
        Claim("large", "it is large", around_one, ">", 2.0, cites=SAID, primary=True),
        Claim("positive", "it is positive", around_one, ">", 0.0, cites=SAID),
        Claim(
            "identical",
            "by construction",
            around_one,
            ">",
            0.0,
            cites=Statement("identity", "Lemma 2.1"),
        ),
        *TinyStudy.claims,
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_study(TinyStudy(), Store(tmp_path_factory.mktemp("results")))[2]


def test_failures_come_first_and_kinds_are_counted_apart(results):
    text = results_page([Section(Claiming(), Plan("smoke"), results)])
    counts = re.findall(r"^- \*\*(.*?)\*\*: (.*)\.$", text, re.MULTILINE)
    assert [title.split(":")[0] for title, _ in counts] == [
        "Statements of the paper",
        "Identities",
        "Ours",
    ]
    assert counts[0][1].startswith("1 reproduced, 1 not reproduced")
    assert counts[1][1].startswith("1 holds, 0 does not hold")
    against = text.index("## What speaks against the paper")
    assert against < text.index("## Statements of the paper")
    row = next(line for line in text[against:].splitlines() if line.startswith("| **tiny.large**"))
    assert "not reproduced" in row
    assert r"Table 1: “norms \| grow”" in row
    assert re.search(r"\| tiny \(smoke\) \| 6 \| [0-9a-f]{16} \|", text)
    assert re.search(r"spherenorm [\d.]+, torch [\d.]+, Python 3", text)


def test_the_versions_are_those_that_the_runs_were_made_with(results):
    """Of each that worked on one, not of the process that writes the page."""
    folder = results.items[0].folder
    (origin,) = folder.read_json("origin.json")
    there = {**origin, "torch": "1.2.3+cpu", "spherenorm": "0.0.9", "gpu": "a GPU"}
    folder.write_json("origin.json", [origin, there])
    line = page(results).split("## Versions and hashes")[1]
    assert "spherenorm 0.0.9, torch 1.2.3, Python 3" in line
    assert line.count("a GPU") == 1
    assert line.count(origin["cpu"]) == 1


def test_the_page_names_runs_that_failed_and_those_of_other_code(results):
    some = results.where(lambda item: True)
    some.failed = ["SGD: it gave up"]
    text = page(some, older=["SGDP"])
    assert "- tiny (smoke): failed: SGD: it gave up\n" in text
    assert "- tiny (smoke): of other code than is here: SGDP\n" in text


def test_the_same_runs_have_the_same_hash_and_others_another(results):
    part = results.where(lambda item: item.spec.seed == 0)
    hashes = [re.search(r"\b[0-9a-f]{16}\b", page(x)).group() for x in (results, results, part)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_command_writes_the_page(tmp_path):
    assert run_tiny(tmp_path).exit_code == 0
    result = invoke("results", "--out", tmp_path, "--file", tmp_path / "results.md")
    assert result.exit_code == 0, result.output
    assert "SGDP's norm is smaller" in (tmp_path / "results.md").read_text()
    nowhere = invoke("results", "--out", tmp_path / "none", "--file", tmp_path / "x.md")
    assert nowhere.exit_code == 2
    assert not (tmp_path / "x.md").exists()
