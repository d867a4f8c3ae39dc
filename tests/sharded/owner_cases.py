"""The cases of sharded weights that owners step, and of processes that differ."""

from __future__ import annotations

import functools
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import spherenorm as sn
from spherenorm.compile.sharded import owners
from spherenorm.rules import orthogonalize
from tests.sharded.cases import many
from tests.sharded.world import apart, mesh, placed, whole

PLACEMENTS: dict[str, tuple[list[tuple[int, ...]], list[int | None]]] = {
    "even": ([(8, 6), (4, 4), (8, 6)], [0]),
    "uneven": ([(7, 6), (5, 9), (3, 4)], [0]),
    "one row": ([(1, 8), (1, 4)], [0]),
    "columns": ([(4, 5), (6, 8)], [1]),
    "replicated": ([(4, 5), (6, 8)], [None]),
    "convolutions": ([(4, 3, 3, 3), (5, 2, 1, 1)], [0]),
    "grid": ([(6, 4), (5, 3)], [None, 0]),
}
"""The shapes of weights, and the dimension that each dimension of the mesh cuts."""


class Flipped(sn.Rule):
    """A rule of a user that no shard takes: it reverses the rows, and needs no keepdim."""

    def update(self, update: sn.Update, state: sn.State) -> tuple[sn.Update, sn.State]:
        rows = update.direction.flatten(1)
        scaled = rows.flip(0) / (1 + rows.norm(dim=1).max())
        return update.replace(direction=scaled.reshape(update.weight.shape)), {}


def flipped(lr: float = 0.1) -> sn.Rule:
    return sn.chain(sn.rules.HeavyBall(0.9), Flipped(), sn.rules.StepSize(lr))


RECIPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "muon": ("muon", {}),
    "normuon": ("normuon", {}),
    "muonh": ("muonh", {}),
    "scion": ("scion", {"radius": 1.0}),
    "soap": ("soap", {"every": 2}),
    "shampoo": ("shampoo", {"momentum": 0.9}),
    "flipped": (flipped, {}),
    "adafactor": ("adafactor", {}),
}


def pair(
    recipe: Any, settings: dict[str, Any], weights: list[Tensor], parts: list[Any]
) -> tuple[Any, Any]:
    make = sn.torch_optimizer(recipe)
    return make(weights, lr=0.05, **settings), make(parts, lr=0.05, **settings)


def give(weights: list[Tensor], parts: list[Any], step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for weight, part in zip(weights, parts, strict=True):
        weight.grad = torch.randn(weight.shape, generator=draw, dtype=torch.float64).to(weight)
        cut = [None if p.is_replicate() else p.dim for p in part.placements]
        part.grad = placed(weight.grad, *cut, on=part.device_mesh)


def distance(alone: Any, sharded: Any, weights: list[Tensor], parts: list[Any]) -> float:
    """The largest distance of weights and states."""
    distances = [apart(parts, weights)]
    for weight, part in zip(weights, parts, strict=True):
        ours, theirs = sharded.state[part], alone.state[weight]
        distances.append(apart([ours[key] for key in theirs], theirs.values()))
    return max(distances)


def draw_weights(
    shapes: list[tuple[int, ...]], cut: list[int | None], on: Any = None
) -> tuple[list[Tensor], list[Any]]:
    draw = torch.Generator().manual_seed(99)
    drawn = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    parts = [placed(x, *cut, on=on).requires_grad_() for x in drawn]
    return [x.requires_grad_() for x in drawn], parts


def owned(recipe: str, shapes: list[tuple[int, ...]], cut: list[int | None], on: Any = None) -> Any:
    """The distance to one process after steps, the paths, and if states stay cut as the weight."""
    weights, parts = draw_weights(shapes, cut, on)
    alone, sharded = pair(*RECIPES[recipe], weights, parts)
    for step in range(3):
        give(weights, parts, step)
        alone.step()
        sharded.step()
    cuts = any(dim is not None for dim in cut)
    is_cut = all(
        not x.ndim or not x.numel() or any(not p.is_replicate() for p in x.placements) == cuts
        for part in parts
        for x in sharded.state[part].values()
    )
    paths = sorted({row.path for row in sn.explain(sharded)})
    return [distance(alone, sharded, weights, parts), paths, is_cut]


def mixed() -> list[Any]:
    """The distance of weights of several dtypes, and the collectives of their step."""
    dtypes = [torch.float64, torch.float32, torch.bfloat16, torch.float32]
    weights, parts = many([(8, 6), (7, 6), (4, 4), (1, 4)])
    weights = [w.detach().to(d).requires_grad_() for w, d in zip(weights, dtypes, strict=True)]
    parts = [placed(w, 0).requires_grad_() for w in weights]
    alone, sharded = pair("muon", {}, weights, parts)
    give(weights, parts, 0)
    alone.step()
    sharded.step()
    give(weights, parts, 1)
    alone.step()
    return [count_collectives(sharded.step), distance(alone, sharded, weights, parts)]


def count_collectives(step: Callable[[], None]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    events = profile.key_averages()
    return sum(event.count for event in events if event.key.startswith("gloo:"))


def counted() -> list[int]:
    """The collectives of a step of 1 weight, of 50, and of three groups of other recipes."""
    counts = []
    for n_weights, groups in ((1, ["muon"]), (50, ["muon"]), (2, ["muon", "soap", "adamw"])):
        sets = [draw_weights([(4, 3)] * n_weights, [0]) for _ in groups]
        param_groups = [
            {"params": parts, "recipe": name} for (_, parts), name in zip(sets, groups, strict=True)
        ]
        optimizer = sn.torch_optimizer("muon")(param_groups, lr=0.1)
        for step in range(2):
            for weights, parts in sets:
                give(weights, parts, step)
            n_collectives = count_collectives(optimizer.step)
        counts.append(n_collectives)
    return counts


def stacked() -> list[int]:
    """How often each process calls the iteration in a step of eight equal matrices."""
    weights, parts = draw_weights([(6, 4)] * 8, [0])
    optimizer = sn.torch_optimizer("muon")(parts, lr=0.1)
    n_calls = 0
    original = orthogonalize.newton_schulz

    def counting(*args: Any) -> Tensor:
        nonlocal n_calls
        n_calls += 1
        return original(*args)

    give(weights, parts, 0)
    optimizer.step()
    orthogonalize.newton_schulz = counting
    try:
        optimizer.step()
    finally:
        orthogonalize.newton_schulz = original
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, n_calls)
    return told


def bucketed() -> list[Any]:
    """The distance, and the collectives, where two weights at most are gathered at once."""
    weights, parts = draw_weights([(6, 4)] * 5, [0])
    alone, sharded = pair("muon", {}, weights, parts)
    room, owners.MAX_OWNED_BYTES = owners.MAX_OWNED_BYTES, 3 * 6 * 4 * 8
    try:
        for step in range(2):
            give(weights, parts, step)
            alone.step()
            n_collectives = count_collectives(sharded.step)
    finally:
        owners.MAX_OWNED_BYTES = room
    return [distance(alone, sharded, weights, parts), n_collectives]


def two_meshes() -> list[Any]:
    """The distance, and the collectives, of weights of two meshes."""
    weights, parts = draw_weights([(6, 4), (5, 3)], [0])
    others, other_parts = draw_weights([(4, 4), (3, 2)], [None, 0])
    alone, sharded = pair("muon", {}, [*weights, *others], [*parts, *other_parts])
    for step in range(2):
        give([*weights, *others], [*parts, *other_parts], step)
        alone.step()
        n_collectives = count_collectives(sharded.step)
    return [
        distance(alone, sharded, [*weights, *others], [*parts, *other_parts]),
        n_collectives,
    ]


def state_bytes() -> float:
    """The bytes of SOAP's states in this process, by those of its weights in all."""
    weights, parts = draw_weights([(8, 8)] * 3, [0])
    optimizer = sn.torch_optimizer("soap")(parts)
    give(weights, parts, 0)
    optimizer.step()
    states = [x for part in parts for x in optimizer.state[part].values() if x.ndim]
    return sum(x.to_local().nbytes for x in states) / sum(w.nbytes for w in weights)


def explained() -> list[str]:
    """The reasons that one process gets, while the others do something else."""
    _, parts = draw_weights([(8, 6), (8, 6)], [0])
    optimizer = sn.torch_optimizer("muon")(parts)
    return [row.reason for row in sn.explain(optimizer)] if dist.get_rank() == 0 else []


# ------------------------------------------------------------------ faults


class Failing(sn.Rule):
    """A rule that raises in one process, in a step or where it makes a state."""

    state_names = ("seen",)

    def init(self, weight: Tensor) -> sn.rule.State:
        if RAISES_HERE and RAISES_HERE[0] == "init" and not weight.is_meta:
            raise ArithmeticError("the state fails")
        return super().init(weight)

    def update(self, update: sn.Update, state: sn.State) -> tuple[sn.Update, sn.State]:
        if RAISES_HERE:
            raise ArithmeticError("the rule fails")
        return update, dict(state)


RAISES_HERE: list[str] = []
"""Not empty where `Failing` raises."""


def failing(lr: float = 0.1) -> sn.Rule:
    return sn.chain(Failing(), sn.rules.StepSize(lr))


def failing_whole(lr: float = 0.1) -> sn.Rule:
    return sn.chain(Failing(), Flipped(), sn.rules.StepSize(lr))


def lose_gradient(optimizer: Any, parts: list[Any]) -> None:
    parts[1].grad = None


def lose_all_gradients(optimizer: Any, parts: list[Any]) -> None:
    for part in parts:
        part.grad = None


def leave_interval(optimizer: Any, parts: list[Any]) -> None:
    optimizer.param_groups[0]["lr"] = -1.0


def raise_in_rule(optimizer: Any, parts: list[Any]) -> None:
    RAISES_HERE.append("step")


def raise_in_init(optimizer: Any, parts: list[Any]) -> None:
    RAISES_HERE.append("init")


def lose_state(optimizer: Any, parts: list[Any]) -> None:
    optimizer.state.pop(parts[0], None)


def add_weight(optimizer: Any, parts: list[Any]) -> None:
    extra = parts[0].detach().clone().requires_grad_()
    extra.grad = parts[0].grad
    optimizer.add_param_group({"params": [extra]})


def poison(optimizer: Any, parts: list[Any]) -> None:
    parts[0].grad.to_local().fill_(torch.nan)


FAULTS: list[tuple[Any, Callable[[Any, list[Any]], None], int]] = [
    *((name, lose_gradient, step) for name in ("muon", "soap", "adamp", "adamw", "prodigy")
      for step in (0, 3)),
    *((name, lose_all_gradients, 3) for name in ("muon", "adamp")),
    *((name, leave_interval, step) for name in ("muon", "adamp") for step in (0, 2)),
    (failing, raise_in_rule, 2), (failing_whole, raise_in_rule, 0),
    (failing_whole, raise_in_rule, 2), (failing_whole, raise_in_init, 0),
    ("muon", lose_state, 2), ("muon", add_weight, 2),
    ("adamp", add_weight, 2), ("shampoo", poison, 2),
]  # fmt: skip
"""A recipe, what happens to one process, and before which step."""


def tensors_of(optimizer: Any, parts: list[Any]) -> list[Any]:
    states = [optimizer.state.get(part, {}) for part in parts]
    return [*parts, *(x for state in states for x in state.values())]


def faulty(recipe: Any, fault: Callable[[Any, list[Any]], None], at: int) -> Any:
    """The errors of all processes, if nothing has moved, and the seconds; then they go on."""
    shapes = [(6, 4), (5, 4), (4, 4), (4, 3)]  # so that each of four processes owns one
    weights, parts = draw_weights(shapes, [0])
    optimizer = sn.torch_optimizer(recipe)(parts, lr=0.05)
    for step in range(at):
        give(weights, parts, step)
        optimizer.step()
    give(weights, parts, at)
    before = [whole(x).clone() for x in tensors_of(optimizer, parts)]
    if dist.get_rank() == dist.get_world_size() - 1:
        fault(optimizer, parts)
    started, error_text = time.monotonic(), ""
    try:
        optimizer.step()
    except Exception as error:
        error_text = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    RAISES_HERE.clear()
    if fault is lose_state:
        before = before[: len(parts)]
        optimizer.state.clear()
    after = [whole(x) for x in tensors_of(optimizer, parts)]
    unmoved = all(torch.equal(x, y) for x, y in zip(after, before, strict=True))
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (error_text, seconds))
    return [[text for text, _ in told], unmoved, max(s for _, s in told)]


def in_turn(recipe: str) -> list[Any]:
    """The errors if each process lacks a gradient in turn, and the distance after it all.

    A weight that has a gradient in no process is left out, as one process does.
    """
    weights, parts = draw_weights([(6, 4), (5, 4), (4, 4)], [0])
    alone, sharded = pair(recipe, {}, weights, parts)
    n_errors = 0
    for step in range(6):
        give(weights, parts, step)
        if step in (0, 2, 3):  # in one process, in the other, or in that again
            if dist.get_rank() == step % dist.get_world_size():
                parts[step % 3].grad = None
            try:
                sharded.step()
            except ValueError:
                n_errors += 1
            give(weights, parts, step)
        if step == 4:
            weights[1].grad = parts[1].grad = None
        alone.step()
        sharded.step()
    return [n_errors, distance(alone, sharded, weights, parts)]


# ------------------------------------------------------------------ checkpoints


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 7, bias=False), torch.nn.ReLU(), torch.nn.Linear(7, 4, bias=False)
    return torch.nn.Sequential(*layers).double()


def set_gradients(trained: torch.nn.Module, step: int) -> None:
    draw = torch.Generator().manual_seed(step)
    for weight in trained.parameters():
        grad = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
        weight.grad = placed(grad, 0) if hasattr(weight, "placements") else grad


def train(trained: torch.nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        set_gradients(trained, step)
        optimizer.step()


def checkpointed(recipe: str) -> list[float]:
    """The distances after a checkpoint by 2 to 2 processes, 2 to 1 and 1 to 2."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as state_dicts
    from torch.distributed.fsdp import fully_shard

    def make(seed: int, cut: bool) -> tuple[torch.nn.Module, Any]:
        made = fully_shard(model(seed), mesh=mesh()) if cut else model(seed)
        return made, sn.torch_optimizer(recipe)(made.parameters(), lr=0.05)

    def tensors_of(run: Any) -> dict[str, Any]:
        weights, states = state_dicts.get_state_dict(*run)
        return {"model": weights, "optimizer": states}

    def load(run: Any, folder: str, alone: bool) -> None:
        loaded = tensors_of(run)
        checkpoint.load(loaded, checkpoint_id=folder, no_dist=alone)
        state_dicts.set_state_dict(
            *run, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
        )

    folders: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders, src=0)
    by_two, by_one = str(Path(folders[0], "two")), str(Path(folders[0], "one"))
    runs = {cut: make(0, cut) for cut in (False, True)}
    for run in runs.values():
        train(*run, range(3))
    checkpoint.save(tensors_of(runs[True]), checkpoint_id=by_two)
    if dist.get_rank() == 0:
        checkpoint.save(tensors_of(runs[False]), checkpoint_id=by_one, no_dist=True)
    dist.barrier()
    resumed = [make(1, True), make(1, True), make(1, False)]
    load(resumed[0], by_two, alone=False)
    load(resumed[1], by_one, alone=False)
    load(resumed[2], by_two, alone=True)
    for run in (*runs.values(), *resumed):
        train(*run, range(3, 5))
    expected = [*runs[False][0].parameters()]
    return [apart([*run[0].parameters()], expected) for run in (runs[True], *resumed)]


def loaded_replicated() -> list[Any]:
    """The distance of SOAP from states that lie whole in all processes, as earlier versions had."""
    from torch.distributed.tensor import Replicate

    weights, parts = draw_weights([(6, 4), (5, 3)], [0])
    alone, sharded = pair("soap", {"every": 2}, weights, parts)
    for step in range(2):
        give(weights, parts, step)
        alone.step()
        sharded.step()
    saved = sharded.state_dict()
    for state in saved["state"].values():
        for key, x in state.items():
            if x.ndim and key not in ("exp_avg", "exp_avg_sq"):
                state[key] = x.redistribute(placements=[Replicate()])
    fresh = sn.torch_optimizer("soap")(parts, lr=0.05, every=2)
    fresh.load_state_dict(saved)
    for step in range(2, 4):
        give(weights, parts, step)
        alone.step()
        fresh.step()
    is_cut = [str(x.placements) for x in fresh.state[parts[0]].values() if x.ndim]
    return [distance(alone, fresh, weights, parts), sorted(set(is_cut))]


# ------------------------------------------------------------------ four processes


def grid(recipe: str) -> list[Any]:
    """The largest distance over meshes of 2 x 2 processes: replicas of shards, and grids."""
    from torch.distributed.tensor import init_device_mesh

    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    shapes = [(7, 6), (4, 5), (1, 3)]
    cuts: list[list[int | None]] = [[None, 0], [0, 1], [0, 0], [1, None], [0, None]]
    found = [owned(recipe, shapes, cut, square) for cut in cuts]
    found.append(owned(recipe, shapes, [0], square["inner"]))
    return [max(distance for distance, _, _ in found), all(is_cut for _, _, is_cut in found)]


def parallel(recipe: str) -> list[Any]:
    """The distance of a model under tensor parallelism and `fully_shard`, and the paths."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor import parallel as tp

    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    sharded_model = model(0)
    plan = {"0": tp.ColwiseParallel(), "2": tp.RowwiseParallel()}
    tp.parallelize_module(sharded_model, square["tp"], plan)
    fully_shard(sharded_model, mesh=square["dp"])
    weights = [*model(0).parameters()]
    parts = [*sharded_model.parameters()]
    alone, sharded = pair(*RECIPES[recipe], weights, parts)
    for step in range(3):
        draw = torch.Generator().manual_seed(step)
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
            part.grad = strided(weight.grad, part)
        alone.step()
        sharded.step()
    return [distance(alone, sharded, weights, parts), sorted({r.path for r in sn.explain(sharded)})]


def strided(grad: Tensor, part: Any) -> Any:
    """The gradient, placed as a weight: torch places no tensor by `_StridedShard`."""
    from torch.distributed.tensor import DTensor

    from spherenorm.compile.sharded.shards import region_at

    at = part.device_mesh.get_coordinate()
    region = region_at(grad.shape, part.device_mesh.shape, at, part.placements)
    return DTensor.from_local(
        region.of(grad).clone(),
        part.device_mesh,
        part.placements,
        run_check=False,
        shape=part.shape,
        stride=part.stride(),
    )


def every_recipe() -> dict[str, Any]:
    """The distance of each recipe of the library, in uneven shards, to one process."""
    found: dict[str, Any] = {}
    for name in sn.recipe_names():
        weights, parts = draw_weights([(7, 6), (4, 5)], [0])
        try:
            alone, sharded = (sn.torch_optimizer(name)(each) for each in (weights, parts))
            for step in range(3):
                give(weights, parts, step)
                alone.step()
                sharded.step()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            continue
        found[name] = distance(alone, sharded, weights, parts)
    return found


def cases_of_four() -> dict[str, Callable[[], Any]]:
    """All cases for four processes."""
    warnings.filterwarnings("ignore")
    bound = functools.partial
    return {
        **{f"grid, {recipe}": bound(grid, recipe) for recipe in RECIPES},
        **{f"parallel, {recipe}": bound(parallel, recipe) for recipe in RECIPES},
        **{f"fault {i}": bound(faulty, *fault) for i, fault in enumerate(FAULTS)},
        **{f"in turn, {recipe}": bound(in_turn, recipe) for recipe in ("muon", "adamp")},
        "every recipe": every_recipe,
    }


def cases() -> dict[str, Callable[[], Any]]:
    """All cases for two processes, by the names that the tests read them by."""
    warnings.filterwarnings("ignore")
    bound = functools.partial
    return {
        **{
            f"{recipe}, {name}": bound(owned, recipe, *PLACEMENTS[name])
            for recipe in RECIPES
            for name in PLACEMENTS
        },
        **{f"fault {i}": bound(faulty, *fault) for i, fault in enumerate(FAULTS)},
        **{f"in turn, {recipe}": bound(in_turn, recipe) for recipe in ("muon", "adamp")},
        **{f"checkpoint, {name}": bound(checkpointed, name) for name in ("muon", "soap")},
        "mixed": mixed,
        "counted": counted,
        "stacked": stacked,
        "bucketed": bucketed,
        "two meshes": two_meshes,
        "state bytes": state_bytes,
        "explained": explained,
        "replicated states": loaded_replicated,
    }
