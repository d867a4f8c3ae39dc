"""`export` writes a recipe as one file of plain torch that takes the same steps, or refuses."""

from __future__ import annotations

import ast
import copy
import io
import math
import subprocess
import sys

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.export.recipe import sample_gradient
from tests.harness import ANY_WEIGHTS, FAMILIES, ROWS, ZOO, gradient, refuses

pytestmark = ANY_WEIGHTS
STEPS = 5
LONG = pytest.mark.long
FIRST = [*{str(row.recipe): row for row in reversed(ROWS)}.values()][::4]
"""One row of every fourth recipe; the others are long tests."""
QUICK = ("prodigy", "dadapt_sgd", "adan", "adafactor", "lookahead_adamw", "mano", "nero")
"""Recipes of the zoo that together use every operation which only recipes of the zoo need."""
CASES = [
    pytest.param(row, id=row.id, marks=() if row in FIRST or row.recipe in QUICK else LONG)
    for row in [*ROWS, *ZOO]
]


def load_class(text):
    """Return the only class of an exported file."""
    namespace = {"__name__": "exported"}
    exec(compile(text, "exported", "exec"), namespace)
    (cls,) = (value for value in namespace.values() if isinstance(value, type))
    return cls


def imported_modules(text):
    tree = ast.parse(text)
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import))
    return {alias.name for node in imports for alias in node.names}


@pytest.mark.parametrize("row", CASES)
def test_a_file_takes_the_steps_of_its_recipe(row):
    text = sn.export(row.recipe, **row.settings)
    assert imported_modules(text) <= {"torch", "math"}
    assert max(map(len, text.splitlines())) <= 100
    cls = load_class(text)
    empty = torch.zeros(3, 0, requires_grad=True)
    empty.grad = torch.zeros(3, 0)
    cls([empty]).step()
    generator = torch.Generator().manual_seed(5)
    max_dims = 2 if "p.ndim > 2" in text else math.inf
    for family in FAMILIES:
        weights = [w for w in row.parameters(seed=3) if w.ndim <= max_dims]
        file_weights = [w.detach().clone().requires_grad_() for w in weights]
        optimizers = cls(file_weights), row.optimizer(weights, backend="rule")
        scales = [1.0 for _ in weights]
        for step in range(STEPS):
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] *= (1.0, 0.5, 1.7, 0.0, 2.0)[step]
            for i, (file_weight, weight) in enumerate(zip(file_weights, weights, strict=True)):
                weight.grad = gradient(family, weight.detach(), generator, step)
                file_weight.grad = weight.grad.clone()
                scales[i] = max(scales[i], weight.abs().max().item())
            for optimizer in optimizers:
                optimizer.step()
        # Each of the five products of an orthogonalization multiplies rounding errors by 3.4.
        tolerance = 1e-10 if row.fewest == 2 else 1e-12
        for file_weight, weight, scale in zip(file_weights, weights, scales, strict=True):
            torch.testing.assert_close(file_weight, weight, rtol=0, atol=scale * tolerance)


@pytest.mark.parametrize("recipe", ["grokfast", "aggmo", "layca", "adamw"])
def test_states_are_no_views_of_the_gradient_and_checkpoints_restore_their_dtype(recipe):
    """The gradient is overwritten in place, and states of bfloat16 weights are float32."""
    cls = load_class(sn.export(recipe, lr=0.1))
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, generator=generator).bfloat16()
    twin = weight.clone()
    weight.grad = torch.zeros_like(weight)
    optimizer, twin_optimizer = cls([weight]), cls([twin])
    for step in range(5):
        weight.grad.copy_(torch.randn(4, 3, generator=generator))
        twin.grad = weight.grad.clone()
        optimizer.step()
        twin_optimizer.step()
        if step == 2:
            state_dict = save_and_load(optimizer.state_dict())
            optimizer = cls([weight])
            optimizer.load_state_dict(state_dict)
    assert torch.equal(weight, twin)


def save_and_load(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)


class NumbersOnTheLeft(sn.Rule):
    """A rule with numbers on the left of tensors, and bounds."""

    def update(self, update, state):
        d = update.direction.clamp(min=-1.0, max=0.9)
        return update.replace(direction=(0.5 - d) / (1 + 2 / (d * d + 1)) - (-d).abs()), {}


def numbers_on_the_left(lr=0.1, momentum=0.5):
    return sn.chain(r.ExponentialAverage(momentum), NumbersOnTheLeft(), r.StepSize(lr))


class DividesByGlobalNorm(sn.Rule):
    def global_sum_terms(self, update, state):
        return {"total": update.grad.square().sum()}

    def update(self, update, state):
        return update.replace(direction=update.direction / (1 + update.notes["total"]).sqrt()), {}


def clipped(lr=0.1):
    return sn.chain(DividesByGlobalNorm(), r.HeavyBall(0.5), r.StepSize(lr))


LATE = ["adamw", "lion", "ademamix", "prodigy", "dadapt_sgd", numbers_on_the_left, clipped]


@pytest.mark.parametrize("recipe", LATE)
def test_weights_may_have_their_first_gradient_at_different_steps(recipe):
    shapes = ((3, 2), (5,), (), (2, 2, 2))
    file_weights = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    weights = [w.clone() for w in file_weights]
    file_optimizer = load_class(sn.export(recipe))(file_weights)
    optimizer = sn.torch_optimizer(recipe)(weights, backend="rule")
    for step in range(4):
        for i, (file_weight, weight) in enumerate(zip(file_weights, weights, strict=True)):
            weight.grad = torch.randn_like(weight) if step % (i + 1) == 0 else None
            file_weight.grad = weight.grad
        file_optimizer.step()
        optimizer.step()
    torch.testing.assert_close(file_weights, weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recipe", ["adamp", "muon", "adamh"])
def test_a_file_is_a_torch_optimizer(recipe):
    cls = load_class(sn.export(recipe, lr=0.1))
    weights = [torch.ones(3, 2, requires_grad=True), torch.ones(2, 3, 2, 2, requires_grad=True)]
    optimizer = cls([{"params": weights[:1], "lr": 0.05}, {"params": weights[1:]}])
    twins = copy.deepcopy(weights)
    twin_optimizer = cls([{"params": twins[:1], "lr": 0.05}, {"params": twins[1:]}])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for w in weights:
        w.grad = torch.arange(1.0, 1 + w.numel()).reshape(w.shape)
    assert optimizer.step(lambda: 3.0) == 3.0
    schedule.step()
    twin_optimizer.load_state_dict(save_and_load(optimizer.state_dict()))
    with torch.no_grad():
        for w, twin in zip(weights, twins, strict=True):
            twin.copy_(w)
            twin.grad = w.grad.clone()
    assert twin_optimizer.param_groups[0]["lr"] == 0.025
    optimizer.step()
    twin_optimizer.step()
    assert all(map(torch.equal, weights, twins))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_steps_other_dtypes_as_the_recipe_does(dtype):
    file_weight = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = file_weight.clone()
    file_optimizer = load_class(sn.export("adamp", weight_decay=0.1))([file_weight], lr=0.1)
    optimizer = sn.optim.AdamP([weight], lr=0.1, weight_decay=0.1)
    for step in range(4):
        file_weight.grad = gradient("mixed", weight, torch.Generator().manual_seed(step), step)
        weight.grad = file_weight.grad.clone()
        file_optimizer.step()
        optimizer.step()
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(file_weight, weight, rtol=tolerance, atol=tolerance)


def test_files_are_formatted(tmp_path):
    for recipe in ("adamp", "lion", "muon", "adamh"):
        (tmp_path / f"{recipe}.py").write_text(sn.export(recipe))
    for command in (["format", "--check"], ["check"]):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--isolated",
                "--line-length",
                "100",
                tmp_path,
            ],
            check=True,
            capture_output=True,
        )


def counting_recipe(lr=0.1, times=2):
    """A user's recipe that makes as many rules as a hyper-parameter says."""
    return sn.chain(*[r.HeavyBall(0.5) for _ in range(times)], r.StepSize(lr))


class AddsNoise(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction + torch.randn_like(update.weight)), {}


class DrawsAnOrder(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction[torch.randperm(len(update.weight))]), {}


class BranchesOnValues(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction * float(update.grad.sum() > 0)), {}


def test_a_user_s_recipe_can_be_exported():
    text = sn.export(counting_recipe, "Mine", lr=0.2)
    assert "times=2" in text
    assert 'group["times"]' not in text
    assert load_class(text).__name__ == "Mine"


@pytest.mark.parametrize("rule", [AddsNoise, DrawsAnOrder, BranchesOnValues])
def test_unsupported_operations_are_refused(rule):
    def unsupported(lr=0.1):
        return sn.chain(rule(), r.StepSize(lr))

    with refuses("unsupported", by=sn.ExportError):
        sn.export(unsupported)


def lines_of_steps(code):
    """Return the numbers of the lines in the functions `step_<kind>` of a compiled file."""
    lines = set()
    for constant in code.co_consts:
        name = getattr(constant, "co_name", "")
        if name.startswith("step_") and name != "step_weight":
            lines |= {line for _, _, line in constant.co_lines() if line}
            lines.discard(constant.co_firstlineno)
    return lines


def run_traced(function, file):
    """Return the lines of a file that ran during a call."""
    lines = set()

    def trace(frame, event, arg):
        if frame.f_code.co_filename != file:
            return None
        lines.add(frame.f_lineno)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(previous)
    return lines


PERIODIC = ("soap", "shampoo", pytest.param("hyperball(soap)", marks=LONG))


@pytest.mark.parametrize("recipe", PERIODIC)
def test_a_file_refreshes_when_its_recipe_does(recipe):
    """A period of 3 runs both branches in 12 steps, and the file does no work of the other one."""
    decay = {"weight_decay": 0.1} if "weight_decay" in rule_names(recipe) else {}
    text = sn.export(recipe, **decay)
    code = compile(text, "exported", "exec")
    generator = torch.Generator().manual_seed(5)
    shapes = ((4, 4), (7, 11), (11, 7), (4, 3, 2, 2))
    weights = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    file_weights = [w.clone() for w in weights]
    file_optimizer = load_class(text)(file_weights, every=3)
    optimizer = sn.torch_optimizer(recipe)(weights, every=3, backend="rule", **decay)
    lines_at_steps = []
    for _ in range(12):
        for file_weight, weight in zip(file_weights, weights, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            file_weight.grad = weight.grad.clone()
        lines_at_steps.append(run_traced(file_optimizer.step, "exported"))
        optimizer.step()
        torch.testing.assert_close(file_weights, weights, rtol=0, atol=1e-12)
    steps = lines_of_steps(code)
    decompositions = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if "torch.linalg.eigh(" in line or "torch.linalg.qr(" in line
    }
    assert decompositions
    assert decompositions <= set.union(*lines_at_steps)
    assert not decompositions & lines_at_steps[4]
    branches = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if number in steps and line.startswith(" " * 8) and "weight_decay" not in line
    }
    assert decompositions <= branches


WRAPPED = (
    *("schedulefree(cautious(muon))", "hyperball(soap)", "graft(muon, adamw)", "lookahead(lion)"),
    *("emanesterov(soap)", "cautious(prodigy)", "rotational(adamp)", "radial_brake(sgdp)"),
    *("averaged(normuon)", "schedulefree(graft(soap, adamw))", "gpa(muon)"),
    "low_precision(cautious(lion))",
)
"""Twelve wrapped recipes."""
EVERY_RECIPE = [*sn.recipes.__all__, *sorted({*sn.zoo.__all__} - {"rules"}), *WRAPPED]
BESIDE_THE_RULE = ("adamp", "shampoo", "sgdp", "cautious(prodigy)", "adopt")
"""Recipes with a test of invariance, a period, sums over all weights, and a first step apart."""


NEVER_RUN = {"mano": {"direction = new_momentum_buffer"}}
"""Lines that no step reaches: one of two alternating rules is always due."""


def other_number(value):
    """Another number, which is not 0, and 3 for a period; other values as they are."""
    if type(value) is tuple:
        return tuple(map(other_number, value))
    if type(value) is float:
        return 0.9 * value or 0.01
    return 3 if type(value) is int and value else value


def zero(value):
    return 0.0 if type(value) is float else value


def with_numbers(recipe, change):
    """The changed numbers that a recipe accepts; its step size is never 0."""
    bound = sn.bind(recipe)
    for name, value in bound.defaults.items():
        if name == "lr" and change is zero:
            continue
        try:
            candidate = bound.replace(**{name: change(value)})
            candidate.rule  # noqa: B018
        except (TypeError, ValueError):
            continue
        bound = candidate
    return {name: bound.hyper_parameters[name] for name in bound.explicit_names}


@pytest.mark.parametrize(
    "recipe",
    [pytest.param(x, marks=() if x in BESIDE_THE_RULE else LONG) for x in EVERY_RECIPE],
)
def test_every_branch_of_a_file_is_beside_its_rule(recipe):
    """12 steps of four shapes, at three sets of numbers, with a step size of 0 at one step."""
    text = sn.export(recipe)
    code = compile(text, "exported", "exec")
    lines_of_kinds = {}
    for constant in code.co_consts:
        name = getattr(constant, "co_name", "")
        if name.startswith("step_") and name != "step_weight":
            lines = {line for _, _, line in constant.co_lines() if line}
            lines_of_kinds[name] = lines - {constant.co_firstlineno}
    ran = set()
    for settings in ({}, with_numbers(recipe, other_number), with_numbers(recipe, zero)):
        generator = torch.Generator().manual_seed(5)
        rule = sn.bind(recipe, **settings).rule
        weights = []
        for shape in ((4, 4), (7, 11), (11, 7), (4, 3, 2, 2)):
            weight = torch.randn(shape, generator=generator, dtype=torch.float64)
            try:
                rule.init(weight)
            except ValueError:
                continue
            if len(shape) < 3 or "p.ndim > 2" not in text:
                weights.append(weight)
        file_weights = [w.clone() for w in weights]
        optimizer = sn.torch_optimizer(recipe)(weights, **settings, backend="rule")
        group = optimizer.param_groups[0]
        file_group = load_class(text)([torch.zeros(2, 2)]).param_groups[0]
        numbers = {name: group[name] for name in file_group if name in rule_names(recipe)}
        fixed = {name for name in settings if name not in numbers}
        fixed_text = text if not fixed else sn.export(recipe, **{n: settings[n] for n in fixed})
        file_optimizer = load_class(fixed_text)(file_weights, **numbers)
        lr = group.get("lr")
        for step in range(12):
            for each in (optimizer, file_optimizer):
                each.param_groups[0]["lr"] = 0.0 if step == 7 else lr
            for file_weight, weight in zip(file_weights, weights, strict=True):
                weight.grad = sample_gradient(weight, step)
                file_weight.grad = weight.grad.clone()
            lines = run_traced(file_optimizer.step, "exported")
            ran |= lines if fixed_text == text else set()
            optimizer.step()
        tolerance = 1e-12 * max(1.0, *(w.abs().max().item() for w in weights))
        if "product" in text:  # each of the products of an iteration multiplies rounding errors
            tolerance *= 100
        torch.testing.assert_close(file_weights, weights, rtol=0, atol=tolerance)
    missed = {
        text.splitlines()[line - 1].strip()
        for lines in lines_of_kinds.values()
        if lines & ran
        for line in lines - ran
    }
    assert missed <= NEVER_RUN.get(recipe, set())


def rule_names(recipe):
    return sn.bind(recipe).defaults


def by_dims(name, weight):
    return "hidden" if weight.ndim >= 2 else "*"


def of_two(lr=0.02, ratio=0.1):
    parts = {"hidden": sn.recipes.muon(lr=lr), "*": sn.recipes.adamp(lr=ratio * lr)}
    return sn.partition(parts, by_dims)


PARTITIONS = {
    "recipes": lambda: sn.partition({"hidden": sn.bind("muon", lr=0.05), "*": "adamw"}, by_dims),
    "wrapped": lambda: sn.partition({"hidden": "hyperball(soap)", "*": "lion"}, by_dims),
    "a recipe": lambda: sn.bind(of_two, lr=0.05).rule,
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_one_file_steps_a_whole_partition(name):
    rule = PARTITIONS[name]()
    text = sn.export(of_two, lr=0.05) if name == "a recipe" else sn.export(rule, "Both")
    assert imported_modules(text) <= {"torch", "math"}
    assert max(map(len, text.splitlines())) <= 100
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (4, 6), "b": (6, 4), "c": (5,), "d": (3, 2, 2, 2)}
    params = {
        n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in shapes.items()
    }
    file_params = {n: x.clone() for n, x in params.items()}
    groups = {}
    for n, x in file_params.items():
        group = groups.setdefault(rule.label(n, x), {"label": rule.label(n, x), "params": []})
        group["params"].append(x)
    cls = load_class(text)
    optimizer = cls(list(groups.values()))
    state = sn.functional.init(rule, params)
    for step in range(12):
        grads = {n: sample_gradient(x, step) for n, x in params.items()}
        for n, x in file_params.items():
            x.grad = grads[n].clone()
        optimizer.step()
        params, state = sn.functional.step(rule, params, grads, state)
        if step == 5:
            state_dict = save_and_load(optimizer.state_dict())
            optimizer = cls([dict(group) for group in groups.values()])
            optimizer.load_state_dict(state_dict)
    for n, x in params.items():
        torch.testing.assert_close(file_params[n], x, rtol=0, atol=1e-12)


def test_what_no_file_of_a_partition_has_is_refused():
    text = sn.export(PARTITIONS["recipes"](), "Both")
    for groups in ([torch.ones(2, 2)], [{"label": "hiden", "params": [torch.ones(2, 2)]}]):
        with refuses("label", "hidden"):
            load_class(text)(groups)
    with refuses("hidden", "recipe", by=sn.ExportError):
        sn.export(sn.partition({"hidden": sn.recipes.muon(), "*": "adamw"}, by_dims))
    with refuses("prodigy", "sums", by=sn.ExportError):
        sn.export(sn.partition({"hidden": "prodigy", "*": "adamw"}, by_dims))
    with refuses("lr"):
        sn.export(PARTITIONS["recipes"](), lr=0.1)


@pytest.mark.parametrize("recipe", ["low_precision(adamw)", "low_precision(muon)"])
def test_a_file_rounds_at_random_as_its_recipe_does(recipe):
    generator = torch.Generator().manual_seed(5)
    shapes = ((4, 4), (7, 11), (11, 7), (4, 3, 2, 2))
    weights = [torch.randn(s, generator=generator) for s in shapes]
    file_weights = [w.clone() for w in weights]
    file_optimizer = load_class(sn.export(recipe))(file_weights, seed=2.0)
    optimizer = sn.torch_optimizer(recipe)(weights, seed=2.0, backend="rule")
    for _ in range(12):
        for file_weight, weight in zip(file_weights, weights, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            file_weight.grad = weight.grad.clone()
        file_optimizer.step()
        optimizer.step()
    for file_weight, weight in zip(file_weights, weights, strict=True):
        assert file_optimizer.state[file_weight].keys() == optimizer.state[weight].keys()
        for key, value in optimizer.state[weight].items():
            if key != "step":
                assert file_optimizer.state[file_weight][key].dtype == value.dtype
    torch.testing.assert_close(file_weights, weights, rtol=0, atol=1e-4)


def test_wrong_requests_are_refused():
    with refuses("adampp", "adamp"):
        sn.export("adampp")
    with refuses("lrr", "lr"):
        sn.export("adamp", lrr=1)
    with refuses("name", "1x"):
        sn.export("adamp", "1x")


def test_the_command(tmp_path, capsys):
    from spherenorm.cli import code

    assert code(["sgdp", "momentum=0.9", "views=('channel',)", "--name", "Custom"]) == 0
    text = capsys.readouterr().out
    assert "momentum=0.9" in text
    assert code(["sgdp", "momentum=0.9", "--into", str(tmp_path / "sgdp.py")]) == 0
    assert load_class((tmp_path / "sgdp.py").read_text()).__name__ == "SGDP"
    for wrong in (["nothing"], ["sgdp", "momentum"], ["sgdp", "momentum=7"]):
        assert code(wrong) == 2
        assert wrong[-1].partition("=")[0] in capsys.readouterr().err
