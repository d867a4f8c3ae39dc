"""The step is the rule's own, whatever changes between two steps.

Each case is a story of one training. It yields what to start with; then it changes something and
yields again, and each time three steps are taken. An optimizer and a plain loop live through it,
and must agree after each yield. So that a case says something, a loop in which nothing changes
must end elsewhere.
"""

import collections
import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import spherenorm as sn
from spherenorm import rules as r
from tests.compile.written import rule
from tests.harness.tables import mostly_long

SHAPES = ((4, 3), (3,), (2, 2, 2, 2))
PAIR = ((4, 3), (4, 3))
STEPS = 3

Story = Iterator[Any]


@dataclass(frozen=True)
class Start:
    """The start of a training."""

    recipe: Callable[..., sn.Rule]
    hyper_parameters: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]
    dtype: torch.dtype

    def weights(self) -> list[torch.nn.Parameter]:
        drawn = [_normal(shape, seed) for seed, shape in enumerate(self.shapes)]
        return [torch.nn.Parameter(w.to(self.dtype)) for w in drawn]


def start(recipe, shapes=SHAPES, dtype=torch.float64, **hyper_parameters):
    return Start(recipe, hyper_parameters, shapes, dtype)


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
            chosen = {name: group[name] for name in _defaults(recipe)}
            for weight in group["params"]:
                made = recipe(**chosen)
                lost = self.state[weight].keys() - {*made.state_keys}
                if lost and chosen.get("momentum") == 0:  # for a while
                    zero = torch.zeros((), dtype=torch.float64)
                    made = recipe(**{**chosen, "momentum": zero})
                if weight.grad is not None:
                    self._move(made, weight, -weight.grad if group["maximize"] else weight.grad)

    def _move(self, made, weight, grad):
        state = self.state[weight]
        if state.keys() != set(made.state_keys):
            state = {name: state.get(name, new) for name, new in made.init(weight).items()}
        moved, new = made.step(weight, grad, state)
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
    with contextlib.closing(story()) as told:
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
            if said is not None:
                trainings.append(Training(begin(said)))
    return trainings


@dataclass(frozen=True)
class Case:
    """A story; `tolerance` is that of its dtype, and kernels take it under each of `backends`."""

    story: Callable[[], Story]
    tolerance: float = 1e-10
    backends: tuple[str, ...] = ("auto",)


CASES: dict[str, Case] = {}
BOTH = ("auto", "compiled")


def case(story=None, **options):
    """Enter a story into the table, under the words of its name."""
    if story is None:
        return functools.partial(case, **options)
    CASES[story.__name__.replace("_", " ")] = Case(story, **options)
    return story


def enter(backends=("auto",), **stories):
    """Enter stories that are made of data, under the words of their names."""
    for name, story in stories.items():
        CASES[name.replace("_", " ")] = Case(story, backends=backends)


def _differ(a, b, by):
    pairs = zip(a, b, strict=False)
    return any(x.shape != y.shape or np.abs(x - y).max(initial=0) > by for x, y in pairs)


def check(story, tolerance, backend):
    def by_optimizer(recipe, weights, **hyper_parameters):
        return sn.torch_optimizer(recipe)(weights, backend=backend, **hyper_parameters)

    expected = live_through(story, ByHand)
    for mine, hand in zip(live_through(story, by_optimizer), expected, strict=True):
        for after, (weights, others) in enumerate(zip(mine.passed, hand.passed, strict=True)):
            for w, v in zip(weights, others, strict=True):
                np.testing.assert_allclose(w, v, tolerance, tolerance, err_msg=f"part {after}")
    unchanged = live_through(story, ByHand, len(expected[0].passed))[0].passed
    ends = [(each.passed[-1], unchanged[len(each.passed) - 1]) for each in expected]
    seen = any(_differ(*both, by=1e4 * tolerance) for both in ends)
    assert seen, "a step that takes no notice would not be found out"


# A recipe makes chains of the library's rules, of what it reads.


def heavy(*before, lr=0.1):
    return sn.chain(*before, r.HeavyBall(0.5), r.StepSize(lr))


def paced(lr=0.1, momentum=0.5):
    return sn.chain(r.HeavyBall(momentum), r.StepSize(lr))


def decayed(lr=0.1, betas=(0.5, 0.9), weight_decay=0.1):
    return sn.chain(r.AdaptiveMoments(*betas), r.DecoupledDecay(weight_decay), r.StepSize(lr))


def of_a_recipe(rule_of, *values):
    """A story whose recipe makes a rule of each of the values in turn."""

    def story():
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


def number(value=1.0):
    return torch.full((), value, dtype=torch.float64)


FLAT, ROUND, BY_ROW = sn.Euclidean(), sn.Sphere("layer"), sn.Sphere("channel")
RULES = (r.CoupledDecay(0.5), r.HeavyBall(0.5), r.StepSize(0.1))
enter(
    BOTH,
    a_number_that_a_recipe_reads=of_a_recipe(lambda pace: heavy(lr=0.1 * pace), 1.0, 3.0, 0.0, 1.0),
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
    a_class_that_is_defined_again=of_a_recipe(
        lambda by: heavy(rule({}, direction=f"{by} * d", name="Again")()), 1.0, 3.0, 1.0
    ),
)


@case
def a_tensor_that_a_recipe_reads():
    pace = number()
    yield start(lambda lr=0.1: heavy(*([r.CoupledDecay(0.5)] if pace > 2 else []), lr=pace / 10))
    for value in (3.0, 1.0):
        pace.fill_(value)
        yield


# A user's rule, whose code runs at every step, reads something that changes.


@dataclass(frozen=True)
class Own(sn.Rule):
    """`factor` times the direction; a field of any kind."""

    thing: Any = None

    def factor(self, update):
        return 1.0

    def update(self, update, state):
        return replace(update, direction=self.factor(update) * update.direction), {}


def own(factor, thing=None, **options):
    """A start with a rule class of its own, which calls `factor` with the rule and the update."""
    cls = type("Scaled", (Own,), {"factor": factor})
    return start(lambda lr=0.1: heavy(cls(thing), lr=lr), **options)


@case
def a_dict_that_is_a_field():
    thing = {"factor": 1.0}
    yield own(lambda rule, update: rule.thing["factor"], thing)
    for thing["factor"] in (3.0, 1.0):
        yield


@case
def a_number_that_the_rule_itself_counts():
    """A step that left the rule's code out, or ran it twice, would show."""
    counter = SimpleNamespace(value=0)

    def factor(rule, update):
        counter.value += 1
        return 1 / counter.value

    yield own(factor)
    counter.value = 0
    yield


# The hyper-parameters of a group change.


def of_a_group(name, *values, **options):
    """A story in which a hyper-parameter takes the values in turn, and returns to the first."""

    def story():
        first, *others = values
        opt = yield start(**{name: first}, **options)
        for value in (*others, first):
            opt.param_groups[0][name] = value
            yield

    return story


def filled(name, tensor, *values, **options):
    """A story in which a hyper-parameter is a tensor, which is filled with the values in turn."""

    def story():
        opt = yield start(**{name: tensor.clone()}, **options)
        for value in values:
            opt.param_groups[0][name].fill_(value)
            yield

    return story


def by_level(lr=0.1, level=1):
    """A recipe to which equal levels are not the same."""
    kinds = {bool: 1.0, int: 2.0, float: 3.0}
    return heavy(lr=lr * kinds[type(level)] * (2 if math.copysign(1, level) < 0 else 1))


def counted(lr=0.1, momentum=0.5, count=0):
    return sn.chain(r.HeavyBall(momentum / (1 + count)), r.StepSize(lr / (1 + count)))


def looking(lr=0.1, views=("channel",)):
    return heavy(r.ScaleInvarianceTest(0.5, views, "unit"), r.RadialProjection(), lr=lr)


TINY = [(), (1,), (0, 3), (2, 1)]
SGD, ADAM = sn.recipes.sgd, sn.recipes.adam
enter(
    BOTH,
    a_learning_rate=of_a_group("lr", 0.1, 0.3, 0.0, recipe=paced),
    a_learning_rate_of_tiny_weights=of_a_group("lr", 0.1, 0.3, recipe=decayed, shapes=TINY),
    a_learning_rate_of_numpy=of_a_group("lr", 0.1, np.float32(0.3), np.float64(0.2), recipe=paced),
    a_learning_rate_that_is_an_integer=of_a_group("lr", 0.1, 1, recipe=SGD),
    a_learning_rate_that_is_a_tensor=of_a_group("lr", 0.1, torch.tensor(0.3), recipe=paced),
    a_learning_rate_that_is_filled=filled(
        "lr", number(0.1), 0.3, 0.0, 0.1, recipe=ADAM, betas=(0.5, 0.9)
    ),
    a_momentum_to_0_and_from_0=of_a_group("momentum", 0.5, 0.0, 0.9, recipe=SGD),
    a_momentum_that_is_filled=filled("momentum", number(0.5), 0.9, 0.0, 0.5, recipe=paced),
    a_decay_to_0=of_a_group("weight_decay", 0.5, 0.0, recipe=decayed),
    a_dampening_from_0=of_a_group("dampening", 0.0, 0.5, 1.0, recipe=SGD, momentum=0.5),
    a_pair_of_betas_to_0=of_a_group("betas", (0.5, 0.9), (0.0, 0.9), (0.5, 0.0), recipe=ADAM),
    a_flag=of_a_group("nesterov", False, True, recipe=SGD, momentum=0.5),
    a_tuple_of_views=of_a_group("views", ("layer",), ("channel",), recipe=looking),
    ascent=of_a_group("maximize", False, True, recipe=paced),
    a_count=of_a_group("count", *range(6), recipe=counted),
    a_level_of_another_type=of_a_group("level", 1, 1.0, True, recipe=by_level),
    a_0_that_is_minus_0=of_a_group("level", 0.0, -0.0, recipe=by_level),
)


@case(backends=BOTH)
def the_recipe_of_a_group():
    opt = yield start(SGD, momentum=0.5, weight_decay=0.5)
    for name in ("sgdw", "sgd"):
        opt.param_groups[0]["recipe"] = name
        yield


@case(backends=BOTH)
def a_list_of_betas_that_is_edited():
    opt = yield start(ADAM, betas=[0.5, 0.9])
    for opt.param_groups[0]["betas"][0] in (0.9, 0.0, 0.5):
        yield


# The weight, its gradient or its state changes.


def relaid(place, lay_out):
    """A story in which a weight lies in another layout, and then one entry after the other."""

    def story():
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
    a_weight_with_gaps_in_memory=relaid(0, lambda w: w.repeat(1, 2)[:, :3]),
)


def once(said, **options):
    """Enter a story in which a function changes states and weights after three steps."""

    def decorate(change):
        def story():
            opt = yield said
            change(opt.state, *opt.param_groups[0]["params"])
            yield

        story.__name__ = change.__name__
        return case(story, **options)

    return decorate


@once(start(decayed), backends=BOTH)
def a_weight_in_other_memory(state, *weights):
    for weight in weights:
        weight.data = 2 * weight.data


@once(start(decayed))
def a_weight_of_another_shape(state, weight, *others):
    weight.grad = None
    weight.data = torch.ones(5, 2, dtype=torch.float64)
    state[weight].clear()


@once(start(decayed))
def a_gradient_in_the_weights_memory(state, weight, *others):
    weight.given = lambda g: weight.data


@once(start(paced), backends=BOTH)
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


@once(start(decayed), backends=BOTH)
def a_state_that_is_gone(state, one, other, _):
    del state[one], state[other]["exp_avg"]


@once(start(decayed), backends=BOTH)
def states_in_another_order(state, one, *others):
    state[one]["exp_avg"].neg_()
    items = list(state[one].items())[::-1]
    state[one].clear()
    state[one].update(items)


@once(start(paced, shapes=PAIR), backends=BOTH)
def states_that_change_places(state, one, other):
    state[one], state[other] = state[other], state[one]


@once(start(decayed), backends=BOTH)
def a_counter_that_is_set_back(state, *weights):
    for weight in weights:
        state[weight]["step"].zero_()


@once(start(decayed))
def two_states_that_are_one_tensor(state, weight, *others):
    state[weight]["exp_avg"].abs_()
    state[weight]["exp_avg_sq"] = state[weight]["exp_avg"]


@case(tolerance=1e-5)
def a_weight_of_another_dtype():
    opt = yield start(paced, dtype=torch.float32)
    for dtype in (torch.float64, torch.float32):
        for weight in opt.param_groups[0]["params"]:
            weight.grad = None
            weight.data = 2 * weight.data.to(dtype)
        yield


@case(backends=BOTH)
def a_gradient_in_another_layout():
    opt = yield start(decayed)
    for given in (lambda g: 2 * g.t().contiguous().t(), lambda g: g[:1].expand(4, 3)):
        opt.param_groups[0]["params"][0].given = given
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


@case
def modes_around_the_librarys_rules():
    yield start(decayed)
    for mode in (Function, Dispatch):
        with mode():
            yield
        yield


@case
def inference_mode():
    yield own(lambda rule, update: 3.0 if torch.is_inference_mode_enabled() else 1.0)
    with torch.inference_mode():
        yield
    yield


# There are several optimizers, groups or copies.


@case(backends=BOTH)
def two_optimizers_of_one_recipe():
    paces = [1.0]
    start_again = start(lambda lr=0.1: heavy(r.CoupledDecay(paces[0] - 1), lr=lr))
    yield start_again
    paces[0] = 3.0
    yield start_again
    paces[0] = 1.0
    yield


@case(backends=BOTH)
def groups_that_are_added_and_exchange_their_numbers():
    opt = yield start(decayed)
    late = start(decayed, shapes=[(4, 3), (2, 5)]).weights()
    opt.add_param_group({"params": late, "lr": 0.3, "betas": (0.9, 0.5), "weight_decay": 0.0})
    opt.param_groups[0]["lr"] = 0.2
    yield
    one, other = opt.param_groups
    one["betas"], other["betas"] = other["betas"], one["betas"]
    one["weight_decay"], other["weight_decay"] = other["weight_decay"], one["weight_decay"]
    yield


@case(backends=BOTH)
def a_weight_that_leaves_its_group():
    opt = yield start(decayed)
    opt.param_groups[0]["params"].reverse()
    yield
    opt.param_groups[0]["params"].pop()
    opt.param_groups[0]["lr"] = 0.3
    yield


@case
def another_backend():
    opt = yield start(paced)
    for backend in ("rule", "compiled", "auto"):
        opt.param_groups[0].update(backend=backend, lr=2 * opt.param_groups[0]["lr"])
        yield


TOLD = [(name, backend) for name, each in CASES.items() for backend in each.backends]


@pytest.mark.parametrize(("name", "backend"), mostly_long(TOLD, kept=50))
def test_a_change_is_noticed(name, backend):
    check(CASES[name].story, CASES[name].tolerance, backend)
