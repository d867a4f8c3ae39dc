"""Scheduled optimizers: the same run as by written param_groups, checkpoints and refusals."""

import io
import itertools
import warnings

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import lr_scheduler

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import refuses

S = sn.schedule
STEPS = 200


def make_weights(name, dtype):
    generator = torch.Generator().manual_seed(0)
    shapes = [(8, 6), (5, 3)] if name == "muon" else [(8, 6), (5, 3), (7,)]
    weights = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    return [weight.requires_grad_() for weight in weights]


def hypers_of(name):
    momentum, defaults = S.trapezoid(0.85, 0.95, 40, STEPS, 30), sn.bind(name).defaults
    hypers = {"lr": S.warmup_cosine(3e-3, 20, STEPS)}
    if "betas" in defaults:
        return hypers | {"betas": (momentum, defaults["betas"][1])}
    return hypers | {"momentum": momentum}


def numbers_at(hypers, t):
    return {name: S.value_at(value, t) for name, value in hypers.items()}


def saved_and_loaded(optimizer):
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def set_grads(weights, t):
    generator = torch.Generator().manual_seed(t)
    for weight in weights:
        grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.grad = grad.to(weight.dtype)


FLOAT32, FLOAT64 = torch.float32, torch.float64
FAST_RUNS = [
    ("sgdp", FLOAT32, "auto"),
    ("adamp", FLOAT64, "auto"),
    ("muon", FLOAT32, "auto"),
    ("adamc", FLOAT64, "rule"),
    ("schedulefree_adamc", FLOAT64, "auto"),
]
RUNS = [
    pytest.param(*run, marks=() if run in FAST_RUNS else pytest.mark.long)
    for run in itertools.product([x[0] for x in FAST_RUNS], [FLOAT32, FLOAT64], ["auto", "rule"])
]


@pytest.mark.parametrize(("name", "dtype", "backend"), RUNS)
def test_a_scheduled_run_has_the_bits_of_written_param_groups(name, dtype, backend):
    hypers, make = hypers_of(name), sn.torch_optimizer(name)
    weights, plain = make_weights(name, dtype), make_weights(name, dtype)
    scheduled = make(weights, backend=backend, **hypers)
    written = make(plain, backend=backend, **numbers_at(hypers, 1))
    (group,) = written.param_groups
    for t in range(1, STEPS + 1):
        if t == 77:
            state_dict = saved_and_loaded(scheduled)
            scheduled = make(weights, backend=backend, **hypers)
            scheduled.load_state_dict(state_dict)
        numbers = numbers_at(hypers, t)
        group.update(numbers)
        assert {name: scheduled.param_groups[0][name] for name in hypers} == numbers
        set_grads(weights, t)
        set_grads(plain, t)
        scheduled.step()
        written.step()
    for weight, twin in zip(weights, plain, strict=True):
        assert torch.equal(weight, twin)


def make_optimizer(name="adamp", **hypers):
    torch.manual_seed(0)
    weight = torch.randn(4, 3, requires_grad=True)
    return weight, sn.torch_optimizer(name)([weight], **hypers)


def take_steps(weight, optimizer, n_steps=1):
    for _ in range(n_steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()


def test_the_entry_is_the_number_of_the_next_step_as_with_a_scheduler():
    schedule = S.wsd(0.1, 5, 30, 10)
    weight, scheduled = make_optimizer(lr=schedule)
    twin, driven = make_optimizer(lr=1.0)
    scheduler = lr_scheduler.LambdaLR(driven, lambda k: schedule(k + 1))
    for _ in range(30):
        assert scheduled.param_groups[0]["lr"] == driven.param_groups[0]["lr"]
        take_steps(weight, scheduled)
        take_steps(twin, driven)
        scheduler.step()
    assert torch.equal(weight, twin)


def test_a_weight_that_joins_late_has_the_schedule_of_its_group():
    """A count of its own steps would leave it with a large learning rate for ever."""
    early, late = (torch.zeros(3, requires_grad=True) for _ in range(2))
    optimizer = sn.optim.SGD([early, late], lr=S.cosine(1.0, 10))
    for t in range(10):
        early.grad = torch.ones(3)
        late.grad = torch.ones(3) if t >= 5 else None
        optimizer.step()
    expected = sum(S.cosine(1.0, 10)(t) for t in range(6, 11))
    torch.testing.assert_close(late.detach(), torch.full((3,), -expected))


def test_a_group_that_is_added_late_starts_at_the_clock_of_the_others():
    weight, optimizer = make_optimizer(lr=S.cosine(0.1, 100))
    take_steps(weight, optimizer, 7)
    optimizer.add_param_group({"params": [torch.ones(3)]})
    assert [group["clock"] for group in optimizer.param_groups] == [7, 7]
    assert optimizer.param_groups[1]["lr"] == S.cosine(0.1, 100)(8)


def write_lr(optimizer):
    optimizer.param_groups[0]["lr"] = 0.5


DRIVERS = {
    "LambdaLR": (lambda o: lr_scheduler.LambdaLR(o, lambda k: 1.0), "a torch scheduler drives lr"),
    "OneCycleLR": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9), "lr"),
    "by hand": (write_lr, "something else has set lr"),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_somebody_else_who_drives_a_scheduled_number_is_refused(name):
    drive, message = DRIVERS[name]
    weight, optimizer = make_optimizer(lr=S.cosine(0.1, 100))
    drive(optimizer)
    before = weight.detach().clone()
    with refuses(message, "del group['schedules']['lr']"):
        take_steps(weight, optimizer)
    assert torch.equal(weight, before)
    assert optimizer.param_groups[0]["clock"] == 0
    group = optimizer.param_groups[0]
    del group["schedules"]["lr"]
    group["lr"] = 0.25
    take_steps(weight, optimizer)
    assert group["lr"] == 0.25


CHANGES = {
    "a number": lambda group: group.update(lr=0.05),
    "an equal number of another clock": lambda group: group.update(clock=7),
    "another schedule": lambda group: group["schedules"].update(lr=S.cosine(0.2, 100)),
    "a number in a tuple": lambda group: group.update(betas=(0.5, 0.99)),
    "a number in a list": lambda group: group["betas"].__setitem__(0, 0.5),
    "a scheduler": lambda group: group.update(initial_lr=0.1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_scheduled_number_that_changes_between_steps_is_refused(name):
    weight, optimizer = make_optimizer(lr=S.cosine(0.1, 100), betas=[S.cosine(0.9, 100), 0.99])
    take_steps(weight, optimizer)
    group = optimizer.param_groups[0]
    if "tuple" in name:
        weight, optimizer = make_optimizer(betas=(S.cosine(0.9, 100), 0.99))
        take_steps(weight, optimizer)
        group = optimizer.param_groups[0]
    CHANGES[name](group)
    before = weight.detach().clone()
    with refuses("param_group has a schedule"):
        take_steps(weight, optimizer)
    assert torch.equal(weight, before)


def test_a_scheduler_of_another_number_is_welcome():
    weight, optimizer = make_optimizer(betas=(S.cosine(0.9, 100), 0.99))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        take_steps(weight, optimizer)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1e-3 / 8
    assert optimizer.param_groups[0]["betas"] == (S.cosine(0.9, 100)(4), 0.99)


def test_an_entry_may_be_set_to_a_schedule():
    weight, optimizer = make_optimizer(lr=0.1)
    take_steps(weight, optimizer, 7)
    (group,) = optimizer.param_groups
    group["lr"] = S.cooldown(0.1, 20, last=10)
    take_steps(weight, optimizer, 8)
    assert (group["clock"], group["lr"]) == (15, S.cooldown(0.1, 20, 10)(16))
    group["lr"] = S.cosine(0.3, 50)
    take_steps(weight, optimizer)
    assert (group["clock"], group["lr"]) == (16, S.cosine(0.3, 50)(17))


def test_a_value_of_a_function_is_checked_at_its_step():
    weight, optimizer = make_optimizer(lr=S.of(lambda t: 0.1 - 0.04 * t))
    take_steps(weight, optimizer, 2)
    before = weight.detach().clone()
    with refuses("StepSize: lr must be in [0, ∞), got -0.0"):
        take_steps(weight, optimizer)
    assert torch.equal(weight, before)
    assert optimizer.param_groups[0]["clock"] == 2


def resumed(saved, constructed, n_steps=7):
    weight, optimizer = make_optimizer(**saved)
    take_steps(weight, optimizer, n_steps)
    state_dict = saved_and_loaded(optimizer)
    weight, optimizer = make_optimizer(**constructed)
    optimizer.load_state_dict(state_dict)
    take_steps(weight, optimizer)
    return optimizer.param_groups[0]


COSINE, LONGER = S.cosine(0.1, 100), S.cosine(0.1, 500)
BY_FUNCTION = S.of(lambda t: 0.1 / t)


def test_a_checkpoint_goes_on_in_silence_where_nothing_differs():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for saved, constructed in [
            ({"lr": COSINE}, {"lr": COSINE}),
            ({}, {"lr": COSINE}),
            ({"lr": BY_FUNCTION}, {"lr": BY_FUNCTION}),
            ({"lr": 0.5 * BY_FUNCTION + 0.1}, {"lr": 0.5 * BY_FUNCTION + 0.1}),
        ]:
            group = resumed(saved, constructed)
            assert (group["clock"], group["lr"]) == (8, constructed["lr"](9))


@pytest.mark.parametrize("constructed", [{"lr": LONGER}, {}], ids=["longer", "numbers"])
def test_the_schedule_of_a_checkpoint_prevails_with_a_warning(constructed):
    with pytest.warns(UserWarning, match="prevail over those"):
        group = resumed({"lr": COSINE}, constructed)
    assert (group["clock"], group["lr"]) == (8, COSINE(9))


def test_a_run_is_prolonged_by_a_checkpoint_without_its_schedule():
    weight, optimizer = make_optimizer(lr=COSINE)
    take_steps(weight, optimizer, 7)
    state_dict = optimizer.state_dict()
    for group in state_dict["param_groups"]:
        del group["schedules"]
    weight, optimizer = make_optimizer(lr=LONGER)
    optimizer.load_state_dict(state_dict)
    assert optimizer.param_groups[0]["clock"] == 7
    assert optimizer.param_groups[0]["lr"] == LONGER(8)


def test_a_checkpoint_holds_no_function():
    with refuses("a schedule of a function, which it does not hold"):
        resumed({"lr": BY_FUNCTION}, {})


def saved_by_torch(cls, **hypers):
    weight = torch.ones(4, 3, requires_grad=True)
    optimizer = cls([weight], lr=0.1, **hypers)
    lr_scheduler.StepLR(optimizer, 5)
    take_steps(weight, optimizer, 7)
    return optimizer.state_dict()


def test_a_checkpoint_of_torch_starts_the_clock_by_its_step_count():
    weight, optimizer = make_optimizer("adamp", lr=COSINE)
    optimizer.load_state_dict(saved_by_torch(torch.optim.AdamW))
    assert optimizer.param_groups[0]["clock"] == 7
    take_steps(weight, optimizer)
    assert optimizer.param_groups[0]["lr"] == COSINE(9)

    weight, optimizer = make_optimizer("sgd", momentum=0.9, lr=COSINE)
    with pytest.warns(UserWarning, match="does not say how many steps"):
        optimizer.load_state_dict(saved_by_torch(torch.optim.SGD, momentum=0.9))
    assert optimizer.param_groups[0]["lr"] == COSINE(1)


def warmed(lr=0.1, warmup=10.0):
    return sn.chain(r.HeavyBall(0.9), r.StepSize(S.warmup_cosine(lr, warmup, 100)))


def test_schedules_inside_a_recipe_follow_the_clock_of_the_group():
    weight, optimizer = make_optimizer(warmed)
    take_steps(weight, optimizer, 4)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["clock"]) == (0.1, 4)
    assert optimizer.rule_of(group).rules[1] == r.StepSize(0.05)
    assert list(optimizer.state[weight]) == ["momentum"]
    state_dict = saved_and_loaded(optimizer)
    weight, optimizer = make_optimizer(warmed)
    optimizer.load_state_dict(state_dict)
    assert optimizer.rule_of(optimizer.param_groups[0]).rules[1] == r.StepSize(0.05)


def test_the_evaluation_weight_is_that_of_the_last_step():
    """An average whose decay is 1 after the last step would have jumped to the mean."""
    weight, optimizer = make_optimizer("averaged(sgd)", lr=0.1, decay=S.piecewise({1: 0.5, 4: 1.0}))
    take_steps(weight, optimizer, 3)
    weight_2, constant = make_optimizer("averaged(sgd)", lr=0.1, decay=0.5)
    take_steps(weight_2, constant, 3)
    with optimizer.evaluating(), constant.evaluating():
        assert torch.equal(weight, weight_2)


def test_distributed_checkpoints_load_into_a_scheduled_optimizer():
    """Torch makes the states by a step with lr = 0, which is none of the schedule's."""
    model, fresh = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer = sn.optim.AdamW(model.parameters(), lr=COSINE)
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    state_dict = get_optimizer_state_dict(model, optimizer)
    loaded = sn.optim.AdamW(fresh.parameters(), lr=COSINE)
    set_optimizer_state_dict(fresh, loaded, state_dict)
    assert loaded.param_groups[0]["clock"] == 3
    assert loaded.param_groups[0]["lr"] == COSINE(4)
    fresh(torch.ones(1, 3)).sum().backward()
    loaded.step()


def test_a_momentum_that_starts_at_0_has_its_state_from_the_start():
    schedule = S.piecewise({1: 0.0, 3: 0.9}, "linear")
    weight, optimizer = make_optimizer("sgd", lr=0.1, momentum=schedule)
    pure, state = weight.detach().clone(), {}
    rule = sn.recipes.sgd(lr=0.1, momentum=schedule)
    state = rule.init(pure)
    for _ in range(4):
        take_steps(weight, optimizer)
        pure, state = rule.step(pure, torch.ones_like(pure), state)
    assert torch.equal(weight.detach(), pure)


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (S.cosine, (0.1, None)),
        (S.warmup_cosine, (0.1, 5, None)),
        (S.wsd, (0.1, 5, None, 10)),
        (S.cooldown, (0.1, None, 10)),
        (S.trapezoid, (0.8, 0.9, 5, None, 10)),
    ],
)
def test_a_number_of_steps_that_is_not_known_is_refused_by_name(make, numbers):
    message = f"schedule.{make.__name__}: steps must be the number of all steps, got None"
    with pytest.raises(TypeError, match=message):
        make(*numbers)


@sn.recipe
def falling_within(lr=0.1, steps=4):
    return sn.chain(sn.rules.StepSize(S.cosine(lr, steps)))


def test_a_scheduler_of_a_rate_within_a_recipe_multiplies_it():
    """As docs/schedules.md says: nobody sees the recipe's own schedule from outside."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = sn.torch_optimizer(falling_within)([weight], lr=1.0)
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for t in range(4):
        before = weight.item()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        scheduler.step()
        assert before - weight.item() == pytest.approx(S.cosine(1.0, 4)(t + 1) ** 2)


@sn.recipe
def falling_if_told(lr=0.1, steps=None):
    return sn.chain(sn.rules.StepSize(lr if steps is None else S.cosine(lr, steps)))


def test_an_entry_with_which_a_recipe_makes_a_schedule_starts_a_clock():
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = sn.torch_optimizer(falling_if_told)([weight], lr=1.0)
    optimizer.param_groups[0]["steps"] = 4
    for t in range(4):
        before = weight.item()
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        assert before - weight.item() == pytest.approx(S.cosine(1.0, 4)(t + 1))
