"""A watch keeps one number of the direction where it stands, and changes nothing else."""

import io
import math

import pytest
import torch

import spherenorm as sn
from spherenorm import functional as F  # noqa: N812
from spherenorm import rules as r
from spherenorm.rules.watch import QUANTITIES, without_watches
from spherenorm_theory import norm_growth
from tests.harness import ANY_WEIGHTS, refuses

pytestmark = ANY_WEIGHTS


def angle(a, b):
    if not a.any() or not b.any():
        return 0.0
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.atan2((a - b).norm().item(), (a + b).norm().item())


def cosine(a, b):
    return (a.flatten() @ b.flatten() / (a.norm() * b.norm())).item() if a.any() and b.any() else 0


PLAIN = {
    "norm": lambda w, g, d: d.norm().item(),
    "rms": lambda w, g, d: math.sqrt(sum(x**2 for x in d.flatten().tolist()) / d.numel()),
    "relative": lambda w, g, d: (d.norm() / w.norm()).item() if w.any() else d.norm().item(),
    "turn": lambda w, g, d: angle(w, w - d),
    "cosine": lambda w, g, d: cosine(w, d),
    "grad_cosine": lambda w, g, d: cosine(g, d),
    "nonzero": lambda w, g, d: (d != 0).double().mean().item(),
}
"""Each quantity by its plain formula."""
EVERY = [r.Watch(quantity) for quantity in PLAIN]


def with_watches(rule):
    """The chain with every watch between its first two rules, and some before and after."""
    first, *rest = rule.rules
    rules = [r.Watch("rms", name="start"), first, *EVERY, *rest, r.Watch("turn", name="end")]
    return sn.chain(*rules, manifold=rule.manifold)


def test_the_words_are_those_of_the_table():
    assert QUANTITIES.keys() == PLAIN.keys()
    assert all(f'| "{word}" |' in r.Watch.__doc__ for word in PLAIN)
    with refuses("Watch", "turns", *PLAIN):
        r.Watch("turns")
    with refuses("Watch"):
        r.Watch(lambda update: update.direction.norm())


def mirrored(w):
    return 2 * w


DIRECTIONS = {
    "ordinary": lambda w: 0.1 * torch.randn_like(w),
    "small": lambda w: 1e-9 * torch.randn_like(w),
    "large": lambda w: 30 * torch.randn_like(w),
    "zero": torch.zeros_like,
    "reversal": mirrored,
    "along": lambda w: 0.5 * w,
    "sparse": lambda w: torch.where(torch.rand_like(w) < 0.5, 0.0, torch.randn_like(w)),
}


@pytest.mark.parametrize("name", DIRECTIONS)
@pytest.mark.parametrize("shape", [(), (5,), (4, 6), (3, 2, 2, 2)])
def test_a_number_is_that_of_its_formula(name, shape):
    for weight in (torch.randn(shape, dtype=torch.float64), torch.zeros(shape).double()):
        grad = DIRECTIONS[name](weight)
        rule = sn.chain(r.HeavyBall(0.0), *EVERY)
        _, state = rule.step(weight, grad, rule.init(weight))
        for word, plain in PLAIN.items():
            expected = plain(weight, grad, grad)
            got = state[f"watched_{word}"]
            assert got.ndim == 0
            assert got.item() == pytest.approx(expected, rel=1e-9, abs=1e-15), word


LONG = pytest.mark.long
CASES = [
    ("adamp", torch.float32),
    ("muon", torch.float32),
    ("sgdg", torch.bfloat16),
    ("prodigy", torch.float64),
    *(
        pytest.param(name, dtype, marks=LONG)
        for name in ("adamp", "hyperball(adamw)", "cautious(adamw)", "lamb", "nora", "soap")
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
        if (name, dtype) != ("adamp", torch.float32)
    ),
]


def steps_of(recipe, dtype, backend, steps=4):
    generator = torch.Generator().manual_seed(1)
    shapes = (6, 5), (33, 70), (3, 4, 2, 2)
    weights = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]
    optimizer = sn.torch_optimizer(recipe, "Any")(weights, backend=backend)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
        optimizer.step()
    return optimizer, weights


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_no_bit_of_a_step_depends_on_watches(name, dtype):
    def plain(lr=0.02):
        return sn.bind(name, lr=lr).rule

    def watched(lr=0.02):
        return with_watches(plain(lr))

    assert without_watches(watched()) == plain()
    for backend in ("auto", "rule"):
        optimizer, weights = steps_of(plain, dtype, backend)
        watching, same_weights = steps_of(watched, dtype, backend)
        assert all(map(torch.equal, weights, same_weights)), backend
        for weight, same in zip(weights, same_weights, strict=True):
            state, watched_state = optimizer.state[weight], watching.state[same]
            assert watched_state["watched_norm"] > 0
            for key, value in state.items():
                assert torch.equal(value, watched_state[key]), (key, backend)


@pytest.mark.parametrize("name", ["adamp", pytest.param("hyperball(adamw)", marks=LONG)])
def test_a_kernel_measures_what_the_rule_does(name):
    def watched(lr=0.02):
        return with_watches(sn.bind(name, lr=lr).rule)

    kernel, weights = steps_of(watched, torch.float32, "compiled")
    rule, same_weights = steps_of(watched, torch.float32, "rule")
    for weight, same in zip(weights, same_weights, strict=True):
        for key in watched().optional_keys:
            value, expected = kernel.state[weight][key], rule.state[same][key]
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)


@sn.recipe
def momentum(lr=0.1, beta=0.9):
    return sn.chain(r.HeavyBall(beta), r.StepSize(lr))


@sn.recipe
def watched_momentum(lr=0.1, beta=0.9):
    return sn.chain(r.HeavyBall(beta), r.Watch("rms"), r.StepSize(lr), r.Watch("turn"))


def save_and_load(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("saved_by", [momentum, watched_momentum])
@pytest.mark.parametrize("loaded_by", [momentum, watched_momentum])
def test_checkpoints_load_with_and_without_watches(saved_by, loaded_by):
    grads = torch.randn(6, 4, 3)

    def steps(optimizer, weight, some_grads):
        for grad in some_grads:
            weight.grad = grad.clone()
            optimizer.step()

    weight = torch.ones(4, 3)
    optimizer = sn.torch_optimizer(saved_by)([weight])
    steps(optimizer, weight, grads[:3])
    twin = weight.clone()
    resumed = sn.torch_optimizer(loaded_by)([twin])
    resumed.load_state_dict(save_and_load(optimizer.state_dict()))
    steps(optimizer, weight, grads[3:])
    steps(resumed, twin, grads[3:])
    assert torch.equal(weight, twin)
    assert resumed.state[twin].keys() == set(loaded_by().state_keys)
    if loaded_by is watched_momentum:
        assert resumed.state[twin]["watched_turn"] > 0


def test_other_states_are_still_missed():
    weight = torch.ones(4, 3)
    optimizer = sn.torch_optimizer(watched_momentum)([weight])
    weight.grad = torch.ones(4, 3)
    optimizer.step()
    state_dict = optimizer.state_dict()
    del state_dict["state"][0]["momentum"]
    with refuses("state_dict", "momentum"):
        optimizer.load_state_dict(state_dict)


def test_functions_have_the_numbers_in_their_state():
    params = {"a": torch.randn(4, 3), "b": torch.randn(5)}
    grads = {name: torch.randn_like(x) for name, x in params.items()}
    state = F.init(watched_momentum(), params)
    moved, state = F.step(watched_momentum(), params, grads, state)
    plain, _ = F.step(momentum(), params, grads, F.init(momentum(), params))
    for name, weight in params.items():
        assert torch.equal(moved[name], plain[name])
        expected = angle(weight, moved[name])
        assert state[name]["watched_turn"].item() == pytest.approx(expected, rel=1e-5)


def test_a_derivative_does_not_see_a_watch():
    """The root of 0 has none, and a step of 0 is where one is taken."""

    def loss(lr, rule_of):
        rule = rule_of(lr=lr)
        weight, state = torch.ones(3), rule.init(torch.ones(3))
        for grad in (torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)):
            weight, state = rule.step(weight, grad, state)
        return weight.sum() + sum(0 * x.sum() for x in state.values())

    lr = torch.tensor(0.1)
    slopes = [torch.func.grad(loss)(lr, rule_of) for rule_of in (momentum, watched_momentum)]
    assert torch.equal(*slopes)


def test_laws_and_exports_leave_watches_out():
    assert str(norm_growth(watched_momentum).equation) == str(norm_growth(momentum).equation)
    text = sn.export(watched_momentum, "Same")
    assert "Watch" not in text
    assert 'state["watched' not in text
    body = text[text.index("class Same") :]
    assert body == sn.export(momentum, "Same")[-len(body) :]


@pytest.mark.parametrize("wrapper", ["hyperball", "cautious", "schedulefree", "lookahead"])
def test_wrapped_recipes_keep_their_watches(wrapper):
    name = f"{wrapper}(watched_momentum)"
    rule, plain = sn.bind(name).rule, sn.bind(f"{wrapper}(momentum)").rule
    assert {"watched_rms", "watched_turn"} == set(rule.optional_keys)
    weight, grad = torch.randn(2, 4, 3)
    moved, _ = rule.step(weight, grad, rule.init(weight))
    assert torch.equal(moved, plain.step(weight, grad, plain.init(weight))[0])
