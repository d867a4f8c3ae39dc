"""Wrong specs are refused, before anything runs."""

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from experiments.core import Spec
from experiments.engine import rehearse


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
    with pytest.raises(ValueError, match="variant is one of plain, depthwise"):
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
