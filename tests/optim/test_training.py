"""The promises of a torch.optim.Optimizer, kept by every row, in a covering array of conditions.

Each case is the life of one optimizer. Another one, which calls the rule's pure step, lives the
same one beside it. In the middle it is copied; both copies go on alike and apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, ROWS, pairs, set_gradients
from tests.harness.tables import mostly_long
from tests.optim.plain import Plain, Weights, assert_same, class_of, through, weights_of

pytestmark = ANY_WEIGHTS

KERNELS = ("sgd-lr=0.05-momentum=0.9-nesterov=True", "adamp-lr=0.01-weight_decay=0.01", "sgdg")
"""Rows that are stepped by kernels, too: these are tested in `compile/` for all of them."""

SCHEDULES = {
    "constant": None,
    "step": lambda o, **_: lr_scheduler.StepLR(o, 1, 0.5),
    "lambda": lambda o, **_: lr_scheduler.LambdaLR(o, inverse),
    "one_cycle": lambda o, rates, momentum: lr_scheduler.OneCycleLR(
        o, rates, total_steps=8, cycle_momentum=momentum
    ),
    "cyclic": lambda o, rates, momentum: lr_scheduler.CyclicLR(
        o, [rate / 10 for rate in rates], rates, step_size_up=3, cycle_momentum=momentum
    ),
}


def inverse(t):
    return 1 / (t + 1)


CONDITIONS = {
    "row": ROWS,
    "copied": ("file", "state_dict", "deepcopy", "pickle"),
    "groups": ("one", "named", "two", "late"),
    "schedule": tuple(SCHEDULES),
    "dtype": (torch.float64, torch.float32, torch.bfloat16, torch.float16),
    "layout": ("contiguous", "transposed", "channels_last", "expanded_gradient"),
    "stepped": ("plainly", "by_closure", "by_scaler"),
    "missing": (False, True),
    "maximize": (False, True),
    "lr": (float, torch.tensor),
    "backend": ("rule", "auto"),
}


def allowed(case: dict[str, Any]) -> bool:
    row, dtype = case.get("row", ROWS[0]), case.get("dtype", torch.float64)
    plain = case.get("layout", "contiguous") == "contiguous"
    auto = case.get("backend") == "auto"
    return not (
        # elsewhere sums round otherwise, and half precision makes steps of it
        (dtype != torch.float64 and (not plain or auto or case.get("lr") is torch.tensor))
        or (dtype.itemsize < 4 and case.get("stepped") == "by_scaler")
        or (auto and not (plain and ("row" not in case or row.id in KERNELS)))
        or (case.get("groups") == "late" and case.get("schedule", "constant") != "constant")
        or (case.get("copied") == "pickle" and not isinstance(row.recipe, str))
    )


def in_groups(how: str, weights: Weights, lr: float) -> list[Any]:
    if how == "one":
        return weights
    if how == "named":
        return [(f"layer.{i}", weight) for i, weight in enumerate(weights)]
    return [{"params": weights[:1]}, {"params": weights[1:], "lr": lr / 5}]


def laid_out(weight: torch.Tensor, layout: str) -> torch.Tensor:
    x = weight.detach()
    if layout == "transposed" and x.ndim > 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "channels_last" and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    return x.requires_grad_()


def plainly(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    grads = [None if weight.grad is None else weight.grad.clone() for weight in weights]
    assert optimizer.step() is None
    for weight, grad in zip(weights, grads, strict=True):
        assert (weight.grad is None) == (grad is None) or torch.equal(weight.grad, grad)


def by_closure(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    both = [(weight, weight.grad) for weight in weights if weight.grad is not None]
    losses = []

    def closure():
        optimizer.zero_grad()
        losses.append(sum((weight * grad).sum() for weight, grad in both))
        losses[0].backward()
        return losses[0]

    optimizer.zero_grad()
    assert optimizer.step(closure) is losses[0]
    assert len(losses) == 1


def by_scaler(optimizer: torch.optim.Optimizer, weights: Weights) -> None:
    """A step whose scaled gradients overflow is left out; the next one is the unscaled step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = [weight.detach().clone() for weight in weights]
    grads = [weight.grad for weight in weights]
    for overflows in (True, False):
        scale = float(scaler.scale(torch.ones(())))
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = None if grad is None else grad * (torch.inf if overflows else scale)
        scaler.step(optimizer)
        scaler.update()
        if overflows:
            assert all(map(torch.equal, weights, before))


STEPPED = {"plainly": plainly, "by_closure": by_closure, "by_scaler": by_scaler}


def live(
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    weights: Weights,
    steps: range,
    at: dict[str, Any],
    stepped: str = "plainly",
) -> None:
    for step in steps:
        set_gradients(weights, step)
        for i, weight in enumerate(weights):
            if at["layout"] == "expanded_gradient" and weight.ndim:
                weight.grad = weight.grad[:1].expand_as(weight)
            if at["missing"] and i == (step + 1) % len(weights):
                weight.grad = None
        STEPPED[stepped](optimizer, weights)
        if scheduler is not None:
            scheduler.step()


CASES = mostly_long(pairs(CONDITIONS, allowed), kept=120)


def named(case: dict[str, Any]) -> str:
    return "-".join(getattr(value, "__name__", str(value)) for value in case.values())


@pytest.mark.parametrize("at", CASES, ids=named)
def test_an_optimizer_steps_as_its_rule_and_so_does_its_copy(at):
    row, schedule = at["row"], SCHEDULES[at["schedule"]]
    hypers = {**sn.bind(row.recipe, **row.settings).hyper_parameters}
    lr = hypers.pop("lr")
    cycles = {"momentum", "betas"} & hypers.keys()

    def scheduled(optimizer: torch.optim.Optimizer) -> Any:
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        return schedule and schedule(optimizer, rates=rates, momentum=bool(cycles))

    def make(weights: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        rate = torch.tensor(lr, dtype=torch.float64) if at["lr"] is torch.tensor else lr
        cls = class_of(row.recipe) if isinstance(row.recipe, str) else row.cls
        groups = in_groups(at["groups"], weights, lr)
        options = {"maximize": at["maximize"], "backend": at["backend"]}
        optimizer = cls(groups, **{**row.settings, "lr": rate}, **options)
        return optimizer, scheduled(optimizer)

    weights = [laid_out(weight, at["layout"]) for weight in row.parameters(at["dtype"])]
    others = row.parameters(at["dtype"])
    groups = in_groups(at["groups"], others, lr)
    plain = Plain(row.recipe, groups, lr=lr, maximize=at["maximize"], **hypers)
    optimizer, scheduler = make(weights)
    plain_scheduler = scheduled(plain)
    if at["groups"] == "late":
        late, plain_late = (each.param_groups.pop() for each in (optimizer, plain))
        live(optimizer, scheduler, weights, range(1), at, at["stepped"])
        live(plain, plain_scheduler, others, range(1), at)
        optimizer.add_param_group({name: late[name] for name in ("params", "lr")})
        plain.add_param_group(plain_late)
    places = [(weight.data_ptr(), weight.stride()) for weight in weights]
    live(optimizer, scheduler, weights, range(1, 3), at, at["stepped"])
    live(plain, plain_scheduler, others, range(1, 3), at)
    exact = at["backend"] == "rule" and at["layout"] == "contiguous" and at["lr"] is float
    # Newton-Schulz magnifies the rounding of small singular values by up to 3.4^5.
    within = {} if exact else {"rtol": 1e-10, "atol": 1e-10}
    assert_same(optimizer, plain, **within)

    twin, twin_scheduler = through(at["copied"], optimizer, scheduler, make)
    assert type(twin) is type(optimizer)
    before = [weight.detach().clone() for weight in weights_of(twin)]
    live(optimizer, scheduler, weights, range(3, 5), at, at["stepped"])
    assert all(map(torch.equal, weights_of(twin), before))
    live(plain, plain_scheduler, others, range(3, 5), at)
    assert_same(optimizer, plain, **within)
    assert not all(map(torch.equal, weights, before))
    live(twin, twin_scheduler, weights_of(twin), range(3, 5), at, at["stepped"])
    assert_same(twin, optimizer)
    assert [(weight.data_ptr(), weight.stride()) for weight in weights] == places
