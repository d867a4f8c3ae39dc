"""The default step is the rule's own, whatever changes between two steps.

Each case is a story of one training. It yields what to start with; then it changes something and
yields again, and each time three steps are taken. An optimizer and a plain loop live through it,
and must agree after each yield. So that a case says something, a loop in which nothing changes
must end elsewhere.

One kind of change is not in the table: a function of the library, such as
`spherenorm.rules._momentum.plus_scaled`, that is replaced in its module, or whose code is.
"""

import collections
import contextlib
import copy
import enum
import functools
import inspect
import itertools
import math
import pickle
import random
import runpy
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import spherenorm as sn
from spherenorm import rules as r
from spherenorm._chain import Chain

SHAPES = ((4, 3), (3,), (2, 2, 2, 2))
PAIR = ((4, 3), (4, 3))
STEPS = 3

Story = Iterator[Any]


@dataclass(frozen=True)
class Start:
    """The start of a training; `make` turns a tensor into a parameter."""

    recipe: Callable[..., sn.Rule]
    hyper_parameters: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype
    make: Callable[[torch.Tensor], torch.nn.Parameter]

    def weights(self) -> list[torch.nn.Parameter]:
        drawn = [_normal(shape, seed) for seed, shape in enumerate(self.shapes)]
        return [self.make(w.to(self.dtype)) for w in drawn]


def start(recipe, shapes=SHAPES, dtype=torch.float64, make=torch.nn.Parameter, **hyper_parameters):
    return Start(recipe, hyper_parameters, shapes, dtype, make)


class ByHand:
    """The reference: `recipe(**hyper_parameters).step(weight, grad, state)` at each step."""

    def __init__(self, recipe, weights, **hyper_parameters):
        chosen = {**_defaults(recipe), **hyper_parameters}
        self.defaults = {"recipe": recipe, "maximize": False, **chosen}
        self.param_groups = []
        self.state = collections.defaultdict(dict)
        self.add_param_group({"params": weights})

    def add_param_group(self, group):
        self.param_groups.append({**self.defaults, **group})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            recipe = sn.find_recipe(group["recipe"])
            rule = recipe(**{name: group[name] for name in _defaults(recipe)})
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(rule, weight, -weight.grad if group["maximize"] else weight.grad)

    def _move(self, rule, weight, grad):
        state = self.state[weight]
        if state.keys() != set(rule.state_names):
            state = {name: state.get(name, new) for name, new in rule.init(weight).items()}
        moved, new = rule.step(weight, grad, state)
        self.state[weight] = {name: value.clone() for name, value in new.items()}
        weight.copy_(moved)

    def state_dict(self):
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        states = dict(enumerate(map(self.state.get, _weights(self))))
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, saved):
        for group, old in zip(self.param_groups, saved["param_groups"], strict=True):
            group.update(old)
        self.state.update({w: dict(saved["state"][i]) for i, w in enumerate(_weights(self))})


def by_optimizer(recipe, weights, **hyper_parameters):
    return sn.torch_optimizer(recipe)(weights, **hyper_parameters)


@functools.cache
def _defaults(recipe):
    return {name: each.default for name, each in inspect.signature(recipe).parameters.items()}


def _weights(optimizer):
    return [weight for group in optimizer.param_groups for weight in group["params"]]


@dataclass
class Training:
    """One optimizer, and its weights after every three steps."""

    optimizer: Any
    passed: list[list[np.ndarray]] = field(default_factory=list)

    def go_on(self) -> None:
        for step in range(STEPS * len(self.passed), STEPS * (len(self.passed) + 1)):
            for index, weight in enumerate(_weights(self.optimizer)):
                gradient = _gradient(weight, 100 * step + index)
                weight.grad = getattr(weight, "given", lambda g: g)(gradient)
            self.optimizer.step()
        self.passed.append([_array(weight) for weight in _weights(self.optimizer)])


def _array(weight):
    return weight.detach().double().numpy().copy()


def _gradient(weight, seed):
    """Random, by numpy, which no mode of torch reaches; at every other step rows are tangential."""
    w = _array(weight)
    g = _normal(w.shape, seed).numpy()
    if seed // 100 % 2:
        axes = tuple(range(1, w.ndim)) or None
        g -= (w * g).sum(axes, keepdims=True) / (w * w).sum(axes, keepdims=True) * w
    return torch.from_numpy(g).to(weight.dtype)


def _normal(shape, seed):
    return torch.from_numpy(np.asarray(np.random.RandomState(seed).standard_normal(shape)))


def live_through(story, make, unchanged_for=0):
    """The trainings of a story by optimizers that `make` makes.

    With `unchanged_for`, the first of them goes on for so many parts as it began.
    """

    def begin(said):
        return make(said.recipe, said.weights(), **said.hyper_parameters)

    trainings = []
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(story(patch)) as told:
        said = next(told)
        trainings.append(Training(begin(said)))
        for _ in range(unchanged_for):
            trainings[0].go_on()
        while not unchanged_for:
            for training in trainings:
                training.go_on()
            try:
                said = told.send(trainings[-1].optimizer)
            except StopIteration:
                break
            if isinstance(said, Start):
                trainings.append(Training(begin(said)))
            elif said is not None:
                trainings[-1].optimizer = said
    return trainings


@dataclass(frozen=True)
class Case:
    """A story; `tolerance` is that of its dtype, and in a `quiet` one nothing changes."""

    story: Callable[[pytest.MonkeyPatch], Story]
    tolerance: float = 1e-10
    quiet: bool = False


CASES: dict[str, Case] = {}


def case(story=None, **options):
    """Enter a story into the table, under the words of its name."""
    if story is None:
        return functools.partial(case, **options)
    CASES[story.__name__.replace("_", " ")] = Case(story, **options)
    return story


@pytest.fixture(autouse=True)
def _same_random_numbers():
    """Random numbers of Python and numpy are as they were, after a case too."""
    python, numpy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)


def _differ(a, b, by):
    pairs = zip(a, b, strict=False)
    return any(x.shape != y.shape or np.abs(x - y).max(initial=0) > by for x, y in pairs)


def check(story, tolerance, quiet=False):
    expected = live_through(story, ByHand)
    for mine, hand in zip(live_through(story, by_optimizer), expected, strict=True):
        for after, (weights, others) in enumerate(zip(mine.passed, hand.passed, strict=True)):
            for w, v in zip(weights, others, strict=True):
                np.testing.assert_allclose(w, v, tolerance, tolerance, err_msg=f"part {after}")
    unchanged = live_through(story, ByHand, len(expected[0].passed))[0].passed
    ends = [(each.passed[-1], unchanged[len(each.passed) - 1]) for each in expected]
    seen = any(_differ(*both, by=1e4 * tolerance) for both in ends)
    assert quiet or seen, "a step that takes no notice would not be found out"


def enter(**stories):
    """Enter stories that are made of data, under the words of their names."""
    for name, story in stories.items():
        CASES[name.replace("_", " ")] = Case(story)


# A user's rule reads something that changes: its code runs at every step, whatever it reads. The
# kinds of fields matter, which a guard reads; `test_guard` edits classes, methods and helpers.

FACTOR = 1.0


@dataclass(frozen=True)
class Own(sn.Rule):
    """`factor` times the direction; a field of any kind."""

    thing: Any = None

    def factor(self, update):
        return 1.0

    def update(self, update, state):
        return replace(update, direction=self.factor(update) * update.direction), {}


def heavy(*before, lr=0.1):
    return sn.chain(*before, r.HeavyBall(0.5), r.StepSize(lr))


def own(factor, thing=None, **options):
    """A start with a rule class of its own, which calls `factor` with the rule and the update."""
    cls = type("Scaled", (Own,), {"factor": factor})

    def recipe(lr=0.1):
        return heavy(cls(thing), lr=lr)

    return start(recipe, **options)


def in_a_field(make, read, write):
    """A story in which what a user's rule holds comes to hold 3 inside, and 1 again."""

    def story(patch):
        thing = make()
        yield own(lambda rule, update: read(rule.thing), thing)
        for value in (3.0, 1.0):
            write(thing, value)
            yield

    return story


class Mood(enum.Enum):
    CALM = 1


Mood.CALM.factor = 1.0


def number(value=1.0):
    return torch.full((), value, dtype=torch.float64)


enter(
    a_dict_that_is_a_field=in_a_field(
        lambda: {"factor": 1.0}, lambda x: x["factor"], lambda x, v: x.update(factor=v)
    ),
    a_mutable_object_in_a_frozen_field=in_a_field(
        lambda: Own(SimpleNamespace(value=1.0)),
        lambda x: x.thing.value,
        lambda x, v: setattr(x.thing, "value", v),
    ),
    a_numpy_array_that_is_a_field=in_a_field(lambda: np.ones(()), float, lambda x, v: x.fill(v)),
    the_data_of_a_tensor=in_a_field(
        number, lambda x: x, lambda x, v: setattr(x, "data", number(v))
    ),
    an_attribute_of_an_enum_member=in_a_field(
        lambda: Mood.CALM, lambda x: x.factor, lambda x, v: setattr(x, "factor", v)
    ),
    a_partial_function_that_is_a_field=in_a_field(
        lambda: functools.partial([1.0].__getitem__, 0),
        lambda x: x(),
        lambda x, v: x.func.__self__.__setitem__(0, v),
    ),
    a_generator_that_is_a_field=in_a_field(
        lambda: (1.0 + i % 5 for i in itertools.count()), next, lambda x, v: next(x)
    ),
    a_random_generator_of_torch=in_a_field(
        lambda: torch.Generator().manual_seed(0),
        lambda x: torch.rand((), generator=x, dtype=torch.float64),
        lambda x, v: x.manual_seed(int(v)),
    ),
)


@case
def a_weak_reference_that_is_lost(patch):
    settings = {SimpleNamespace}
    held = weakref.ref(settings)
    yield own(lambda rule, update: 1.0 if rule.thing() is not None else 3.0, held)
    del settings
    yield


@case
def a_getattr_of_a_rule(patch):
    values = {"scale": 1.0}

    class Answering(Own):
        def __getattr__(self, name):
            if name in values:
                return values[name]
            raise AttributeError(name)

        def factor(self, update):
            return self.scale

    yield start(lambda lr=0.1: sn.chain(Answering(), r.StepSize(lr)))
    for values["scale"] in (3.0, 1.0):
        yield


@case
def a_number_that_the_rule_itself_counts(patch):
    """A step that left the rule's code out, or ran it twice, would show."""
    counter = SimpleNamespace(value=0)

    def factor(rule, update):
        counter.value += 1
        return 1 / counter.value

    yield own(factor)
    counter.value = 0
    yield


@case
def a_script(patch):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.py"
        file.write_text(SCRIPT)
        recipe = runpy.run_path(str(file), run_name="__main__")["recipe"]
        yield start(recipe)
        recipe.__globals__["helper"] = lambda x: 3 * x
        yield


SCRIPT = """
import dataclasses
import spherenorm as sn
from spherenorm import rules as r

def helper(x):
    return x

class Own(sn.Rule):
    def update(self, update, state):
        return dataclasses.replace(update, direction=helper(update.direction)), {}

def recipe(lr=0.1):
    return sn.chain(Own(), r.HeavyBall(0.5), r.StepSize(helper(lr)))
"""


# A user's recipe makes chains of the library's rules, which change with what it reads.

PACE = 1.0


def paced(lr=0.1, momentum=0.5):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(PACE * lr))


def decayed(lr=0.1, betas=(0.5, 0.9), weight_decay=0.1):
    return sn.chain(r.AdaptiveMoments(*betas), r.DecoupledDecay(weight_decay), r.StepSize(lr))


@case
def a_global_number_that_a_recipe_reads(patch):
    yield start(paced)
    for value in (3.0, 0.0, 1.0):
        patch.setitem(globals(), "PACE", value)
        yield


def of_a_tensor(rule_of, *values):
    """A story whose recipe reads a tensor, which is filled with the values in turn."""

    def story(patch):
        tensor = number(values[0])
        yield start(lambda lr=0.1: rule_of(tensor))
        for value in values[1:]:
            tensor.fill_(value)
            yield

    return story


def of_a_recipe(rule_of, *values):
    """A story whose recipe makes a rule of each of the values in turn."""

    def story(patch):
        held = [values[0]]
        yield start(lambda lr=0.1: rule_of(held[0]))
        for held[0] in values[1:]:
            yield

    return story


def momentum(cls=r.HeavyBall, manifold=None, **options):
    return sn.chain(cls(0.5, **options), r.StepSize(0.1), manifold=manifold or sn.Euclidean())


def judged(per):
    return heavy(r.ScaleInvarianceTest(1.0, ("channel",), per), r.RadialProjection())


def with_ratio(ratio):
    decay = r.DecoupledDecay(0.5, invariant_ratio=ratio)
    return sn.chain(r.ScaleInvarianceTest(0.5), decay, r.StepSize(0.1))


def fed_back(inner):
    return sn.chain(r.FeedbackMomentum(inner, 0.5), r.StepSize(0.1))


class StepSize(r.StepSize):
    """Thrice the step, under the name of the library's rule."""

    __module__, __qualname__ = r.StepSize.__module__, "StepSize"

    def update(self, update, state):
        return replace(update, direction=3 * self.lr * update.direction), {}


FLAT, ROUND, BY_ROW = sn.Euclidean(), sn.Sphere("layer"), sn.Sphere("channel")
RULES = (r.CoupledDecay(0.5), r.HeavyBall(0.5), r.StepSize(0.1))
enter(
    a_tensor_that_a_recipe_reads=of_a_tensor(lambda pace: heavy(lr=0.1 * pace), 1.0, 3.0, 1.0),
    a_tensor_that_a_recipe_hands_on=of_a_tensor(lambda pace: heavy(lr=pace), 0.1, 0.3, 0.1),
    a_tensor_by_which_a_recipe_decides=of_a_tensor(
        lambda late: heavy(*([r.CoupledDecay(0.5)] if late > 0 else [])), 0.0, 1.0, 0.0
    ),
    a_flag_that_a_recipe_reads=of_a_recipe(lambda on: momentum(nesterov=on), False, True, False),
    a_rule_that_joins_the_chain=of_a_recipe(
        lambda more: heavy(*more), (), (r.CoupledDecay(0.5),), ()
    ),
    a_rule_of_another_class=of_a_recipe(momentum, r.HeavyBall, r.ExponentialAverage, r.HeavyBall),
    a_class_that_has_the_name_of_the_librarys=of_a_recipe(
        lambda cls: sn.chain(r.HeavyBall(0.5), cls(0.1)), r.StepSize, StepSize, r.StepSize
    ),
    another_order_of_the_rules=of_a_recipe(
        lambda rules: sn.chain(*rules), RULES, RULES[::-1], RULES
    ),
    a_rule_instead_of_a_chain=of_a_recipe(lambda place: (heavy(), r.StepSize(0.1))[place], 0, 1, 0),
    a_rule_within_a_rule=of_a_recipe(
        fed_back, r.CoupledDecay(0.1), r.RadialProjection("layer"), r.CoupledDecay(0.5)
    ),
    a_chain_that_moves_on_a_sphere_from_now_on=of_a_recipe(
        lambda manifold: momentum(manifold=manifold), FLAT, ROUND, BY_ROW, FLAT
    ),
    a_view_that_a_recipe_reads=of_a_recipe(
        lambda view: heavy(r.RadialProjection(view)), "layer", sn.View(0), "layer", sn.View(None)
    ),
    tensor_or_unit=of_a_recipe(judged, "tensor", "unit", "tensor"),
    a_decay_that_was_0=of_a_recipe(lambda decay: heavy(r.CoupledDecay(decay)), 0.0, 0.5, 0.0, 0.25),
    a_field_that_was_none=of_a_recipe(with_ratio, None, 0.1, 0.0, None),
    the_name_of_a_state=of_a_recipe(
        lambda name: momentum(buffer=name), "momentum", "another", "momentum"
    ),
)


# A recipe returns one rule, which is edited.

GONE = object()
"""In place of a value: the attribute is deleted."""


def set_or_delete(thing, name, value):
    """Of a class, or of an object that is frozen."""
    kind = type if isinstance(thing, type) else object
    if value is GONE:
        kind.__delattr__(thing, name)
    else:
        kind.__setattr__(thing, name, value)


def of_one_rule(make, part, name, *values):
    """A story of one rule, of a part of which an attribute is set to the values in turn."""

    def story(patch):
        rule = make()
        yield start(lambda lr=0.1: rule)
        for value in values:
            set_or_delete(part(rule), name, value)
            yield

    return story


def whole(rule):
    return rule


def first(rule):
    return rule.rules[0]


def last(rule):
    return rule.rules[-1]


def manifold_of(rule):
    return rule.manifold


def on_a_sphere(cls=r.HeavyBall):
    return momentum(cls, sn.Sphere("layer"))


class Doubled(r.StepSize):
    def update(self, update, state):
        return replace(update, direction=2 * self.lr * update.direction), {}


class Slow(sn.Sphere):
    def retract(self, weight, direction):
        return super().retract(weight, 0.5 * direction)


class Times(Own):
    def factor(self, update):
        return self.thing


enter(
    one_rule_whose_number_is_set=of_one_rule(heavy, last, "lr", 0.3, 0.0, 0.1),
    one_rule_whose_flag_is_set=of_one_rule(heavy, first, "nesterov", True, False),
    one_chain_whose_rules_are_set=of_one_rule(
        heavy, whole, "rules", (r.HeavyBall(0.5), r.DecoupledDecay(0.5), r.StepSize(0.1))
    ),
    one_chain_whose_manifold_is_set=of_one_rule(heavy, whole, "manifold", ROUND, FLAT),
    one_view_whose_dimension_is_set=of_one_rule(
        lambda: heavy(r.RadialProjection(sn.View(None))), lambda x: x.rules[0].view, "dim", 0, None
    ),
    one_rule_that_gets_a_method=of_one_rule(heavy, last, "update", r.StepSize(0.05).update, GONE),
    one_chain_that_gets_a_method=of_one_rule(heavy, whole, "retract", ROUND.retract),
    one_manifold_that_gets_a_method=of_one_rule(on_a_sphere, manifold_of, "retract", FLAT.retract),
    one_rule_that_becomes_of_another_class=of_one_rule(
        heavy, last, "__class__", Doubled, r.StepSize
    ),
    one_manifold_that_becomes_of_another_class=of_one_rule(
        on_a_sphere, manifold_of, "__class__", Slow, sn.Sphere
    ),
    one_rule_that_gets_an_attribute=of_one_rule(
        lambda: on_a_sphere(r.ExponentialAverage), first, "tangent_names", (), GONE
    ),
    one_rule_within_a_rule_whose_number_is_set=of_one_rule(
        lambda: fed_back(r.CoupledDecay(0.1)),
        lambda rule: rule.rules[0].rule,
        "weight_decay",
        *(0.5, 0.0, 0.1),
    ),
    a_field_of_one_rule_of_a_user=of_one_rule(lambda: heavy(Times(1.0)), first, "thing", 3.0, 1.0),
)


@case
def one_list_of_views_that_is_edited(patch):
    views = [sn.View(0)]
    rule = r.ScaleInvarianceTest(0.5, views, "unit")
    vars(rule)["views"] = views  # it holds a tuple of its own
    yield start(lambda lr=0.1: heavy(rule, r.RadialProjection()))
    for views[0] in (sn.View(None), sn.View(0)):
        yield


@case
def one_chain_whose_rules_are_a_list(patch):
    rules = [r.HeavyBall(0.5), r.StepSize(0.1)]
    rule = Chain(rules)
    yield start(lambda lr=0.1: rule)
    rules.insert(0, r.CoupledDecay(0.5))
    yield
    rules[0] = r.RadialProjection("layer")
    yield


@case
def one_rule_whose_ratio_is_a_tensor(patch):
    ratio = number(0.1)
    rules = r.ScaleInvarianceTest(0.5), r.DecoupledDecay(0.5, ratio), r.StepSize(0.1)
    yield start(lambda lr=0.1: sn.chain(*rules))
    for value in (0.5, 0.0):
        ratio.fill_(value)
        yield


# A class of the library is edited, or a user's class extends one.


def within(recipe, context, **options):
    """A story in which a context is entered, and left."""

    def story(patch):
        yield start(recipe, **options)
        with context():
            yield
        yield

    return story


def replaced(owner, name, value):
    """A context in which an attribute is another."""

    @contextlib.contextmanager
    def context():
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(owner, name, value)
            yield

    return context


enter(
    an_attribute_of_a_class_of_the_library=within(
        lambda lr=0.1: on_a_sphere(r.ExponentialAverage),
        replaced(r.ExponentialAverage, "tangent_names", ()),
    ),
    a_method_of_a_rule_of_the_library=within(
        paced, replaced(r.StepSize, "update", vars(StepSize)["update"])
    ),
    a_method_of_a_manifold_of_the_library=within(
        paced, replaced(sn.Euclidean, "retract", lambda self, w, d: ROUND.retract(w, d))
    ),
    a_function_of_torch_that_a_user_replaces=within(
        own(lambda rule, update: torch.sign(update.direction)).recipe,
        replaced(torch, "sign", torch.tanh),
    ),
    a_method_of_tensors_that_a_user_replaces=within(
        own(lambda rule, update: update.direction.sign()).recipe,
        replaced(torch.Tensor, "sign", torch.Tensor.tanh),
    ),
)


@case
def a_subclass_of_a_rule_of_the_library(patch):
    class Boosted(r.StepSize):
        boost = 1.0

        def update(self, update, state):
            return replace(update, direction=self.boost * self.lr * update.direction), {}

    rule = Boosted(0.1)
    yield start(lambda lr=0.1: sn.chain(r.HeavyBall(0.5), rule))
    object.__setattr__(rule, "boost", 3.0)
    yield
    object.__delattr__(rule, "boost")
    Boosted.boost = 2.0
    yield


@case
def a_subclass_of_a_chain(patch):
    class Logged(Chain):
        scale = 1.0

        def retract(self, weight, direction):
            return super().retract(weight, self.scale * direction)

    yield start(lambda lr=0.1: Logged((r.HeavyBall(0.5), r.StepSize(lr))))
    for Logged.scale in (3.0, 1.0):
        yield


@case
def a_recipe_that_is_an_object(patch):
    class Schedule:
        __name__ = "schedule"
        pace = 1.0

        def __call__(self, lr=0.1):
            return heavy(lr=self.pace * lr)

    schedule = Schedule()
    yield start(schedule)
    for schedule.pace in (3.0, 1.0):
        yield


@case
def a_recipe_that_is_cached_and_cleared(patch):
    pace = 1.0

    @functools.lru_cache
    def recipe(lr=0.1):
        return heavy(lr=pace * lr)

    yield start(recipe)
    pace = 3.0
    recipe.cache_clear()
    yield


@case
def the_code_of_a_recipe(patch):
    def recipe(lr=0.1):
        return heavy(lr=lr)

    def edited(lr=0.1):
        return heavy(lr=3 * lr)

    yield start(recipe)
    recipe.__code__ = edited.__code__
    yield


@case
def a_recipe_that_makes_another_chain_at_every_other_step(patch):
    trainer = SimpleNamespace(epoch=0)

    def recipe(lr=0.1):
        if trainer.epoch % 2:
            return sn.chain(r.ExponentialAverage(0.9, bias_correction=True), r.StepSize(lr))
        return heavy(r.CoupledDecay(0.1 * trainer.epoch), lr=lr)

    yield start(recipe)
    for trainer.epoch in range(1, 5):
        yield


# The hyper-parameters of a group change.


def of_a_group(name, *values, **options):
    """A story in which a hyper-parameter takes the values in turn, and returns to the first."""

    def story(patch):
        first, *others = values
        opt = yield start(**{name: first}, **options)
        for value in (*others, first):
            opt.param_groups[0][name] = value
            yield

    return story


def by_level(lr=0.1, level=1):
    """A recipe to which equal levels are not the same."""
    kinds = {bool: 1.0, int: 2.0, float: 3.0, str: 4.0, np.float64: 5.0, tuple: 6.0, list: 7.0}
    return heavy(lr=lr * kinds[type(level)] * (2 if math.copysign(1, level or 0) < 0 else 1))


def by_sign(lr=0.1, sign=0.0):
    return heavy(lr=lr if math.copysign(1, sign) > 0 else 3 * lr)


class Blind:
    """Equal to everything."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def told(lr=0.1, settings=None):
    return heavy(lr=lr * settings.value)


def counted(lr=0.1, momentum=0.5, count=0):
    return sn.chain(r.HeavyBall(momentum / (1 + count)), r.StepSize(lr / (1 + count)))


def moody(lr=0.1, mood="calm"):
    return heavy(*([r.CoupledDecay(0.5)] if mood == "wild" else []), lr=lr)


def thresholded(lr=0.1, level=0.2):
    return heavy(lr=3 * lr if level > 0.5 else lr)


def looking(lr=0.1, views=("channel",)):
    return heavy(r.ScaleInvarianceTest(0.5, views, "unit"), r.RadialProjection(), lr=lr)


TINY = [(), (1,), (0, 3), (2, 1)]
SGD = sn.recipes.sgd
ADAM = sn.recipes.adam
enter(
    a_learning_rate=of_a_group("lr", 0.1, 0.3, 0.2, recipe=paced),
    a_learning_rate_of_tiny_weights=of_a_group("lr", 0.1, 0.3, recipe=decayed, shapes=TINY),
    equal_objects=of_a_group("settings", Blind(1.0), Blind(3.0), recipe=told),
    a_learning_rate_to_0=of_a_group("lr", 0.1, 0.0, recipe=paced),
    a_learning_rate_from_0=of_a_group("lr", 0.0, 0.1, recipe=SGD, momentum=0.5),
    a_momentum_to_0=of_a_group("momentum", 0.5, 0.0, 0.9, recipe=SGD),
    a_momentum_from_0=of_a_group("momentum", 0.0, 0.5, recipe=SGD),
    a_momentum_of_a_whole_chain_to_0=of_a_group("momentum", 0.5, 0.0, recipe=paced),
    a_decay_to_0=of_a_group("weight_decay", 0.5, 0.0, recipe=decayed),
    a_decay_from_0=of_a_group("weight_decay", 0.0, 0.5, 0.25, recipe=SGD, momentum=0.5),
    a_dampening_from_0=of_a_group("dampening", 0.0, 0.5, 1.0, recipe=SGD, momentum=0.5),
    a_dampening_to_0=of_a_group("dampening", 0.5, 0.0, recipe=SGD, momentum=0.5),
    a_pair_of_betas=of_a_group("betas", (0.5, 0.9), (0.9, 0.99), recipe=ADAM),
    a_pair_of_betas_to_0=of_a_group("betas", (0.5, 0.9), (0.0, 0.9), (0.5, 0.0), recipe=ADAM),
    a_flag=of_a_group("nesterov", False, True, recipe=SGD, momentum=0.5),
    a_string=of_a_group("mood", "calm", "wild", recipe=moody),
    a_tuple_of_views=of_a_group("views", ("layer",), ("channel",), recipe=looking),
    ascent=of_a_group("maximize", False, True, recipe=paced),
    a_count=of_a_group("count", *range(6), recipe=counted),
    an_integer_that_is_a_float=of_a_group("level", 1, 1.0, recipe=by_level),
    a_true_that_is_1=of_a_group("level", True, 1, recipe=by_level),
    a_0_that_is_minus_0=of_a_group("sign", 0.0, -0.0, recipe=by_sign),
    a_learning_rate_that_is_an_integer=of_a_group("lr", 0.1, 1, recipe=SGD),
    a_learning_rate_of_numpy=of_a_group("lr", 0.1, np.float32(0.3), np.float64(0.2), recipe=paced),
    a_learning_rate_that_is_a_tensor=of_a_group("lr", 0.1, torch.tensor(0.3), recipe=paced),
    a_momentum_that_is_a_tensor=of_a_group("momentum", 0.5, torch.tensor(0.0), recipe=paced),
    a_number_by_which_a_recipe_decides=of_a_group("level", 0.2, 0.8, recipe=thresholded),
)


@case
def the_recipe_of_a_group(patch):
    opt = yield start(SGD, momentum=0.5, weight_decay=0.5)
    for name in ("sgdw", "sgd"):
        opt.param_groups[0]["recipe"] = name
        yield


@case
def a_list_of_betas_that_is_edited(patch):
    opt = yield start(ADAM, betas=[0.5, 0.9])
    for opt.param_groups[0]["betas"][0] in (0.9, 0.0, 0.5):
        yield


@case
def a_list_of_views_that_is_edited(patch):
    opt = yield start(looking, views=["channel"])
    for opt.param_groups[0]["views"][0] in ("layer", "channel"):
        yield


def filled(name, tensor, *values, **options):
    """A story in which a hyper-parameter is a tensor, which is filled with the values in turn."""

    def story(patch):
        opt = yield start(**{name: tensor.clone()}, **options)
        for value in values:
            opt.param_groups[0][name].fill_(value)
            yield

    return story


enter(
    a_learning_rate_that_is_filled=filled(
        "lr", number(0.1), 0.3, 0.0, 0.1, recipe=ADAM, betas=(0.5, 0.9)
    ),
    a_momentum_that_is_filled=filled("momentum", number(0.5), 0.9, 0.0, 0.5, recipe=paced),
    a_count_that_is_a_tensor=filled("count", torch.tensor(0), 1, 2, recipe=counted),
)


@case
def an_object_among_the_hyper_parameters(patch):
    def recipe(lr=0.1, settings=None):
        return heavy(lr=settings.pace * lr)

    settings = SimpleNamespace(pace=1.0)
    yield start(recipe, settings=settings)
    for settings.pace in (3.0, 1.0):
        yield


@case
def a_dict_among_the_hyper_parameters(patch):
    def recipe(lr=0.1, settings={"decay": 0.0}):  # noqa: B006
        return heavy(r.CoupledDecay(settings["decay"]), lr=lr)

    yield start(recipe)
    for recipe.__defaults__[1]["decay"] in (0.5, 0.0):
        yield


@case
def a_number_that_has_an_attribute(patch):
    class Number(float):
        boost = 1.0

    number = Number(0.1)
    yield start(lambda lr: heavy(lr=lr * lr.boost), lr=number)
    for number.boost in (3.0, 1.0):
        yield


# A user's class is edited.


def subclass(*bases, **members):
    return type("Mine", bases, members)


def of_a_class(make, name, *values):
    """A story of a user's rule, of whose class, or one above it, an attribute is set.

    Args:
        make: returns that class, and the rule's.
    """

    def story(patch):
        edited, cls = make()
        yield start(lambda lr=0.1: heavy(cls()))
        for value in values:
            set_or_delete(edited, name, value)
            yield

    return story


def inherited(*bases):
    base = subclass(*bases, factor=lambda self, update: 1.0)
    return base, subclass(base, *([] if bases else [Own]))


def based(factor):
    return (subclass(Own, factor=lambda self, update: factor),)


enter(
    a_method_of_a_base_class=of_a_class(
        lambda: inherited(Own), "factor", lambda self, update: 3.0, GONE
    ),
    a_method_of_a_mixin=of_a_class(inherited, "factor", lambda self, update: 3.0, GONE),
    the_bases_of_a_class=of_a_class(
        lambda: 2 * (subclass(*based(1.0)),), "__bases__", based(3.0), based(1.0)
    ),
)


@case
def the_state_names_of_a_class(patch):
    class Mine(sn.Rule):
        state_names = ()

        def update(self, update, state):
            new = {name: state[name] + update.direction for name in self.state_names}
            return replace(update, direction=update.direction + sum(new.values())), new

    yield start(lambda lr=0.1: sn.chain(Mine(), r.StepSize(lr)))
    for Mine.state_names in (("a",), ("a", "b"), ("b",), ()):
        yield


@case
def the_tangents_of_a_class(patch):
    class Mine(sn.Rule):
        state_names = ("sum",)
        tangent_names = ()

        def update(self, update, state):
            total = 0.5 * state["sum"] + update.direction
            return replace(update, direction=total), {"sum": total}

    yield start(lambda lr=0.1: sn.chain(Mine(), r.StepSize(lr), manifold=sn.Sphere("layer")))
    for Mine.tangent_names in (("sum",), ()):
        yield


@case
def the_move_of_a_rule_without_a_chain(patch):
    class Mine(sn.Rule):
        def update(self, update, state):
            return replace(update, direction=0.1 * update.direction), {}

    yield start(lambda lr=0.1: Mine())
    Mine.retract = lambda self, weight, direction: sn.Sphere("layer").retract(weight, direction)
    yield


@case
def another_object_that_is_equal(patch):
    things = [Blind(1.0), Blind(3.0)]
    patch.setattr(Own, "factor", lambda self, update: self.thing.value)
    yield start(lambda lr=0.1: heavy(Own(things[0])))
    for _ in range(2):
        things.reverse()
        yield


# The manifold changes.


@dataclass(frozen=True)
class Stretched:
    """w' = w - s d."""

    box: Any

    def retract(self, weight, direction):
        return sn.Euclidean().retract(weight, self.box.value * direction)


@case
def a_manifold_with_a_mutable_radius(patch):
    box = SimpleNamespace(value=1.0)
    manifold = Stretched(box)
    yield start(lambda lr=0.1: sn.chain(r.HeavyBall(0.5), r.StepSize(lr), manifold=manifold))
    for box.value in (3.0, 1.0):
        yield


@case
def a_method_of_a_manifold(patch):
    class Flat:
        def retract(self, weight, direction):
            return sn.Euclidean().retract(weight, direction)

    manifold = Flat()
    yield start(lambda lr=0.1: sn.chain(r.HeavyBall(0.5), r.StepSize(lr), manifold=manifold))
    Flat.retract = sn.Sphere("layer").retract.__func__
    Flat.view = sn.View(None)
    yield


@case
def a_subclass_of_the_sphere(patch):
    class Slow(sn.Sphere):
        pace = 1.0

        def retract(self, weight, direction):
            return super().retract(weight, self.pace * direction)

    yield start(lambda lr=0.1: sn.chain(r.HeavyBall(0.5), r.StepSize(lr), manifold=Slow("layer")))
    for Slow.pace in (0.5, 1.0):
        yield


@case
def a_subclass_of_a_view(patch):
    class Weighted(sn.View):
        weight = 1.0

        def total(self, x):
            return self.weight * super().total(x)

    view = Weighted(None)
    test = r.ScaleInvarianceTest(0.5, ("layer",))
    yield start(lambda lr=0.1: heavy(test, r.UnitClip(0.5, view)))
    for Weighted.weight in (3.0, 1.0):
        yield


@case
def what_a_manifold_reads_of_the_step(patch):
    trainer = SimpleNamespace(epoch=0)

    class Fading:
        def retract(self, weight, direction):
            return sn.Euclidean().retract(weight, direction / (1 + trainer.epoch))

    yield start(lambda lr=0.1: sn.chain(r.StepSize(lr), manifold=Fading()))
    for trainer.epoch in range(1, 4):
        yield


# The weight, its gradient or its state changes.


@case
def an_attribute_of_a_weight(patch):
    opt = yield own(lambda rule, update: getattr(update.weight, "scale", 1.0))
    weights = opt.param_groups[0]["params"]
    weights[0].scale = 3.0
    yield
    weights[2].scale = 2.0
    del weights[0].scale
    yield


@case
def attributes_of_two_weights_of_one_shape(patch):
    opt = yield own(lambda rule, update: getattr(update.weight, "scale", 1.0), shapes=PAIR)
    for opt.param_groups[0]["params"][1].scale in (3.0, 1.0):
        yield


@case
def a_dict_of_weights(patch):
    scales = {}
    opt = yield own(lambda rule, update: scales.get(update.weight, 1.0), shapes=PAIR)
    for value in (3.0, 1.0):
        scales[opt.param_groups[0]["params"][1]] = value
        yield


@case
def a_weight_that_needs_no_gradient(patch):
    opt = yield own(lambda rule, update: 1.0 if update.weight.requires_grad else 3.0)
    for needed in (False, True):
        opt.param_groups[0]["params"][0].requires_grad_(needed)
        yield


@case
def the_class_of_a_weight(patch):
    class Mine(torch.nn.Parameter):
        scale = 1.0

    yield own(lambda rule, update: getattr(type(update.weight), "scale", 5.0), make=Mine)
    for Mine.scale in (3.0, 1.0):
        yield


@case
def a_weight_whose_class_changes_operations(patch):
    class Mine(torch.nn.Parameter):
        scale = 1.0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * cls.scale if func is torch.Tensor.sub else out

    def make(tensor):
        return torch.Tensor._make_subclass(Mine, tensor, True)

    yield start(paced, make=make)
    for Mine.scale in (1.5, 1.0):
        yield


@case
def a_layout_that_a_rule_reads(patch):
    opt = yield own(lambda rule, update: 1.0 if update.weight.is_contiguous() else 3.0)
    weight = opt.param_groups[0]["params"][0]
    weight.data = weight.data.t().contiguous().t()
    yield
    weight.data = weight.data.contiguous()
    yield


@case(quiet=True)
def what_no_step_changes(patch):
    """A weight's gradient, device and memory, and the modes around a rule."""

    def factor(rule, update):
        weight = update.weight
        read = weight.grad is None, weight.device.type != "cpu", weight.is_meta
        modes = len(torch.overrides._get_current_function_mode_stack())
        return 1.0 + sum(2**i * flag for i, flag in enumerate(read)) + 8 * modes

    yield own(factor)


def relaid(place, lay_out):
    """A story in which a weight lies in another layout, and then one entry after the other."""

    def story(patch):
        opt = yield start(decayed)
        weight = opt.param_groups[0]["params"][place]
        weight.data = lay_out(2 * weight.data)
        yield
        weight.data = weight.data.contiguous()
        yield

    return story


enter(
    a_transposed_weight=relaid(0, lambda w: w.t().contiguous().t()),
    a_weight_with_its_channels_last=relaid(2, lambda w: w.to(memory_format=torch.channels_last)),
)


def once(said, **options):
    """Enter a story in which a function changes states and weights after three steps."""

    def decorate(change):
        def story(patch):
            opt = yield said
            change(opt.state, *opt.param_groups[0]["params"])
            yield

        story.__name__ = change.__name__
        return case(story, **options)

    return decorate


@once(start(decayed))
def a_weight_in_other_memory(state, *weights):
    for weight in weights:
        weight.data = 2 * weight.data


@once(start(decayed))
def a_weight_with_gaps_in_memory(state, weight, *others):
    weight.data = (2 * weight.data).repeat(1, 2)[:, :3]


@once(start(decayed, shapes=PAIR))
def two_weights_that_share_memory(state, one, other):
    other.data = one.data


@once(start(decayed))
def a_weight_of_another_shape(state, weight, *others):
    weight.grad = None
    weight.data = torch.ones(5, 2, dtype=torch.float64)
    state[weight].clear()


@once(own(lambda rule, update: 1.0 if update.weight.dtype is torch.float64 else 3.0))
def a_dtype_that_a_rule_reads(state, weight, *others):
    weight.grad = None
    weight.data = weight.data.float().double() * 2
    state[weight] = {name: value.float() for name, value in state[weight].items()}


@once(start(decayed))
def a_gradient_in_the_weights_memory(state, weight, *others):
    weight.given = lambda g: weight.data


@once(start(paced))
def a_state_that_is_zeroed(state, *weights):
    for weight in weights:
        state[weight]["momentum"].zero_()


@once(start(paced))
def a_state_that_is_another_tensor(state, *weights):
    for weight in weights:
        state[weight]["momentum"] = torch.ones_like(weight.data)


@once(start(paced), tolerance=1e-5)
def a_state_of_another_dtype(state, *weights):
    for weight in weights:
        state[weight]["momentum"] = torch.full_like(weight.data, 1.1, dtype=torch.float32)


@once(start(paced))
def a_state_in_another_layout(state, weight, *others):
    state[weight]["momentum"] = 2 * state[weight]["momentum"].t().contiguous().t()


@once(start(decayed))
def a_state_that_is_gone(state, one, other, _):
    del state[one], state[other]["exp_avg"]


@once(start(paced, shapes=PAIR))
def states_that_change_places(state, one, other):
    state[one], state[other] = state[other], state[one]


@once(start(decayed))
def a_counter_that_is_set_back(state, *weights):
    for weight in weights:
        state[weight]["step"].zero_()


@once(start(paced, shapes=PAIR))
def a_state_that_two_weights_share(state, one, other):
    state[other]["momentum"] = state[one]["momentum"]


@once(start(paced))
def a_state_in_the_weights_memory(state, weight, *others):
    state[weight]["momentum"] = weight.data


@once(start(decayed))
def two_states_that_are_one_tensor(state, weight, *others):
    state[weight]["exp_avg"].abs_()
    state[weight]["exp_avg_sq"] = state[weight]["exp_avg"]


@case(tolerance=1e-5)
def a_weight_of_another_dtype(patch):
    opt = yield start(paced, dtype=torch.float32)
    for dtype in (torch.float64, torch.float32):
        for weight in opt.param_groups[0]["params"]:
            weight.grad = None
            weight.data = 2 * weight.data.to(dtype)
        yield


@case
def a_gradient_in_another_layout(patch):
    opt = yield start(decayed)
    for given in (lambda g: 2 * g.t().contiguous().t(), lambda g: g[:1].expand(4, 3)):
        opt.param_groups[0]["params"][0].given = given
        yield


@case
def a_gradient_that_is_missing_at_some_steps(patch):
    opt = yield start(decayed)
    weight = opt.param_groups[0]["params"][0]
    weight.given = lambda g: None
    yield
    del weight.given
    yield


# A mode of torch changes.


class Function(TorchFunctionMode):
    """Every product is three times as large."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return 3 * out if func in (torch.mul, torch.Tensor.mul, torch.Tensor.__rmul__) else out


class Dispatch(TorchDispatchMode):
    """Every product is three times as large."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out + out + out if func is torch.ops.aten.mul.Tensor else out


def read(factor):
    return own(lambda rule, update: factor()).recipe


@contextlib.contextmanager
def set_by(function, value, before):
    function(value)
    try:
        yield
    finally:
        function(before)


def default_dtype():
    return set_by(torch.set_default_dtype, torch.float64, torch.float32)


def deterministic():
    return set_by(torch.use_deterministic_algorithms, True, False)


def determined():
    return 3.0 if torch.are_deterministic_algorithms_enabled() else 1.0


def threads():
    return set_by(torch.set_num_threads, 3, torch.get_num_threads())


def anomaly():
    return torch.autograd.set_detect_anomaly(True)


def inference_mode_is_on():
    return 3.0 if torch.is_inference_mode_enabled() else 1.0


def bytes_of_a_number():
    return torch.tensor(0.0).element_size() / 4


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def casts():
    return 3.0 if torch.is_autocast_enabled("cpu") else 1.0


enter(
    the_default_dtype=within(read(bytes_of_a_number), default_dtype),
    the_number_of_threads=within(read(torch.get_num_threads), threads),
    determinism=within(read(determined), deterministic),
    inference_mode=within(read(inference_mode_is_on), torch.inference_mode),
    anomaly_mode=within(read(lambda: 1.0 + 2 * torch.is_anomaly_enabled()), anomaly),
    autocast_that_a_rule_reads=within(read(casts), autocast),
    a_mode_of_functions_around_a_users_rule=within(read(lambda: 1.5), Function),
    a_mode_of_dispatch_around_a_users_rule=within(read(lambda: 1.5), Dispatch),
    a_mode_of_functions_around_the_librarys_rules=within(decayed, Function),
    a_mode_of_dispatch_around_the_librarys_rules=within(paced, Dispatch),
)


@case(tolerance=1e-5)
def autocast_around_the_librarys_rules(patch):
    yield start(sn.recipes.sgdg, [(8, 8), (4, 3)], torch.float32, lr=0.5, nu=None)
    with autocast():
        yield
    yield


@case
def inference_mode_that_a_recipe_reads(patch):
    yield start(lambda lr=0.1: heavy(lr=lr * inference_mode_is_on()))
    with torch.inference_mode():
        yield


# There are several optimizers, groups or copies.


@case
def two_optimizers_of_one_users_rule(patch):
    start_again = own(lambda rule, update: FACTOR)
    yield start_again
    patch.setitem(globals(), "FACTOR", 3.0)
    yield start_again
    patch.setitem(globals(), "FACTOR", 2.0)
    yield


@case
def two_optimizers_of_one_recipe(patch):
    paces = [1.0]
    start_again = start(lambda lr=0.1: heavy(r.CoupledDecay(paces[0] - 1), lr=lr))
    yield start_again
    paces[0] = 3.0
    yield start_again
    paces[0] = 1.0
    yield


@case
def two_optimizers_of_recipes_with_one_code(patch):
    def of(nesterov):
        return lambda lr=0.1: sn.chain(r.HeavyBall(0.5, nesterov=nesterov), r.StepSize(lr))

    yield start(of(False))
    yield start(of(True))
    yield


@case
def two_optimizers_that_hold_one_rule(patch):
    rule = heavy()
    yield start(lambda lr=0.1: rule)
    yield start(lambda lr=0.1: sn.chain(rule))
    object.__setattr__(rule.rules[0], "nesterov", True)
    yield


@case
def an_optimizer_that_is_copied(patch):
    opt = yield start(paced)
    again = yield copy.deepcopy(opt)
    again.param_groups[0]["lr"] = 0.3
    opt.param_groups[0]["lr"] = 0.7
    patch.setitem(globals(), "PACE", 2.0)
    yield


@case
def an_optimizer_that_is_pickled(patch):
    opt = yield start(ADAM, betas=(0.5, 0.9), lr=0.1)
    again = yield pickle.loads(pickle.dumps(opt))
    again.param_groups[0]["betas"] = (0.9, 0.0)
    yield


@case
def a_state_that_is_loaded(patch):
    opt = yield start(decayed)
    saved = copy.deepcopy(opt.state_dict())
    opt.param_groups[0]["weight_decay"] = 0.0
    yield
    opt.load_state_dict(saved)
    yield


@case
def hyper_parameters_that_are_loaded(patch):
    opt = yield start(SGD, momentum=0.5)
    saved = copy.deepcopy(opt.state_dict())
    saved["param_groups"][0].update(lr=0.3, nesterov=True, dampening=0.1)
    opt.load_state_dict(saved)
    yield


@case
def a_group_that_is_added(patch):
    opt = yield start(decayed)
    late = start(decayed, shapes=[(4, 3), (2, 5)]).weights()
    opt.add_param_group({"params": late, "lr": 0.3, "weight_decay": 0.0})
    opt.param_groups[0]["lr"] = 0.2
    yield
    opt.param_groups[1]["weight_decay"] = 0.5
    yield


@case
def a_group_of_another_recipe(patch):
    opt = yield start(SGD, momentum=0.5)
    late = start(SGD, shapes=[(4, 3)]).weights()
    opt.add_param_group({"params": late, "recipe": "sgdw", "momentum": 0.5, "weight_decay": 0.5})
    opt.param_groups[0]["weight_decay"] = 0.5
    yield


@case
def groups_that_exchange_their_numbers(patch):
    opt = yield start(decayed)
    late = start(decayed, shapes=[(4, 3)]).weights()
    opt.add_param_group({"params": late, "lr": 0.3, "betas": (0.9, 0.5)})
    yield
    one, other = opt.param_groups
    one["betas"], other["betas"] = other["betas"], one["betas"]
    yield


@case
def a_weight_that_leaves_its_group(patch):
    opt = yield start(decayed)
    opt.param_groups[0]["params"].reverse()
    yield
    opt.param_groups[0]["params"].pop()
    opt.param_groups[0]["lr"] = 0.3
    yield


@case
def a_group_that_a_recipe_tells_from_another(patch):
    seen = {"fast": 1.0, "slow": 0.5}
    opt = yield start(lambda lr=0.1, kind="slow": heavy(lr=lr * seen[kind]))
    late = start(paced, shapes=[(4, 3)]).weights()
    opt.add_param_group({"params": late, "kind": "fast"})
    for seen["slow"], seen["fast"] in ((1.0, 0.5), (0.5, 1.0)):
        yield


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_noticed(name):
    check(CASES[name].story, CASES[name].tolerance, CASES[name].quiet)
