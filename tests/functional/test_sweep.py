"""Sweeps equal plain loops of single runs, in a covering array of conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness import ROWS, pairs, refuses
from tests.harness.tables import mostly_long

RECORDED = 9
"""Steps at which a sweep records its step, which takes a second: for few rows."""
FEW = (
    "sgd-lr=0.05-momentum=0.9-dampening=0.1-weight_decay=0.01",
    "adamp-lr=0.01-weight_decay=0.01",
)

CONDITIONS = {
    "row": [row for row in ROWS if not row.fewest],
    "steps": (4, RECORDED),
    "seeds": (1, 2),
    "batches": (False, True),
    "schedule": ("none", "number", "tensor"),
    "record": (False, True),
    "swept": ("lr", "momentum", "both", "both_in_rows"),
}


def allowed(case: dict[str, Any]) -> bool:
    many = case.get("steps") == RECORDED and "row" in case and case["row"].id not in FEW
    return not many and not (
        case.get("swept") == "momentum" and case.get("schedule", "none") != "none"
    )


def loss(params, batch=None):
    x = torch.ones(4, 5, dtype=torch.float64) if batch is None else batch["x"]
    return ((params["w"] @ x).tanh() ** 2).mean() + (params["b"] - 1).square().sum()


def pull(params):
    return sum((w - 0.5).square().sum() for w in params.values())


def drawn(seed, **shapes):
    generator = torch.Generator().manual_seed(seed)
    draw = {name: torch.randn(s, generator=generator) for name, s in shapes.items()}
    return {name: x.double() for name, x in draw.items()}


def starts(seeds):
    return drawn(0, w=(seeds, 3, 4), b=(seeds, 3))


def batch_of(t, seeds):
    return drawn(t + 1, x=(seeds, 4, 5))


def points_of(row, swept):
    """The values of what is swept, one for each of three points."""
    pairs_of = "betas" in sn.bind(row.recipe).defaults
    values = [(0.5, 0.9), (0.8, 0.95), (0.9, 0.99)] if pairs_of else [0.3, 0.5, 0.8]
    if not pairs_of and "nesterov" not in row.settings:
        values[0] = 0.0  # where a single run has no buffer, and torch leaves dampening out
    momentum = {"betas" if pairs_of else "momentum": values}
    return {} if swept == "lr" else momentum, {} if swept == "momentum" else {"lr": RATES}


RATES = [1e-3, 0.01, 0.1]


@pytest.mark.parametrize(
    "at",
    mostly_long(pairs(CONDITIONS, allowed), kept=50),
    ids=lambda at: "-".join(map(str, at.values())),
)
def test_a_sweep_equals_a_loop_of_single_runs(at):
    row, seeds, steps = at["row"], at["seeds"], at["steps"]
    momentum, rates = points_of(row, at["swept"])
    given = {**momentum, **rates}
    if at["swept"] == "both" and "betas" in given:
        given["betas"] = tuple(map(list, zip(*given["betas"], strict=True)))
    fixed = {name: value for name, value in row.settings.items() if name not in given}

    def factor(t):
        return 1.0 if at["schedule"] == "none" else 1 - t / steps

    def schedule(t):
        return (
            torch.tensor(factor(t), dtype=torch.float64)
            if at["schedule"] == "tensor"
            else factor(t)
        )

    options = {} if at["schedule"] == "none" else {"schedule": schedule}
    options |= {"batches": lambda t: batch_of(t, seeds)} if at["batches"] else {}
    options |= {"record": recorded} if at["record"] else {}
    result = functional.sweep(
        row.recipe, loss, starts(seeds), given, steps=steps, **options, **fixed
    )
    assert result.loss.shape == (steps, 3, seeds)
    assert (result.records is None) is not at["record"]
    close = {"rtol": 1e-10, "atol": 1e-12}
    for k in range(3):
        point = {name: values[k] for name, values in (momentum | rates).items()}
        lr = point.pop("lr", sn.bind(row.recipe, **row.settings).hyper_parameters["lr"])
        for s in range(seeds):
            params, states = {name: x[s] for name, x in starts(seeds).items()}, {}
            for t in range(steps):
                rule = row.rule(**point, lr=lr * factor(t))
                batch = ({"x": batch_of(t, seeds)["x"][s]},) if at["batches"] else ()
                before, grads = params, grad(loss)(params, *batch)
                torch.testing.assert_close(result.loss[t, k, s], loss(before, *batch), **close)
                states = states or {name: rule.init(w) for name, w in params.items()}
                moved = {n: rule.step(w, grads[n], states[n]) for n, w in before.items()}
                params = {name: weight for name, (weight, _) in moved.items()}
                states = {name: state for name, (_, state) in moved.items()}
                for name, value in recorded(before, params).items() if at["record"] else ():
                    torch.testing.assert_close(result.records[name][t, k, s], value, **close)
            for name, value in params.items():
                torch.testing.assert_close(result.params[name][k, s], value, **close)


def recorded(before, after):
    return {"norm": after["w"].norm(), "moved": after["b"] - before["b"]}


def test_an_exploding_point_leaves_its_neighbours_alone():
    both, alone = (
        functional.sweep("sgd", loss, starts(1), {"lr": rates}, steps=4)
        for rates in ([0.01, 1e200], [0.01])
    )
    assert not both.loss[:, 1].isfinite().all()
    torch.testing.assert_close(both.loss[:, 0], alone.loss[:, 0], rtol=1e-12, atol=0)


def test_a_sweep_of_modules():
    modules = [torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh()) for _ in range(3)]
    params, _ = stack_module_state(modules)
    params, x = {name: w.detach() for name, w in params.items()}, torch.randn(3, 8, 4)

    def module_loss(weights, batch):
        return functional_call(modules[0], weights, (batch,)).square().mean()

    rates, more = {"lr": [0.0, 0.1]}, {"steps": 2, "batches": lambda t: x}
    result = functional.sweep("sgd", module_loss, params, rates, **more)
    for s, module in enumerate(modules):
        for k, lr in enumerate(rates["lr"]):
            twin = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Tanh())
            twin.load_state_dict(module.state_dict())
            optimizer = torch.optim.SGD(twin.parameters(), lr=lr)
            for t in range(2):
                optimizer.zero_grad()
                value = twin(x[s]).square().mean()
                value.backward()
                torch.testing.assert_close(result.loss[t, k, s], value.detach())
                optimizer.step()
            for name, weight in twin.named_parameters():
                torch.testing.assert_close(result.params[name][k, s], weight.detach())


def test_each_point_and_seed_draws_a_random_state_of_its_own():
    class Shaken(sn.Rule):
        state_names = ("noise",)

        def init(self, weight):
            return {"noise": torch.randn_like(weight)}

        def update(self, update, state):
            return replace(update, direction=update.direction + state["noise"]), state

    def shaken(lr=0.1):
        return sn.chain(Shaken(), r.StepSize(lr))

    start = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    result = functional.sweep(shaken, pull, start, {"lr": [0.1, 0.1]}, steps=2)
    assert len({tuple(end.tolist()) for end in result.params["w"].flatten(0, 1)}) == 6


def test_a_sweep_notices_what_a_recipe_or_a_rule_reads():
    """A recorded step stands for one rule; a rule of a user is not recorded."""
    factors, factor = [1.0, 1.0, 3.0, 3.0, 2.0, *[1.0] * (RECORDED - 5)], 1.0

    class Scaled(sn.Rule):
        def update(self, update, state):
            return replace(update, direction=factor * update.direction), state

    def in_the_recipe(lr=0.1):
        return sn.chain(r.StepSize(lr * factor))

    def in_the_rule(lr=0.1):
        return sn.chain(Scaled(), r.StepSize(lr))

    def batches(t):
        nonlocal factor
        factor = factors[t]
        return torch.ones(1, 4)

    start, options = {"w": torch.zeros(1, 4)}, {"steps": RECORDED, "batches": batches}
    for recipe in (in_the_recipe, in_the_rule):
        result = functional.sweep(
            recipe, lambda p, b: (p["w"] * b).sum(), start, {"lr": [1.0, 2.0]}, **options
        )
        assert result.params["w"][:, 0, 0].tolist() == [-sum(factors), -2 * sum(factors)]


def swept(**values):
    return {"hyper_parameters": values}


NAN = float("nan")
BAD = [
    (swept(learning_rate=[0.1]), ["sgd", "learning_rate", "lr"], ValueError),
    (swept(lr=[0.1], momentum=[0.1, 0.2]), ["hyper_parameters", 1, 2], ValueError),
    (swept(lr=0.1), ["hyper_parameters", "lr"], ValueError),
    (swept(), ["hyper_parameters"], ValueError),
    (swept(lr=[]), ["hyper_parameters", "lr", 0], ValueError),
    (swept(lr=[0.1, -0.1]), ["lr", -0.1], ValueError),
    (swept(lr=[0.1, NAN]), ["lr", NAN], ValueError),
    (swept(lr=torch.ones(2, 2)), ["lr", (2, 2)], ValueError),
    (swept(lr=["a", "b"]), ["lr", ["a", "b"]], ValueError),
    ({"params": {"w": torch.zeros(2, 3, 4), "b": torch.zeros(3, 3)}}, ["params", 2, 3], ValueError),
    ({"steps": 0}, ["steps", 0], ValueError),
    ({"steps": 2.5}, ["steps", 2.5], TypeError),
    ({"params": {"v": torch.zeros(2, 3)}}, ["loss", "KeyError", "params has v"], ValueError),
    ({"lr": 0.3}, ["lr", 0.3, "hyper_parameters"], ValueError),
    ({**swept(momentum=[0.1]), "schedule": lambda t: 1.0}, ["schedule", "lr"], ValueError),
    ({"schedule": lambda t: -1}, ["schedule(0)", -1, "lr", -0.1], ValueError),
    ({"schedule": lambda t: NAN}, ["schedule(0)", NAN, "lr"], ValueError),
    ({"schedule": lambda t: 1.0 - 2 * (t > 8), "steps": 10}, ["schedule(9)", -0.1], ValueError),
    ({"schedule": lambda t: "half"}, ["schedule(0)", "half"], TypeError),
]


@pytest.mark.parametrize(("change", "named", "error"), BAD)
def test_a_wrong_sweep_is_refused(change, named, error):
    given = {"params": starts(1), **swept(lr=[0.1]), "steps": 1, **change}
    with refuses(*named, by=error):
        functional.sweep("sgd", loss, **given)
