"""Wrong specs are refused, before anything runs."""

import sys
from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import rehearse


def refuse(spec):
    rehearse(run_of(spec))


def test_wrong_specs_are_refused_with_the_right_name():
    with pytest.raises(ValueError, match="no recipe is named 'sgdpp'; did you mean sgdp"):
        refuse(tiny_spec("sgdpp"))
    with pytest.raises(ValueError, match="no hyper-parameter 'momentun'; did you mean momentum"):
        refuse(tiny_spec("sgd", momentun=0.9))
    with pytest.raises(ValueError, match=r"momentum|beta"):
        refuse(tiny_spec("sgd", momentum=1.5))
    with pytest.raises(ValueError, match="no option 'widht'; did you mean width"):
        refuse(Spec("digits", "sgd", options={"widht": 3}))
    with pytest.raises(ValueError, match="variant is one of plain, residual"):
        refuse(Spec("digits", "sgd", options={"variant": "plane"}))
    with pytest.raises(ValueError, match="no task is named 'digit'; did you mean digits"):
        refuse(Spec("digit", "sgd"))
    with pytest.raises(ValueError, match="no schedule is named 'cosin'; did you mean cosine"):
        Spec("digits", "sgd", schedule="cosin")
    with pytest.raises(ValueError, match="no probe is named 'norm'; did you mean norms"):
        refuse(Spec("digits", "sgd", probes=("norm",)))
    with pytest.raises(ValueError, match="lr must be a number, not a list"):
        refuse(tiny_spec("sgd", lr=[0.1, 0.2]))
    with pytest.raises(ValueError, match="epochs must be an integer of at least 1, got 0"):
        tiny_spec(epochs=0)


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
