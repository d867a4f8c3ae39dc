"""Schedules: their values, the arithmetic of recipes, checks before a step, and pure steps."""

import copy
import math
import pickle

import pytest
import torch

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from spherenorm.schedule import from_words, to_words
from tests.harness import refuses

S = sn.schedule
STEPS = 40

SCHEDULES = {
    "warmup_cosine": S.warmup_cosine(0.4, warmup=7, steps=STEPS, final=0.01, start=0.02),
    "no warmup": S.warmup_cosine(0.4, warmup=0, steps=STEPS),
    "cosine": S.cosine(0.4, STEPS),
    "cooldown": S.cooldown(0.4, STEPS, last=12),
    "wsd": S.wsd(0.4, warmup=7, steps=STEPS, last=12, shape="square"),
    "trapezoid": S.trapezoid(0.1, 0.4, up=7, steps=STEPS, down=9),
    "jumps": S.piecewise({1: 0.4, 10: 0.2, 30: 0.1}),
    "lines": S.piecewise({1: 0.4, 10: 0.2, 10.5: 0.1}, "linear"),
    "arithmetic": 0.5 * S.cosine(0.4, STEPS) ** 2 + (1 - S.trapezoid(0.1, 0.4, 7, STEPS, 9)) / 3,
    "function": S.of(lambda t: 0.4 / t.sqrt()),
}


def plain_value(name, t):
    """The values, written once more as a loop of a training script would have them."""

    def way(start, end, a, b, share=lambda x: x):
        return a + (b - a) * share(min(max((t - start) / (end - start), 0), 1))

    def wave(x):
        return (1 - math.cos(math.pi * x)) / 2

    end = STEPS + 1
    match name:
        case "warmup_cosine":
            return way(0, 7, 0.02, 0.4) if t <= 7 else way(7, end, 0.4, 0.01, wave)
        case "no warmup":
            return way(0, end, 0.4, 0, wave)
        case "cosine":
            return way(1, end, 0.4, 0, wave)
        case "cooldown":
            return way(end - 12, end, 0.4, 0, math.sqrt)
        case "wsd":
            decay = way(end - 12, end, 0.4, 0, lambda x: 1 - (1 - x) ** 2)
            return way(0, 7, 0, 0.4) if t <= 7 else decay
        case "trapezoid":
            return way(0, 7, 0.1, 0.4) if t <= 7 else way(end - 9, end, 0.4, 0.1)
        case "jumps":
            return 0.4 if t < 10 else 0.2 if t < 30 else 0.1
        case "lines":
            return way(1, 10, 0.4, 0.2) if t <= 10 else way(10, 10.5, 0.2, 0.1)
        case "arithmetic":
            cosine, trapezoid = plain_value("cosine", t), plain_value("trapezoid", t)
            return 0.5 * cosine**2 + (1 - trapezoid) / 3
        case "function":
            return 0.4 / math.sqrt(t)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_has_its_values_as_a_number_and_as_a_tensor(name):
    schedule = SCHEDULES[name]
    for t in range(1, STEPS + 5):
        expected = plain_value(name, t)
        assert schedule(t) == pytest.approx(expected, abs=1e-15)
        assert isinstance(schedule(t), float)
        value = schedule(torch.tensor(float(t), dtype=torch.float64))
        assert value.item() == pytest.approx(expected, abs=1e-15)
    times = torch.arange(1.0, STEPS + 5, dtype=torch.float64)
    values = torch.vmap(schedule)(times)
    expected = [plain_value(name, t) for t in range(1, STEPS + 5)]
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("name", SCHEDULES)
def test_tensors_for_numbers_change_no_value(name):
    """So that warmups and peaks can be swept and differentiated, also where a segment is empty."""
    words = to_words(SCHEDULES[name])
    if words == ("function",):
        return

    def to_tensors(x):
        if isinstance(x, float):
            return torch.tensor(x, dtype=torch.float64)
        return tuple(map(to_tensors, x)) if isinstance(x, tuple) else x

    schedule = from_words(to_tensors(words))
    for t in range(1, STEPS + 5):
        torch.testing.assert_close(
            schedule(t), torch.tensor(SCHEDULES[name](t), dtype=torch.float64), rtol=0, atol=1e-15
        )


@pytest.mark.parametrize("name", SCHEDULES)
def test_words_and_copies_are_the_schedule(name):
    schedule = SCHEDULES[name]
    schedule(3)
    words = to_words((schedule, 0.5))
    assert from_words(words, (schedule, 0.1)) == (schedule, 0.5)
    assert copy.deepcopy(schedule) == schedule
    if name != "function":
        assert pickle.loads(pickle.dumps(schedule)) == schedule
        assert hash(schedule) == hash(from_words(to_words(schedule)))


def test_the_number_of_a_step_is_the_sum_of_all_segments():
    """The shorter way to a number, which skips segments, rounds as the way of tensors does."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        values = torch.rand(6, generator=generator, dtype=torch.float64).tolist()
        schedule = S.piecewise(dict(zip(range(0, 60, 10), values, strict=True)), "linear")
        for t in range(1, 70):
            assert schedule(t) == schedule(torch.tensor(float(t), dtype=torch.float64)).item()


def test_values_are_exact_at_knots_and_between_equal_ones():
    jumps = S.piecewise({1: 0.1, 10: 0.01, 20: 0.001})
    plateau = S.wsd(0.3, 7, STEPS, last=12)
    for t in (torch.tensor(15.0, dtype=torch.float64), 15):
        assert jumps(t) == 0.01
        assert S.trapezoid(0.85, 0.95, 7, STEPS, 9)(t) == 0.95
        assert plateau(t) == 0.3
        assert S.piecewise({1: 0.7, 40: 0.7}, "cosine")(t) == 0.7


BAD = {
    "beta of 1": (lambda: r.HeavyBall(S.cosine(1.0, 10)), "beta must be in [0, 1), got 1.0 from"),
    "below 0": (lambda: r.StepSize(S.cosine(0.1, 10) - 0.05), "got -0.05 from a schedule at step"),
    "infinite": (lambda: r.StepSize(1 / S.cosine(0.1, 10)), "got inf from a schedule at step 11"),
    "long parts": (lambda: S.wsd(0.1, 50, 90, last=60), "must not decrease, got 50 before 31"),
    "nan": (lambda: S.cosine(math.nan, 5), "values of a schedule must be finite, got nan"),
    "text": (lambda: S.cosine("a", 5), "must be numbers or 0-dim tensors, got 'a'"),
    "a schedule": (lambda: S.cosine(S.cosine(1, 5), 5), "must be numbers or 0-dim tensors"),
    "no steps": (lambda: S.cosine(0.1, 0), "schedule.cosine: steps must be at least 1, got 0"),
    "negative": (lambda: S.wsd(0.1, 0, -5, 0), "schedule.wsd: steps must be at least 1, got -5"),
    "nan steps": (lambda: S.cooldown(0.1, math.nan, 0), "steps must be at least 1, got nan"),
    "text steps": (lambda: S.trapezoid(0.1, 1, 1, "9", 1), "schedule.trapezoid: steps must be a"),
    "text of a function": (lambda: S.of(lambda t: "a")(1), "must return a number or a 0-dim tens"),
    "shape": (lambda: S.cooldown(0.1, 9, 3, shape="sqr"), "must be one of 'linear', 'cosine'"),
    "vector": (lambda: S.cosine(torch.ones(2), 5), "got shape (2,)"),
    "nothing": (lambda: S.piecewise({}), "a schedule of 0 times"),
    "no function": (lambda: S.of(0.1), "takes a function of the step count, got 0.1"),
    "betas": (lambda: sn.bind("adamw", betas=S.cosine(0.9, 5)).rule, "betas must be 2 numbers"),
    "comparison": (lambda: S.cosine(0.1, 5) < 0.05, "a schedule has no value before a step"),
    "product": (lambda: S.cosine(1, 5) * S.cosine(1, 5) < 2, "no value before a step"),
    "branch": (lambda: bool(S.cosine(0.1, 5)), "a schedule has no value before a step"),
    "float": (lambda: float(S.cosine(0.1, 5)), "a schedule has no value before a step"),
    "view": (lambda: r.UnitClip(1.0, view=S.cosine(0.1, 5)), "view"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_schedule_is_refused_before_a_step(name):
    make, message = BAD[name]
    with refuses(message, by=(TypeError, ValueError)):
        make()


def test_a_comparison_has_the_answer_of_all_steps():
    rate = 2 * S.cosine(0.1, 10)
    assert rate <= 0.2 < rate + 0.3
    assert not rate > 0.2
    assert (1 / S.cosine(0.1, 10, final=0.01)) <= 101
    relative = sn.recipes.adamc(lr=rate, max_lr=0.2, weight_decay=0.5).rules[1].weight_decay
    assert relative(6) == 0.5 * (rate(6) / 0.2)


def test_values_before_step_1_and_between_knots_are_not_refused_falsely():
    r.StepSize(S.warmup_cosine(0.1, 5, 10, start=-0.01))  # 0.012 at step 1
    momentum = S.cosine(0.9, 10, final=0.1)
    r.HeavyBall(momentum / momentum * 0.9)


RECIPES = ["sgd", "sgdp", "adamp", "muon", "lion", "sgdg", "schedulefree_adamc", "prodigy"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_pure_step_is_that_of_the_numbers(name):
    momentum = S.trapezoid(0.3, 0.9, 4, 12, 3)
    defaults = sn.bind(name).defaults
    hypers = {"lr": S.warmup_cosine(0.02, 4, 12)}
    if "betas" in defaults:
        hypers["betas"] = (momentum, *defaults["betas"][1:])
    else:
        hypers["momentum"] = momentum
    rule = sn.bind(name, **hypers).rule
    assert rule.state_keys[0] == "step"
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    weight = plain = sn.Sphere().normalize(weight) if name == "sgdg" else weight
    state = rule.init(weight)
    plain_state = sn.bind(name, **numbers_at(hypers, 1)).rule.init(weight)
    for t in range(1, 13):
        grad = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        weight, state = rule.step(weight, grad, state)
        numbers = sn.bind(name, **numbers_at(hypers, t)).rule
        plain, plain_state = numbers.step(plain, grad, plain_state)
        torch.testing.assert_close(weight, plain, rtol=1e-13, atol=1e-15)
        assert state["step"] == t
    final = functional.eval_weight(rule, {"w": weight}, {"w": state})["w"]
    torch.testing.assert_close(final, numbers.eval_weight(plain, plain_state))


def numbers_at(hypers, t):
    return {name: S.value_at(value, t) for name, value in hypers.items()}


def warmed(lr=0.1, warmup=10.0, steps=100.0, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(S.wsd(lr, warmup, steps, steps / 4)))


def loss(params):
    return (params["w"] ** 2).sum()


def trained(rule, steps):
    params = {"w": torch.ones(3, dtype=torch.float64)}
    state = functional.init(rule, params)
    for _ in range(steps):
        params, state = functional.step(rule, params, {"w": 2 * params["w"]}, state)
    return params["w"]


def test_peaks_and_warmups_are_swept():
    points = {"lr": [0.01, 0.02], "warmup": [3.0, 8.0]}
    params = {"w": torch.ones(1, 3, dtype=torch.float64)}

    def recipe(lr=0.1, warmup=10.0):
        return warmed(lr, warmup, 20)

    result = functional.sweep(recipe, loss, params, points, steps=20)
    for i, (lr, warmup) in enumerate(zip(*points.values(), strict=True)):
        torch.testing.assert_close(result.params["w"][i, 0], trained(warmed(lr, warmup, 20), 20))


def test_derivatives_by_peak_warmup_and_steps_are_differences():
    numbers = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.01, 3.5, 20.2)]

    def final_loss(*numbers):
        return loss({"w": trained(warmed(*numbers), 20)})

    derivatives = torch.autograd.grad(final_loss(*numbers), numbers)
    for i, derivative in enumerate(derivatives):
        ends = []
        for sign in (1, -1):
            moved = [
                x.detach() + sign * 1e-5 * x.detach() * (i == j) for j, x in enumerate(numbers)
            ]
            ends.append(final_loss(*moved))
        difference = (ends[0] - ends[1]) / (2e-5 * numbers[i].detach())
        torch.testing.assert_close(derivative, difference, rtol=1e-6, atol=1e-12)


def test_a_recipe_with_schedules_keeps_the_promises():
    check = sn.testing.check(warmed, only=("shapes", "pure", "acts", "vmap", "resumes"))
    assert check.passed, check


def test_a_file_has_the_schedule_as_arithmetic_of_the_step_count():
    assert "step" in str(sn.export(warmed))
    assert "0.03" in str(sn.export("sgd", lr=S.cosine(0.03, 100)))


def test_a_rule_at_a_step_has_numbers_and_shares_the_rest():
    rule = warmed()
    at_step = rule.at_step(5)
    assert at_step.rules == (r.HeavyBall(0.9), r.StepSize(0.05))
    assert at_step.rules[0] is rule.rules[0]
    assert at_step.state_keys == ("momentum",)
    assert warmed(torch.tensor(0.1)).is_scheduled
    assert r.StepSize(0.1).at_step(3) == r.StepSize(0.1)


def test_a_number_of_0_keeps_the_state():
    """At a Python number 0 SGD has no momentum, and normuon no second moment."""
    rule = sn.recipes.normuon(beta2=S.piecewise({1: 0.9, 3: 0.0, 4: 0.9}))
    assert rule.at_step(3).state_keys == rule.at_step(2).state_keys


class Counter(sn.Rule):
    """A user's rule with an `init` of its own, which knows of no step count."""

    rate: float = sn.hyper("[0, 1]")
    state_names = ("m",)

    def init(self, weight):
        return {"m": torch.zeros_like(weight)}

    def update(self, update, state):
        moved = state["m"] + self.rate * update.direction
        return update.replace(direction=moved), {"m": moved}


def test_a_rule_of_a_user_takes_a_schedule():
    weight = torch.zeros(2)
    rule = Counter(S.piecewise({1: 1.0, 2: 0.5}))
    state = functional.init(rule, {"w": weight})["w"]
    for expected in (-1.0, -2.5):
        weight, state = rule.step(weight, torch.ones(2), state)
        assert weight.tolist() == [expected] * 2
