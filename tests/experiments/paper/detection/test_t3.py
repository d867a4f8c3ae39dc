"""Table 3: with the official data, the paper's settings."""

import pytest
import torch

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.core import SCHEDULES, find_task
from spherenorm_experiments.paper.detection.centernet import CenterNet
from spherenorm_experiments.paper.detection.ssd import SSD
from spherenorm_experiments.study import Plan, find_study

PAPER = {
    "centernet": (2.5e-4, 140, "cosine", 512, CenterNet, 14_437_349),
    # With 91 classes 35,641,826, and 8,448 of BatchNorm. There are 10 fewer for each default box.
    "ssd": (1e-4, 110, "step-70-90", 300, SSD, 35_641_826 + 8_448 - 10 * (9 * 14_848 + 30)),
}
SCORES = {
    "centernet random": ("26.57", "27.11"),
    "centernet pretrained": ("28.29", "29.05"),
    "ssd random": ("27.10", "27.97"),
    "ssd pretrained": ("28.39", "28.67"),
}


@pytest.mark.parametrize("label", SCORES)
def test_with_data_the_settings_are_those_of_appendix_e(label):
    study = find_study("t3")
    detector, start = label.split()
    rate, epochs, schedule, side, network, count = PAPER[detector]
    trials = study.trials(Plan("full", real=True), Results([]))
    specs = [t.spec for t in trials if t.arm.settings["setting"] == label]
    assert {spec.recipe for spec in specs} == {"adam", "adamp"}
    for spec in specs:
        assert spec.hyper_parameters == {"lr": rate, "weight_decay": 1e-5}
        assert (spec.epochs, spec.batch_size, spec.schedule) == (epochs, 64, schedule)
    task = find_task(specs[0].task, {**specs[0].options, "start": "random"})
    assert specs[0].options["start"] == start
    assert (task.data_set, task._side) == ("coco", side)
    with torch.device("meta"):
        model = task.model()
    assert isinstance(model, network)
    assert sum(p.numel() for p in model.parameters()) == count
    (setting,) = (each for each in study.table if each.label == label)
    assert tuple(map(str, setting.paper["AP"].values())) == SCORES[label]


def test_the_step_schedule_of_ssd():
    factors = [SCHEDULES["step-70-90"](k / 100) for k in (0, 69, 70, 89, 90, 99)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
