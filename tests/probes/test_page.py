"""The live page: whole files, bounded memory, and notes that a run deserves."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest

from spherenorm.probes import Measurement, Page, WandB
from spherenorm.probes._history import MOST, History

FIRST = Measurement(1, "<w>", "channel", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "channel")


def course(steps, name="w", **of_step):
    """Measurements at these steps; `of_step` has functions of the step."""
    return [
        replace(FIRST, step=t, weight=name, **{k: f(t) for k, f in of_step.items()}) for t in steps
    ]


def notes(*courses, equilibrium=None):
    history = History(equilibrium)
    for each in courses:
        history.add(each)
    return {name: " ".join(found) for name, found in history.notes().items()}


STEPS = range(1, 41)


@pytest.mark.parametrize(
    ("of_step", "said"),
    [
        ({"effective_step": lambda t: 0.1 * 0.8**t}, "effective step dies"),
        ({"effective_step": lambda t: 0.0 if t > 30 else 0.1}, "effective step is 0"),
        ({"norm": lambda t: 1 + t / 40}, "grown 2.00-fold"),
        ({"turn": lambda t: 1.0 if t == 1 else 0.1}, "10 times its median: a warm-up"),
    ],
)
def test_what_goes_wrong_is_named_and_only_there(of_step, said):
    found = notes(course(STEPS, "good"), course(STEPS, "bad", **of_step), course(STEPS, "fine"))
    assert list(found) == ["bad"]
    assert said in found["bad"]


GROWS = {"norm": lambda t: 1 + t / 40}
LOWERED = {"effective_step": lambda t: 0.1 * 0.8**t, "turn": lambda t: 0.1}


@pytest.mark.parametrize(
    ("courses", "equilibrium", "named"),
    [
        ([course(range(1, 8), norm=lambda t: t)], None, ""),  # too few points
        ([course(STEPS, name, **LOWERED) for name in "abc"], None, ""),  # a schedule kills none
        ([course(STEPS)], lambda m: 0.08, ""),
        ([course(STEPS)], lambda m: math.nan, ""),
        ([course(STEPS)], lambda m: 0.02, "5 times"),
        ([course(STEPS, **GROWS)], None, "projection"),
        # a law says that there is a projection
        ([course(STEPS, **GROWS, predicted=lambda t: 1.0)], None, "smaller steps"),
        ([course(STEPS, **GROWS, norm_before=lambda t: 2.0)], None, ""),
    ],
)
def test_a_note_of_one_weight_or_none(courses, equilibrium, named):
    found = notes(*courses, equilibrium=equilibrium)
    assert found == {} if not named else named in found["w"]


def test_a_course_is_bounded_and_keeps_its_ends():
    history = History()
    for step in range(1, 20 * MOST):
        history.add(course([step]))
        steps = [p.step for p in history.courses["w"].points]
        assert len(steps) <= MOST + 1
        assert (steps[0], steps[-1]) == (1, step)
    (gap,) = {b - a for a, b in pairwise(steps[:-1])}  # evenly thinned
    assert steps[-1] - steps[-2] <= gap


def test_a_run_that_resumes_replaces_what_came_after():
    history = History()
    history.add(course(range(1, 11)))
    history.add(course([5]))
    assert [p.step for p in history.courses["w"].points] == [1, 2, 3, 4, 5]


def test_a_page_is_whole_escaped_and_stops_renewing(tmp_path):
    path = tmp_path / "new" / "page.html"
    page = Page(path, seconds=1e-9, title="a < b")
    page([replace(FIRST, predicted=math.nan)])
    running = path.read_text()
    assert 'http-equiv="refresh"' in running
    assert "&lt;w&gt;" in running
    assert "<w>" not in running
    assert "a &lt; b" in running
    page.close()
    assert "refresh" not in path.read_text()
    assert [f.name for f in path.parent.iterdir()] == ["page.html"]
    assert not re.search(r"(src|href)=|https?:|nan", running)  # self-contained


def test_a_curve_fills_its_picture(tmp_path):
    page = Page(tmp_path / "page.html")
    page(course([1, 2], norm=lambda t: 100.0 + t))
    page.close()
    ends = re.search(r'class="run" d="M\S+ (\S+) L\S+ (\S+)"', page_text(tmp_path))
    assert float(ends[1]) - float(ends[2]) > 40  # of 48 pixels


def page_text(folder):
    return (folder / "page.html").read_text()


def test_a_page_is_not_written_at_every_step(tmp_path):
    page = Page(tmp_path / "page.html", seconds=1000.0)
    page(course([1]))
    before = page_text(tmp_path)
    page(course([2]))
    assert page_text(tmp_path) == before
    page.close()
    assert "Step 2" in page_text(tmp_path)
    with pytest.raises(ValueError, match="seconds must be positive, got 0"):
        Page(tmp_path / "other" / "page.html", seconds=0)
    assert not (tmp_path / "other").exists()


class Run:
    """The methods of a run that `WandB` calls."""

    def __init__(self):
        self.metrics, self.logged = {}, []

    def define_metric(self, name, step_metric=None):
        self.metrics[name] = step_metric

    def log(self, scalars):
        self.logged.append(scalars)


def test_wandb_gets_the_finite_numbers_over_a_step_of_their_own():
    run = Run()
    WandB(run)([FIRST, replace(FIRST, weight="b", norm=math.inf), replace(FIRST, step=2)])
    assert run.metrics["norm/*"] == "probe/step"
    assert [each["probe/step"] for each in run.logged] == [1, 2]
    assert run.logged[0]["norm/<w>"] == 1.0
    assert "turn/b" in run.logged[0]
    assert "norm/b" not in run.logged[0]


@pytest.mark.long  # (it starts a process of its own)
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="of the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(ValueError, match="no run is open"):
        WandB()
    with wandb.init(dir=tmp_path, settings=wandb.Settings(silent=True)) as run:
        WandB()([FIRST])
        assert dict(run.summary)["norm/<w>"] == 1.0
