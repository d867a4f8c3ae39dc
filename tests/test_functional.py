import sys
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state

import spherenorm as sn
from spherenorm import functional, metrics
from spherenorm import rules as r
from tests.harness.rows import ROWS


def loss(params, batch):
    return ((params["w"] @ batch["x"]).tanh() ** 2).mean() + (params["b"] - 1).square().sum()


def starts(seeds):
    generator = torch.Generator().manual_seed(0)
    return {
        "w": torch.randn(seeds, 3, 4, generator=generator, dtype=torch.float64),
        "b": torch.randn(seeds, 3, generator=generator, dtype=torch.float64),
    }


def batch_of(t, seeds):
    generator = torch.Generator().manual_seed(t)
    return {"x": torch.randn(seeds, 4, 5, generator=generator, dtype=torch.float64)}


def swept(name, points, steps=3, **more):
    """A sweep of one seed."""
    given = {"steps": steps, "batches": lambda t: batch_of(t, 1), **more}
    return functional.sweep(name, loss, starts(1), points, **given)


@pytest.mark.parametrize("row", [row for row in ROWS if not row.fewest], ids=lambda row: row.id)
def test_a_sweep_equals_a_loop_of_single_runs(row):
    seeds, steps, lrs = 2, 6, [1e-3, 0.01, 0.1]
    result = functional.sweep(
        row.cls.recipe,
        loss,
        starts(seeds),
        {"lr": lrs},
        steps=steps,
        batches=lambda t: batch_of(t, seeds),
        schedule=lambda t: 1 - t / steps,
        record=lambda before, after: {
            "norm": metrics.norm(after["w"]),
            "step": metrics.effective_step(before["w"], after["w"]),
        },
        **{name: value for name, value in row.settings.items() if name != "lr"},
    )
    assert result.loss.shape == (steps, len(lrs), seeds)
    for k, lr in enumerate(lrs):
        for s in range(seeds):
            params = {key: value[s] for key, value in starts(seeds).items()}
            state = None
            for t in range(steps):
                batch = {"x": batch_of(t, seeds)["x"][s]}
                rule = row.rule(lr=lr * (1 - t / steps))
                state = state or functional.init(rule, params)
                torch.testing.assert_close(
                    result.loss[t, k, s], loss(params, batch), rtol=1e-10, atol=1e-12
                )
                before = params
                params, state = functional.step(rule, params, grad(loss)(params, batch), state)
                torch.testing.assert_close(
                    result.records["norm"][t, k, s],
                    metrics.norm(params["w"]),
                    rtol=1e-10,
                    atol=1e-12,
                )
                torch.testing.assert_close(
                    result.records["step"][t, k, s],
                    metrics.effective_step(before["w"], params["w"]),
                    rtol=1e-9,
                    atol=1e-12,
                )
            for key, value in params.items():
                torch.testing.assert_close(result.params[key][k, s], value, rtol=1e-10, atol=1e-12)


def test_pairs_sweep_as_pairs():
    betas = ([0.5, 0.9], [0.9, 0.99])
    result = swept("adam", {"betas": betas, "lr": [0.1, 0.1]})
    for k, pair in enumerate(zip(*betas, strict=True)):
        alone = swept("adam", {"lr": [0.1]}, betas=pair)
        torch.testing.assert_close(result.loss[:, k], alone.loss[:, 0], rtol=1e-12, atol=0)


def test_pairs_may_be_listed_point_by_point():
    """Also as many pairs as a pair has numbers."""
    columns, rows = ([0.5, 0.9], [0.9, 0.99]), [(0.5, 0.9), (0.9, 0.99)]
    first, second = (
        functional.sweep("adam", pull, {"w": torch.zeros(1, 3)}, {"betas": betas}, steps=3)
        for betas in (columns, rows)
    )
    assert torch.equal(first.params["w"], second.params["w"])
    assert not torch.equal(first.params["w"][0], first.params["w"][1])


def test_chunks_of_a_memory_budget_change_nothing():
    arguments = {
        "steps": 4,
        "batches": lambda t: batch_of(t, 2),
        "record": lambda before, after: metrics.norm(after["w"]),
    }
    points = {"lr": [0.1, 0.2, 0.3, 0.4, 0.5]}
    whole = functional.sweep("adamp", loss, starts(2), points, **arguments)
    # two seeds; two moments and a counter for w and for b
    weights, states = 2 * (12 + 3) * 8, 2 * (2 * (12 + 3) * 8 + 2 * 8)
    point, seen = 2 * (3 * weights + 2 * states), []
    arguments |= {"progress": lambda done, total: seen.append((done, total))}
    chunked = functional.sweep(
        "adamp", loss, starts(2), points, max_memory=2 * point + 1, **arguments
    )
    torch.testing.assert_close(chunked.loss, whole.loss, rtol=1e-13, atol=0)
    torch.testing.assert_close(chunked.records, whole.records, rtol=1e-13, atol=0)
    torch.testing.assert_close(chunked.params, whole.params, rtol=1e-13, atol=0)
    assert seen == [
        (d, 20) for d in (2, 4, 6, 8, 10, 12, 14, 16, 17, 18, 19, 20)
    ]  # two points, two, one
    with pytest.raises(
        ValueError, match=f"max_memory=99 does not hold one point, which takes {point} bytes"
    ):
        functional.sweep("adamp", loss, starts(2), {"lr": [0.1]}, max_memory=99, **arguments)


def test_an_exploding_point_leaves_its_neighbours_alone():
    both, alone = (swept("sgd", {"lr": rates}, steps=4) for rates in ([0.01, 1e200], [0.01]))
    assert not both.loss[:, 1].isfinite().all()
    torch.testing.assert_close(both.loss[:, 0], alone.loss[:, 0], rtol=1e-12, atol=0)


def test_a_sweep_of_modules():
    modules = [torch.nn.Linear(4, 2) for _ in range(3)]
    params, _ = stack_module_state(modules)
    x = torch.randn(3, 8, 4)

    def module_loss(weights, batch):
        return functional_call(modules[0], weights, (batch,)).square().mean()

    result = functional.sweep(
        "sgd",
        module_loss,
        {k: v.detach() for k, v in params.items()},
        {"lr": [0.0, 0.1]},
        steps=2,
        batches=lambda t: x,
    )
    for s, module in enumerate(modules):
        torch.testing.assert_close(result.loss[0, 0, s], module(x[s]).square().mean().detach())
        torch.testing.assert_close(result.params["weight"][0, s], module.weight.detach())
    assert (result.loss[1, 1] < result.loss[1, 0]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hyper_parameters": {"learning_rate": [0.1]}},
            "'sgd' has no hyper-parameter 'learning_rate'; it has lr, momentum",
        ),
        (
            {"hyper_parameters": {"lr": [0.1], "momentum": [0.1, 0.2]}},
            "hyper_parameters need one common leading length",
        ),
        (
            {"params": {"w": torch.zeros(2, 3, 4), "b": torch.zeros(3, 3)}},
            "params need one common leading length",
        ),
        ({"hyper_parameters": {"lr": 0.1}}, "hyper_parameters need one common leading length"),
        ({"hyper_parameters": {}}, "hyper_parameters need one common leading length"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        (
            {"hyper_parameters": {"lr": []}},
            "need one common leading length, at least 1, got {'lr': 0}",
        ),
        ({"hyper_parameters": {"lr": [0.1, -0.1]}}, r"lr must be in \[0, ∞\), got -0.1"),
        ({"hyper_parameters": {"lr": [0.1, float("nan")]}}, "lr must be in .* got nan"),
        (
            {"hyper_parameters": {"lr": torch.ones(2, 2)}},
            r"lr needs one number for each point, got a tensor of shape \(2, 2\)",
        ),
        (
            {"hyper_parameters": {"lr": ["a", "b"]}},
            r"lr needs one number for each point, got \['a', 'b'\]",
        ),
        ({"lr": 0.3}, "lr is both among the hyper_parameters and fixed to 0.3"),
        (
            {"hyper_parameters": {"momentum": [0.1]}, "schedule": lambda t: 1.0},
            "a schedule needs lr",
        ),
        ({"schedule": lambda t: -1}, r"schedule\(0\) is -1: .*lr must be in \[0, ∞\), got -0.1"),
        ({"schedule": lambda t: float("nan")}, r"schedule\(0\) is nan: .* got nan"),
        (
            {"schedule": lambda t: (1.0, -1.0)[t // 9], "steps": 10},
            r"schedule\(9\) is -1.0: .* got -0.1",
        ),
        ({"schedule": lambda t: "half"}, r"schedule\(0\) must be a number, got 'half'"),
    ],
)
def test_bad_sweeps(change, message):
    given = {"params": starts(1), "hyper_parameters": {"lr": [0.1]}, "steps": 1, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        functional.sweep("sgd", loss, batches=lambda t: batch_of(t, 1), **given)


def test_a_progress_bar(capsys):
    swept("sgd", {"lr": [0.1, 0.2]}, progress=True)
    assert "100%" in capsys.readouterr().out


def test_without_rich_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    with pytest.raises(ImportError, match="progress=True needs rich: pip install"):
        swept("sgd", {"lr": [0.1]}, progress=True)


def test_a_complex_gradient_is_refused():
    rule, params = sn.recipes.sgd(), {"a": torch.ones(2)}
    with pytest.raises(TypeError, match=r"grad is complex \(torch.complex64\)"):
        functional.step(rule, params, {"a": torch.full((2,), 1 + 2j)}, {"a": {}})


def test_step_needs_matching_names():
    rule = sn.recipes.sgd()
    params = {"a": torch.ones(2)}
    with pytest.raises(ValueError, match=r"differ in \['a', 'b'\]"):
        functional.step(rule, params, {"b": torch.ones(2)}, functional.init(rule, params))


def test_step_needs_a_state():
    params = {"a": torch.ones(2)}
    for rule in (sn.recipes.sgd(), sn.recipes.adam()):
        with pytest.raises(
            ValueError, match=r"no entry for parameter 'a'.*functional.init\(rule, p"
        ):
            functional.step(rule, params, params, {})


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.int64, "integer"), (torch.complex64, "complex"), (torch.bool, "integer")],
)
def test_weights_that_are_not_real_are_refused_by_name(dtype, kind):
    rule, params = sn.recipes.sgd(), {"a": torch.ones(2), "scale": torch.ones(2).to(dtype)}
    for act in (
        lambda: functional.init(rule, params),
        lambda: functional.step(rule, params, params, {"a": {}, "scale": {}}),
    ):
        with pytest.raises(
            TypeError,
            match=rf"parameter 'scale' is {kind} \({dtype}\); only real floating-point weights",
        ):
            act()
    with pytest.raises(TypeError, match=f"weight is {kind}"):
        rule.step(params["scale"], params["scale"], {})


def pull(params):
    return sum((w - 0.5).square().sum() for w in params.values())


def test_a_sweep_with_a_random_init():
    class Shaken(sn.Rule):
        state_names = ("noise",)

        def init(self, weight):
            return {"noise": torch.randn_like(weight)}

        def update(self, update, state):
            return replace(update, direction=update.direction + state["noise"]), state

    def shaken(lr=0.1):
        return sn.chain(Shaken(), r.StepSize(lr))

    start = {"w": torch.zeros(3, 4, dtype=torch.float64)}
    result = functional.sweep(shaken, pull, start, {"lr": [0.1, 0.2]}, steps=2)
    ends = result.params["w"].flatten(0, 1)
    assert len({tuple(end.tolist()) for end in ends}) == 6  # noise of its own for each


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("dampening", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", ["sgd", "sgdw", "sgdp"])
def test_a_point_of_a_sweep_is_its_single_run(name, dampening, momentum):
    """A momentum of 0 too, where torch ignores the dampening."""
    start = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = {"lr": [0.1, 0.1], "momentum": [momentum, 0.9]}
    found = functional.sweep(name, pull, {"w": start}, points, steps=4, dampening=dampening).params[
        "w"
    ]
    weight = start[0].clone().requires_grad_()
    optimizer = sn.torch_optimizer(name)([weight], lr=0.1, momentum=momentum, dampening=dampening)
    for _ in range(4):
        weight.grad = 2 * (weight.detach() - 0.5)
        optimizer.step()
    torch.testing.assert_close(found[0, 0], weight.detach(), rtol=1e-12, atol=1e-12)


def test_a_sweep_notices_what_a_recipe_or_a_rule_reads():
    """A recorded step stands for one rule; a rule of a user is not recorded."""
    factor = 1.0

    class Scaled(sn.Rule):
        def update(self, update, state):
            return replace(update, direction=factor * update.direction), state

    def in_the_recipe(lr=0.1):
        return sn.chain(r.StepSize(lr * factor))

    def in_the_rule(lr=0.1):
        return sn.chain(Scaled(), r.StepSize(lr))

    def batches(t):
        nonlocal factor
        factor = (1.0, 1.0, 3.0, 3.0, 2.0)[t]
        return {"ones": torch.ones(1, 4)}

    for recipe in (in_the_recipe, in_the_rule):
        result = functional.sweep(
            recipe,
            lambda p, b: (p["w"] * b["ones"]).sum(),
            {"w": torch.zeros(1, 4)},
            {"lr": [1.0, 2.0]},
            steps=5,
            batches=batches,
        )
        torch.testing.assert_close(result.params["w"][:, 0, 0], torch.tensor([-10.0, -20.0]))
