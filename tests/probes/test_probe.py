"""A probe leaves training alone, reads late, counts on, and refuses wrong arguments."""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import spherenorm as sn
from spherenorm import rules as r
from tests.harness.refusals import refuses
from tests.probes.models import OPTIMIZERS, Model, train
from tests.probes.test_by_hand import WritesIntoGradients

pytestmark = pytest.mark.filterwarnings("ignore:.*units of another norm than 1")


def measured_once(model, optimizer, **arguments):
    with sn.probe(optimizer, every=1, model=model, **arguments) as probe:
        train(model, optimizer, 1)
    return probe.measurements


def test_views_are_the_declared_ones_and_names_those_that_are_known():
    model = Model()
    optimizer = OPTIMIZERS["groups"](model)
    views = {m.weight: m.view for m in measured_once(model, optimizer)}
    assert (views["up.weight"], views["twins.0.weight"]) == ("dim=1", "groups=4")
    assert views["conv.weight"] == views["head.weight"] == "channel"
    declared = {"conv.weight": "layer", "head.weight": None}
    views = {m.weight: m.view for m in measured_once(model, optimizer, views=declared)}
    assert views["conv.weight"] == "layer"
    assert "head.weight" not in views
    assert {m.view for m in measured_once(model, optimizer, views="layer")} == {"layer"}
    for parameters, names in (
        (model.head.named_parameters(), ["weight", "bias"]),
        (model.head.parameters(), ["0", "1"]),
    ):
        optimizer = torch.optim.SGD(parameters)
        with sn.probe(optimizer, every=1) as probe:
            optimizer.step()
        assert [m.weight for m in probe.measurements] == names
    views = {m.weight: m.view for m in measured_once(model, optimizer, views="channel")}
    assert views == {"head.weight": "channel", "head.bias": "layer"}
    with refuses("head.bias", "vector", "channel"):
        sn.probe(optimizer, model=model, views={"head.bias": "channel"})
    left_out = measured_once(model, optimizer, views={"head.bias": None})
    assert [m.weight for m in left_out] == ["head.weight"]


@pytest.mark.parametrize(("entries", "every"), [(2**16, 1), (2**16 + 4, 8)])
def test_large_networks_have_singular_values_at_every_eighth_measured_step(entries, every):
    weights = [torch.randn(entries // 4, 4), torch.randn(5)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for spectra, expected in ((None, every), (2, 2), (0, 100)):
        with sn.probe(optimizer, every=1, spectra=spectra) as probe:
            for _ in range(10):
                weights[0].grad = torch.randn(entries // 4, 4)
                optimizer.step()
        values = [m.update_spectral_norm for m in probe.measurements if m.weight == "0"]
        has_value = [not math.isnan(value) for value in values]
        assert has_value == [bool(spectra != 0 and i % expected == 0) for i in range(10)]


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (300, 200)])
@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e15])
def test_singular_values_that_stand_out_are_exact_at_any_scale(shape, scale):
    u, v = (torch.linalg.qr(torch.randn(n, 10, dtype=torch.float64))[0] for n in shape)
    values = torch.tensor([5.0, 2.0, *[1.0] * 8], dtype=torch.float64)
    step = scale * (u * values) @ v.T
    weight = torch.zeros(shape)
    weight.grad = step.float()
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (m,) = measured_once_of(optimizer)
    assert m.update_spectral_norm == pytest.approx(5 * scale, rel=1e-3)
    assert m.update_stable_rank == pytest.approx((25 + 4 + 8) / 25, rel=2e-3)
    assert m.spectral_norm == pytest.approx(5 * scale, rel=1e-3)


@pytest.mark.parametrize("scale", [1e-170, 1e-100, 1e100, 1e170])
def test_singular_values_are_right_where_their_squares_are_not(scale):
    """The stable rank needs |w|^2, which is 0 or infinite in float64 at the ends."""
    stack = scale * torch.tensor([[3.0, 1.0], [4.0, 2.0]], dtype=torch.float64).diag_embed()
    for optimizer, values in (
        (torch.optim.SGD([stack[1].clone()], lr=0.5), (2.0, 2.0)),
        (sn.optim.Muon([stack], lr=0.0, view="channel"), (math.sqrt((9 + 16) / 2), 0.0)),
    ):
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = weight.clone()
        (m,) = measured_once_of(optimizer)
        spectral_norms = m.spectral_norm, m.update_spectral_norm
        assert spectral_norms == pytest.approx([x * scale for x in values], rel=1e-12, abs=0)
        assert math.isnan(m.stable_rank) == (scale in (1e-170, 1e170))


def test_matrices_are_those_that_the_rule_orthogonalizes():
    """Each expert of a stack is a matrix; the numbers are root mean squares over them."""
    stack = torch.randn(3, 4, 5, dtype=torch.float64)
    stack.grad = torch.randn_like(stack)
    before = stack.clone()
    optimizer = sn.optim.Muon([stack], lr=0.1, view="channel")
    (m,) = measured_once_of(optimizer)
    values = torch.linalg.matrix_norm(stack - before, 2)
    assert m.update_spectral_norm == pytest.approx(values.square().mean().sqrt().item(), rel=1e-6)
    ranks = ((stack - before).square().sum((1, 2)) / values**2).square().mean().sqrt()
    assert m.update_stable_rank == pytest.approx(ranks.item(), rel=1e-6)


def measured_once_of(optimizer):
    with sn.probe(optimizer, every=1) as probe:
        optimizer.step()
    return probe.measurements


@sn.recipe
def watched(lr=0.1):
    return sn.chain(r.HeavyBall(0.5), r.Watch("norm", name="m"), r.StepSize(lr), r.Watch("turn"))


def test_a_probe_collects_what_watches_have_measured():
    weights = [torch.randn(4, 3), torch.randn(5), torch.randn(4, 3)]
    optimizer = sn.torch_optimizer(watched)(weights)
    with sn.probe(optimizer, every=1, block=1) as probe:
        weights[0].grad, weights[1].grad = torch.randn(4, 3), torch.randn(5)
        optimizer.step()
    matrix, vector, other = probe.measurements
    for m, weight in ((matrix, weights[0]), (vector, weights[1])):
        assert m.watched["m_norm"] == pytest.approx(weight.grad.norm().item(), rel=1e-6)
        state = optimizer.state[weight]
        assert m.watched == {"m_norm": state["m_watched_norm"], "turn": state["watched_turn"]}
        assert m.plain()["watched"] == m.watched
    assert all(math.isnan(x) for x in other.watched.values())
    assert other.plain()["watched"] == {"m_norm": None, "turn": None}


def of_a_cosine(lr=0.1, steps=8.0):
    return sn.chain(r.HeavyBall(0.9), r.StepSize(sn.schedule.cosine(lr, steps)))


@pytest.mark.parametrize(
    "kind", ["torch", "scheduler", "schedule", "recipe", "tensor", "lars", "hyperball(sgd)"]
)
def test_a_measurement_has_the_learning_rate_of_its_step(kind):
    """Wherever the rate comes from; a later step may write into a tensor."""
    weight = torch.nn.Parameter(torch.eye(3))
    right = [sn.schedule.cosine(0.1, 8)(t) for t in range(1, 9)]
    scheduled = {"lr": sn.schedule.cosine(0.1, 8)}
    optimizer = {
        "lars": lambda: sn.torch_optimizer("lars")([weight], **scheduled),
        "hyperball(sgd)": lambda: sn.torch_optimizer("hyperball(sgd)")([weight], **scheduled),
        "torch": lambda: torch.optim.SGD([weight], lr=0.1),
        "scheduler": lambda: sn.optim.AdamP([weight], lr=0.1),
        "schedule": lambda: sn.optim.AdamP([weight], **scheduled),
        "recipe": lambda: sn.torch_optimizer(of_a_cosine)([weight]),
        "tensor": lambda: torch.optim.Adam([weight], lr=torch.tensor(0.1), capturable=False),
    }[kind]()
    scheduler = None
    if kind == "scheduler":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    with sn.probe(optimizer, every=1) as probe:
        for rate in right:
            if kind in ("torch", "tensor"):
                torch.as_tensor(optimizer.param_groups[0]["lr"]).fill_(rate)
                if kind == "torch":
                    optimizer.param_groups[0]["lr"] = rate
            weight.grad = torch.ones(3, 3)
            optimizer.step()
            if scheduler:
                scheduler.step()
    assert [m.lr for m in probe.measurements] == pytest.approx(right, rel=1e-6)


def annealed(lr=0.1, total=8.0, momentum=0.0):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(lr * sn.schedule.cosine(1.0, total)))


def doubled(lr=0.1, momentum=0.0):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(2 * lr))


def twice_annealed(lr=0.1):
    annealing = r.StepSize(sn.schedule.cosine(1.0, 8.0)), r.StepSize(sn.schedule.cosine(1.0, 9.0))
    return sn.chain(*annealing, r.StepSize(lr))


def in_parts(lr=0.1, other_lr=0.1):
    parts = {"a": sn.recipes.sgdw(lr=0.02), "*": sn.recipes.sgdw(lr=other_lr)}
    return sn.partition(parts, {"a": "a"})


COSINE, WAVE = sn.schedule.cosine(0.1, 8), sn.schedule.trapezoid(0.1, 0.2, 3, 8, 3)
RATES = [sn.schedule.cosine(0.1, 8)(t) for t in range(1, 5)]
CONSTANT = [0.1] * 4


@pytest.mark.parametrize(
    ("recipe", "settings", "right"),
    [
        ("adan", {"lr": 0.1, "betas": (WAVE, 0.92, 0.99)}, CONSTANT),  # another number's schedule
        ("lars", {"lr": 0.1, "momentum": WAVE}, CONSTANT),
        (doubled, {"momentum": WAVE}, CONSTANT),
        (doubled, {"lr": COSINE}, RATES),
        ("adan", {"lr": COSINE}, RATES),
        (annealed, {}, RATES),
        (annealed, {"lr": COSINE}, [x * x / 0.1 for x in RATES]),
        (sn.wrappers.cautious(annealed), {"lr": 0.1}, RATES),
        (in_parts, {"other_lr": COSINE}, RATES),
        (twice_annealed, {}, [math.nan] * 4),
    ],
)
def test_a_rate_is_that_of_the_schedule_which_multiplies_the_step(recipe, settings, right):
    """A schedule of another number changes no rate; a recipe's own one multiplies the group's."""
    weight, other = (torch.nn.Parameter(torch.eye(3)) for _ in range(2))
    optimizer = sn.torch_optimizer(recipe)([("w", weight), ("a", other)], **settings)
    with sn.probe(optimizer, every=1) as probe:
        for _ in right:
            weight.grad, other.grad = torch.ones(3, 3), torch.ones(3, 3)
            optimizer.step()
    rates = [m.lr for m in probe.measurements if m.weight == "w"]
    assert rates == pytest.approx(right, rel=1e-6, nan_ok=True)


def test_a_weight_that_is_resized_keeps_the_numbers_of_its_earlier_steps():
    weight = torch.nn.Parameter(torch.ones(4, 8))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with sn.probe(optimizer, every=1) as probe:
        for shape in ((4, 8), (4, 16)):
            weight.data = torch.ones(shape)
            weight.grad = torch.ones(shape)
            optimizer.step()
    assert [m.shape for m in probe.measurements] == [(4, 8), (4, 16)]
    assert [m.update_rms for m in probe.measurements] == pytest.approx([0.1, 0.1])


def test_a_weight_that_is_not_stepped_has_no_watched_number():
    weights = [torch.nn.Parameter(torch.randn(3, 2)) for _ in range(2)]
    optimizer = sn.torch_optimizer(watched)(weights)
    with sn.probe(optimizer, every=1, block=1) as probe:
        for step in range(3):
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            if step == 1:
                weights[1].grad = None
            optimizer.step()
    watched_turns = {(m.step, m.weight): m.watched["turn"] for m in probe.measurements}
    assert len(watched_turns) == 6
    unknown = [key for key, turn in watched_turns.items() if math.isnan(turn)]
    assert unknown == [(2, probe.measurements[-1].weight)]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.float32) for kind in OPTIMIZERS), ("AdamP", torch.bfloat16)],
)
def test_training_does_not_change_by_a_bit(kind, dtype):
    runs = []
    for every in (None, 1, 3):
        torch.manual_seed(1)
        model = Model().to(dtype)
        optimizer = OPTIMIZERS[kind](model)
        probe = every and sn.probe(optimizer, every=every, block=2)
        train(model, optimizer, 7)
        if probe:
            probe.close()
        state = [x for state in optimizer.state.values() for x in state.values()]
        runs.append([*model.state_dict().values(), *state, torch.rand(3)])
    for run in runs[1:]:
        assert all(torch.equal(x, y) for x, y in zip(run, runs[0], strict=True))


class HostReads(TorchDispatchMode):
    """Lists the operations that make the host wait for a device, or copy to one."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        waits = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select")
        if name.removeprefix("aten::") in waits or "cpu" in str((kwargs or {}).get("device")):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_step_reads_nothing_back_before_a_block_is_full(kind):
    """Weights without memory have no numbers that a host could read: it would be an error."""
    model = Model().to("meta")
    optimizer = OPTIMIZERS[kind](model)
    probe = sn.probe(optimizer, every=1, block=1000)
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    for step in range(17):
        for p in model.parameters():
            p.grad = torch.empty_like(p)
            optimizer.state[p] = dict(optimizer.state[p])
        reads = HostReads()
        with reads if step else contextlib.nullcontext():  # a first step makes the layout
            for hook in (*before.values(), *after.values()):
                hook(optimizer, (), {})
        assert not reads.found
    assert not probe.measurements


@pytest.mark.parametrize(("fused", "steps"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_a_skipped_step_counts_only_for_a_fused_optimizer(fused, steps):
    weight = nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with sn.probe(optimizer, every=1) as probe:
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * torch.arange(3.0)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [m.step for m in probe.measurements] == steps
    turned = [m.turn > 0 for m in probe.measurements]
    assert turned == ([True, False, True] if fused else [True, True])
    assert [math.isnan(m.cosine) for m in probe.measurements] == [
        not has_turned for has_turned in turned
    ]


def test_a_gradient_that_a_step_starts_to_write_into_is_lost_once_and_never_wrong():
    weight = nn.Parameter(torch.eye(2))
    optimizer = WritesIntoGradients([weight], {})
    optimizer.start = 2
    with sn.probe(optimizer, every=1) as probe:
        for _ in range(3):
            weight.grad = torch.eye(2).flip(0)
            optimizer.step()
    assert [math.isnan(m.cosine) for m in probe.measurements] == [False, True, False]


def test_it_counts_on_from_a_checkpoint_and_hands_over_before_it():
    model, blocks = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = sn.probe(optimizer, every=2, to=blocks.append, model=model)
    train(model, optimizer, 3)
    saved = probe.state_dict()
    assert saved == {"step": 3}
    assert {m.step for block in blocks for m in block} == {2}
    probe.close()
    resumed = sn.probe(optimizer, every=2, to=blocks.append, model=model)
    resumed.load_state_dict(dict(saved))
    train(model, optimizer, 3)
    resumed.close()
    train(model, optimizer, 2)  # closed probes are gone
    assert [sorted({m.step for m in block}) for block in blocks] == [[2], [4, 6]]
    with pytest.raises(ValueError, match="has a step"):
        resumed.load_state_dict({})


def test_a_law_predicts_what_it_says():
    """Of a projected step |w'| = |w| / cos(turn): a function of it, and an object."""
    model = Model()
    optimizer = sn.optim.SGDP(model.parameters(), lr=0.1)

    def law(m):
        return m.norm_before / math.cos(m.turn)

    for predictor in (law, type("Law", (), {"predict": staticmethod(law)})()):
        measured = measured_once(model, optimizer, law=predictor, views="layer")
        invariant = [m for m in measured if m.invariant_view == "layer"]
        assert invariant
        assert all(m.predicted == pytest.approx(m.norm, rel=1e-6) for m in invariant)
        assert all(m.predicted == pytest.approx(law(m)) for m in measured)


def test_numbers_that_are_not_finite_are_null():
    weight = nn.Parameter(torch.tensor([[1.0, math.inf], [1.0, 2.0]]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with sn.probe(optimizer, every=1) as probe:
        weight.grad = torch.ones(2, 2)
        optimizer.step()
        weight.data.fill_(1.0)
        weight.grad = torch.full((2, 2), math.nan)
        optimizer.step()
    first, second = (m.plain() for m in probe.measurements)
    assert first["norm"] is second["cosine"] is second["norm"] is None
    assert second["norm_before"] == pytest.approx(math.sqrt(2))


COMPLEX = torch.optim.SGD([torch.ones(2, 2, dtype=torch.complex64)])


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"every": 0}, ValueError, ["every", 0]),
        ({"every": 2.5}, ValueError, ["every", 2.5]),
        ({"every": True}, ValueError, ["every", True]),
        ({"block": -1}, ValueError, ["block", -1]),
        ({"to": "runs"}, TypeError, ["to", "runs", "Page"]),
        ({"law": "sgd"}, TypeError, ["law", "predict", "sgd"]),
        ({"views": "rows"}, ValueError, ["view", "rows"]),
        ({"views": "dim=3"}, ValueError, ["linear.weight", "dim=3"]),
        ({"views": {"head.weight": "groups=4"}}, ValueError, ["head.weight", "groups=4"]),
        ({"views": {"head.wieght": "layer"}}, ValueError, ["head.wieght", "head.weight"]),
        ({"model": nn.Linear(3, 2)}, ValueError, ["model"]),
        ({"optimizer": Model()}, TypeError, ["optimizer", "Model"]),
        ({"optimizer": COMPLEX, "model": None}, TypeError, ["real"]),
    ],
)
def test_wrong_arguments_are_refused_and_leave_no_hook(arguments, error, named):
    model, said = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"optimizer": optimizer, "model": model, "to": said.append, **arguments}
    with refuses(*named, by=error):
        sn.probe(**given)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    optimizer.step()
    assert not said
