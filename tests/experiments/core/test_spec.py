"""Wrong specs are refused, before anything runs."""

import sys
from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import rehearse


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tiny_spec("sgd", momentun=0.9), "no hyper-parameter 'momentun'; did you mean momentum"),
        (Spec("digits", "sgd", options={"widht": 3}), "no option 'widht'; did you mean width"),
        (Spec("digits", "sgd", options={"variant": "plane"}), "variant is one of plain, residual"),
        (Spec("digit", "sgd"), "no task is named 'digit'; did you mean digits"),
        (Spec("digits", "sgd", probes=("norm",)), "no probe is named 'norm'; did you mean norms"),
        (tiny_spec("sgd", lr=[0.1, 0.2]), "lr must be a number, not a list"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_right_name(spec, message):
    with pytest.raises(ValueError, match=message):
        rehearse(run_of(spec))


def test_a_schedule_is_known():
    with pytest.raises(ValueError, match="no schedule is named 'cosin'; did you mean cosine"):
        Spec("digits", "sgd", schedule="cosin")


def test_a_recipe_that_makes_another_rule_each_time_is_refused():
    """Its run would have another name each time, and would be run for ever."""
    with pytest.raises(ValueError, match="'spherenorm_tiny:restless' makes another rule each time"):
        run_of(tiny_spec("spherenorm_tiny:restless", lr=0.1))


@pytest.mark.parametrize("kind", ["recipe", "task", "probe"])
def test_a_module_that_exits_does_not_end_the_program(tmp_path, monkeypatch, kind):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(7)\n")
    name = "exiting:thing"
    changed = {kind: name} if kind != "probe" else {"probes": (name,)}
    with pytest.raises(ValueError, match=rf"{kind} 'exiting:thing': .*\(exiting.py, line 2\)"):
        run_of(replace(tiny_spec(), **changed))
    sys.modules.pop("exiting", None)
