"""Optimizers written as a user writes them, against plain loops in float64."""

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness.gradients import gradient
from tests.testing import loops
from tests.testing.users import RECIPES
from tests.trajectories import largest_difference

SHAPES = {"a matrix": (4, 3), "a wide one": (3, 5), "a convolution": (3, 2, 2, 2), "a vector": (5,)}
FAMILIES = ("random", "mixed")
SCHEDULE = (0.5, 1.0, 0.9, 0.7, 0.4)
"""Of the recipe's own learning rate, at each of five steps."""


def weights_of(rule):
    """Random weights of the shapes that the rule takes."""
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES.values()]
    taken = []
    for weight in weights:
        try:
            rule.init(weight)
        except ValueError:
            assert weight.ndim < 2
        else:
            taken.append(weight)
    return taken


def gradients(family):
    """A gradient that depends on the point, the weight's index and the step."""

    def at(weight, index, step):
        generator = torch.Generator().manual_seed(100 * index + step)
        return gradient(family, weight, generator, step)

    return at


def by_torch_optimizer(recipe, weights, gradient_at, rates):
    """The weights after each step of a torch optimizer class made from the recipe."""
    params = [w.clone().requires_grad_() for w in weights]
    optimizer = sn.torch_optimizer(recipe)(params, backend="rule")
    for step, lr in enumerate(rates):
        optimizer.param_groups[0]["lr"] = lr

        def closure(step=step):
            for i, param in enumerate(params):
                param.grad = gradient_at(param.detach(), i, step)
            return 0.0

        optimizer.step(closure)
        yield [param.detach().clone() for param in params]


def by_function(recipe, weights, gradient_at, rates):
    """The weights after each step of the pure form."""
    params = {str(i): w for i, w in enumerate(weights)}
    state = sn.functional.init(recipe(), params)

    def grads_at(point, step):
        return {name: gradient_at(w, int(name), step) for name, w in point.items()}

    for step, lr in enumerate(rates):
        rule = recipe(lr=lr)
        grads = grads_at(params, step)
        if "evaluate_at" in {name for each in rule.tree() for name in vars(type(each))}:
            point = sn.functional.evaluation_point(rule, params, grads, state)
            grads = grads_at(point, step)
        params, state = sn.functional.step(rule, params, grads, state)
        yield list(params.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("run", [by_torch_optimizer, by_function])
@pytest.mark.parametrize("name", RECIPES)
def test_five_steps_are_those_of_a_plain_loop(name, run, family):
    bound = sn.bind(RECIPES[name])
    weights, at = weights_of(bound.rule), gradients(family)
    rates = [scale * bound.hyper_parameters["lr"] for scale in SCHEDULE]
    expected = loops.trajectory(name, bound.hyper_parameters, weights, at, rates)
    assert len(weights) >= 3
    for step, (ours, theirs) in enumerate(
        zip(run(RECIPES[name], weights, at, rates), expected, strict=True)
    ):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(
                one, other, rtol=1e-12, atol=1e-12, msg=lambda m, t=step: f"step {t + 1}: {m}"
            )
    assert all((a - b).abs().max() > 1e-4 for a, b in zip(theirs, weights, strict=True))


def rmsprop(lr=1e-3, alpha=0.95, eps=1e-8, weight_decay=0.02, momentum=0.9):
    parts = (r.CoupledDecay(weight_decay), r.RootMeanSquare(alpha, eps), r.HeavyBall(momentum))
    return sn.chain(*parts, r.StepSize(lr))


FROM_PARTS = {
    "AdamW is AdEMAMix without its slow average": (
        (RECIPES["ademamix"], {"alpha": 0.0, "weight_decay": 0.03}),
        (torch.optim.AdamW, {"weight_decay": 0.03}),
    ),
    "AMSGrad": ((RECIPES["amsgrad"], {}), (torch.optim.Adam, {"amsgrad": True})),
    "RMSprop": (
        (rmsprop, {}),
        (torch.optim.RMSprop, {"alpha": 0.95, "weight_decay": 0.02, "momentum": 0.9}),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("case", FROM_PARTS)
def test_optimizers_of_torch_from_parts(case, family):
    (recipe, ours), (cls, theirs) = FROM_PARTS[case]
    difference = largest_difference(
        lambda p: sn.torch_optimizer(recipe)(p, lr=1e-3, backend="rule", **ours),
        lambda p: cls(p, lr=1e-3, **theirs),
        family=family,
    )
    assert difference < 1e-12
