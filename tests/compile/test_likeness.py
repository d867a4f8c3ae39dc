"""What a trace stands for: a rule that has become another one, in a notebook or by what its recipe reads, is traced anew."""

import dataclasses
import warnings

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r

SOURCE = """
import dataclasses
import spherenorm as sn
from spherenorm import rules as r

FACTOR = 1.0

def scaled(x):
    return {helper} * x

class Own(sn.Rule):
    def update(self, update, state):
        return dataclasses.replace(update, direction={method} * FACTOR * scaled(update.direction)), {{}}

def recipe(lr=1.0):
    return sn.chain(Own(), r.StepSize(lr))
"""


def moved(recipe, **options):
    """How far a first step by a gradient of 1 goes."""
    w = torch.zeros(2, 2, requires_grad=True)
    w.grad = torch.ones(2, 2)
    sn.torch_optimizer(recipe)([w], **options).step()
    return -float(w[0, 0])


@pytest.fixture(params=[{}, {"compile": True}], ids=["blocked", "compiled"])
def options(request):
    return request.param


@pytest.fixture
def notebook():
    cells = {"__name__": "notebook"}
    exec(SOURCE.format(helper=1, method=1), cells)
    return cells


def test_a_class_that_is_defined_again(notebook, options):
    assert moved(notebook["recipe"], **options) == 1
    exec(SOURCE.format(helper=1, method=3).split("def recipe")[0], notebook)
    assert moved(notebook["recipe"], **options) == 3


def test_a_method_that_is_replaced(notebook, options):
    """As IPython's autoreload does, by another function or by another code."""

    def edited(number):
        cells = {"__name__": "notebook"}
        exec(SOURCE.format(helper=1, method=number), cells)
        return cells["Own"].update

    assert moved(notebook["recipe"], **options) == 1
    notebook["Own"].update = edited(3)
    assert moved(notebook["recipe"], **options) == 3
    notebook["Own"].update.__code__ = edited(5).__code__
    assert moved(notebook["recipe"], **options) == 5


def test_a_helper_and_a_global_that_change(notebook, options):
    assert moved(notebook["recipe"], **options) == 1
    exec("def scaled(x): return 5 * x", notebook)
    assert moved(notebook["recipe"], **options) == 5
    notebook["FACTOR"] = 2.0
    assert moved(notebook["recipe"], **options) == 10


@dataclasses.dataclass(frozen=True)
class Scaled(sn.Rule):
    by: object

    def update(self, update, state):
        by = self.by(1.0) if callable(self.by) else self.by.value if hasattr(self.by, "value") else self.by
        return dataclasses.replace(update, direction=by * update.direction), {}


def test_a_number_that_the_recipe_reads(options):
    factor = 1.0

    def recipe(lr=1.0):
        return sn.chain(Scaled(factor), r.StepSize(lr))

    assert moved(recipe, **options) == 1
    factor = 3.0
    assert moved(recipe, **options) == 3


def test_a_function_that_the_recipe_makes_anew(monkeypatch):
    """Of the same code it is the same function, its numbers aside."""
    from spherenorm.compile import stepper

    traced = []
    original = stepper.trace
    monkeypatch.setattr(stepper, "trace", lambda *args: traced.append(args) or original(*args))

    def recipe(lr=1.0, factor=1.0):
        return sn.chain(Scaled(lambda x: factor * x), r.StepSize(lr))

    optimizers = [moved(recipe, factor=factor) for factor in (1.5, 2.5, 0.5)]
    assert optimizers == [1.5, 2.5, 0.5]
    assert len(traced) == 1


class Box:
    def __init__(self, value):
        self.value = value


@dataclasses.dataclass
class Settings:
    value: float


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("value",)
    value: float


@pytest.mark.parametrize("box", [Box(1.0), Settings(1.0)], ids=["an object", "a dataclass"])
def test_what_may_change_inside_is_never_traced(box):
    box.value = 1.0
    many = [1.0]

    def of_a_field(lr=1.0):
        return sn.chain(Scaled(box), r.StepSize(lr))

    def of_a_list(lr=1.0):
        return sn.chain(r.StepSize(many[0] * lr))

    def of_an_argument(lr=1.0, box=None):
        return sn.chain(Scaled(box), r.StepSize(lr))

    for value in (1.0, 3.0):
        box.value = many[0] = value
        assert moved(of_a_field) == value
        assert moved(of_a_list) == value
        assert moved(of_an_argument, box=box) == value
    with pytest.warns(UserWarning, match=r"compile=True: .*of_a_list, or its rule, holds what may change inside; the rule's own code runs"):
        assert moved(of_a_list, compile=True) == 3


def test_what_is_frozen_is_traced(options):
    def of_an_argument(lr=1.0, box=None):
        return sn.chain(Scaled(box), r.StepSize(lr))

    for value in (1.0, 3.0, 1.0):
        assert moved(of_an_argument, box=Slotted(value), **options) == value


def test_a_recipe_that_makes_another_rule_each_time(options, monkeypatch):
    count = iter(range(1, 1000))
    monkeypatch.setitem(globals(), "number", lambda: float(next(count)))

    def growing(lr=1.0):
        return sn.chain(Scaled(number()), r.StepSize(lr))  # noqa: F821

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [moved(growing, **options) for _ in range(3)]
    assert results == sorted(set(results))


def test_a_recipe_that_reads_its_numbers():
    def by_value(lr=1.0):
        return sn.chain(r.StepSize(2 * lr if lr > 0.5 else lr))

    assert moved(by_value, lr=1.0) == 2
    assert moved(by_value, lr=0.25) == 0.25


def test_equal_hyper_parameters_of_other_types(options):
    def leveled(lr=1.0, level=False):
        return sn.chain(*([r.StepSize(0.5)] if level is not False else []), r.StepSize(lr))

    assert moved(leveled, **options) == 1
    assert moved(leveled, level=0, **options) == 0.5
    assert moved(leveled, level=False, **options) == 1


def test_a_tensor_of_more_numbers_than_one():
    def masked(lr=1.0, mask=None):
        return sn.chain(Scaled(mask), r.StepSize(lr))

    mask = torch.tensor([1.0, 2.0])
    assert moved(masked, mask=mask) == 1
    mask[0] = 4
    assert moved(masked, mask=mask) == 4
