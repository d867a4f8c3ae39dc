"""Torch and the `adamp` release: names, defaults and checkpoints; and where the paper differs."""

import inspect

import adamp
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from tests.harness import ROWS, ZOO, Row, loops, train
from tests.harness.rows import parameters
from tests.recipes.test_steps import EXACT, Run, by_oracle, by_rule

OTHERS = [
    *((torch.optim, name, {"lr": 0.02}) for name in ("Adam", "AdamW")),
    (torch.optim, "SGD", {"lr": 0.02, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    (torch.optim, "RMSprop", {"lr": 0.02, "momentum": 0.9, "eps": 1e-3, "centered": True}),
    *((torch.optim, "Muon", {"lr": 0.02}) for _ in range(hasattr(torch.optim, "Muon"))),
    (adamp, "AdamP", {"lr": 0.02, "nesterov": True, "eps": 1e-16}),
    (adamp, "SGDP", {"lr": 0.02, "nesterov": True, "eps": 1e-16, "momentum": 0.9}),
]
by_each = pytest.mark.parametrize(("module", "name", "settings"), OTHERS, ids=lambda x: str(x)[:9])


@pytest.fixture
def in_double(monkeypatch):
    """Torch's Muon iterates in bfloat16; here it iterates in double precision."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)


@by_each
def test_names_and_defaults_are_those_of_the_other(module, name, settings):
    weight = [torch.zeros(2, 2)]
    lr = {"lr": 0.1} if name == "SGDP" else {}  # which the release requires
    ours, theirs = (getattr(each, name)(weight, **lr).defaults for each in (optim, module))
    renamed = {"adjust_lr_fn", "ns_steps", "ns_coefficients", "eps"} if name == "Muon" else set()
    of_torch = {"amsgrad", "foreach", "differentiable", "fused", "capturable"} | renamed
    of_torch |= {"decoupled_weight_decay"}
    for key in theirs.keys() - of_torch:
        assert ours[key] == theirs[key], key


RATES = {
    1e-3: "adam adamw adamp adamc lamb orthograd sgd sgdp sgdw muon normuon ngpt",
    1e-4: "lion",
    1e-2: "rmsprop muown mdmuon",
    0.02: "adamh muonh nora hyperball(sgd) rotational(sgd) radial_brake(sgd)",
    0.05: "adamg",
    0.2: "sgdg",
    1.0: "lars",
    2**-12: "scion",
}


def test_learning_rates_that_users_count_on():
    """By default; other defaults are those of torch, of the release and of the plain loops."""
    expected = {name: lr for lr, names in RATES.items() for name in names.split()}
    assert expected == {name: sn.bind(name).defaults["lr"] for name in expected}
    assert expected.keys() >= set(sn.recipes.__all__)


def test_other_defaults_are_those_of_the_plain_loops():
    """Also where each row has a value of its own."""
    plain = {row.recipe: row.oracle for row in [*ROWS, *ZOO] if inspect.isfunction(row.oracle)}
    for name, oracle in plain.items():
        ours = sn.bind(name).defaults
        loop = inspect.signature(oracle).parameters.values()
        expected = {each.name: each.default for each in loop if each.default is not each.empty}
        expected = {key: value for key, value in expected.items() if key in ours}
        assert {key: ours[key] for key in expected} == expected, name


@by_each
@pytest.mark.parametrize("to_ours", [True, False])
def test_a_checkpoint_loads_and_continues(module, name, settings, to_ours, in_double):
    """One for two steps, then the other from its checkpoint, with another learning rate."""
    if name == "Muon" and not to_ours:
        pytest.skip("torch's Muon has hyper-parameters that a checkpoint of ours lacks")
    first, second = (getattr(each, name) for each in ((module, optim)[:: 1 if to_ours else -1]))
    taken = 1 if name == "Muon" else 2  # torch's takes no convolution
    whole, halves = parameters()[:taken], parameters()[:taken]
    train(getattr(module, name)(whole, **settings), range(4))
    half = first(halves, **settings)
    train(half, range(2))
    other = second(halves, lr=0.5)
    other.load_state_dict(half.state_dict())
    train(other, range(2, 4))
    for ours, theirs, start in zip(halves, whole, parameters(), strict=False):
        assert (ours - theirs).abs().max() <= EXACT * (theirs - start).abs().max()


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6)])
def test_muon_is_torchs(shape, scale, nesterov, in_double):
    start = torch.randn(shape, dtype=torch.float64)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    settings = {"lr": 0.02, "nesterov": nesterov}
    train(optim.Muon([ours], scale=scale, **settings), range(4))
    train(torch.optim.Muon([theirs], adjust_lr_fn=scale, **settings), range(4))
    assert (ours - theirs).abs().max() <= EXACT * (theirs - start).abs().max()


@pytest.mark.parametrize("shape", [(64, 32), (32, 64), (48, 48)])
def test_muon_in_bfloat16_is_torchs(shape):
    """Up to a rounding here and there, since the norms at the start are summed otherwise."""
    start = torch.randn(shape)
    ours, theirs, exact = (start.clone().requires_grad_() for _ in range(3))
    train(optim.Muon([ours], lr=0.02, precision="bfloat16", backend="rule"), range(6))
    train(torch.optim.Muon([theirs], lr=0.02), range(6))
    train(optim.Muon([exact], lr=0.02, backend="rule"), range(6))
    off, rounding = ((x - theirs).abs().max() for x in (ours, exact))
    assert off <= 0.02 * (theirs - start).abs().max()
    assert off < rounding


PRECISE = {
    str(row.recipe)
    for row in [*ROWS, *ZOO]
    if "precision" in sn.bind(row.recipe).defaults and row.recipe != "adamuon"  # steps by signs
}


@pytest.mark.parametrize("name", sorted(PRECISE))
def test_the_precision_of_an_iteration_is_as_asked(name):
    weight, grad = torch.randn(2, 8, 6, dtype=torch.float64)
    ends = []
    for precision in ("weight", "float32", "bfloat16"):
        rule = sn.bind(name, precision=precision).rule
        ends.append(rule.step(weight, grad, rule.init(weight))[0])
    way = (ends[0] - weight).abs().max()
    single, half = ((end - ends[0]).abs().max() / way for end in ends[1:])
    assert 1e-9 < single < 1e-4 < half < 0.1


CASE = {"family": "row_tangential", "shape": (6, 5)}


def apart(oracle, settings, oracle_settings):
    """The distance between our end and the oracle's, relative to the way."""
    recipe = "adamp" if oracle is adamp.AdamP else "sgdp"
    run = Run(Row(recipe, settings, oracle, oracle_settings), CASE)
    [ours], [theirs] = list(by_rule(run))[-1], list(by_oracle(run))[-1]
    [start] = run.start()
    return (ours - theirs).abs().max() / (theirs - start).abs().max()


@pytest.mark.parametrize("oracle", [adamp.AdamP, adamp.SGDP])
def test_at_its_default_eps_the_release_projects_inexactly(oracle):
    settings = {"lr": 0.02, "nesterov": True} | ({"momentum": 0.9} if oracle is adamp.SGDP else {})
    assert EXACT < apart(oracle, settings, {}) < 1e-6


def test_the_paper_remembers_the_momentum_before_its_projection():
    """Algorithm 1; the release projects its buffer in place."""
    settings = {"lr": 0.02, "momentum": 0.9}
    assert apart(loops.sgdp, settings, {}) < EXACT
    assert apart(adamp.SGDP, settings, {}) > 1e-3
    assert apart(adamp.SGDP, {**settings, "project_buffer": True}, {"project_buffer": None}) < 1e-6


@pytest.mark.parametrize(("cls", "ratio"), [(optim.AdamP, 1.0), (adamp.AdamP, 0.1)])
def test_a_zero_gradient_is_no_evidence_of_invariance_but_in_the_release(cls, ratio):
    weight = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    cls([weight], lr=0.1, weight_decay=0.5, wd_ratio=0.1).step()
    torch.testing.assert_close(
        weight.detach(), torch.full_like(weight, 1 - 0.1 * 0.5 * ratio), rtol=1e-15, atol=0
    )


def test_a_swept_momentum_of_0_ignores_the_dampening_as_the_number_does():
    weight, grad = torch.randn(2, 4, 3, dtype=torch.float64)
    ends = []
    for momentum in (0.0, torch.tensor(0.0, dtype=torch.float64)):
        rule = sn.bind("sgd", lr=0.1, momentum=momentum, dampening=0.3).rule
        moved, state = weight, rule.init(weight)
        for _ in range(3):
            moved, state = rule.step(moved, grad, state)
        ends.append(moved)
    torch.testing.assert_close(*ends, rtol=1e-15, atol=0)


def test_dampening_starts_with_the_first_gradient_even_if_some_of_it_is_zero():
    both = [torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for weight, cls in zip(both, (optim.SGD, torch.optim.SGD), strict=True):
        optimizer = cls([weight], lr=0.1, momentum=0.9, dampening=0.5)
        for _ in range(3):
            weight.grad = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)
            optimizer.step()
    torch.testing.assert_close(*both, rtol=1e-15, atol=0)
