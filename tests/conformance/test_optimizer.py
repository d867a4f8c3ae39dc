"""Every optimizer class keeps the promises of a torch.optim.Optimizer."""

import copy
import io
import pickle

import pytest
import torch

from tests.harness.rows import ANY_WEIGHTS, ROWS, set_gradients, train

pytestmark = ANY_WEIGHTS


@pytest.fixture(params=ROWS, ids=lambda row: row.id)
def row(request):
    return request.param


def make(row, weights):
    return row.cls(weights, **row.settings)


def assert_same(weights, others):
    for weight, other in zip(weights, others, strict=True):
        assert torch.equal(weight, other)


def test_resume_from_a_saved_state_dict_is_bit_exact(row):
    weights = row.parameters()
    optimizer = make(row, weights)
    train(optimizer, range(5))
    saved = io.BytesIO()
    torch.save(
        {"optimizer": optimizer.state_dict(), "weights": [w.detach() for w in weights]}, saved
    )
    train(optimizer, range(5, 10))

    saved.seek(0)
    checkpoint = torch.load(saved, weights_only=True)
    resumed = [w.requires_grad_() for w in checkpoint["weights"]]
    optimizer = make(row, resumed)
    optimizer.load_state_dict(checkpoint["optimizer"])
    train(optimizer, range(5, 10))
    assert_same(weights, resumed)


def test_state_dict_round_trip(row):
    optimizer = make(row, row.parameters())
    train(optimizer, range(3))
    other = make(row, row.parameters(seed=1))
    other.load_state_dict(optimizer.state_dict())
    first, second = optimizer.state_dict(), other.state_dict()
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    for key, state in first["state"].items():
        assert state.keys() == second["state"][key].keys()
        for name, value in state.items():
            assert torch.equal(value, second["state"][key][name])
            assert value.dtype == second["state"][key][name].dtype


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))],
    ids=["deepcopy", "pickle"],
)
def test_a_duplicate_continues_alike_and_apart(row, duplicate):
    weights = row.parameters()
    optimizer = make(row, weights)
    train(optimizer, range(3))
    twin = duplicate(optimizer)
    assert type(twin) is type(optimizer)
    others = twin.param_groups[0]["params"]
    assert_same(weights, others)
    train(optimizer, range(3, 6))
    assert not all(
        torch.equal(weight, other) for weight, other in zip(weights, others, strict=True)
    )
    train(twin, range(3, 6))
    assert_same(weights, others)


def test_param_groups_step_as_optimizers_of_their_own(row):
    weights, separate = row.parameters(), row.parameters()
    optimizer = row.cls(
        [{"params": weights[:1], "lr": 0.002}, {"params": weights[1:]}], **row.settings
    )
    train(optimizer, range(4))
    train(row.cls(separate[:1], **{**row.settings, "lr": 0.002}), range(0))  # constructs
    apart = [row.cls(separate[:1], **{**row.settings, "lr": 0.002}), make(row, separate[1:])]
    for step in range(4):
        set_gradients(separate, step)
        for each in apart:
            each.step()
    assert_same(weights, separate)


def test_a_group_added_late(row):
    weights, late = row.parameters(), row.parameters(seed=1)
    optimizer = make(row, weights)
    train(optimizer, range(2))
    optimizer.add_param_group({"params": late, "lr": 0.003})
    set_gradients(weights, 2)
    set_gradients(late, 2)
    optimizer.step()

    alone = row.parameters(seed=1)
    set_gradients(alone, 2)
    row.cls(alone, **{**row.settings, "lr": 0.003}).step()
    assert_same(late, alone)


def test_without_a_gradient_nothing_moves(row):
    weights = row.parameters()
    optimizer = make(row, weights)
    before = [w.detach().clone() for w in weights]
    set_gradients(weights, 0)
    weights[0].grad = None
    optimizer.step()
    assert torch.equal(weights[0], before[0])
    assert weights[0] not in optimizer.state or not optimizer.state[weights[0]]
    assert not torch.equal(weights[1], before[1])


@pytest.mark.parametrize(
    "kind", ["StepLR", "OneCycleLR", "CyclicLR", "CosineAnnealingLR", "LambdaLR"]
)
def test_schedulers_reach_the_rule(row, kind):
    """After each scheduler step, the optimizer steps as a fresh rule at the scheduled values."""
    defaults = row.cls([torch.ones(2, 2)]).defaults
    momentum, lr = "momentum" in row.settings or "betas" in defaults, defaults["lr"]
    weights = row.parameters()
    optimizer = make(row, weights)
    make_scheduler = {
        "StepLR": lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        "OneCycleLR": lambda: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, total_steps=6, cycle_momentum=momentum
        ),
        "CyclicLR": lambda: torch.optim.lr_scheduler.CyclicLR(
            optimizer, lr / 10, lr, step_size_up=4, cycle_momentum=momentum
        ),
        "CosineAnnealingLR": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
        "LambdaLR": lambda: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t + 1)),
    }[kind]
    scheduler = make_scheduler()
    expected = [w.detach().clone() for w in weights]
    states = [row.rule().init(w) for w in expected]
    seen = set()
    for step in range(4):
        set_gradients(weights, step)
        scheduled = {
            name: optimizer.param_groups[0][name]
            for name in ("lr", "momentum", "betas", "max_lr")  # the last is AdamC's
            if name in optimizer.param_groups[0] and name in defaults
        }
        seen.add(str(scheduled))
        for i, weight in enumerate(weights):
            expected[i], states[i] = row.rule(**scheduled).step(expected[i], weight.grad, states[i])
        optimizer.step()
        scheduler.step()
    assert len(seen) == 4
    for ours, theirs in zip(weights, expected, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-12, atol=1e-14)


def test_closure(row):
    weights = [w for w in row.parameters() if w.ndim]
    optimizer = make(row, weights)
    before = [w.detach().clone() for w in weights]

    def closure():
        optimizer.zero_grad()
        loss = sum((w**3).sum() for w in weights)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert torch.equal(loss, sum((w**3).sum() for w in before))
    assert all(
        w.grad is not None and torch.equal(w.grad, 3 * b**2)
        for w, b in zip(weights, before, strict=True)
    )


def test_maximize_is_descent_on_the_negative(row):
    weights, others = row.parameters(), row.parameters()
    up, down = row.cls(weights, **row.settings, maximize=True), make(row, others)
    for step in range(3):
        set_gradients(weights, step)
        set_gradients(others, step)
        for weight in weights:
            weight.grad = -weight.grad
        up.step()
        down.step()
    assert_same(weights, others)


@pytest.mark.parametrize("layout", ["transposed", "channels_last", "expanded_gradient"])
def test_layout_does_not_matter(row, layout):
    plain, laid_out = row.parameters(), []
    for w in row.parameters():
        x = w.detach()
        if layout == "transposed" and x.ndim > 1:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        elif layout == "channels_last" and x.ndim == 4:
            x = x.to(memory_format=torch.channels_last)
        laid_out.append(x.requires_grad_())
    first, second = make(row, plain), make(row, laid_out)
    for step in range(4):
        set_gradients(plain, step)
        for ours, other in zip(plain, laid_out, strict=True):
            if layout == "expanded_gradient" and ours.ndim:
                ours.grad = ours.grad[:1].expand_as(ours)
            other.grad = ours.grad.clone() if layout != "expanded_gradient" else ours.grad
        first.step()
        second.step()
    for ours, other in zip(plain, laid_out, strict=True):
        assert other.stride() == other.detach().clone().stride() or layout == "transposed"
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision(row, dtype):
    """A step of half precision is the float32 step, rounded once; the state stays float32."""
    weights = row.parameters(dtype)
    optimizer = row.cls(weights, backend="rule", **row.settings)
    single = [w.detach().float() for w in weights]
    states = [row.rule().init(w) for w in single]
    for step in range(3):
        set_gradients(weights, step)
        for i, weight in enumerate(weights):
            # From the same rounded weight at each step.
            moved, states[i] = row.rule().step(
                weight.detach().float(), weight.grad.float(), states[i]
            )
            single[i] = moved.to(dtype)
        optimizer.step()
        assert_same(weights, single)
    for weight in weights:
        for name, value in optimizer.state[weight].items():
            double = name == "step" or (name == "radius" and value.dtype == torch.float64)
            assert value.dtype == (torch.float64 if double else torch.float32), name


def test_saved_half_precision_training_resumes_bit_exact(row):
    """By the rules' own code: kernels for bfloat16 would be built for this test alone."""
    weights = row.parameters(torch.bfloat16)
    optimizer = row.cls(weights, backend="rule", **row.settings)
    train(optimizer, range(3))
    resumed = [w.detach().clone().requires_grad_() for w in weights]
    other = row.cls(resumed, backend="rule", **row.settings)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, range(3, 6))
    train(other, range(3, 6))
    assert_same(weights, resumed)
