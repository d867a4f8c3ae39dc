"""Sharded weights that owners step are those of one process; processes that differ are told so."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from spherenorm.compile.sharded.messages import Members
from spherenorm.compile.sharded.owners import TensorKind, TransferPlan, assign_owners
from spherenorm.compile.sharded.shards import Region, region_at
from tests.sharded import owner_cases, world
from tests.sharded.test_sharded import table

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")
PLACED = [(recipe, name) for recipe in owner_cases.RECIPES for name in owner_cases.PLACEMENTS]
FAULTS = [
    (getattr(recipe, "__name__", recipe), fault.__name__, at)
    for recipe, fault, at in owner_cases.FAULTS
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return world.run(owner_cases.cases, tmp_path_factory.mktemp("owners"))


@pytest.fixture(scope="module")
def results_of_four(tmp_path_factory):
    return world.run(owner_cases.cases_of_four, tmp_path_factory.mktemp("four"), n_processes=4)


def test_the_costliest_weights_are_assigned_first():
    assert assign_owners([1.0] * 8, 2) == [0, 1] * 4
    assert assign_owners([1.0, 1.0, 5.0, 2.0, 2.0], 2) == [1, 0, 0, 1, 1]


def test_regions_are_those_of_chunks():
    from torch.distributed.tensor import Replicate, Shard

    at_rows = [region_at((5, 4), (4,), (i,), [Shard(0)]) for i in range(4)]
    assert [region.lengths[0] for region in at_rows] == [2, 2, 1, 0]
    assert [region.offsets[0] for region in at_rows] == [0, 2, 4, 5]
    corner = region_at((5, 4), (2, 2), (1, 1), [Shard(0), Shard(1)])
    assert corner == Region((3, 2), (2, 2))
    assert region_at((5, 4), (2,), (1,), [Replicate()]) == Region((0, 0), (5, 4))


def test_an_owner_gets_a_block_from_itself_or_else_from_the_nearest_process():
    """Four equal weights on a 2 x 2 mesh, each with its two halves in two processes."""
    from torch.distributed.tensor import Replicate, Shard

    kind = TensorKind("weight", (8, 4), torch.float32, (Replicate(), Shard(0)))
    senders = []
    for owner in range(4):
        members = Members(SimpleNamespace(mesh=torch.arange(4).view(2, 2), shape=(2, 2)))
        vars(members)["index"] = owner  # without process groups
        plan = TransferPlan(members, dict.fromkeys(range(4), (kind,)))
        assert len(plan.owned) == 1
        _, incoming = plan.sizes_to_owners()
        senders.append({process for process, n_bytes in enumerate(incoming) if n_bytes})
        assert sum(incoming) == kind.nbytes // 2
    assert senders == [{1}, {0}, {1}, {2}]


@table(PLACED)
def test_an_owner_steps_as_one_process_and_states_stay_in_shards(results, i):
    recipe, name = PLACED[i]
    assert results[f"{recipe}, {name}"] == [0.0, ["owner"], True]


def test_dtypes_mix_in_one_message(results):
    assert results["mixed"] == [2, 0.0]


def test_a_step_takes_two_collectives_for_any_number_of_weights_and_groups(results):
    assert results["counted"] == [2, 2, 2]


def test_equal_matrices_of_an_owner_are_one_stack(results):
    assert results["stacked"] == [1, 1]


def test_weights_are_gathered_in_buckets(results):
    assert results["bucketed"] == [0.0, 6]  # two of five weights, two of them, and one


def test_each_mesh_takes_its_own_messages(results):
    assert results["two meshes"] == [0.0, 4]


def test_states_of_other_shapes_are_cut_along_their_rows(results):
    assert results["state bytes"] == 6 / world.WORLD


def test_one_process_alone_names_the_owners(results):
    assert [reason[:18] for reason in results["explained"]] == [
        "process 0 of 2 ste",
        "process 1 of 2 ste",
    ]


def check_fault(result, i, last_rank):
    errors, unmoved, seconds = result
    _, fault, _ = FAULTS[i]
    assert all(errors)
    assert unmoved
    assert seconds < 5
    assert all(f"process {last_rank}" in error for error in errors[:-1])
    if fault == "lose_gradient":
        assert all("ValueError" in error or "DisagreementError" in error for error in errors)
        assert all("parameter 1 " in error and f"process {last_rank}" in error for error in errors)


@table(FAULTS)
def test_what_happens_to_one_process_is_an_error_in_all(results, i):
    if FAULTS[i][1] == "poison":
        errors, unmoved, seconds = results[f"fault {i}"]
        assert all("LinAlgError" in error for error in errors)
        assert unmoved
        assert seconds < 5
    else:
        check_fault(results[f"fault {i}"], i, world.WORLD - 1)


@pytest.mark.parametrize("recipe", ["muon", "adamp"])
def test_gradients_that_are_missing_in_turn_are_refused_and_the_run_goes_on(results, recipe):
    n_errors, distance = results[f"in turn, {recipe}"]
    assert n_errors == 3
    assert distance < 1e-13


@pytest.mark.parametrize("recipe", ["muon", "soap"])
def test_checkpoints_go_on_with_other_numbers_of_processes(results, recipe):
    assert results[f"checkpoint, {recipe}"] == [0.0] * 4


def test_states_that_were_whole_in_all_processes_load(results):
    assert results["replicated states"] == [0.0, ["(Shard(dim=0),)"]]


@pytest.mark.long
@pytest.mark.parametrize("recipe", owner_cases.RECIPES)
def test_replicas_of_shards_grids_and_parts_of_a_mesh_step_as_one_process(results_of_four, recipe):
    assert results_of_four[f"grid, {recipe}"] == [0.0, True]


@pytest.mark.long
@pytest.mark.parametrize("recipe", owner_cases.RECIPES)
def test_tensor_parallelism_under_fully_shard_steps_as_one_process(results_of_four, recipe):
    assert results_of_four[f"parallel, {recipe}"] == [0.0, ["owner"]]


@pytest.mark.long
@table(FAULTS)
def test_what_happens_to_one_of_four_processes_is_an_error_in_all(results_of_four, i):
    if FAULTS[i][1] != "poison":
        check_fault(results_of_four[f"fault {i}"], i, 3)


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["muon", "adamp"])
def test_missing_gradients_in_turn_in_four_processes(results_of_four, recipe):
    n_errors, distance = results_of_four[f"in turn, {recipe}"]
    assert n_errors == 3
    assert distance < 1e-13


@pytest.mark.long
def test_every_recipe_steps_uneven_shards(results_of_four):
    found = results_of_four["every recipe"]
    refused = {name: x for name, x in found.items() if isinstance(x, str)}
    assert not refused
    assert max(found.values()) < 1e-12
