"""A score that falls as a model improves: what is chosen, compared and shown is mirrored."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from commands import invoke
from running import shown
from scipy import stats
from spherenorm_bench import PLAIN, SGD, SGDP, small_table

from spherenorm_experiments.comparison import Arm
from spherenorm_experiments.plan import Plan
from spherenorm_experiments.report import ComparisonText, Section
from spherenorm_experiments.runs import Runs
from tests.experiments.fabricated import result
from tests.harness.tables import mostly_long

RISING, FALLING = "spherenorm_tiny:Tiny", "spherenorm_falling:Falling"
SIGN = {RISING: 1.0, FALLING: -1.0}


def compare(out, task, *more, optimizers="sgd,adamp", seeds="0:6", trials=3):
    words = ("--task", task, "--optimizers", optimizers, "--search", "lr=1e-2:1e2")
    common = ("--tier", "small", "--epochs", 2, "--jobs", 0, "--out", out)
    return invoke("compare", *words, *common, "--trials", trials, "--seeds", seeds, *more)


def summaries(out):
    """Each run's recipe, rate, seed and summary, read from the files by no code of ours."""
    for path in sorted(out.glob("runs/*")):
        (row,) = json.loads((path / "rows.json").read_text())["rows"]
        spec = row["spec"]
        key = spec["recipe"], spec["hyper_parameters"]["lr"], spec.get("seed", 0)
        yield key, row["summary"]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The same runs, with the squared error as the score and with minus the squared error."""
    made = {}
    for task in (RISING, FALLING):
        out = tmp_path_factory.mktemp("direction")
        made[task] = out, compare(out, task)
        assert made[task][1].exit_code == 0, made[task][1].output
    return made


def plain_verdict(out):
    """Chosen rates, gaps and p of a falling score, by loops of our own."""
    runs = dict(summaries(out))
    rates = sorted({lr for _, lr, _ in runs})
    chosen, gaps = {}, []
    for seed in range(6):
        tests = {}
        for recipe in ("sgd", "adamp"):
            losses = {}
            for lr in rates:
                loss = runs[recipe, lr, seed]["validation"]
                losses[lr] = math.inf if loss is None else loss
            best = min(rates, key=losses.get)
            chosen.setdefault(recipe, []).append(best)
            tests[recipe] = runs[recipe, best, seed]["test"]
        gaps.append(tests["adamp"] - tests["sgd"])
    return chosen, gaps, stats.ttest_1samp(gaps, 0.0).pvalue


def test_the_verdict_is_that_of_plain_loops(stores):
    out, printed = stores[FALLING]
    _, gaps, p = plain_verdict(out)
    report = json.loads(invoke("report", "--out", out, "--json").stdout)
    (claim,) = report["claims"]
    assert claim["numbers"][0]["value"] == pytest.approx(np.mean(gaps), rel=1e-9)
    assert claim["p"] == pytest.approx(min(1.0, p), rel=1e-6)
    decided = "supported" if np.mean(gaps) < 0 else "contradicted"
    assert claim["verdict"] == (decided if p < 0.05 else "inconclusive")
    assert claim["text"] == f"adamp scores lower than sgd ({FALLING}; lower is better)"
    word = "lower" if np.mean(gaps) < 0 else "higher"
    assert f"adamp scores {abs(np.mean(gaps)):.3g} {word} than sgd" in printed.output


def test_a_rising_and_a_falling_score_of_the_same_runs_are_mirrored(stores):
    claims = {}
    for task, (out, _) in stores.items():
        (claims[task],) = json.loads(invoke("report", "--out", out, "--json").stdout)["claims"]
    rising, falling = claims[RISING], claims[FALLING]
    assert rising["verdict"] == falling["verdict"]
    assert rising["p"] == pytest.approx(falling["p"], rel=1e-9)
    assert rising["numbers"][0]["value"] == pytest.approx(-falling["numbers"][0]["value"], rel=1e-9)
    taken = [re.findall(r"(?:\S+ ×\d,? ?)+", printed.output) for _, printed in stores.values()]
    assert taken[0]
    assert taken[0] == taken[1]


def test_every_output_says_the_direction(stores):
    out, printed = stores[FALLING]
    assert "(mse, lower is better)" in printed.output
    assert printed.output.count("is better") == 1
    exported = invoke("export", "--out", out).stdout
    assert re.search(r"^# .*: Scores \(mse, lower is better\)$", exported, re.MULTILINE)
    latex = invoke("export", "--out", out, "--format", "latex").stdout
    assert "Scores (mse, lower is better)" in latex
    (page,) = out.glob("compare*.html")
    text = page.read_text()
    assert text.count("lower is better") >= 4  # title, verdict, table, claim
    assert "higher is better" not in text


def test_resume_ends_with_the_verdict_and_the_page_as_compare_does(stores):
    out, printed = stores[FALLING]
    again = invoke("resume", "--out", out, "--jobs", 0)
    first, *rest = again.output.splitlines()
    assert first.startswith("0 runs now, 36 results")
    kept = printed.stdout.splitlines()
    assert rest == kept[1:]
    assert rest[-1] == f"page: {next(out.glob('compare*.html'))}"


def test_lines_say_how_many_runs_have_ended_where_no_bar_is_shown(stores):
    """At most one line for each tenth of them; quick runs may end several between two looks."""
    lines = [line for line in stores[RISING][1].stderr.splitlines() if " of 36 runs" in line]
    tenths = [10 * int(line.split()[0]) // 36 for line in lines]
    assert tenths
    assert tenths == sorted(set(tenths))
    assert all(line.endswith(" s so far") for line in lines)


def test_the_known_best_rate_is_taken(tmp_path):
    task = "spherenorm_falling:Valley"
    more = ("--set", "schedule=constant", "--set", "sgd:momentum=0")
    printed = compare(tmp_path, task, *more, optimizers="sgd,adamw", seeds="0:2")
    assert printed.exit_code == 0, printed.output
    sgd = re.search(r"^ sgd +(.*)$", printed.output, re.MULTILINE).group(1)
    assert re.match(r"0 ± 0 +1 ×2 ", sgd)
    losses = {key: summary["test"] for key, summary in summaries(tmp_path)}
    assert losses["sgd", 1.0, 0] == pytest.approx(0.0, abs=1e-12)
    assert losses["sgd", 0.01, 0] > 1
    assert losses["sgd", 100.0, 0] > 1  # 99 times farther away after each step


@pytest.mark.parametrize("task", ["Undirected", "Misdirected"])
def test_a_task_that_does_not_say_its_direction_is_refused_before_anything_runs(tmp_path, task):
    found = compare(tmp_path, f"spherenorm_falling:{task}")
    assert found.exit_code == 2
    assert task in found.output
    assert ("'mse'" in found.output) == (task == "Undirected")
    assert "'higher' or 'lower'" in found.output or 'better = "lower"' in found.output
    assert not list(tmp_path.glob("runs/*"))
    study = ("--seeds", "1", "--jobs", 0, "--out", tmp_path)
    assert compare(tmp_path, f"spherenorm_falling:{task}", "--dry-run", *study[:2]).exit_code == 2


def worlds(task, world):
    """A study with runs until nothing is left, of scores by chance; some runs diverged."""
    other = Arm("Adam", {"lr": (1e-3, 1e-2, 1e-1)}, fixed={})
    study = small_table(
        arms=[SGD, SGDP, other], tune={"lr": (0.01, 0.03, 0.1)}, claims=(),
        conditions=[replace(PLAIN, task=task, setup={}, unit="", margin=0.4)],
        seeds={"small": 6},
    )  # fmt: skip
    items, trials = [], []
    centers = np.random.default_rng([world, 1]).normal(-3, 1.5, size=3)
    while len(trials := study.trials(Plan(), Runs(items))) > len(items):
        known = {item.spec.text.replace(item.spec.task, "") for item in items}
        for trial in trials:
            spec = trial.spec
            text = spec.text.replace(spec.task, "")
            if text in known:
                continue
            random = np.random.default_rng([world, *text.encode()])
            center = centers[("sgd", "sgdp", "adam").index(spec.recipe)]
            good = -abs(math.log(spec.hyper_parameters["lr"]) - center) + 0.3 * random.normal()
            if world % 2:
                good = round(good)  # ties
            score, test = SIGN[task] * good, SIGN[task] * (good + 0.1 * random.normal())
            lost = random.random() < (0.15 if world % 3 == 0 else 0.0)
            summary = {"validation": score, "test": test, "score": "q", "test_metrics": {"q": test}}
            if lost:
                summary = {"validation": None, "test": None, "score": None, "diverged_at": 3}
            items.append(result(trial.place, 0, spec, metric="q", norm_start=2.0,
                                norm_last=None if lost else 3.0, **summary))  # fmt: skip
    return study, Runs(items)


@pytest.mark.parametrize("world", mostly_long(range(12), kept=4))
def test_worlds_are_mirrored_with_grids_that_grow_ties_and_runs_that_diverged(world):
    both = [worlds(task, world) for task in (RISING, FALLING)]
    entries = [study.arm_results(runs) for study, runs in both]
    for up, down in zip(*entries, strict=True):
        assert (up.better, down.better) == ("higher", "lower")
        assert up.grid_scores["hyper.lr"].tolist() == down.grid_scores["hyper.lr"].tolist()
        assert up.selected_runs.lr.tolist() == down.selected_runs.lr.tolist()
        assert up.selected_runs.test.tolist() == pytest.approx((-down.selected_runs.test).tolist())
        for name in ("selected_points", "edges", "unscored", "notes", "edge_advice"):
            assert getattr(up, name) == getattr(down, name)
        assert up.best == down.best
    first, second = (study.decide_claims(runs) for study, runs in both)
    for up, down in zip(first, second, strict=True):
        assert (up.verdict, up.supported, up.seeds) == (down.verdict, down.supported, down.seeds)
        assert up.p == pytest.approx(down.p)
        assert up.p_equivalent == pytest.approx(down.p_equivalent)
        assert up.numbers[0].diverged == down.numbers[0].diverged
    turned = str.maketrans({"-": "+", "+": "-"})
    for up, down in zip(*([t for t in s.tables(r) if t.title == "Tuning"] for s, r in both),
                        strict=True):  # fmt: skip
        for mine, theirs in zip(shown(up), shown(down), strict=True):
            assert mine[:3] == theirs[:3]
            numbers = [re.sub(r"^(?=[\d.])", "+", cell) for cell in mine[3:]]
            assert [x.translate(turned).lstrip("+") for x in numbers] == [
                x.lstrip("+") for x in theirs[3:]
            ]
    pages = [ComparisonText(Section(study, Plan(), runs)) for study, runs in both]
    for up, down in zip(pages[0].sentences, pages[1].sentences, strict=True):
        assert up.verdict == down.verdict
        assert ("higher than" in up.text) == ("lower than" in down.text)
    spans = [[picture.figure.layout.yaxis.range for picture in study.pictures(runs)[:1]]
             for study, runs in both]  # fmt: skip
    assert [(-b, -a) for a, b in spans[0]] == [pytest.approx(span) for span in spans[1]]


def test_a_diverged_run_is_worst_in_the_frame_of_either_direction():
    for task, sign in SIGN.items():
        _, runs = worlds(task, 3)
        lost = runs.frame[np.isinf(runs.frame.norm_last)]
        assert len(lost)
        assert set(lost.test) == set(lost.validation) == {-sign * math.inf}
        assert set(lost.goodness) == {-math.inf}
