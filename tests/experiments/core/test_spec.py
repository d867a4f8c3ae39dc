"""Wrong specs are refused, before anything runs."""

import sys
from dataclasses import replace

import pytest
from running import run_of
from spherenorm_tiny import tiny_spec

from spherenorm_experiments.core import Spec
from spherenorm_experiments.engine import rehearse
from tests.harness import refuses


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (lambda: tiny_spec("sgd", momentun=0.9), ("momentun", "momentum")),
        (lambda: Spec("digits", "sgd", options={"widht": 3}), ("widht", "width")),
        (lambda: Spec("digits", "sgd", options={"variant": "plane"}), ("variant", "plain")),
        (lambda: Spec("digit", "sgd"), ("digit", "digits")),
        (lambda: Spec("digits", "sgd", probes=("norm",)), ("norm", "norms")),
        (lambda: Spec("digits", "sgd", schedule="cosin"), ("cosin", "cosine")),
        (lambda: tiny_spec("sgd", lr=[0.1, 0.2]), ("lr", "list")),
    ],
)
def test_a_wrong_spec_is_refused_with_the_right_name(spec, named):
    with refuses(*named):
        rehearse(run_of(spec()))


def test_a_recipe_that_makes_another_rule_each_time_is_refused():
    """Its run would have another name each time, and would be run for ever."""
    with refuses("spherenorm_tiny:restless"):
        run_of(tiny_spec("spherenorm_tiny:restless", lr=0.1))


def test_a_module_that_exits_does_not_end_the_program(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(7)\n")
    for changed in ({"recipe": "exiting:thing"}, {"probes": ("exiting:thing",)}):
        with refuses("exiting:thing", "exiting.py, line 2"):
            run_of(replace(tiny_spec(), **changed))
    sys.modules.pop("exiting", None)
