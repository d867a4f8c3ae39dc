"""Weights whose entries lie in several processes: they step as whole ones, or are refused."""

import contextlib
import copy
import functools
import itertools
import json
import pickle
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils._python_dispatch import TorchDispatchMode

from spherenorm import chain, explain, find_recipe, optim, probe, rules, torch_optimizer
from spherenorm._manifold import Sphere
from spherenorm.compile import BackendError
from spherenorm.compile._guard import UnsupportedRuleError
from spherenorm.compile._paths import Paths
from spherenorm.probes import _weights as probed_weights
from tests.harness.gradients import gradient

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")

STEPS = 4
"""As many as gradient families alternate."""
HEAVY = {"momentum": 0.9, "weight_decay": 0.1}
NESTEROV_PER_UNIT = {**HEAVY, "nesterov": True, "per": "unit"}
BY_ENTRY = [
    ("sgd", HEAVY),
    ("adamw", {}),
    ("rmsprop", {"momentum": 0.9, "centered": True}),
]
BY_UNIT = [
    ("sgdp", HEAVY),
    ("sgdp", NESTEROV_PER_UNIT),
    ("sgdp", {**HEAVY, "project_buffer": True}),
    ("adamp", {"weight_decay": 0.1}),
    ("adamp", {"weight_decay": 0.1, "nesterov": True, "per": "unit"}),
]
ON_SPHERE = [("sgdg", {}), ("adamg", {}), ("adamg", {"view": "layer"}), ("sgdg", {"alpha": 0.0})]
NORM_CONTROL = [
    *[(name, {}) for name in ("normuon", "muonh", "orthograd", "rotational(sgd)")],
    *[(name, {}) for name in ("muown", "angularmuown", "mdmuon", "spel", "muonsphere")],
]
MATRICES = [
    # The shape, and for each dimension of the mesh the one of the weight that it cuts, or None.
    ((4, 6), (None,)),
    ((4, 5), (1,)),
    ((1, 8), (0,)),
    ((5, 3, 2, 2), (0,)),
    ((4, 3, 3, 3), (1,)),
    ((1, 3, 3, 3), (0,)),
    ((4, 1, 3, 3), (1,)),
    ((3, 4, 5), (2,)),
    ((1, 8), (None, 0)),
]
OTHERS = [((8, 1), (0,)), ((8, 1), (1,)), ((1, 1), (0,)), ((7,), (0,)), ((1,), (0,)), ((), (None,))]
PRODUCTS = [
    *((BY_ENTRY, [*MATRICES[:3], *OTHERS]), (BY_UNIT, [*MATRICES, *OTHERS])),
    *((ON_SPHERE, MATRICES), (NORM_CONTROL, MATRICES[1:4])),
]


def _every_second(products, of_two):
    """Every second case: of each recipe half of the shardings, which one before it has not.

    So each sharding has a recipe of each kind: by tensor and by unit, SGDG and AdamG.
    """
    return [
        (recipe, sharding)
        for recipes, shardings in products
        for (i, recipe), (j, sharding) in itertools.product(
            enumerate(recipes), enumerate(shardings)
        )
        if (i + j) % 2 == of_two
    ]


CASES = [
    *_every_second(PRODUCTS, 0),
    *itertools.product(NORM_CONTROL, MATRICES[2:3]),
    # A group may lie in both processes.
    (("adamp", {"views": ["groups=3", "layer"]}), ((6, 5), (0,))),
    (("adamp", {"views": ["groups=3", "layer"]}), ((6, 5), (1,))),
    (("adamp", {"views": ["dim=1,groups=3", "layer"], "per": "unit"}), ((5, 6), (1,))),
    (("sgdg", {"view": "groups=3"}), ((6, 5), (0,))),
]
LONG_CASES = [*_every_second(PRODUCTS, 1), *itertools.product(NORM_CONTROL, MATRICES[:1])]
BACKENDS = ("auto", "rule")
MANY = [(7 + i, 6) for i in range(6)] + [(1, 4), (3, 2, 3, 3)] + [(9,), (1,)]
"""The shapes of a model: eight matrices and two vectors, some with no row in one process."""
BY_SUMS = [("adamp", {"weight_decay": 0.1}), ("sgdp", {**HEAVY, "dampening": 0.5}), ("adamw", {})]
CAUSES = ("mode", "memory")
"""The reasons for which one process alone takes no kernels."""
ALONE = [
    *itertools.product(BY_SUMS, ("auto",), CAUSES, (0, 2)),
    *itertools.product(BY_SUMS[:1], ("compiled",), ("memory",), (0, 2)),
]
"""The recipe, the backend, the reason, and the step at which it holds."""
MODEL_CASES = [
    ("adamw", {}),
    ("adamp", {"weight_decay": 0.1}),
    ("sgdp", NESTEROV_PER_UNIT),
    ("sgdg", {}),
    ("adamg", {}),
]


@functools.cache
def _mesh(world, dims=1):
    from torch.distributed.tensor import init_device_mesh

    return init_device_mesh("cpu", (1,) * (dims - 1) + (world,))


def _placed(whole, cut, world):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements = [Replicate() if dim is None else Shard(dim) for dim in cut]
    return distribute_tensor(whole.clone(), _mesh(world, len(cut)), placements)


def _whole(x):
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def _placements(tensors):
    return {key: getattr(x, "placements", None) for key, x in tensors.items()}


def _stepped_apart(world, name, options, shape, cut):
    """For each back end the distance of a sharded weight and its state from whole ones.

    And true if they stay placed. The whole ones step by the rule's own code.
    """
    # (from another seed than the gradients', of which one would be radial, and its rest rounding)
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    if name in ("sgdg", "adamg"):
        weight = Sphere(options.get("view", "channel")).normalize(weight)
    cls = optim.torch_optimizer(name)
    whole = weight.clone().requires_grad_()
    alone = cls([whole], lr=0.01, backend="rule", **options)
    sharded = {each: _placed(weight, cut, world).requires_grad_() for each in BACKENDS}
    steppers = {x: cls([sharded[x]], lr=0.01, backend=x, **options) for x in BACKENDS}
    fresh = find_recipe(name)(lr=0.01, **options).init(sharded["rule"])
    before = _placements({"weight": sharded["rule"], **fresh})
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        whole.grad = gradient("alternating", whole.detach(), generator, step)
        placed = _placed(whole.grad, cut, world)
        alone.step()
        for backend, optimizer in steppers.items():
            sharded[backend].grad = placed
            optimizer.step()
    expected, found = {"weight": whole.detach(), **alone.state[whole]}, {}
    for backend, optimizer in steppers.items():
        ours = {"weight": sharded[backend].detach(), **optimizer.state[sharded[backend]]}
        apart = max((_whole(ours[key]) - x).abs().max().item() for key, x in expected.items())
        found[backend] = apart, _placements(ours) == before
    return found


def _model_apart(world, name, options, backend="auto"):
    """The distance of a model's sharded weights from whole ones, and the collectives of a step."""
    draw = torch.Generator().manual_seed(99)
    whole = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in MANY]
    alone = [weight.clone().requires_grad_() for weight in whole]
    sharded = [_placed(weight, (0,), world).requires_grad_() for weight in whole]
    cls = optim.torch_optimizer(name)
    first = cls(alone, lr=0.01, **options)
    second = cls(sharded, lr=0.01, backend=backend, **options)
    collectives = []
    for step in range(STEPS):
        for i, (weight, part) in enumerate(zip(alone, sharded, strict=True)):
            generator = torch.Generator().manual_seed(step)
            weight.grad = gradient("alternating", weight.detach(), generator, step + i)
            part.grad = _placed(weight.grad, (0,), world)
        first.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            second.step()
        counts = {each.key: each.count for each in profile.key_averages()}
        collectives.append(sum(n for key, n in counts.items() if key.startswith("gloo:")))
    pairs = zip(sharded, alone, strict=True)
    return max((_whole(p) - q).abs().max().item() for p, q in pairs), collectives


def _where_one_has_no_kernel(rank, world, function, *arguments):
    """The result of a function while the last process has no kernels."""

    def refuse(*arguments, **options):
        raise UnsupportedRuleError("no compiler here")

    with pytest.MonkeyPatch.context() as patch:
        if rank == world - 1:
            patch.setattr(Paths, "kernel", refuse)
        return function(*arguments)


def _beside_an_unsharded_weight(rank, world):
    """The distance of sharded weights from whole ones, beside a weight that all processes hold.

    At one step only one process has a gradient of that weight, as of an expert that no token of the
    other process takes. So that process plans anew alone.
    """
    draw = torch.Generator().manual_seed(99)
    whole = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in MANY[:2]]
    alone = [weight.clone().requires_grad_() for weight in whole]
    sharded = [_placed(weight, (0,), world).requires_grad_() for weight in whole]
    expert = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    first = optim.AdamP(alone, lr=0.01)
    second = optim.AdamP([*sharded, expert], lr=0.01)
    for step in range(STEPS):
        for weight, part in zip(alone, sharded, strict=True):
            generator = torch.Generator().manual_seed(step)
            weight.grad = gradient("alternating", weight.detach(), generator, step)
            part.grad = _placed(weight.grad, (0,), world)
        expert.grad = None if step == 2 and rank == 0 else torch.ones_like(expert)
        first.step()
        second.step()
    pairs = zip(sharded, alone, strict=True)
    return max((_whole(p) - q).abs().max().item() for p, q in pairs)


class Passing(TorchDispatchMode):
    """Every operation as it is."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def _transposed(part):
    """Lay the rows of a part one beside another in memory."""
    with torch.no_grad():
        held = part.to_local()
        held.data = held.t().contiguous().t()


def _contiguous(part):
    with torch.no_grad():
        held = part.to_local()
        held.data = held.contiguous()


def _alone(rank, world, recipe, backend, cause, at):
    """The distance of sharded weights from whole ones, where one process alone takes no kernels.

    Where it raises, its rows are put in order, and the step is taken again.

    Returns:
        The distance; of each process the error; and True if no process had moved where it raised.
    """
    name, options = recipe
    draw = torch.Generator().manual_seed(99)
    whole = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in [*MANY[:2], (9,)]]
    alone = [weight.clone().requires_grad_() for weight in whole]
    sharded = [_placed(weight, (0,), world).requires_grad_() for weight in whole]
    cls = optim.torch_optimizer(name)
    first = cls(alone, lr=0.01, **options)
    second = cls(sharded, lr=0.01, backend=backend, **options)
    said, kept = "", True
    for step in range(STEPS):
        for weight, part in zip(alone, sharded, strict=True):
            weight.grad = gradient("alternating", weight.detach(), draw.manual_seed(step), step)
            part.grad = _placed(weight.grad, (0,), world)
        here = step == at and rank == world - 1
        if here and cause == "memory":
            _transposed(sharded[1])
        first.step()
        before = [part.detach().to_local().clone() for part in sharded]
        try:
            with Passing() if here and cause == "mode" else contextlib.nullcontext():
                second.step()
        except BackendError as error:
            said = str(error)
            now = [part.detach().to_local() for part in sharded]
            kept = kept and all(map(torch.equal, before, now))
            if here:
                _contiguous(sharded[1])
            second.step()
        if here and cause == "memory":
            _contiguous(sharded[1])
    told = [None] * world
    dist.all_gather_object(told, (said, kept))
    errors, unmoved = zip(*told, strict=True)
    pairs = zip(sharded, alone, strict=True)
    return max((_whole(p) - q).abs().max().item() for p, q in pairs), errors, all(unmoved)


def _explained(rank, world):
    """The paths that one process is told alone, before and after another has no kernel."""
    sharded = _placed(torch.ones(4, 3, dtype=torch.float64), (0,), world).requires_grad_()
    optimizer = optim.AdamP([sharded])
    told = [line.path for line in explain(optimizer)] if rank == 0 else []
    sharded.grad = _placed(torch.ones(4, 3, dtype=torch.float64), (0,), world)
    _where_one_has_no_kernel(rank, world, optimizer.step)
    return told + [line.path for line in explain(optimizer)] if rank == 0 else None


def _pair(world):
    """AdamP of a whole weight and of a sharded one, and what gives both a gradient."""
    draw = torch.Generator().manual_seed(99)
    weight = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    pair = [weight.clone().requires_grad_(), _placed(weight, (0,), world).requires_grad_()]

    def give(optimizers, step, scale=1.0, spoil=False):
        grad = scale * torch.randn(6, 5, generator=draw.manual_seed(step), dtype=torch.float64)
        if spoil:
            grad[-1] = torch.inf  # of the last process alone
        for optimizer, each in zip(optimizers, (grad, _placed(grad, (0,), world)), strict=True):
            optimizer.param_groups[0]["params"][0].grad = each.clone()

    return [optim.AdamP([each], lr=0.1) for each in pair], give


def _apart_of(optimizers):
    """The distance of their weights, and their counts of steps."""
    weights = [optimizer.param_groups[0]["params"][0] for optimizer in optimizers]
    both = zip(optimizers, weights, strict=True)
    counts = [_whole(optimizer.state[weight]["step"]).item() for optimizer, weight in both]
    return (_whole(weights[1]) - weights[0]).abs().max().item(), counts


def _scaled(world):
    """After steps by a GradScaler, of which one is skipped."""
    optimizers, give = _pair(world)
    scalers = [torch.amp.GradScaler("cpu", init_scale=4.0) for _ in optimizers]
    for step in range(STEPS):
        give(optimizers, step, 4.0, spoil=step == 2)
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.scale(torch.ones(()))
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update(4.0)
    return _apart_of(optimizers)


def _copied(world):
    """After steps of a deep copy, and of a pickle of it."""
    optimizers, give = _pair(world)
    for copied in (lambda x: x, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        optimizers = [optimizers[0], copied(optimizers[1])]
        for step in range(2):
            give(optimizers, step)
            for optimizer in optimizers:
                optimizer.step()
    return _apart_of(optimizers)


def _optimizer(name, options, model):
    """By the recipe; one of the sphere takes only what has rows."""
    cls = optim.torch_optimizer(name)
    if name not in ("sgdg", "adamg"):
        return cls(model.parameters(), lr=0.01, **options)
    weights = {"params": [p for p in model.parameters() if p.ndim > 1]}
    rest = {"params": [p for p in model.parameters() if p.ndim <= 1], "recipe": "sgd", "lr": 0.01}
    return cls([weights, rest], lr=0.01, **options)


def _model(seed, mesh=None):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        # A bias before BatchNorm has nothing but rounding for a gradient, which Adam makes large.
        torch.nn.Conv2d(3, 5, 3, bias=False),
        torch.nn.BatchNorm2d(5),
        torch.nn.Flatten(),
        torch.nn.Linear(80, 7),
        torch.nn.LayerNorm(7),
        torch.nn.ReLU(),
        torch.nn.Linear(7, 1),
    ).double()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(Sphere().normalize(weight))
    return fully_shard(model, mesh=mesh) if mesh else model


def _train(model, optimizer, steps):
    for step in range(*steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 3, 6, 6, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) - x.mean((1, 2, 3))[:, None]).square().mean().backward()
        optimizer.step()


def _apart(model, other):
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((_whole(p) - _whole(q)).abs().max().item() for p, q in pairs)


def _models_apart(mesh, name, options):
    """The distance of a sharded model from a whole one, and of its restored copies from it."""
    from torch.distributed.checkpoint import state_dict as checkpoint

    alone, sharded = _model(0), _model(0, mesh)
    first, second = _optimizer(name, options, alone), _optimizer(name, options, sharded)
    _train(alone, first, (0, 3))
    _train(sharded, second, (0, 3))
    resumed = []
    for full in (False, True):
        how = {"options": checkpoint.StateDictOptions(full_state_dict=full)}
        restored = _model(1, mesh)
        third = _optimizer(name, options, restored)
        saved = checkpoint.get_model_state_dict(sharded, **how)
        saved_state = checkpoint.get_optimizer_state_dict(sharded, second, **how)
        # The optimizer first: its missing state is made by a step at a learning rate of 0.
        checkpoint.set_optimizer_state_dict(restored, third, saved_state, **how)
        checkpoint.set_model_state_dict(restored, saved, **how)
        resumed.append((restored, third))
    for model, optimizer in [(alone, first), (sharded, second), *resumed]:
        _train(model, optimizer, (3, 6))
    return _apart(sharded, alone), *(_apart(model, sharded) for model, _ in resumed)


def _refusals():
    """The answer of each optimizer to the parameters of FullyShardedDataParallel."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    said = []
    for original in (False, True):
        flat = FullyShardedDataParallel(
            _model(0),
            use_orig_params=original,
            device_id=torch.device("cpu"),
        )
        for name in optim.__all__[:9]:
            try:
                getattr(optim, name)(flat.named_parameters(), lr=0.1)
                said.append(f"{name} takes them")
            except ValueError as error:
                said.append(str(error))
    return said


def remembering(lr=0.1, views=("channel", "groups=5", "layer")):
    test = rules.AccumulatedInvarianceTest(views=views)
    return chain(test, rules.RadialProjection(), rules.StepSize(lr))


PROBED = {
    "SGD": torch.optim.SGD,
    "AdamP": optim.AdamP,
    "remembering": torch_optimizer(remembering),
}


def _probed(world, name):
    """The measurements of a whole weight, and those of the same one in two processes."""
    found = []
    for sharded in (False, True):
        generator = torch.Generator().manual_seed(0)
        weight, *grads = torch.randn(3, 5, 6, generator=generator, dtype=torch.float64)
        grads = [
            g - weight * (g * weight).sum(1, True) / weight.square().sum(1, True) for g in grads
        ]
        if sharded:
            weight, *grads = (_placed(x, (0,), world) for x in (weight, *grads))
        parameter = torch.nn.Parameter(weight)
        optimizer = PROBED[name]([parameter], lr=0.1)
        with probe(optimizer, every=1, units=True) as measured:
            for grad in grads:
                parameter.grad = grad
                optimizer.step()
        found.append([m.plain() for m in measured.measurements])
    return found


def _probed_alone(rank, world):
    """The error of a probe in one process alone, and the steps of probes in both that follow."""
    weight = torch.nn.Parameter(_placed(torch.ones(5, 6), (0,), world))
    optimizer = optim.SGD([weight], lr=0.1)
    said = ""
    if rank == 1:
        with mock.patch.object(probed_weights, "MEETING", timedelta(seconds=0.5)):
            try:
                probe(optimizer, every=1)
            except ValueError as error:
                said = str(error)
    all_said = [None] * world
    dist.all_gather_object(all_said, said)
    with probe(optimizer, every=1) as measured:
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    return all_said, [each.step for each in measured.measurements]


def _or_error(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:  # DTensor raises in all processes alike
        return str(error)


def _weights_apart(rank, world, cases):
    return [_or_error(_stepped_apart, world, *recipe, *sharding) for recipe, sharding in cases]


def _everything(rank, world):
    first = BY_SUMS[0]
    refused = _or_error(_where_one_has_no_kernel, rank, world, _model_apart, world, *first)
    return {
        "refusals": _refusals(),
        "weights": _weights_apart(rank, world, CASES),
        "sums": [_or_error(_model_apart, world, *recipe) for recipe in BY_SUMS],
        "own code": _or_error(_model_apart, world, *first, "rule"),
        "without a kernel": refused,
        "beside": _or_error(_beside_an_unsharded_weight, rank, world),
        "explained": _or_error(_explained, rank, world),
        "alone": [_or_error(_alone, rank, world, *case) for case in ALONE],
        "scaled": _or_error(_scaled, world),
        "copied": _or_error(_copied, world),
        "probes": {name: _or_error(_probed, world, name) for name in PROBED},
        "probed alone": _or_error(_probed_alone, rank, world),
        "models": [_or_error(_models_apart, _mesh(world), *recipe) for recipe in MODEL_CASES],
    }


def _work(rank, world, folder, function, *arguments):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    # Who waits for a collective that the other does not take fails, and does not wait for ever.
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=limit)
    try:
        results = function(rank, world, *arguments)
        if rank == 0:
            (folder / "results").write_text(json.dumps(results))
        dist.barrier()  # who leaves first would take the connections of the others away
    finally:
        dist.destroy_process_group()


def _in_two_processes(folder, *function):
    mp.spawn(_work, args=(2, folder, *function), nprocs=2)
    return json.loads((folder / "results").read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return _in_two_processes(tmp_path_factory.mktemp("sharded"), _everything)


def _wrong(cases, results):
    return [
        (case, backend, found)
        for case, found in zip(cases, results, strict=True)
        for backend in BACKENDS
        if isinstance(found, str) or found[backend][0] >= 1e-13 or not found[backend][1]
    ]


def test_sharded_weights_step_as_whole_ones_and_stay_in_their_shards(results):
    assert not _wrong(CASES, results["weights"])


@pytest.mark.long
def test_sharded_weights_of_more_shardings_step_as_whole_ones(tmp_path):
    assert not _wrong(LONG_CASES, _in_two_processes(tmp_path, _weights_apart, LONG_CASES))


@pytest.mark.parametrize("index", range(len(BY_SUMS)), ids=lambda i: BY_SUMS[i][0])
def test_a_model_takes_two_collectives_a_step(results, index):
    """Two rounds of sums: one decides on all weights, one projects those that are layer-wise."""
    apart, collectives = results["sums"][index]
    assert apart < 1e-13
    first, *others = collectives  # the first step agrees on paths, too
    assert first <= 3
    assert max(others) <= (0 if BY_SUMS[index][0] == "adamw" else 2)


def test_own_code_takes_collectives_for_each_weight(results):
    apart, collectives = results["own code"]
    assert apart < 1e-13
    assert min(collectives) > len(MANY)


def test_a_process_without_a_kernel_takes_all_others_to_the_rules_own_code(results):
    apart, collectives = results["without a kernel"]
    assert apart < 1e-13
    assert min(collectives) > len(MANY)


def test_a_process_plans_anew_alone_and_the_others_wait_for_nothing(results):
    assert results["beside"] < 1e-13


def _id(case):
    (recipe, _), *rest = case
    return "-".join(map(str, (recipe, *rest)))


@pytest.mark.parametrize("index", range(len(ALONE)), ids=lambda i: _id(ALONE[i]))
def test_where_one_process_alone_takes_no_kernels_all_step_alike_or_all_raise(results, index):
    found = results["alone"][index]
    assert isinstance(found, list), found
    apart, errors, unmoved = found
    assert apart < 1e-13
    if ALONE[index][1] == "auto":
        assert errors == ["", ""]
        return
    other, own = errors
    refused = 'backend="compiled" cannot take the step of '
    assert all(said.startswith(refused) for said in errors)
    assert "for a weight of shape (8, 6), torch.float64, on cpu" in own
    assert "rows do not lie one after another in memory" in own
    assert "takes no kernels" in other
    assert unmoved  # an error leaves the whole step undone


def test_a_scaler_skips_a_step_in_all_processes_if_one_has_an_infinite_gradient(results):
    apart, counts = results["scaled"]
    assert apart < 1e-13
    assert counts == [STEPS - 1] * 2


def test_copies_of_an_optimizer_go_on(results):
    apart, counts = results["copied"]
    assert apart < 1e-13
    assert counts == [6, 6]


def test_one_process_alone_explains(results):
    assert results["explained"] == ["C++ kernel", "rule"]


@pytest.mark.parametrize("index", range(len(MODEL_CASES)), ids=lambda i: MODEL_CASES[i][0])
def test_a_fully_sharded_model_trains_as_a_whole_one_and_goes_on_from_a_checkpoint(results, index):
    found = results["models"][index]
    assert isinstance(found, list), found
    apart, *resumed = found
    assert apart < 1e-13
    assert resumed == [0, 0]


@pytest.mark.parametrize("name", PROBED)
def test_a_probe_of_a_sharded_weight_measures_the_whole_one(results, name):
    whole, sharded = results["probes"][name]
    assert [m["step"] for m in whole] == [1, 2]
    for wanted, got in zip(whole, sharded, strict=True):
        units, own = wanted.pop("units"), got.pop("units")
        for pairs in (wanted, units):
            for key, value in pairs.items():
                found = (got if pairs is wanted else own)[key]
                plain = value is None or isinstance(value, str)
                assert found == (value if plain else pytest.approx(value, rel=1e-9, abs=1e-9))
    assert whole[0]["invariant_view"] == "channel"


def test_a_probe_in_one_process_alone_says_which_has_none(results):
    (_, said), steps = results["probed alone"]
    assert said.startswith("probe: process 0 has no probe after 0.5 s")
    assert steps == [1]


def test_flattened_parameters_are_refused_by_name(results):
    for message in results["refusals"]:
        assert message.startswith("parameter 0 (_fsdp_wrapped_module.")
        assert "use torch.distributed.fsdp.fully_shard" in message
