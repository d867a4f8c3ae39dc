"""Exported schedules have the optimizer's numbers, also where gradients are missing."""

import contextlib
import functools
import math

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.export.expressions import PRINTERS
from spherenorm.export.functions import FunctionWriter, JointTrace
from tests.core.test_export import load_class, save_and_load
from tests.harness import refuses

S = sn.schedule
LONG = pytest.mark.long


def schedules(low, high, steps):
    """Return functions that make one of each kind, of numbers that their argument maps."""
    return {
        "warmup_cosine": lambda x: S.warmup_cosine(x(high), x(7), x(steps), final=x(low)),
        "cosine": lambda x: S.cosine(x(high), x(steps)),
        "cooldown": lambda x: S.cooldown(x(high), x(steps), x(12)),
        "wsd": lambda x: S.wsd(x(high), x(7), x(steps), x(12), shape="square"),
        "trapezoid": lambda x: S.trapezoid(x(low), x(high), x(7), x(steps), x(9)),
        "jumps": lambda x: S.piecewise({1: x(low), 20: x(high), 33: x(low)}),
        "lines": lambda x: S.piecewise({3: x(low), 20: x(high), 33.5: x(low)}, "linear"),
        "arithmetic": lambda x: x(high) - x(0.5) * S.cosine(x(high - low), x(steps)) ** 2,
        "function": lambda x: S.of(lambda t: torch.where(t < 20, x(high), x(high) / t.sqrt())),
    }


KINDS = [*schedules(0, 1, 40)]
NUMBERS = {
    "numbers": float,
    "tensors": lambda x: torch.tensor(x, dtype=torch.float64),
    "tensors of float32": torch.tensor,
}
LR, MOMENTUM, DECAY = (0.01, 0.1), (0.5, 0.95), (0.05, 0.3)


def scheduled(kinds, numbers, steps=40):
    """Return a recipe that multiplies three numbers by schedules."""
    lr_of, momentum_of, decay_of = (
        schedules(*bounds, steps)[kind](NUMBERS[numbers])
        for kind, bounds in zip(kinds, (LR, MOMENTUM, DECAY), strict=True)
    )

    def recipe(lr=1.0, momentum=1.0, weight_decay=1.0):
        return sn.recipes.sgdw(
            lr=lr * lr_of, momentum=momentum * momentum_of, weight_decay=weight_decay * decay_of
        )

    return recipe


def has_gradient(i, t):
    """Return False at some steps of each weight, and at two steps of all."""
    return t not in (12, 13) and (t % 3 > 0, t > 5, t not in (1, 2, 20, 33))[i]


def run_beside(recipe, text, steps, dtype=torch.float64, **settings):
    """Step weights by the optimizer and by the file, with missing gradients and a late group."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(s, generator=generator, dtype=dtype) for s in ((4, 3), (5,), (3, 3))]
    sides = []
    rule_class = functools.partial(sn.torch_optimizer(recipe), backend="rule")
    for cls in (rule_class, load_class(text)):
        weights = [w.clone() for w in start]
        sides.append((weights, cls(weights[:2], **settings)))
    for t in range(1, steps + 1):
        grads = [torch.randn(w.shape, generator=generator, dtype=dtype) for w in start]
        if t == 25:
            sides = [(weights, resumed(optimizer)) for weights, optimizer in sides]
        for weights, optimizer in sides:
            if t == 10:
                optimizer.add_param_group({"params": weights[2:], "lr": 0.5})
            for i, (weight, grad) in enumerate(zip(weights, grads, strict=True)):
                weight.grad = grad.clone() if has_gradient(i, t) else None
            optimizer.step()
        yield t, sides[0][0], sides[1][0]


def resumed(optimizer):
    """Return a new optimizer that has loaded the checkpoint of another."""
    groups = [{"params": group["params"]} for group in optimizer.param_groups]
    fresh = type(optimizer)(groups)
    fresh.load_state_dict(save_and_load(optimizer.state_dict()))
    return fresh


CASES = [
    pytest.param(kind, numbers, id=f"{kind}-{numbers}", marks=() if quick else LONG)
    for i, kind in enumerate(KINDS)
    for j, numbers in enumerate(NUMBERS)
    for quick in [i % 4 == 0 and i % 3 == j]
]


@pytest.mark.parametrize(("kind", "numbers"), CASES)
def test_a_file_has_the_numbers_of_the_optimizer(kind, numbers):
    i = KINDS.index(kind)
    kinds = kind, KINDS[(i + 3) % len(KINDS)], KINDS[(i + 6) % len(KINDS)]
    recipe = scheduled(kinds, numbers)
    for t, weights, file_weights in run_beside(recipe, sn.export(recipe, "File"), 50):
        assert_close(file_weights, weights, numbers, t)


def assert_close(file_weights, weights, numbers, t):
    """Numbers of float32 are rounded in the optimizer, and not in the file."""
    tolerance = 1e-6 if numbers == "tensors of float32" else 1e-12
    for file_weight, weight in zip(file_weights, weights, strict=True):
        scale = max(1.0, weight.abs().max().item())
        error = (file_weight - weight).abs().max().item()
        assert error <= tolerance * scale, f"step {t} differs by {error:.2g}"


@LONG
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("numbers", NUMBERS)
def test_each_schedule_in_each_place_for_300_steps(kind, place, numbers):
    kinds = ["cosine"] * 3
    kinds[place] = kind
    recipe = scheduled(kinds, numbers, steps=280)
    for t, weights, file_weights in run_beside(recipe, sn.export(recipe, "File"), 300):
        assert_close(file_weights, weights, numbers, t)


def warmed(lr=0.1, warmup=6, steps=40.0):
    """Return the rule of a recipe whose hyper-parameters are the numbers of a schedule."""
    return sn.recipes.adamw(lr=S.warmup_cosine(lr, warmup, steps), betas=(0.9, 0.99))


def test_hyper_parameters_may_be_the_numbers_of_a_schedule():
    for _, weights, file_weights in run_beside(warmed, sn.export(warmed), 50, warmup=14):
        torch.testing.assert_close(file_weights, weights, rtol=0, atol=1e-12)


def held_and_scheduled(lr=0.1, start=1.0, decay=0.1):
    momentum = S.piecewise({0: start, 4: 0.5}, "linear")  # step 1 is behind the first knot
    rules = r.HeavyBall(momentum), r.DecoupledDecay(decay), r.StepSize(S.cosine(lr, 9))
    return sn.chain(*rules)


@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ({"lr": -1.0}, "lr must be in"),
        ({"lr": math.nan}, "lr must be in"),
        ({"decay": -0.1}, "decay must be in"),
        ({"lr": 0.0, "start": 1.0}, ""),
        ({"start": -0.1}, ""),
    ],
)
def test_a_file_refuses_what_its_rules_do(entries, error):
    """A number counts where a rule holds it, or a knot that a step may be at."""
    cls = load_class(sn.export(held_and_scheduled, "Held"))
    weight = torch.nn.Parameter(torch.eye(2))
    for make in (lambda: cls([weight], **entries), lambda: cls([{"params": weight, **entries}])):
        with refuses(error, by=ValueError) if error else contextlib.nullcontext():
            make()


def test_a_schedule_may_be_given_to_a_recipe_with_sums_over_all_weights():
    """Prodigy's estimate is one for all weights, and goes on where some have no gradient."""
    rate = S.wsd(1.0, 5, 30, 9)
    cls = load_class(sn.export("prodigy", lr=rate))
    weights = [torch.randn(s, dtype=torch.float64) for s in ((4, 3), (5,))]
    file_weights = [w.clone() for w in weights]
    optimizer = sn.torch_optimizer("prodigy")(weights, lr=rate, backend="rule")
    file_optimizer = cls(file_weights)
    for t in range(1, 35):
        for i, (weight, file_weight) in enumerate(zip(weights, file_weights, strict=True)):
            weight.grad = torch.randn_like(weight) if has_gradient(i, t) else None
            file_weight.grad = weight.grad
        optimizer.step()
        file_optimizer.step()
    torch.testing.assert_close(file_weights, weights, rtol=0, atol=1e-12)


def by_dims(name, weight):
    return "matrix" if weight.ndim == 2 else "*"


PARTITIONS = {
    "both": (S.wsd(0.1, 3, 12, 4), S.cosine(0.05, 12)),
    "one": (S.piecewise({1: 0.1, 4: 0.01}), 0.05),
}


@pytest.mark.parametrize(
    ("name", "late"),
    [
        *(pytest.param("both", late, marks=LONG) for late in (None, "*")),
        ("one", "matrix"),
        pytest.param("one", "*", marks=LONG),
    ],
)
def test_each_label_of_a_partition_has_a_clock(name, late):
    """A group that joins late starts at the largest clock, if its label has schedules."""
    lr, other_lr = PARTITIONS[name]
    rules = {
        "matrix": sn.bind("sgdw", lr=lr, momentum=0.9),
        "*": sn.bind("lookahead(sgd)", lr=other_lr),
    }
    partition = sn.partition(rules, by_dims)
    params = {"a": torch.randn(4, 3), "b": torch.randn(5), "c": torch.randn(3, 3)}
    params = {n: x.double() for n, x in params.items()}
    file_params = {n: x.clone() for n, x in params.items()}
    optimizer_groups = partition.groups([*params.items()])
    file_groups = {}
    for n, x in file_params.items():
        label = by_dims(n, x)
        file_groups.setdefault(label, {"label": label, "params": []})["params"].append(x)
    is_late = [label == late for label in file_groups]
    sides = []
    classes = sn.torch_optimizer("sgdw"), load_class(sn.export(partition, "Both"))
    for cls, groups in zip(classes, (optimizer_groups, [*file_groups.values()]), strict=True):
        first = [g for g, waits in zip(groups, is_late, strict=True) if not waits]
        rest = [g for g, waits in zip(groups, is_late, strict=True) if waits]
        sides.append((cls(first), rest))
    for t in range(1, 16):
        for n in params:
            lacks = (t in (2, 3) and n != "a") or t == 7
            params[n].grad = None if lacks else torch.randn_like(params[n])
            file_params[n].grad = params[n].grad
        for optimizer, rest in sides:
            if t == 5:
                for group in rest:
                    optimizer.add_param_group(group)
            optimizer.step()
    for n in params:
        torch.testing.assert_close(file_params[n], params[n], rtol=0, atol=1e-12)


# Functions of the step count


def number_at(schedule, t, code):
    namespace = {"torch": torch, "math": math}
    exec(code, namespace)
    weight = torch.zeros(7, dtype=torch.float64)
    new_weight, _ = namespace["step"](weight, torch.ones_like(weight), {}, {"clock": t - 1})
    return -new_weight[0].item()


def code_of(schedule):
    """Return the function of one kind of shapes, before its comparison with the rule."""
    shapes = ((7,), (11,), (13,))
    traces = [JointTrace(lambda: sn.chain(r.StepSize(schedule)), {}, [], shape) for shape in shapes]
    lines = FunctionWriter(traces, "step").body()
    return "\n".join(["def step(weight, grad, state, group):", *(f"    {x}" for x in lines)])


FUNCTIONS = {
    "where": lambda t: torch.where(t < 30, 0.1, 0.01),
    "where of where": lambda t: torch.where(t < 9, 0.1, torch.where(t < 30, t / 50, 0.01)),
    "float32 constants": lambda t: torch.where(t < 30, torch.tensor(0.1), torch.tensor(0.01)),
    "constant": lambda t: 0.1,
    "new_full": lambda t: t.new_full((), 0.1) + t,
    "full_like": lambda t: torch.where(t > 20, torch.full_like(t, 0.1), t),
    "ones_like": lambda t: torch.where(t > 20, torch.ones_like(t), torch.zeros_like(t) + 0.1),
    "bool": lambda t: (t > 10).to(t.dtype) * 0.3 + (t > 20).double(),
    "truncated": lambda t: (t / 7).int() * 0.1 + 1,
    "long": lambda t: (t / 7).long() * (t + 1),
    "floor": lambda t: 0.5 ** torch.floor(t / 7) + torch.ceil(t / 9) + t // 8,
    "remainder": lambda t: (t % 7) / 7 + 0.1,
    "and or not": lambda t: torch.where(((t > 9) & (t < 20)) | ~(t < 30), 0.5, 0.25),
    "clamp": lambda t: t.clamp(5, 20) + t.clamp(min=7) + torch.minimum(t, torch.tensor(9.0)),
    "maximum": lambda t: torch.maximum(t, 3 + 0 * t) - (t - 50).abs() / 100,
    "powers": lambda t: 0.99**t + t**-0.5 + t.square() + t.rsqrt() + 1 / t + t.reciprocal(),
    "transcendental": lambda t: torch.exp(-t / 9) + t.log() + t.log1p() + torch.tanh(t) + t.cos(),
    "lerp": lambda t: torch.lerp(t, 2 * t, 0.3) + torch.addcmul(t, t, t, value=0.5) + t.sign(),
    "guarded division": lambda t: torch.where(t == 10, 0.1, 1 / (t - 10).abs()),
    "guarded logarithm": lambda t: torch.where(t > 10, torch.log((t - 10).abs()), 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_step_count_become_arithmetic_of_numbers(name):
    schedule = S.of(FUNCTIONS[name])
    code = code_of(schedule)
    for t in range(1, 60):
        assert number_at(schedule, t, code) == pytest.approx(schedule(t), rel=1e-13, abs=1e-15)


REFUSED = {
    "float32": (lambda t: torch.where(t < 30, 0.1, 0.01) * 0.3, ("mul", "float32", "t.dtype")),
    "rounded": (lambda t: (t / 7).float(), ("convert", "float32", "t.dtype")),
    "branch": (lambda t: 0.1 if t < 30 else 0.01, ("reads a value", "torch.where")),
    "no expression": (torch.erf, ("erf",)),
    "in place": (lambda t: torch.zeros_like(t).add_(t), ("add_", "in place")),
    "infinite": (lambda t: 1 / (1 + torch.exp(2000 - 100 * t)), ("step 1", "OverflowError")),
    "division": (lambda t: torch.where((1 / (t - 99)).isfinite(), 1.0, 2.0), ("step 99", "Zero")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_cannot_be_exported_is_named_with_the_remedy(name):
    function, words = REFUSED[name]
    with refuses(*words, by=sn.ExportError):
        sn.export("sgd", lr=S.of(function))


def test_a_scheduled_number_of_all_weights_must_be_the_recipe_s():
    def recipe(lr=1.0):
        return sn.zoo.prodigy(lr=lr * S.cosine(1.0, 30))

    with refuses("lr", "no hyper-parameter", "schedule", by=sn.ExportError):
        sn.export(recipe)


LATE_FAILURES = {
    "jump": S.piecewise({1: 0.1, 300: 0.01}),
    "plateau": S.wsd(0.1, 10, 9_000_000, 2_000_000),
    "arithmetic": 0.1 * S.cosine(1.0, 50) + S.piecewise({1: 0.0, 777: 0.1}),
}


@pytest.mark.parametrize("name", LATE_FAILURES)
def test_a_file_that_would_fail_after_a_knot_is_refused(name, monkeypatch):
    """As one did that called torch.ones_like of a number in its later branch."""

    def print_as_tensor(call):
        return call.value(f"torch.{call.row.name}({call.operands[0].text})")

    sn.export("sgd", lr=LATE_FAILURES[name])
    monkeypatch.setitem(PRINTERS, "ones_like", print_as_tensor)
    with refuses("ones_like", "step", by=sn.ExportError):
        sn.export("sgd", lr=LATE_FAILURES[name])


def test_a_function_is_tried_at_the_numbers_with_which_it_compares(monkeypatch):
    def print_as_tensor(call):
        return call.value(f"torch.{call.row.name}({call.operands[0].text})")

    schedule = S.of(lambda t: torch.where(t == 777, 0.01 * torch.ones_like(t), 0.1))
    monkeypatch.setitem(PRINTERS, "ones_like", print_as_tensor)
    with refuses("ones_like", "step 777", by=sn.ExportError):
        sn.export("sgd", lr=schedule)
