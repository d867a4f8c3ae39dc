"""The zoo: no weight of known truth is falsely invariant, and none is missed."""

import pytest

from spherenorm import audit
from tests.audit.zoo import CASES, build, check

VERDICTS = {
    "batch_norm_of_two": {"0.weight": "no evidence", "2.weight": "no evidence"},
    "layer_norm_after_a_zero_bias": {"0.weight": "only at this point"},
    "layer_norm_after_two_zero_biases": {
        "0.weight": "only at this point",
        "2.weight": "only at this point",
    },
    "small_embedding_before_layer_norm": {"0.weight": "invariant up to eps"},
    "rms_norm_of_small_weights": {"0.weight": "invariant up to eps"},
    "unused_weight": {"unused.weight": "no evidence", "used.weight": "not invariant"},
    "unrouted_expert": {"experts.2.0.weight": "no evidence", "router.weight": "not invariant"},
    "dead_relu": {"0.weight": "no evidence"},
    "argmax_output": {"0.0.weight": "no evidence"},
    "detached_output": {"0.2.weight": "no evidence"},
    "low_rank_adapter": {"A": "not invariant", "B": "not invariant"},
    "zero_head": {"0.weight": "not invariant", "4.weight": "not invariant"},
    "zero_head_after_batch_norm": {"0.weight": "invariant", "6.weight": "not invariant"},
    "gradient_that_hides_the_norm": {"w": "not invariant"},
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the old weight_norm
@pytest.mark.parametrize("name", CASES)
def test_no_weight_is_falsely_invariant_or_missed(name):
    outcome = check(name)
    assert not outcome.false
    assert not outcome.missed
    assert outcome.weights


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(name):
    made = build(name)
    found = {each.name: each for each in audit(made.model, *made.inputs)}
    assert {key: found[key].verdict for key in VERDICTS[name]} == VERDICTS[name]


@pytest.mark.parametrize("seed", [28, 47, 98])
def test_an_eps_shows_in_one_of_two_random_directions(seed):
    made = build("rms_norm_of_small_weights")
    assert audit(made.model, *made.inputs, seed=seed)[0].verdict == "invariant up to eps"


def test_the_zoo_is_large_and_has_both_kinds():
    assert len(CASES) >= 100
    kinds = [bool(build(name).views) for name in ("group_norm", "attention")]
    assert kinds == [True, False]


def test_the_units_of_a_fused_matrix_that_are_invariant_are_named():
    made = build("fused_attention_in_a_model")
    finding = audit(made.model, *made.inputs)[0]
    assert finding.reason == "8 of 12 units of view groups=12 are: 0-7"
    assert finding.figures["groups=12"].invariant == 8
