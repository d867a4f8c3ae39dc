"""Weights whose entries lie in several processes: they step as whole ones, or are refused."""

import pytest
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
    assert results[f"step {i}"] == [pytest.approx(0, abs=cases.ROUNDING_ERRORS), True]


@table([(f"case {i}",) for i in cases.FUZZED])
def test_random_chains_step_sharded_as_the_rule_does(results, i):
    kind, detail = results[f"fuzz {i}"]
    assert kind != "different", detail


@table(cases.COUNTED)
def test_all_weights_together_take_two_collectives_a_step(results, i):
    """Two rounds of sums: one decides on all weights, one projects those that are layer-wise."""
    apart, counts = results[f"collectives {i}"]
    recipe, _, backend = cases.COUNTED[i]
    assert apart < cases.ROUNDING_ERRORS
    if backend == "rule":
        assert min(counts) > len(cases.MANY)
        return
    assert counts[0] <= 3  # the first step agrees on paths, too
    assert max(counts[1:]) <= (0 if recipe == "adamw" else 2)


def test_a_process_without_a_gradient_keeps_no_other_waiting(results):
    assert results["unequal gradients"] == [pytest.approx(0, abs=cases.ROUNDING_ERRORS)]


@table(cases.ALONE)
def test_where_one_process_takes_no_kernels_all_step_alike_or_all_raise(results, i):
    apart, errors, unmoved = results[f"alone {i}"]
    assert apart < cases.ROUNDING_ERRORS
    assert unmoved  # an error leaves the whole step undone
    if cases.ALONE[i][0] == "auto":
        assert errors == ["", ""]
    else:
        assert all("compiled" in error for error in errors)
        assert "(8, 6)" in errors[1]  # the weight, in the process that has it in odd memory


def test_a_skipped_step_and_copies_of_an_optimizer(results):
    apart, counts = results["life"]
    assert apart < cases.ROUNDING_ERRORS
    assert counts == [2 * cases.STEPS - 1] * 2


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
    assert results["explained"] == ["C++ kernel"]
