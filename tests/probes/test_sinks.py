"""The sinks of a probe: the live page with its notes, files, and loggers."""

import contextlib
import json
import math
import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm.probes import JSONLines, Measurement, Page, TensorBoard, WandB
from spherenorm.probes.sinks import MAX_POINTS, Trajectories

FIRST = Measurement(1, "<w>", "channel", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "channel")


def course(steps, name="w", **of_step):
    """Measurements at these steps; `of_step` has functions of the step."""
    return [
        replace(FIRST, step=t, weight=name, **{k: f(t) for k, f in of_step.items()}) for t in steps
    ]


def notes(*courses, equilibrium=None):
    trajectories = Trajectories(equilibrium)
    for measurements in courses:
        trajectories.add(measurements)
    return trajectories.notes()


STEPS = range(1, 41)
DIES = {"effective_step": lambda t: 0.1 * 0.8**t}
STOPS = {"effective_step": lambda t: 0.0 if t > 30 else 0.1}
GROWS = {"norm": lambda t: 1 + (t - 1) / 39}
SETTLES = {  # decay takes back what the steps add once the norm is 2
    "norm": lambda t: min(2.0, 1 + (t - 1) / 5),
    "norm_before": lambda t: 1.0 if t < 7 else 2.1,
}
ORTHOGONAL = {t: max(1e-9, (1 + (t - 1) / 39) ** 2 - 1) ** 0.5 for t in STEPS}.__getitem__
STEEP = {**dict.fromkeys(STEPS, 0.1), 1: 1.0}.__getitem__
WARMS = {t: t / 40 for t in STEPS}.__getitem__
COOLS = {t: max(0.0, 0.1 * (1 - t / 40)) for t in STEPS}.__getitem__
LOWERED = [course(STEPS, name, **DIES) for name in "abcdef"]  # as a schedule does


@pytest.mark.parametrize(
    ("others", "of_step", "turn", "said"),
    [
        ([course(STEPS, "fine")], DIES, None, "effective step dies: 0.026 % .*median"),
        ([], STOPS, None, "effective step is 0: .* gradient is 0 or missing"),
        ([], {**STOPS, "grad_norm": lambda t: 1.0}, None, "whether its optimizer steps it"),
        (
            [],
            {"turn": STEEP},
            None,
            "10 times as far at first .*warm-up",
        ),
        ([], {"turn": lambda t: 1.0 if t == 1 else 0.0}, None, ""),  # a weight that stands still
        # The remedy is that of the cause: the radial part of steps, or their squares alone. A
        # step that dies of its norm's growth has no use for a higher rate.
        ([], {**GROWS, "relative_step": lambda t: 0.1}, None, "grown 2-fold since step 1, .*proj"),
        ([], {**GROWS, "relative_step": ORTHOGONAL}, None, "grown 2-fold .*more decay or smaller"),
        ([], {**SETTLES, "relative_step": lambda t: 0.1}, None, "grown 2-fold .*proj"),
        ([], {**GROWS, "invariant_view": lambda t: None}, None, ""),
        ([], {"norm": lambda t: 1 + t / 100}, None, ""),
        ([], {}, lambda m: 0.02, "5 times"),
        ([], {}, lambda m: 0.08, ""),
        ([], {}, lambda m: math.nan, ""),
        # A schedule that lowers the rate does what it was asked for, down to 0 and with other
        # weights at other rates; a step that falls below its rate does not.
        ([], {**DIES, "lr": lambda t: 0.8**t}, None, ""),
        ([course(STEPS, "fine")], {**DIES, "lr": lambda t: 0.8**t}, None, ""),
        ([], {"effective_step": COOLS, "lr": COOLS}, None, ""),
        ([], {**DIES, "lr": lambda t: 0.9**t}, None, "step per learning rate dies: 1.3 % "),
        ([], {**DIES, "lr": lambda t: 0.1}, None, "the effective step dies.*higher learning rate"),
        # The first turn counts beside those at the highest rates, and not after a warm-up.
        ([], {"turn": lambda t: 0.8**t, "lr": lambda t: 1.0 if t < 5 else 0.01}, None, ""),
        ([], {"turn": STEEP, "lr": WARMS, "effective_step": WARMS}, None, ""),
        ([], {"lr": lambda t: 0.8**t}, lambda m: 0.02 if m.lr < 0.1 else 0.09, ""),
    ],
)
def test_what_goes_wrong_is_named_and_only_there(others, of_step, turn, said):
    courses = [*others, course(STEPS, "w", **of_step)]
    found = notes(*courses, equilibrium=turn)
    assert [note.weights for note in found] == [["w"]] * bool(said)
    assert re.search(said, " ".join(f"{note.observation}: {note.remedy}" for note in found))
    too_few = [measurements[:7] for measurements in courses]
    assert not notes(*too_few, equilibrium=turn)


def test_what_all_weights_share_is_one_note_with_its_remedy():
    """Effective steps that all die are noted, too, though the median weight's dies with them."""
    (dying,) = notes(*LOWERED)
    assert dying.weights == ["a", "b", "c", "d", "e", "f"]
    assert dying.subject == "a, b, c and 3 more"
    assert "schedule" in dying.remedy
    factors = dict(zip("abcdef", (1.6, 1.7, 1.8, 2.0, 3.0, 4.0), strict=True))
    grown = (
        course(STEPS, name, norm=lambda t, x=x: 1 + (x - 1) * (t - 1) / 39)
        for name, x in factors.items()
    )
    (growing,) = notes(*grown)
    assert len(growing.weights) == 6
    assert "grown 1.6 to 4-fold" in growing.observation
    dying_by_growth = course(STEPS, **DIES, **GROWS, relative_step=lambda t: 0.1)
    dying, _ = notes(dying_by_growth)
    assert dying.remedy == (
        "a projection (AdamP, SGDP) or more decay, since it dies of its norm's growth"
    )


def page_text(folder):
    return (folder / "page.html").read_text()


def test_a_course_is_bounded_and_keeps_its_ends():
    trajectories = Trajectories()
    for step in range(1, 20 * MAX_POINTS):
        trajectories.add(course([step]))
        steps = [p.step for p in trajectories.by_weight["w"].points]
        assert len(steps) <= MAX_POINTS + 1
        assert (steps[0], steps[-1]) == (1, step)
    (gap,) = {b - a for a, b in pairwise(steps[:-1])}  # evenly thinned
    assert steps[-1] - steps[-2] <= gap


def test_a_run_that_resumes_replaces_what_came_after():
    trajectories = Trajectories()
    trajectories.add(course(range(1, 11)))
    trajectories.add(course([5]))
    assert [p.step for p in trajectories.by_weight["w"].points] == [1, 2, 3, 4, 5]


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


def test_a_step_that_dies_has_a_log_axis_on_which_it_falls_straight(tmp_path):
    page = Page(tmp_path / "page.html")
    page(course(range(1, 4), effective_step=lambda t: 10.0**-t))
    page.close()
    _, effective_steps = re.findall(r'class="run" d="M([^"]*)"', page_text(tmp_path))
    heights = [float(point.split()[1]) for point in effective_steps.split(" L")]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    assert page_text(tmp_path).count("log axis") == 1


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
    assert [entries["probe/step"] for entries in run.logged] == [1, 2]
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


BLOCKS = [
    [
        replace(FIRST, step=10, cosine=math.nan, predicted=1.25),
        Measurement(10, "b", "layer", 2.0, math.inf, 0.5, 0.5, 0.125, 1.0, "layer"),
    ],
    [replace(FIRST, step=20, norm=2.0)],
]
PLAIN = [measurement.plain() for block in BLOCKS for measurement in block]


def lines_of(folder):
    return [json.loads(x) for f in sorted(folder.iterdir()) for x in f.read_text().splitlines()]


def test_files_hold_the_plain_measurements_of_each_block(tmp_path):
    folder = tmp_path / "new" / "folder"
    write = JSONLines(folder)
    for block in [*BLOCKS, BLOCKS[-1]]:  # a block that is written again replaces its file
        write(block)
    assert sorted(f.name for f in folder.iterdir()) == ["000000010.jsonl", "000000020.jsonl"]
    assert lines_of(folder) == PLAIN
    assert PLAIN[0]["cosine"] is PLAIN[1]["norm"] is None


def test_files_hold_the_units(tmp_path):
    weight = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with sn.probe(optimizer, every=1, units=True, to=JSONLines(tmp_path)):
        weight.grad = torch.tensor([[4.0, -3.0], [0.0, 0.0]])
        optimizer.step()
    (line,) = lines_of(tmp_path)
    assert line["units"]["norm_before"] == [5, 0]
    assert line["units"]["cosine"] == [0, None]
    assert line["units"]["turn"] == pytest.approx([math.atan(0.1), 0])


def test_tensorboard(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write = TensorBoard(tmp_path)
    for block in BLOCKS:
        write(block)
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    norms = [(event.step, event.value) for event in events.Scalars("norm/<w>")]
    assert norms == [(10, 1.0), (20, 2.0)]
    tags = events.Tags()["scalars"]
    assert "cosine/b" in tags
    assert "norm/b" not in tags  # it is infinite
    assert not any(tag.startswith(("step", "view", "weight")) for tag in tags)


def test_an_interrupted_write_leaves_no_part(tmp_path, monkeypatch):
    write = JSONLines(tmp_path)
    write(BLOCKS[0])

    def fails(*_):
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="no space"):
        write(BLOCKS[1])
    assert [file.name for file in tmp_path.iterdir()] == ["000000010.jsonl"]


@pytest.mark.parametrize("failing", [(), (2, 4), (6,)])
def test_a_sink_that_fails_costs_no_step_and_no_block(failing):
    """Within a run it warns; at the end it raises, and the block waits for another flush."""
    step, kept = 0, []

    def write(block):
        if step in failing:
            raise OSError("no space left")
        kept.extend(block)

    layer = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    probe = sn.probe(optimizer, every=1, to=write, model=layer, block=2)
    for step in range(1, 6):
        layer.weight.grad = torch.randn(3, 4)
        warns = pytest.warns(UserWarning, match="no space left")
        with warns if step in failing else contextlib.nullcontext():
            optimizer.step()
    step = 6
    with pytest.raises(OSError, match="no space") if 6 in failing else contextlib.nullcontext():
        probe.close()
    step = 7
    probe.flush()
    assert [measurement.step for measurement in kept] == [1, 2, 3, 4, 5]
