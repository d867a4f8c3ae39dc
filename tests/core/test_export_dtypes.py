"""An exported file computes in the dtypes of its rule: constants of `torch.finfo`, and float64."""

from __future__ import annotations

import math

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.export import functions
from spherenorm.export.recipe import sample_gradient
from tests.core.test_export import EVERY_RECIPE, load_class
from tests.harness import refuses

LONG = pytest.mark.long
SCALES = (1.0, 0.0, 1e-30, 1e-8, 1e20)
"""Scales of gradients: squares of 1e20 overflow in float32, and those of 1e-30 underflow."""
QUICK = ("adafactor", "muonsphere", "soap", "rotational(adamw)")
"""Recipes whose constants depend on the dtype, or which compute in float64."""
RECIPES = [*EVERY_RECIPE, *(x for x in QUICK if x not in EVERY_RECIPE)]


def largest_excess(text, recipe, dtype, scale, shapes=((6, 4), (5,))):
    """The largest difference between weights of a file and its recipe, over what rounding allows.

    It is infinite if one of them is finite and the other one is not.
    """
    excess = 0.0
    for shape in shapes:
        start = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        weight, file_weight = start.clone(), start.clone()
        try:
            optimizer = sn.torch_optimizer(recipe)([weight], backend="rule")
        except ValueError:
            continue
        file_optimizer = load_class(text)([file_weight])
        for step in range(3):
            grad = scale * sample_gradient(start.double(), step)
            weight.grad, file_weight.grad = grad.to(dtype), grad.to(dtype)
            try:
                optimizer.step()
            except torch.linalg.LinAlgError:
                break
            file_optimizer.step()
            if not torch.equal(weight.isfinite(), file_weight.isfinite()):
                return math.inf
            if not weight.isfinite().all():
                break
            roundings = 4 * torch.finfo(dtype).eps * start.abs().max().item()
            allowed = roundings + 1e-3 * (weight - start).abs().max().item()
            excess = max(excess, (weight - file_weight).abs().max().item() / allowed)
    return excess


@pytest.mark.parametrize(
    "recipe", [pytest.param(x, marks=() if x in QUICK else LONG) for x in RECIPES]
)
def test_a_file_takes_the_steps_of_its_recipe_in_every_dtype(recipe):
    text = sn.export(recipe)
    for dtype in (torch.float32, torch.bfloat16):
        for scale in SCALES:
            assert largest_excess(text, recipe, dtype, scale) <= 1, (dtype, scale)


@pytest.mark.parametrize(
    "recipe", ["adamw", "lion", *(pytest.param(x, marks=LONG) for x in ("sgdp", "muon"))]
)
def test_a_file_names_a_dtype_only_where_its_rule_does(recipe):
    text = sn.export(recipe)
    assert "finfo" not in text
    assert "float64" not in text
    assert ".double()" not in text


class DividesBy(sn.Rule):
    """A rule that divides by the norm in its own way."""

    def update(self, update, state):
        return update.replace(direction=self.divide(update.direction)), {}


class AddsEps(DividesBy):
    def divide(self, d):
        return d / (d.square().mean().sqrt() + torch.finfo(d.dtype).eps)


class IsAtLeastTiny(DividesBy):
    def divide(self, d):
        return d / d.square().mean().sqrt().clamp(min=torch.finfo(d.dtype).tiny)


class ChoosesByDtype(DividesBy):
    def divide(self, d):
        return d / (d.square().mean().sqrt() + (1e-12 if d.dtype is torch.float64 else 3e-5))


class ConvertsToFloat64(DividesBy):
    def divide(self, d):
        wide = d.double()
        return (wide / wide.square().sum().sqrt().clamp(min=1e-200)).to(d.dtype)


class SumsInFloat64(DividesBy):
    def divide(self, d):
        norm = d.double().square().sum(dtype=torch.float64).sqrt()
        return d / (norm + torch.zeros_like(norm) + torch.full_like(d, 1e-9)).to(d.dtype)


class RoundsToFloat32(DividesBy):
    def divide(self, d):
        return d.float().to(d.dtype) / (d.bfloat16().abs().sum().to(d.dtype) + 1e-3)


class StoresItInFloat64(sn.Rule):
    state_names = ("total",)

    def init(self, weight):
        return {"total": torch.zeros_like(weight, dtype=torch.float64)}

    def update(self, update, state):
        total = state["total"] + update.direction
        return update.replace(direction=total.to(update.direction.dtype)), {"total": total}


WORDS = {
    AddsEps: "finfo.eps",
    IsAtLeastTiny: "finfo.tiny",
    ChoosesByDtype: "1e-12 if weight.dtype is torch.float64 else 3e-05",
    ConvertsToFloat64: ".double()",
    SumsInFloat64: "dtype=torch.float64",
    RoundsToFloat32: ".to(torch.float32)",
    StoresItInFloat64: "dtype=torch.float64",
}


def recipe_of(rule_class):
    def recipe(lr=0.1):
        return sn.chain(rule_class(), r.StepSize(lr))

    return recipe


@pytest.mark.parametrize("rule_class", WORDS)
def test_a_file_has_the_dtypes_of_a_user_s_rule(rule_class):
    recipe = recipe_of(rule_class)
    text = sn.export(recipe, "Mine")
    assert WORDS[rule_class] in text
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for scale in SCALES:
            assert largest_excess(text, recipe, dtype, scale) <= 1, (dtype, scale)


class DependsOnDtype(DividesBy):
    def divide(self, d):
        return d.sign() if d.dtype is torch.float64 else d


def test_a_step_with_other_operations_in_float32_is_refused():
    with refuses("dtype", by=sn.ExportError):
        sn.export(recipe_of(DependsOnDtype), "Mine")


@pytest.mark.parametrize(
    ("recipe", "function", "wrong"),
    [
        (AddsEps, "factors_of_finfo", lambda *_: ([1.0], "2.220446049250313e-16")),
        (IsAtLeastTiny, "factors_of_finfo", lambda *_: ([1.0], "2.2250738585072014e-308")),
        ("nero", "factors_of_finfo", lambda *_: ([1.0], "1.7976931348623157e+308")),
        (ConvertsToFloat64, "convert_float", lambda x, _: x),
    ],
)
def test_a_file_that_keeps_the_numbers_of_float64_is_refused(recipe, function, wrong, monkeypatch):
    monkeypatch.setattr(functions, function, wrong)
    with refuses("differs", "float32", by=sn.ExportError):
        sn.export(recipe if isinstance(recipe, str) else recipe_of(recipe), "Mine")


def test_a_bound_of_a_schedule_may_be_a_hyper_parameter():
    rate = sn.schedule.wsd(0.03, 7, 60, 20, 1e-4)
    text = sn.export("adamc", lr=rate, max_lr=0.03)
    assert load_class(text)([torch.ones(2)]).param_groups[0]["max_lr"] == 0.03
