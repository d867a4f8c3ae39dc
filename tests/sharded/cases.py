"""The cases of the two processes: a sharded weight, and the same one whole beside it."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from tests.fuzz.shards import sharded_outcome
from tests.harness import ROWS, Row, gradient
from tests.sharded.world import apart, mesh, placed, whole

STEPS = 4
"""As many as gradient families alternate."""
SHARDINGS = [
    # The shape, and for each dimension of the mesh the one of the weight that it cuts, or None.
    *(((4, 6), None), ((4, 5), 1), ((1, 8), 0), ((5, 3, 2, 2), 0), ((4, 4, 3, 3), 1)),
    *(((5, 4), None, 0), ((7,), 0)),
]
ROUNDING_ERRORS = 1e-13
GROUPED = [
    # A group may lie in both processes.
    (Row("adamp", {"views": ["groups=3", "layer"]}), ((6, 5), 0)),
    (Row("adamp", {"views": ["groups=3", "layer"]}), ((6, 5), 1)),
    (Row("adamp", {"views": ["dim=1,groups=3", "layer"], "per": "unit"}), ((5, 6), 1)),
    (Row("sgdg", {"view": "groups=3"}), ((6, 5), 0)),
    (Row("blocks(muon)", {"shares": (1, 2)}), ((6, 5), 0)),
    (Row("blocks(adamp)", {"shares": (2, 1)}), ((6, 5), 1)),
]
UNEVEN = [
    # A factored moment sums over the rows, or over what each process holds of them.
    *((Row(name), sharding) for name in ("adafactor", "came") for sharding in
      (((5, 3), 0), ((1, 4), 0), ((4, 5), 1), ((5, 3, 2, 2), 0), ((7,), 0))),
]  # fmt: skip


def pairs() -> list[tuple[str, Row, Any]]:
    """Each row with a sharding, in turn, by turns with kernels and by the rule's own code."""
    chosen = []
    for i, row in enumerate(ROWS):
        fitting = [each for each in SHARDINGS if len(each[0]) >= row.fewest]
        chosen.append((("auto", "rule")[i // len(fitting) % 2], row, fitting[i % len(fitting)]))
    return chosen + [("auto", *pair) for pair in GROUPED + UNEVEN]


def first(shape: tuple[int, ...], unit: bool = False) -> Tensor:
    # (From another seed than the gradients', of which one would be radial, and its rest rounding.)
    draw = torch.Generator().manual_seed(99)
    weight = torch.randn(shape, generator=draw, dtype=torch.float64)
    return sn.Sphere().normalize(weight) if unit else weight


def give(weights: list[Any], parts: list[Any], step: int, cut: Any = (0,)) -> None:
    """All branches of the test in turn; a weight and its shards have one gradient."""
    draw = torch.Generator().manual_seed(step)
    for i, (weight, part) in enumerate(zip(weights, parts, strict=True)):
        weight.grad = gradient("alternating", weight.detach(), draw, step + i)
        part.grad = placed(weight.grad, *cut)


def steps_apart(backend: str, row: Row, sharding: Any) -> list[Any]:
    """The distance of a sharded weight and its states from whole ones, and if they stay placed."""
    shape, *cut = sharding
    weight = first(shape, unit=row.recipe in ("sgdg", "adamg")).requires_grad_()
    part = placed(weight, *cut).requires_grad_()
    alone, sharded = row.optimizer([weight], backend="rule"), row.optimizer([part], backend=backend)
    stays = []
    for step in range(STEPS):
        give([weight], [part], step, cut)
        alone.step()
        sharded.step()
        ours, theirs = {"": part, **sharded.state[part]}, {"": weight, **alone.state[weight]}
        stays.append({key: str(getattr(x, "placements", 0)) for key, x in ours.items()})
    return [apart(ours.values(), [theirs[key] for key in ours]), stays[0] == stays[-1]]


# ------------------------------------------------------------------ many weights

MANY = [(7, 6), (8, 6), (1, 4), (3, 2, 3, 3), (9,), (1,)]
"""The shapes of a model: four matrices and two vectors, some with no row in one process."""
BY_SUMS = [("adamp", {"weight_decay": 0.1}), ("adamw", {})]


def many(shapes: list[tuple[int, ...]]) -> tuple[list[Tensor], list[Tensor]]:
    draw = torch.Generator().manual_seed(99)
    drawn = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]
    return [w.requires_grad_() for w in drawn], [placed(w, 0).requires_grad_() for w in drawn]


def collectives(recipe: str, settings: dict[str, Any], backend: str) -> list[Any]:
    """The distance of a model's sharded weights from whole ones, and the collectives of a step."""
    weights, parts = many(MANY)
    alone = sn.torch_optimizer(recipe)(weights, lr=0.01, **settings)
    sharded = sn.torch_optimizer(recipe)(parts, lr=0.01, backend=backend, **settings)
    counts = []
    for step in range(STEPS):
        give(weights, parts, step)
        alone.step()
        if step % 2:
            sharded.step()
            continue
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            sharded.step()
        events = profile.key_averages()
        counts.append(sum(event.count for event in events if event.key.startswith("gloo:")))
    return [apart(parts, weights), counts]


def unequal_gradients() -> list[Any]:
    """The distance where one process lacks the gradient of a weight that all processes hold.

    So it is with an expert that no token of that process takes: the process plans anew alone.
    """
    weights, parts = many(MANY[:2])
    expert = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    alone, sharded = optim.AdamP(weights, lr=0.01), optim.AdamP([*parts, expert], lr=0.01)
    for step in range(STEPS):
        give(weights, parts, step)
        lacks = step == 2 and dist.get_rank() == 0
        expert.grad = None if lacks else torch.ones_like(expert)
        if step == 1:  # and of a sharded weight in all processes
            weights[1].grad = parts[1].grad = None
        alone.step()
        sharded.step()
    return [apart(parts, weights)]


def no_gradient_at_first() -> list[Any]:
    """The errors of both processes if one lacks a gradient of a sharded weight at its first step.

    Returns:
        The errors; true if no weight has moved; the distance after steps with all gradients.
    """
    weights, parts = many(MANY[:2])
    alone, sharded = optim.AdamP(weights, lr=0.01), optim.AdamP(parts, lr=0.01)
    give(weights, parts, 0)
    if dist.get_rank() == 1:
        parts[1].grad = None
    before = [part.detach().to_local().clone() for part in parts]
    said = ""
    try:
        sharded.step()
    except ValueError as error:
        said = str(error)
    kept = all(map(torch.equal, before, (part.detach().to_local() for part in parts)))
    for step in range(STEPS):
        give(weights, parts, step)
        alone.step()
        sharded.step()
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (said, kept))
    return [[said for said, _ in told], all(kept for _, kept in told), apart(parts, weights)]


def life() -> list[Any]:
    """The distance, and the counts of steps, after a skipped step, a copy and a pickle."""
    (weight,), (part,) = many([(6, 5)])
    optimizers = [optim.AdamP([x], lr=0.1) for x in (weight, part)]
    scalers = [torch.amp.GradScaler("cpu", init_scale=1.0) for _ in optimizers]
    for step in range(2 * STEPS):
        if step == STEPS:
            optimizers[1] = copy.deepcopy(optimizers[1])
        if step == STEPS + 1:
            optimizers[1] = pickle.loads(pickle.dumps(optimizers[1]))
        weight, part = (of.param_groups[0]["params"][0] for of in optimizers)
        give([weight], [part], step)
        if step == 2:  # of the last process alone
            weight.grad[-1] = torch.inf
            part.grad = placed(weight.grad, 0)
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.scale(torch.ones(()))
            scaler.step(optimizer)
            scaler.update(1.0)
    counts = [whole(of.state[of.param_groups[0]["params"][0]]["step"]) for of in optimizers]
    return [apart([part], [weight]), [int(count) for count in counts]]


# ------------------------------------------------------------------ models

MODELS = [("adamp", {"weight_decay": 0.1}, False), ("adamg", {}, True)]
"""A recipe, and whether its checkpoint holds whole tensors, or those of each process."""


def model(seed: int, cut: bool) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    made = torch.nn.Sequential(
        # A bias before BatchNorm has nothing but rounding for a gradient, which Adam makes large.
        *(torch.nn.Conv2d(3, 5, 3, bias=False), torch.nn.BatchNorm2d(5), torch.nn.Flatten()),
        *(torch.nn.Linear(80, 7), torch.nn.LayerNorm(7), torch.nn.ReLU(), torch.nn.Linear(7, 1)),
    ).double()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight.copy_(sn.Sphere().normalize(weight))
    return fully_shard(made, mesh=mesh()) if cut else made


def optimizer_of(recipe: str, settings: dict[str, Any], trained: torch.nn.Module) -> Any:
    """By the recipe; biases and gains by SGD."""
    both = [[p for p in trained.parameters() if (p.ndim > 1) == rows] for rows in (True, False)]
    rest = {"params": both[1], "recipe": "sgd", "lr": 0.01}
    return sn.torch_optimizer(recipe)([{"params": both[0]}, rest], lr=0.01, **settings)


def train(trained: torch.nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, 6, 6, generator=draw, dtype=torch.float64)
        optimizer.zero_grad()
        (trained(x) - x.mean((1, 2, 3))[:, None]).square().mean().backward()
        optimizer.step()


def evaluated() -> list[Any]:
    """The outputs of a whole and of a sharded model, with averages and with trained weights."""
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    outputs = []
    for cut in (False, True):
        trained = model(0, cut)
        optimizer = optimizer_of("averaged(adamw)", {"decay": 0.5}, trained)
        train(trained, optimizer, range(3))
        trained.eval()
        with torch.no_grad(), optimizer.evaluating():
            read = trained(x)
            if cut:  # or the next forward pass has the averages that this one gathered
                trained.reshard()
        with torch.no_grad():
            outputs.append((read, trained(x)))
    (a, b), (c, d) = outputs
    return [apart([c], [a]), apart([d], [b]), not torch.allclose(a, b)]


def in_low_precision() -> list[Any]:
    """The distance of states in bfloat16 of sharded weights from those of a whole one, and types.

    Roundings differ: each process numbers the entries that it holds."""
    weights, parts = many([(6, 4), (8, 3)])
    runs = [sn.torch_optimizer("low_precision(adamw)")(each, lr=0.1) for each in (weights, parts)]
    for step in range(3):
        give(weights, parts, step)
        for optimizer in runs:
            optimizer.step()
    states = [[optimizer.state[w]["exp_avg"] for w in each] for optimizer, each in
              zip(runs, (weights, parts), strict=True)]  # fmt: skip
    same = sorted({str(x.dtype) for each in states for x in each})
    return [apart(*[[whole(x).double() for x in each] for each in states[::-1]]), same]


def expanded_states() -> float:
    """The distance of weights and states after all entries of a state have shared one number."""
    from torch.distributed.tensor import DTensor

    (weight,), (part,) = many([(6, 4)])
    runs = [(x, optim.AdamW([x], lr=0.1, backend="rule")) for x in (weight, part)]
    for step in range(3):
        give([weight], [part], step)
        for _, optimizer in runs:
            optimizer.step()
        if step == 0:
            old = runs[1][1].state[part]["exp_avg"]
            half = torch.full((), 0.5, dtype=torch.float64)
            runs[0][1].state[weight]["exp_avg"] = half.expand(weight.shape)
            expanded = half.expand(old.to_local().shape)
            runs[1][1].state[part]["exp_avg"] = DTensor.from_local(
                expanded, old.device_mesh, old.placements, shape=old.shape, stride=old.stride()
            )
    (_, alone), (_, sharded) = runs
    ours = [part, *sharded.state[part].values()]
    return apart(ours, [weight, *(alone.state[weight][key] for key in sharded.state[part])])


def models_apart(recipe: str, settings: dict[str, Any], full: bool) -> list[float]:
    """The distance of a sharded model from a whole one, and of a restored copy from it."""
    from torch.distributed.checkpoint import state_dict as checkpoint

    pair = [model(0, cut) for cut in (False, True)]
    runs = [(each, optimizer_of(recipe, settings, each)) for each in pair]
    for trained, optimizer in runs:
        train(trained, optimizer, range(2))
    how = {"options": checkpoint.StateDictOptions(full_state_dict=full)}
    restored = model(1, True)
    optimizer = optimizer_of(recipe, settings, restored)
    weights, states = checkpoint.get_state_dict(*runs[1], **how)
    # The optimizer first: its missing state is made by a step at a learning rate of 0.
    checkpoint.set_optimizer_state_dict(restored, optimizer, states, **how)
    checkpoint.set_model_state_dict(restored, weights, **how)
    runs.append((restored, optimizer))
    for trained, optimizer in runs:
        train(trained, optimizer, range(2, 4))
    alone, sharded, resumed = [list(trained.parameters()) for trained, _ in runs]
    return [apart(sharded, alone), apart(resumed, sharded)]


def flattened() -> list[str]:
    """The answer of optimizers to parameters of FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    said = []
    for original, cls in itertools.product((False, True), (optim.AdamP, optim.SGDG)):
        flat = FullyShardedDataParallel(
            model(0, False), use_orig_params=original, device_id=torch.device("cpu")
        )
        try:
            cls(flat.named_parameters(), lr=0.1)
            said.append(f"{cls.__name__} takes them")
        except ValueError as error:
            said.append(str(error))
    return said


# ------------------------------------------------------------------ measurements


def remembering(lr: float = 0.1) -> sn.Rule:
    test = r.AccumulatedInvarianceTest(views=("channel", "groups=5", "layer"))
    return sn.chain(test, r.RadialProjection(), r.StepSize(lr))


def probed() -> list[Any]:
    """The measurements of a whole weight, and those of the same one in two processes."""
    weight, *grads = torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    grads = [g - weight * (g * weight).sum(1, True) / weight.square().sum(1, True) for g in grads]
    found = []
    for cut in (None, 0):
        parameter = torch.nn.Parameter(placed(weight, cut) if cut == 0 else weight.clone())
        optimizer = sn.torch_optimizer(remembering)([parameter], lr=0.1)
        with sn.probe(optimizer, every=1, units=True) as measured:
            for grad in grads:
                parameter.grad = placed(grad, cut) if cut == 0 else grad
                optimizer.step()
        found.append([m.plain() for m in measured.measurements])
    return found


def explained_alone() -> str:
    """The word that one process gets, while the other does something else."""
    _, parts = many([(4, 3)])
    optimizer = optim.AdamP(parts)
    return [line.path for line in sn.explain(optimizer)] if dist.get_rank() == 0 else []


FUZZED = range(5)
COUNTED = [*((*each, "auto") for each in BY_SUMS), (*BY_SUMS[0], "rule")]


def cases() -> dict[str, Callable[[], Any]]:
    """All cases by the names that the tests read them by."""
    warnings.filterwarnings("ignore", message=".*(cannot move|another norm than 1)")
    bound = functools.partial
    return {
        "flattened": flattened,  # first, while no other group of processes is there
        **{f"step {i}": bound(steps_apart, *pair) for i, pair in enumerate(pairs())},
        **{f"collectives {i}": bound(collectives, *each) for i, each in enumerate(COUNTED)},
        **{f"model {i}": bound(models_apart, *each) for i, each in enumerate(MODELS)},
        **{f"fuzz {i}": bound(sharded_outcome, 0, i) for i in FUZZED},
        "unequal gradients": unequal_gradients,
        "no gradient at first": no_gradient_at_first,
        "life": life,
        "evaluated": evaluated,
        "expanded states": expanded_states,
        "low precision": in_low_precision,
        "probed": probed,
        "explained": explained_alone,
    }
