"""Tables 5 and 6: the paper's numbers, and its settings with `--data`."""

import pytest

from spherenorm_experiments.analysis import Results
from spherenorm_experiments.core import SCHEDULES, find_task
from spherenorm_experiments.paper.shared.layout import layouts
from spherenorm_experiments.study import Plan, find_study

NAMES = ("t5", "t6")


def real(name):
    return [trial.spec for trial in find_study(name).trials(Plan("full", real=True), Results([]))]


def gaps(name):
    return {setting.label: str(setting.gap("AdamP", "AdamW")) for setting in find_study(name).on}


def test_differences_are_those_that_the_paper_prints():
    assert gaps("t5") == {"weight norm": "+1.19", "plain": "+0.12"}
    found = gaps("t6")
    assert len(found) == 8
    # The paper prints +0.2 for Cars-196 with triplets: its numbers were rounded after.
    assert found == {
        **{"few classes, triplet": "+0.30", "few classes, ProxyAnchor": "+0.20"},
        **{"turned, triplet": "+0.10", "turned, ProxyAnchor": "+0.20"},
        **{"queries, triplet": "+0.10", "queries, ProxyAnchor": "+2.20"},
        **{"few images, triplet": "+0.60", "few images, ProxyAnchor": "+1.50"},
    }


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_runs_have_options_that_their_task_knows(name):
    specs = real(name)
    assert len({spec.seed for spec in specs}) * len(find_study(name).on) * 2 == len(specs)
    for spec in specs:
        task = find_task(spec.task, dict(spec.options))
        known = {layout.name for layout in layouts().values()}
        assert {task.data_set} <= known


def test_retrieval_trains_the_last_layer_alone_for_five_epochs():
    for spec in real("t6"):
        assert spec.regime.frozen == ("embedding.trunk.", 5.0)
        assert (spec.batch_size, spec.hyper_parameters["lr"]) == (120, 1e-4)
        assert spec.hyper_parameters["weight_decay"] == 0


def test_its_rate_is_halved_every_five_epochs():
    (epochs,) = {spec.epochs for spec in real("t6")}
    (schedule,) = {spec.schedule for spec in real("t6")}
    for epoch in range(epochs):
        assert SCHEDULES[schedule]((epoch + 0.5) / epochs) == 0.5 ** (epoch // 5)


def test_language_takes_the_steps_of_the_released_script():
    tokens = layouts()["wikitext-103"].statistics["train tokens"]
    for spec in real("t5"):
        steps = spec.epochs * tokens / (spec.batch_size * spec.options["segment"])
        assert steps == pytest.approx(200_000, rel=0.05)
        assert spec.regime.clip_norm == 0.25
