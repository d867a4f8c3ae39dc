"""Wrappers turn any recipe into another one, which is a recipe like any."""

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

import spherenorm as sn
from spherenorm import registry
from spherenorm import rules as r
from tests.harness import gradient, loops, refuses, zoo_loops
from tests.harness.tables import mostly_long

WRAPPERS = ("hyperball", "rotational", "radial_brake")
FLAT = [name for name in sn.recipes.__all__ if sn.sphere_of(sn.bind(name).rule) is None]
"""The library's recipes that have no manifold, so that a wrapper takes them."""


def mine(lr=0.1, beta=0.9, weight_decay=0.3):
    return sn.chain(r.HeavyBall(beta), r.DecoupledDecay(weight_decay), r.StepSize(lr))


def rateless(beta=0.9):
    return sn.chain(r.HeavyBall(beta))


MineBall = sn.torch_optimizer(sn.wrappers.hyperball(mine), "MineBall")


def draw(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_name_finds_the_recipe(wrapper):
    wrapped = getattr(sn.wrappers, wrapper)("lion")
    assert sn.find_recipe(f"{wrapper}(lion)") is wrapped is getattr(sn.wrappers, wrapper)("lion")
    assert wrapped is getattr(sn.wrappers, wrapper)(sn.recipes.lion)
    bound = sn.bind(wrapped, betas=(0.5, 0.6))
    assert bound.name == f"{wrapper}(lion)"
    assert str(bound) == f"{wrapper}(lion)(betas=(0.5, 0.6))"
    assert "weight_decay" not in bound.defaults
    assert sn.bind(f"{wrapper}({__name__}:mine)").name == f"{wrapper}({__name__}:mine)"


@pytest.mark.parametrize("name", [*FLAT, f"{__name__}:mine"])
def test_a_hyperball_takes_the_direction_of_any_recipe(name):
    """w <- |w_0| N(w - lr |w| N(u)), u the recipe's step at a rate of 1 without decay."""
    weight, *grads = draw(4, 4, 3)
    ball, known = sn.bind(f"hyperball({name})", lr=0.1), sn.bind(name).defaults
    alone = {"lr": 1.0, "weight_decay": 0.0}
    inner = sn.bind(name, **{key: x for key, x in alone.items() if key in known}).rule
    assert ball.hyper_parameters["lr"] == 0.1
    expected, radius = weight, weight.norm()
    state, kept = ball.rule.init(weight), inner.init(weight)
    for grad in grads[:2]:
        moved, kept = inner.step(expected, grad, kept)
        step = expected - moved
        expected = expected - 0.1 * expected.norm() * step / step.norm()
        expected = radius * expected / expected.norm()
        weight, state = ball.rule.step(weight, grad, state)
        torch.testing.assert_close(weight, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("zero_mean", [True, False])
def test_a_rotation_turns_each_unit_by_lr(zero_mean):
    """At the first step by arctan of it, whatever the length of the unit and of its step."""
    weight, grad = draw(2, 5, 6)
    weight *= torch.arange(1.0, 6.0)[:, None].double()
    name = f"rotational({__name__}:mine)"
    rule = sn.bind(name, lr=0.02, eps=1e-16, zero_mean=zero_mean).rule
    moved, _ = rule.step(weight, grad, rule.init(weight))
    for w, g, new in zip(weight, grad, moved, strict=True):
        tangent = g - (w @ g) / (w @ w) * w
        step = tangent - tangent.mean() if zero_mean else tangent
        expected = w - 0.02 * w.norm() * step / step.norm()
        expected = w.norm() * expected / expected.norm()
        torch.testing.assert_close(new, expected, rtol=1e-12, atol=1e-13)
        if not zero_mean:
            turn = (w @ new / (w @ w)).arccos().item()
            assert turn == pytest.approx(math.atan(0.02), rel=1e-9)


@pytest.mark.parametrize(("along", "share"), [(0.0, 0.0), (-1.0, 0.5), (1.0, 1.0)])
def test_a_radial_brake_shortens_outward_steps(along, share):
    """The radial part of a step counts by half outwards, whole inwards, for |w| alone."""
    weight, grad = draw(2, 3, 4)
    radial = weight / weight.norm()
    tangent = grad - (grad * radial).sum() * radial
    rule = sn.wrappers.radial_brake(mine)(lr=0.1, floor=1e-9)
    moved, _ = rule.step(weight, tangent + along * radial, rule.init(weight))
    intended = weight - 0.1 * (tangent + share * along * radial)
    norm = weight.norm() - 0.1 * share * along
    torch.testing.assert_close(moved, norm * intended / intended.norm(), rtol=1e-13, atol=1e-14)


def test_wrappers_nest():
    rule = sn.bind("hyperball(radial_brake(sgd))").rule
    weight, grad = draw(2, 3, 4)
    moved, _ = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close(moved.norm(), weight.norm())
    assert sn.bind("hyperball(radial_brake(sgd))").name == "hyperball(radial_brake(sgd))"


def test_a_shared_name_is_one_where_the_defaults_agree():
    """hyperball(muon) on a stack: each expert is a matrix, and keeps its norm."""
    stack, grad = draw(2, 3, 4, 5)
    rule = sn.wrappers.hyperball("muon")(view="channel", lr=0.1)
    moved, _ = rule.step(stack, grad, rule.init(stack))
    alone = sn.wrappers.hyperball("muon")(lr=0.1)
    for each, start, g in zip(moved, stack, grad, strict=True):
        torch.testing.assert_close(each, alone.step(start, g, alone.init(start))[0])


def test_a_shared_name_of_two_defaults_is_two():
    defaults = sn.bind("rotational(muon)").defaults
    assert (defaults["view"], defaults["base_view"]) == ("channel", "layer")
    nested = sn.bind("rotational(hyperball(nora))", base_view="dim=1", base_base_view="groups=2")
    given = {name: x for name, x in nested.hyper_parameters.items() if name.endswith("view")}
    assert given == {"view": "channel", "base_view": "dim=1", "base_base_view": "groups=2"}
    base = sn.bind("hyperball(nora)", lr=1.0, view="dim=1", base_view="groups=2").rule
    assert repr(base) in repr(nested.rule)


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", FLAT)
def test_no_recipe_of_the_library_keeps_a_decay_in_a_wrapper(wrapper, name):
    assert "weight_decay" not in sn.bind(f"{wrapper}({name})").defaults


@pytest.mark.parametrize("name", ["adamh", *(f"{wrapper}(sgd)" for wrapper in WRAPPERS)])
def test_biases_and_gains_whose_norm_is_held_are_named(name):
    cls, layer = sn.torch_optimizer(name, "Held"), torch.nn.Linear(3, 4)
    with warnings.catch_warnings(record=True) as said:
        cls(layer.named_parameters())
    (message,) = (str(each.message) for each in said)
    assert all(word in message for word in ("Held", "bias", "FixedNorm"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls([layer.weight])


@pytest.mark.parametrize("name", ["adamh", "muonh", "hyperball(sgd)", "rotational(adam)"])
def test_a_radius_of_zero_is_refused_by_name_at_construction(name):
    zero = torch.nn.Parameter(torch.zeros(4, 3))
    with refuses("parameter 0 (weight)", (4, 3), "FixedNorm"):
        sn.torch_optimizer(name)([("weight", zero)])
    with refuses("FixedNorm"):
        sn.functional.init(sn.bind(name).rule, {"weight": zero.detach()})


def test_what_cannot_be_wrapped_is_refused():
    with refuses("hyperball", "rateless", "lr", "beta"):
        sn.find_recipe(f"hyperball({__name__}:rateless)")
    with refuses("manifold"):
        sn.bind("hyperball(sgdg)").rule  # noqa: B018


def test_the_optimizer_of_a_wrapped_recipe_is_one_like_any():
    weights = [torch.nn.Parameter(draw(3, 4).float())]
    optimizer = MineBall([{"params": weights, "beta": 0.5}], lr=0.2)
    assert optimizer.param_groups[0]["recipe"] == f"hyperball({__name__}:mine)"
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)), optimizer):
        (group,) = twin.param_groups
        before = group["params"][0].detach().norm()
        group["params"][0].grad = torch.ones(3, 4)
        twin.step()
        torch.testing.assert_close(group["params"][0].detach().norm(), before)
    beside = sn.optim.SGD([{"params": weights, "recipe": "rotational(adamw)", "lr": 0.1}])
    start = weights[0].detach().clone()
    beside.step()
    assert not torch.equal(weights[0], start)


# Any recipe with its step changed: cautious, schedulefree, lookahead, emanesterov, graft

DECAY = 0.1


class Plain(NamedTuple):
    """A recipe as a plain loop.

    Attributes:
        settings: its hyper-parameters.
        start: takes a weight, and returns a function of weight and gradient that returns the
            direction and the factor of the weight in the step.
    """

    settings: dict
    start: Callable


def of_gradients(make_direction):
    """The start of a recipe whose direction depends on gradients alone."""

    def start(w):
        direction = make_direction(w)
        return lambda w, g: (direction(g), DECAY)

    return start


def sgdp_start(w):
    momentum = loops.heavy_ball(0.8)

    def step(w, g):
        d, where = loops.projected(momentum(g), w, g, 0.1, loops.CHANNEL_THEN_LAYER, "tensor")
        return d, loops.either(where, 0.1, 1.0) * DECAY / (1 - 0.8)

    return step


def lion_direction(w):
    average = torch.zeros_like(w)

    def direction(g):
        nonlocal average
        sign = loops.mean(average, g, 0.7).sign()
        average = loops.mean(average, g, 0.9)
        return sign

    return direction


ADAM = {"betas": (0.8, 0.95), "eps": 1e-6}
SOAP = {**ADAM, "every": 2}
BASES = {
    "adamw": Plain(ADAM, of_gradients(lambda w: loops.adam(**ADAM))),
    "sgdp": Plain({"momentum": 0.8}, sgdp_start),
    "muon": Plain(
        {"momentum": 0.8},
        of_gradients(lambda w: loops.muon_direction(0.8, True, "original", "original")),
    ),
    "soap": Plain(SOAP, of_gradients(lambda w: zoo_loops.soap_direction(w.shape, **SOAP))),
    "lion": Plain({"betas": (0.7, 0.9)}, of_gradients(lion_direction)),
}


def cautious_step(step):
    def masked_step(w, g):
        return zoo_loops.masked(step(w, g)[0], g), DECAY

    return masked_step


def graft_step(step, other, view="layer"):
    def grafted_step(w, g):
        d, long = step(w, g)[0], other(w, g)[0]
        return loops.length(long, view) * loops.unit(d, view), DECAY

    return grafted_step


def descend(w, step):
    while True:
        g, lr = yield w
        d, decay = step(w, g)
        w = w - lr * (d + decay * w)


def schedulefree_loop(w, step, interpolation=0.7, power=0.5):
    def moved(z, y, g, lr):
        d, decay = step(y, g)
        return z - lr * (d + decay * y)

    return zoo_loops.schedule_free(w, None, moved, interpolation, power)


def lookahead_loop(w, step, alpha=0.3, every=2):
    slow, t = w, 0
    while True:
        g, lr = yield w
        d, decay = step(w, g)
        t, w = t + 1, w - lr * (d + decay * w)
        if t % every == 0:
            w = slow = slow + alpha * (w - slow)


def emanesterov_loop(w, step, lookahead=0.7, memory=0.6):
    m = torch.zeros_like(w)
    while True:
        y = w + lookahead * m
        g, lr = yield y
        d, decay = step(y, g)
        before, w = w, y - lr * (d + decay * y)
        m = loops.mean(m, w - before, memory)


def prefixed(settings):
    return {f"length_{name}": value for name, value in settings.items()}


def alternatives(name):
    """Name, settings and loop of each wrapper of a base."""
    settings, start = BASES[name]
    adam = BASES["adamw"].start
    own = {("base_every" if key == "every" else key): x for key, x in settings.items()}
    yield f"cautious({name})", settings, lambda w: descend(w, cautious_step(start(w)))
    yield (
        f"schedulefree({name})",
        {**settings, "interpolation": 0.7, "power": 0.5},
        lambda w: schedulefree_loop(w, start(w)),
    )
    yield (
        f"lookahead({name})",
        {**own, "alpha": 0.3, "every": 2},
        lambda w: lookahead_loop(w, start(w)),
    )
    yield (
        f"emanesterov({name})",
        {**settings, "lookahead": 0.7, "memory": 0.6},
        lambda w: emanesterov_loop(w, start(w)),
    )
    yield (
        f"graft({name}, adamw)",
        {**settings, **prefixed(ADAM)},
        lambda w: descend(w, graft_step(start(w), adam(w))),
    )
    yield (
        f"graft(adamw, {name})",
        {**ADAM, **prefixed(settings)},
        lambda w: descend(w, graft_step(adam(w), start(w))),
    )
    yield (
        f"schedulefree(cautious(graft({name}, adamw)))",
        {**settings, **prefixed(ADAM), "interpolation": 0.7, "power": 0.5},
        lambda w: schedulefree_loop(w, cautious_step(graft_step(start(w), adam(w)))),
    )


CHANGED = [row for base in BASES for row in alternatives(base)]


@pytest.mark.parametrize(("name", "settings", "loop"), CHANGED, ids=[row[0] for row in CHANGED])
def test_a_changed_step_is_the_plain_loops(name, settings, loop):
    weights = [torch.nn.Parameter(draw(4, 3)), torch.nn.Parameter(draw(3, 2, 2, 2))]
    walks = [loop(weight.detach().clone()) for weight in weights]
    ends = [next(walk) for walk in walks]
    settings = {**settings, "weight_decay": DECAY, "lr": 0.02}
    optimizer = sn.torch_optimizer(name)(weights, backend="rule", **settings)
    for step in range(8):
        lr = optimizer.param_groups[0]["lr"] = 0.02 * (1.0, 0.5, 0.8)[step % 3]
        for weight in weights:
            generator = torch.Generator().manual_seed(step)
            weight.grad = gradient("alternating", weight.detach(), generator, step)
        optimizer.step()
        ends = [walk.send((w.grad, lr)) for walk, w in zip(walks, weights, strict=True)]
        for weight, end in zip(weights, ends, strict=True):
            torch.testing.assert_close(weight.detach(), end, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("name", "settings"), [row[:2] for row in CHANGED])
def test_a_changed_run_resumes_from_its_checkpoint(name, settings):
    weights = [torch.nn.Parameter(draw(4, 3)), torch.nn.Parameter(draw(3, 2, 2, 2))]
    grads = torch.randn(7, 36, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    make = sn.torch_optimizer(name)

    def take_steps(optimizer, some_weights, steps):
        for step in steps:
            for weight in some_weights:
                weight.grad = grads[step, : weight.numel()].view(weight.shape).clone()
            optimizer.step()

    optimizer = make(weights, lr=0.02, backend="rule", **settings)
    take_steps(optimizer, weights, range(4))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    resumed = make(twins, backend="rule")
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.param_groups[0]["recipe"] == name
    take_steps(optimizer, weights, range(4, 7))
    take_steps(resumed, twins, range(4, 7))
    assert all(map(torch.equal, weights, twins))


@pytest.mark.parametrize("name", [row[0] for row in CHANGED])
def test_the_name_of_a_changed_recipe_finds_it(name):
    recipe = sn.find_recipe(name)
    assert sn.bind(recipe).name == name
    assert sn.find_recipe(name.replace(", ", ",")) is recipe
    base = sn.bind(name.rpartition("(")[2].partition(",")[0].rstrip(")"))
    assert sn.bind(recipe).defaults["weight_decay"] == base.defaults["weight_decay"]


@pytest.mark.parametrize(
    "name",
    mostly_long(
        ["cautious(muon)", "graft(muon, adamw)", "schedulefree(cautious(soap))",
         "emanesterov(sgdp)", "lookahead(lion)"],
        kept=2,
    ),
)  # fmt: skip
@pytest.mark.parametrize(
    "promise", ["shapes", "dtypes", "finite", "acts", "ends", "vmap", "resumes"]
)
def test_a_changed_recipe_keeps_the_promises(name, promise):
    report = sn.testing.check(name, only=(promise,))
    assert report.passed, report


@pytest.mark.parametrize(
    ("name", "ending", "remedy"),
    [
        ("cautious(hyperball(adamw))", "FixedNorm", "hyperball(cautious(...))"),
        ("graft(hyperball(muon), adamw)", "FixedNorm", "hyperball(graft(...))"),
        ("graft(hyperball(adamw), muon)", "FixedNorm", "hyperball(graft(...))"),
        ("graft(muon, hyperball(adamw))", "FixedNorm", "hyperball(graft(...))"),
        ("schedulefree(hyperball(adamw))", "FixedNorm", "do not combine"),
        ("lookahead(hyperball(adamw))", "FixedNorm", "do not combine"),
        ("emanesterov(hyperball(adamw))", "FixedNorm", "do not combine"),
        ("cautious(schedulefree(adamw))", "ScheduleFree", "schedulefree(cautious(...))"),
        ("cautious(averaged(hyperball(adamw)))", "FixedNorm",
         "averaged(hyperball(cautious(...)))"),
        ("lookahead(averaged(adamw))", "WeightAverage", "lookahead and averaged do not combine"),
        ("lookahead(schedulefree(adamw))", "ScheduleFree", "do not combine"),
        ("hyperball(lookahead(adamw))", "Lookahead", "hyperball and lookahead do not combine"),
        ("cautious(adamh)", "FixedNorm", "cautious and adamh do not combine"),
        ("lookahead(sgdg)", "Sphere", "lookahead and sgdg do not combine"),
        ("cautious(dadapt_sgd)", "DAdaptation", "do not combine"),
    ],
)  # fmt: skip
def test_what_a_wrapper_would_undo_is_refused_with_the_order_that_works(name, ending, remedy):
    with refuses(name, ending, remedy):
        sn.bind(name).rule  # noqa: B018
    if remedy.endswith(")"):
        inner = "muon, adamw" if "graft" in remedy else "adamw"
        assert sn.bind(remedy.replace("...", inner)).rule


def test_a_rule_that_ends_a_step_declares_it():
    class Halfway(sn.Rule):
        uses_endpoint = True

        def update(self, update, state):
            return update.replace(direction=0.5 * update.direction), {}

    def halfway(lr=0.1):
        return sn.chain(r.StepSize(lr), Halfway())

    with refuses("cautious", "Halfway", "halfway"):
        sn.bind(sn.wrappers.cautious(halfway)).rule  # noqa: B018


def test_the_number_of_recipes_is_checked():
    for name, count in (("graft(muon)", 2), ("cautious(adamw, muon)", 1)):
        with refuses(name.partition("(")[0], count, "muon"):
            sn.find_recipe(name)
    with refuses("graft", "rateless", "lr"):
        sn.find_recipe(f"graft(adamw, {__name__}:rateless)")


def test_a_graft_takes_the_rate_of_the_length_and_the_decay_of_the_direction():
    for direction, length in (("soap", "adamw"), ("adamw", "muon"), ("lion", "sgd")):
        defaults = sn.bind(f"graft({direction}, {length})").defaults
        assert defaults["lr"] == sn.bind(length).defaults["lr"]
        assert defaults["weight_decay"] == sn.bind(direction).defaults["weight_decay"]


def test_a_graft_of_rows_has_the_length_of_each():
    weight, grad = draw(2, 3, 4)
    rule = sn.wrappers.graft("lion", "sgd")(lr=0.1, view="channel")
    moved, _ = rule.step(weight, grad, rule.init(weight))
    torch.testing.assert_close((moved - weight).norm(dim=1), 0.1 * grad.norm(dim=1))


def test_a_name_that_two_grafted_recipes_have_is_two():
    bound = sn.bind("graft(graft(muon, adamw), adamw)", length_eps=1e-3, base_length_eps=1e-4)
    outer = bound.rule.rules[0]
    assert outer.magnitude.rules[0].eps == 1e-3
    assert outer.direction.rules[0].magnitude.rules[0].eps == 1e-4


def test_a_parameter_without_default_is_the_recipes():
    @registry.wrapper
    def twice(base, lr):
        return sn.chain(base, r.StepSize(1 + 0 * lr), r.StepSize(2.0))

    recipe = twice("sgd")
    assert sn.bind(recipe).defaults == sn.bind("sgd").defaults
    assert recipe(lr=0.5).rules[0] == sn.recipes.sgd(lr=0.5)
    with refuses("twice", "rateless", "lr"):
        twice(rateless)
    del registry._wrappers["twice"]
