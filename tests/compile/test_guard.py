"""A rule that has become another one is never stepped by the old record.

In a notebook a class changes, and so does what a recipe reads; each training here lives through it.
"""

import dataclasses

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.compile import _dispatch as dispatch
from spherenorm.compile._guard import Guard

SOURCE = """
import dataclasses
import spherenorm as sn
from spherenorm import rules as r

FACTOR = 1.0

def scaled(x):
    return {helper} * x

class Own(sn.Rule):
    def update(self, update, state):
        direction = {method} * FACTOR * scaled(update.direction)
        return dataclasses.replace(update, direction=direction), {{}}

def recipe(lr=1.0):
    return sn.chain(Own(), r.StepSize(lr))
"""


class Training:
    """One optimizer, which keeps its records from step to step."""

    def __init__(self, recipe, backend, **hyper_parameters):
        self.weight = torch.zeros(2, 2, requires_grad=True)
        cls = sn.torch_optimizer(recipe)
        self.optimizer = cls([self.weight], backend=backend, **hyper_parameters)

    def moved(self, **hyper_parameters):
        """The length of a step from 0 by a gradient of 1."""
        self.optimizer.param_groups[0].update(hyper_parameters)
        self.weight.data.zero_()
        self.weight.grad = torch.ones(2, 2)
        self.optimizer.step()
        return -float(self.weight[0, 0].detach())

    @property
    def path(self):
        (line,) = sn.explain(self.optimizer)
        return line.path

    @property
    def records(self):
        return len(self.optimizer._dispatcher._rules)


RECORDED = {"compiled": "C++ kernel"}


@pytest.fixture(params=["auto", "compiled"])
def backend(request):
    return request.param


@pytest.fixture(params=RECORDED)
def recording(request):
    return request.param


@pytest.fixture
def notebook():
    cells = {"__name__": "notebook"}
    exec(SOURCE.format(helper=1, method=1), cells)
    return cells


def test_by_default_only_the_librarys_rules_are_recorded(notebook):
    assert Training(notebook["recipe"], "auto").path == "rule"
    for backend, path in RECORDED.items():
        assert Training(notebook["recipe"], backend).path == path
    assert Training(sn.recipes.sgd, "auto").path == "C++ kernel"


def test_a_class_that_is_defined_again(notebook, backend):
    training = Training(notebook["recipe"], backend)
    assert training.moved() == 1
    exec(SOURCE.format(helper=1, method=3).split("def recipe")[0], notebook)
    assert training.moved() == 3


def test_a_method_that_is_replaced(notebook, backend):
    """As IPython's autoreload does, by another function or by another code."""

    def edited(number):
        cells = {"__name__": "notebook"}
        exec(SOURCE.format(helper=1, method=number), cells)
        return cells["Own"].update

    training = Training(notebook["recipe"], backend)
    assert training.moved() == 1
    notebook["Own"].update = edited(3)
    assert training.moved() == 3
    notebook["Own"].update.__code__ = edited(5).__code__
    assert training.moved() == 5


def test_an_attribute_of_the_class_that_changes(backend):
    class Powered(sn.Rule):
        power = 1.0

        def update(self, update, state):
            return dataclasses.replace(update, direction=self.power * update.direction), {}

    training = Training(lambda lr=1.0: sn.chain(Powered(), r.StepSize(lr)), backend)
    assert training.moved() == 1
    Powered.power = 3.0
    assert training.moved() == 3


def test_a_default_of_a_method_that_changes(backend):
    class Defaulting(sn.Rule):
        def update(self, update, state, by=1.0, *, times=1.0):
            return dataclasses.replace(update, direction=by * times * update.direction), {}

    training = Training(lambda lr=1.0: sn.chain(Defaulting(), r.StepSize(lr)), backend)
    assert training.moved() == 1
    Defaulting.update.__defaults__ = (3.0,)
    assert training.moved() == 3
    Defaulting.update.__kwdefaults__ = {"times": 2.0}
    assert training.moved() == 6


def test_what_a_method_closes_over(recording):
    """By its value: memory of an old one is soon another's."""
    factor = 0.5

    class Closing(sn.Rule):
        def update(self, update, state):
            return dataclasses.replace(update, direction=factor * update.direction), {}

    training = Training(lambda lr=1.0: sn.chain(Closing(), r.StepSize(lr)), recording)
    assert training.moved() == 0.5
    assert training.path == RECORDED[recording]
    for number in range(1, 9):
        factor = number / 4
        assert training.moved() == number / 4


def test_an_object_of_a_class_that_is_replaced(recording):
    class Holding(sn.Rule):
        table = (0.5,)

        def update(self, update, state):
            return dataclasses.replace(update, direction=self.table[0] * update.direction), {}

    training = Training(lambda lr=1.0: sn.chain(Holding(), r.StepSize(lr)), recording)
    assert training.moved() == 0.5
    for number in range(1, 9):
        Holding.table = None
        Holding.table = (number / 4,)
        assert training.moved() == number / 4


def test_a_helper_and_a_global_that_change(notebook):
    """These are outside the contract of "compiled"; by default they are noticed."""
    training = Training(notebook["recipe"], "auto")
    assert training.moved() == 1
    exec("def scaled(x): return 5 * x", notebook)
    assert training.moved() == 5
    notebook["FACTOR"] = 2.0
    assert training.moved() == 10


@dataclasses.dataclass(frozen=True)
class Scaled(sn.Rule):
    by: object

    def update(self, update, state):
        by = self.by
        by = by(1.0) if callable(by) else by.value if hasattr(by, "value") else by
        return dataclasses.replace(update, direction=by * update.direction), {}


def test_a_number_that_the_recipe_reads(backend, traced):
    """It is an argument of the record, wherever the recipe has it from."""
    factor = 1.0

    def recipe(lr=1.0):
        return sn.chain(Scaled(factor), r.StepSize(lr))

    training = Training(recipe, backend)
    assert training.moved() == 1
    factor = 3.0
    assert training.moved() == 3
    assert len(traced) == (backend != "auto")


def test_a_function_that_the_recipe_makes_anew(backend, traced):
    """Of the same code and the same closure it is the same function."""

    def recipe(lr=1.0, factor=1.5):
        return sn.chain(Scaled(lambda x: factor * x), r.StepSize(lr))

    training = Training(recipe, backend)
    assert [training.moved(factor=f) for f in (1.5, 1.5, 2.5, 0.5, 2.5)] == [
        1.5,
        1.5,
        2.5,
        0.5,
        2.5,
    ]
    assert len(traced) == (0 if backend == "auto" else 3)


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


def test_what_is_read_out_of_a_box_is_a_number(backend):
    """The recipe runs at every step, so that it may read what it likes."""
    many, box = [1.0], Box(1.0)

    def recipe(lr=1.0, box=None):
        return sn.chain(Scaled(box.value), r.StepSize(many[0] * lr))

    training = Training(recipe, backend, box=box)
    for value in (1.0, 3.0):
        box.value = many[0] = value
        assert training.moved() == value**2
    assert training.path == ("rule" if backend == "auto" else RECORDED[backend])


@pytest.mark.parametrize("box", [Box(1.0), Settings(1.0)], ids=["an object", "a dataclass"])
def test_what_may_change_inside_is_never_recorded(box, traced):
    def of_a_field(lr=1.0):
        return sn.chain(Scaled(box), r.StepSize(lr))

    def of_an_argument(lr=1.0, box=None):
        return sn.chain(Scaled(box), r.StepSize(lr))

    def of_a_closure(lr=1.0):
        return sn.chain(Scaled(lambda x: x * box.value), r.StepSize(lr))

    for recipe in (of_a_field, of_an_argument, of_a_closure):
        given = {"box": box} if recipe is of_an_argument else {}
        training = Training(recipe, "auto", **given)
        for value in (1.0, 3.0):
            box.value = value
            assert training.moved() == value
        (line,) = sn.explain(training.optimizer)
        assert line.path == "rule"
        assert "which may change inside" in line.reason
        training = Training(recipe, "compiled", **given)
        with pytest.raises(sn.BackendError, match=r"Scaled\.by.* is <?.*, which may change inside"):
            training.moved()
        assert torch.equal(training.weight, torch.zeros(2, 2))
        assert training.path == "error"
    assert not traced


def test_what_is_frozen_is_recorded(backend, traced):
    def of_an_argument(lr=1.0, box=None):
        return sn.chain(Scaled(box), r.StepSize(lr))

    training = Training(of_an_argument, backend, box=Slotted(1.0))
    for value in (1.0, 3.0, 1.0):
        assert training.moved(box=Slotted(value)) == value
    assert len(traced) == (backend != "auto")
    assert training.path == ("rule" if backend == "auto" else RECORDED[backend])


def test_a_recipe_that_makes_another_rule_each_time(recording, traced, monkeypatch):
    """An integer belongs to the key, since a rule may count with it."""
    monkeypatch.setattr(dispatch, "MOST_RULES", 4)
    steps = 0

    def growing(lr=1.0):
        return sn.chain(Scaled(steps), r.StepSize(lr))

    training = Training(growing, recording)
    for steps in range(1, 9):
        assert training.moved() == steps
        assert training.records <= 4
    assert len(traced) == 8  # the oldest are forgotten


def test_a_recipe_that_makes_another_number_each_time(recording, traced):
    steps = 0

    def growing(lr=1.0):
        return sn.chain(Scaled(float(steps)), r.StepSize(lr))

    training = Training(growing, recording)
    for steps in range(1, 2 * dispatch.MOST_RULES):
        assert training.moved() == steps
    assert (len(traced), training.records) == (1, 1)


def test_a_recipe_that_reads_its_numbers(backend):
    def by_value(lr=1.0):
        return sn.chain(r.StepSize(2 * lr if lr > 0.5 else lr))

    training = Training(by_value, backend)
    assert training.moved(lr=1.0) == 2
    assert training.moved(lr=0.25) == 0.25


def test_a_rule_that_reads_its_numbers():
    """A branch on one is no pure function of it: "compiled" says so, the others are right."""

    class Halved(Scaled):
        def update(self, update, state):
            if self.by > 1:
                return dataclasses.replace(update, direction=update.direction / self.by), {}
            return update, {}

    def recipe(lr=1.0, by=2.0):
        return sn.chain(Halved(by), r.StepSize(lr))

    training = Training(recipe, "auto")
    assert [training.moved(by=by) for by in (2.0, 0.5, 4.0)] == [0.5, 1, 0.25]
    training = Training(recipe, "compiled")
    with pytest.raises(sn.BackendError, match="Halved"):
        training.moved()


def test_equal_hyper_parameters_of_other_types(backend):
    def leveled(lr=1.0, level=False):
        return sn.chain(*([r.StepSize(0.5)] if level is not False else []), r.StepSize(lr))

    training = Training(leveled, backend)
    assert training.moved() == 1
    assert training.moved(level=0) == 0.5
    assert training.moved(level=False) == 1


def test_equal_values_of_other_types_are_other_keys():
    values = [1, True, "1", b"1", None, 0, False, 0.0, -0.0, (), [], {}, (1,), [1]]
    keys = [Guard.of(Scaled(value)).key for value in values]
    assert len(set(keys)) == len(values)


def test_a_tensor_of_more_numbers_than_one():
    def masked(lr=1.0, mask=None):
        return sn.chain(Scaled(mask), r.StepSize(lr))

    mask = torch.tensor([1.0, 2.0])
    training = Training(masked, "auto", mask=mask)
    assert training.moved() == 1
    mask[0] = 4
    assert training.moved() == 4
    with pytest.raises(sn.BackendError, match=r"Scaled\.by is tensor\(.*, which may change inside"):
        Training(masked, "compiled", mask=mask).moved()


def test_optimizers_share_the_records_of_the_librarys_own_rules(traced):
    """Numbers are arguments of a record; a flag, a shape and a dtype are not."""

    def records(shape=(4, 3), dtype=torch.float64, **options):
        given = {"delta": 0.3, "weight_decay": 0.1, **options}
        ways = []
        for backend in ("compiled", "rule"):
            drawn = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
            weight, weight.grad = drawn[0].clone().requires_grad_(), drawn[1]
            sn.optim.AdamP([weight], backend=backend, **given).step()
            ways.append(weight.detach())
        torch.testing.assert_close(*ways, rtol=1e-6, atol=1e-7)
        return len(traced)

    first = records()
    assert records() == records(lr=0.5, weight_decay=0.2, delta=0.2) == first
    assert first < records(nesterov=True) < records((5, 3)) < records(dtype=torch.float32)


def test_records_belong_to_an_optimizer(recording, traced):
    for count in (1, 2):
        Training(lambda lr=1.0: sn.chain(Scaled(2.0), r.StepSize(lr)), recording).moved()
        assert len(traced) == count
