"""A recipe as one file of plain torch: its steps, its form, and what has no such file."""

from __future__ import annotations

import ast
import copy
import io
import subprocess
import sys

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import ANY_WEIGHTS, FAMILIES, ROWS, ZOO, gradient, refuses

pytestmark = ANY_WEIGHTS
STEPS = 5
LONG = pytest.mark.long
FIRST = [*{str(row.recipe): row for row in reversed(ROWS)}.values()]
"""One row of each recipe."""
REFUSED = ("prodigy", "dadapt_sgd", "soap", "shampoo", "nero")
"""Recipes of the zoo that measure all weights, decompose matrices, or divide by rounding."""
QUICK = ("adan", "adafactor", "lookahead_adamw", "mano")
"""Recipes of the zoo that together have the words that no other recipe needs."""
CASES = [
    pytest.param(row, id=row.id, marks=() if row in FIRST or row.recipe in QUICK else LONG)
    for row in [*ROWS, *ZOO]
    if row.recipe not in REFUSED
]


def loaded(text):
    """The class of a file, which is run without this library."""
    space = {"__name__": "exported"}
    exec(compile(text, "exported", "exec"), space)
    (cls,) = (each for each in space.values() if isinstance(each, type))
    return cls


@pytest.mark.parametrize("row", CASES)
def test_a_file_takes_its_recipes_steps(row):
    text = sn.export(row.recipe, **row.settings)
    assert {"torch", "math"} >= imports(text)
    assert max(map(len, text.splitlines())) <= 100
    cls = loaded(text)
    empty = torch.zeros(3, 0, requires_grad=True)
    empty.grad = torch.zeros(3, 0)
    cls([empty]).step()
    draw = torch.Generator().manual_seed(5)
    for family in FAMILIES:
        theirs = [w for w in row.parameters(seed=3) if w.ndim <= 2 or "p.ndim > 2" not in text]
        ours = [w.detach().clone().requires_grad_() for w in theirs]
        both = cls(ours), row.optimizer(theirs, backend="rule")
        way = [1.0 for _ in theirs]
        for step in range(STEPS):
            for optimizer in both:
                optimizer.param_groups[0]["lr"] *= (1.0, 0.5, 1.7, 0.0, 2.0)[step]
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                b.grad = gradient(family, b.detach(), draw, step)
                a.grad = b.grad.clone()
                way[i] = max(way[i], b.abs().max().item())
            for optimizer in both:
                optimizer.step()
        for a, b, size in zip(ours, theirs, way, strict=True):
            # Each of five products of an orthogonalization multiplies rounding by 3.4.
            torch.testing.assert_close(a, b, rtol=0, atol=size * (1e-12, 1e-10)[row.fewest == 2])


@pytest.mark.parametrize("recipe", ["grokfast", "aggmo", "layca", "adamw"])
def test_a_file_keeps_no_gradient_and_goes_on_from_its_checkpoint(recipe):
    """The gradient's memory is written into anew; states of half precision stay in float32."""
    text = sn.export(recipe, lr=0.1)
    draw = torch.Generator().manual_seed(0)
    ours = torch.randn(4, 3, generator=draw).bfloat16()
    theirs = ours.clone()
    ours.grad = torch.zeros_like(ours)
    optimizer, other = loaded(text)([ours]), loaded(text)([theirs])
    for step in range(5):
        ours.grad.copy_(torch.randn(4, 3, generator=draw))
        theirs.grad = ours.grad.clone()
        optimizer.step()
        other.step()
        if step == 2:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = loaded(text)([ours])
            optimizer.load_state_dict(torch.load(file))
    assert torch.equal(ours, theirs)


def imports(text):
    found = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import))
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(text)))
    return {each.name for node in found for each in node.names}


class Curved(sn.Rule):
    """Numbers on the left of tensors, and bounds."""

    def update(self, update, state):
        d = update.direction.clamp(min=-1.0, max=0.9)
        return update.replace(direction=(0.5 - d) / (1 + 2 / (d * d + 1)) - (-d).abs()), {}


def curved(lr=0.1, momentum=0.5):
    return sn.chain(r.ExponentialAverage(momentum), Curved(), r.StepSize(lr))


@pytest.mark.parametrize("recipe", ["adamw", "lion", "ademamix", curved])
def test_a_step_of_entries_alone_is_one_of_lists(recipe):
    """Weights that had their first gradient at another step take one list for each count."""
    text = sn.export(recipe)
    assert "torch._foreach_lerp" in text
    assert "_foreach_" not in sn.export("adamp")
    ours = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 2), (5,), (), (2, 2, 2))]
    theirs = [w.clone() for w in ours]
    both = loaded(text)(ours), sn.torch_optimizer(recipe)(theirs, backend="rule")
    for step in range(4):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = torch.randn_like(a) if step % (i + 1) == 0 else None
            b.grad = a.grad
        for optimizer in both:
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recipe", ["adamp", "muon", "adamh"])
def test_a_file_is_a_torch_optimizer(recipe):
    cls = loaded(sn.export(recipe, lr=0.1))
    weights = [torch.ones(3, 2, requires_grad=True), torch.ones(2, 3, 2, 2, requires_grad=True)]
    groups = [{"params": weights[:1], "lr": 0.05}, {"params": weights[1:]}]
    optimizer = cls(groups)
    twins = copy.deepcopy(weights)
    again = cls([{"params": twins[:1], "lr": 0.05}, {"params": twins[1:]}])
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for w in weights:
        w.grad = torch.arange(1.0, 1 + w.numel()).reshape(w.shape)
    assert optimizer.step(lambda: 3.0) == 3.0
    schedule.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file))
    with torch.no_grad():
        for w, twin in zip(weights, twins, strict=True):
            twin.copy_(w)
            twin.grad = w.grad.clone()
    assert again.param_groups[0]["lr"] == 0.025
    optimizer.step()
    again.step()
    assert all(map(torch.equal, weights, twins))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_file_steps_other_types_as_the_recipe_does(dtype):
    cls = loaded(sn.export("adamp", weight_decay=0.1))
    ours = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    theirs = ours.clone()
    both = cls([ours], lr=0.1), sn.optim.AdamP([theirs], lr=0.1, weight_decay=0.1)
    for step in range(4):
        ours.grad = gradient("mixed", theirs, torch.Generator().manual_seed(step), step)
        theirs.grad = ours.grad.clone()
        for optimizer in both:
            optimizer.step()
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(ours, theirs, **close)


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


def own(lr=0.1, times=2):
    """A recipe of a user, in whose rule a number counts."""
    return sn.chain(*[r.HeavyBall(0.5) for _ in range(times)], r.StepSize(lr))


class Bounded(sn.Rule):
    def global_sum_terms(self, update, state):
        return {"total": update.grad.square().sum()}

    def update(self, update, state):
        return update.replace(direction=update.direction / update.notes["total"].sqrt()), {}


class Noisy(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction + torch.randn_like(update.weight)), {}


class Sorted(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction.sort(-1).values), {}


class Peeking(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=update.direction * float(update.grad.sum() > 0)), {}


def test_a_recipe_of_a_user_has_a_file():
    text = sn.export(own, "Mine", lr=0.2)
    assert "times=2" in text
    assert 'group["times"]' not in text
    assert loaded(text).__name__ == "Mine"


@pytest.mark.parametrize("rule", [Bounded, Noisy, Sorted, Peeking])
def test_what_has_no_text_is_refused(rule):
    def unwritten(lr=0.1):
        return sn.chain(rule(), r.StepSize(lr))

    with refuses("unwritten", by=sn.ExportError):
        sn.export(unwritten)


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_of_the_zoo_without_a_text_is_refused(name):
    with refuses(name, by=sn.ExportError):
        sn.export(name)


def test_wrong_requests_are_refused():
    with refuses("adampp", "adamp"):
        sn.export("adampp")
    with refuses("lrr", "lr"):
        sn.export("adamp", lrr=1)
    with refuses("name", "1x"):
        sn.export("adamp", "1x")


def test_the_command(tmp_path, capsys):
    from spherenorm.cli import code

    assert code(["sgdp", "momentum=0.9", "views=('channel',)", "--name", "Own"]) == 0
    text = capsys.readouterr().out
    assert "momentum=0.9" in text
    assert code(["sgdp", "momentum=0.9", "--into", str(tmp_path / "own.py")]) == 0
    assert loaded((tmp_path / "own.py").read_text()).__name__ == "SGDP"
    for wrong in (["nothing"], ["sgdp", "momentum"], ["sgdp", "momentum=7"]):
        assert code(wrong) == 2
        assert wrong[-1].partition("=")[0] in capsys.readouterr().err
