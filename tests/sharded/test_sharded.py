"""Weights whose entries lie in several processes: they step as whole ones, or are refused."""

import pytest
import torch
import torch.distributed as dist

from tests.sharded import cases, world

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")
PAIRS = cases.pairs()


def table(of):
    """The numbers of all entries, which are named by them."""
    names = ["-".join(str(x).replace(" ", "") for x in each) for each in of]
    return pytest.mark.parametrize("i", [pytest.param(i, id=n) for i, n in enumerate(names)])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return world.run(cases.cases, tmp_path_factory.mktemp("sharded"))


@table(PAIRS)
def test_a_sharded_weight_steps_as_a_whole_one_and_stays_in_its_shards(results, i):
    result = results[f"step {i}"]
    if torch.__version__ < "2.10" and "aten.softplus" in str(result):
        pytest.skip("torch 2.9 has no softplus of a sharded tensor, and says so")
    assert result == [pytest.approx(0, abs=cases.ROUNDING_ERRORS), True]


@table([(f"case {i}",) for i in cases.FUZZED])
def test_random_chains_step_sharded_as_the_rule_does(results, i):
    kind, detail = results[f"fuzz {i}"]
    assert kind != "different", detail


@table(cases.COUNTED)
def test_the_sums_of_a_step_take_few_collectives(results, i):
    """Matrices and vectors each take two: one decides, one projects those that are layer-wise."""
    apart, counts = results[f"collectives {i}"]
    recipe, _, backend = cases.COUNTED[i]
    assert apart < cases.ROUNDING_ERRORS
    assert counts[0] <= 7 + 3  # before the first step, processes compare their weights
    # One message says which gradients a process has.
    assert max(counts[1:]) <= (1 if recipe == "adamw" else 1 + 6)
    if backend == "rule":
        assert max(counts[1:]) == 2  # to the owners and back


def test_a_process_without_a_gradient_keeps_no_other_waiting(results):
    assert results["unequal gradients"] == [pytest.approx(0, abs=cases.ROUNDING_ERRORS)]


def test_processes_with_other_gradients_are_told_so_and_nobody_waits(results):
    errors, unmoved, apart = results["no gradient at first"]
    assert all("gradient" in error and "process" in error for error in errors)
    assert unmoved
    assert apart < cases.ROUNDING_ERRORS


def test_a_skipped_step_and_copies_of_an_optimizer(results):
    apart, counts = results["life"]
    assert apart < cases.ROUNDING_ERRORS
    assert counts == [2 * cases.STEPS - 1] * 2


def test_states_of_sharded_weights_in_bfloat16_are_near_those_of_whole_ones(results):
    apart, types = results["low precision"]
    assert 0 < apart < 2**-5
    assert types == ["torch.bfloat16"]


def test_a_sharded_model_is_evaluated_with_the_averages_of_a_whole_one(results):
    *distances, differ = results["evaluated"]
    assert max(distances) < cases.ROUNDING_ERRORS
    assert differ


def test_a_state_whose_entries_are_one_number_gets_its_own_memory(results):
    assert results["expanded states"] < cases.ROUNDING_ERRORS


@table(cases.MODELS)
def test_a_fully_sharded_model_trains_as_a_whole_one_and_goes_on_from_a_checkpoint(results, i):
    apart, resumed = results[f"model {i}"]
    assert apart < cases.ROUNDING_ERRORS
    assert resumed == 0


def test_flattened_parameters_are_refused_by_name(results):
    for message in results["flattened"]:
        assert "_fsdp_wrapped_module." in message
        assert "fully_shard" in message


def test_a_probe_of_a_sharded_weight_measures_the_whole_one(results):
    whole, sharded = results["probed"]
    assert [m["step"] for m in whole] == [1, 2]
    assert whole[0]["invariant_view"] == "channel"
    for wanted, got in zip(whole, sharded, strict=True):
        for pairs, found in ((wanted.pop("units"), got.pop("units")), (wanted, got)):
            for key, value in pairs.items():
                numeric = value is not None and not isinstance(value, str)
                close = pytest.approx(value, rel=1e-9, abs=1e-9) if numeric else value
                assert found[key] == close, key


def test_one_process_alone_explains(results):
    assert results["explained"] == ["batched"]
