"""The study of warm-ups: one that only decay needs is told from one that all optimizers need."""

import math

import pytest
from warm_up import CONTROLLED, DECAYED, SHARE, STUDY

from spherenorm_experiments.plan import Plan
from spherenorm_experiments.runs import Runs
from spherenorm_experiments.spec import Regime
from tests.experiments.fabricated import result

NAMES = [arm.name for base in DECAYED for arm in (DECAYED[base], *CONTROLLED[base])]


@pytest.mark.parametrize("needless", [True, False])
def test_a_warm_up_that_only_decay_needs_is_told_from_one_that_all_need(needless):
    items = []
    for trial in STUDY.trials(Plan("evidence"), Runs()):
        name, spec = trial.place.arm, trial.spec
        warmed = name.endswith("warm-up")
        assert spec.regime == Regime(warmup=SHARE if warmed else 0.0)
        gain = 0.2 if ("decay" in name) == needless else 0.05
        octave = math.log2(spec.hyper_parameters["lr"])
        loss = 2.0 - gain * warmed + 0.01 * octave**2
        pair = NAMES.index(name.removesuffix(", warm-up"))
        loss += 0.002 * math.cos(5 * spec.seed + 2 * pair + warmed + octave)
        numbers = {"test": -loss, "validation": -loss, "metric": "minus loss (nats)", "views": {}}
        items.append(result(trial.place, 0, spec, **numbers))
    found = {each.claim.name: each.verdict for each in STUDY.decide_claims(Runs(items))}
    assert len(found) == 2 * len(NAMES) + 2 * (len(NAMES) - len(DECAYED))
    for name, verdict in found.items():
        less = name.startswith("less.")
        assert verdict == ("contradicted" if less and not needless else "supported"), name
    assert {item.spec.options["width"] for item in items} == {32}
    assert {item.spec.task for item in items} == {"spherenorm_experiments.byte_model:ByteModel"}
