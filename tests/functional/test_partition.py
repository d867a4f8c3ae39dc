"""Partitions: pure, as a class, as groups and from an audit they are one run; what is refused."""

import io

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import functional
from spherenorm import rules as r
from tests.harness import refuses

S = sn.schedule
HIDDEN = {r".*[02]\.weight": "matrix"}
MUON, ADAMW = sn.bind("muon", lr=0.02), sn.bind("adamw", lr=3e-3)
BATCH = torch.linspace(-1, 1, 96, dtype=torch.float64).reshape(16, 6).sin()


def make_model():
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def by_shape(name, weight):
    return "matrix" if weight.ndim == 2 and name != "4.weight" else "*"


def both(lr=0.02, adam_lr=3e-3, momentum=0.95):
    rules = {"matrix": sn.recipes.muon(lr=lr, momentum=momentum), "*": sn.recipes.adamw(lr=adam_lr)}
    return sn.partition(rules, HIDDEN)


def partition_by(labels):
    return sn.partition({"matrix": MUON, "*": ADAMW}, labels)


def make_grads(params, t):
    generator = torch.Generator().manual_seed(t)
    return {
        name: torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        for name, weight in params.items()
    }


def run_pure(rule, n_steps=20):
    params = {name: weight.detach() for name, weight in make_model().named_parameters()}
    state = functional.init(rule, params)
    for t in range(n_steps):
        params, state = functional.step(rule, params, make_grads(params, t), state)
    return params


def run_optimizer(make_optimizer, n_steps=20):
    """Train, saved and loaded in the middle."""
    model = make_model()
    params = dict(model.named_parameters())
    optimizer = make_optimizer(model)
    for t in range(n_steps):
        if t == n_steps // 2:
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer = make_optimizer(model)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        for name, grad in make_grads(params, t).items():
            params[name].grad = grad
        optimizer.step()
    return {name: weight.detach() for name, weight in params.items()}


def assert_equal(params, others):
    assert params.keys() == others.keys()
    for name, weight in params.items():
        assert torch.equal(weight, others[name]), name


def audited(model):
    return sn.param_groups(model, BATCH, MUON, rest=ADAMW)


PURE = {
    "patterns": lambda: partition_by(HIDDEN),
    "function": lambda: partition_by(by_shape),
    "roles": lambda: partition_by(sn.roles(make_model(), BATCH)),
    "recipe": both,
    "audit": lambda: audited(make_model()).partition,
}
OPTIMIZERS = {
    "groups": lambda model, **backend: sn.optim.AdamW(
        partition_by(HIDDEN).groups(model.named_parameters()), **backend
    ),
    "class": lambda model, **backend: sn.torch_optimizer(both)(model.named_parameters(), **backend),
    "audit": lambda model, **backend: sn.optim.Muon(audited(model), **backend),
}


@pytest.fixture(scope="module")
def reference():
    """The run in which each parameter is stepped by a rule that was chosen by hand."""
    params = {name: weight.detach() for name, weight in make_model().named_parameters()}
    rules = {
        name: (MUON if by_shape(name, w) == "matrix" else ADAMW).rule for name, w in params.items()
    }
    states = {name: rules[name].init(weight) for name, weight in params.items()}
    for t in range(20):
        for name, grad in make_grads(params, t).items():
            params[name], states[name] = rules[name].step(params[name], grad, states[name])
    return params


@pytest.mark.parametrize("name", PURE)
def test_a_pure_partition_steps_each_parameter_by_its_rule(name, reference):
    assert_equal(run_pure(PURE[name]()), reference)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_of_a_partition_has_its_bits(name, reference):
    assert_equal(run_optimizer(lambda m: OPTIMIZERS[name](m, backend="rule")), reference)


def test_all_optimizers_have_one_run_by_kernels():
    first, *others = [run_optimizer(make) for make in OPTIMIZERS.values()]
    for params in others:
        assert_equal(first, params)


def test_a_sweep_has_each_point_of_a_partition():
    points = {"lr": [0.01, 0.02], "adam_lr": [1e-3, 5e-3]}
    model = make_model()

    def loss(params):
        return torch.func.functional_call(model, params, (BATCH,)).square().mean()

    start = {name: weight.detach() for name, weight in model.named_parameters()}
    result = functional.sweep(
        both, loss, {name: weight[None] for name, weight in start.items()}, points, steps=10
    )
    for i, (lr, adam_lr) in enumerate(zip(*points.values(), strict=True)):
        rule, params = both(lr, adam_lr), start
        state = functional.init(rule, params)
        for _ in range(10):
            grads = torch.func.grad(loss)(params)
            params, state = functional.step(rule, params, grads, state)
        for name, weight in params.items():
            torch.testing.assert_close(result.params[name][i, 0], weight, rtol=1e-12, atol=1e-14)


def scheduled(lr=0.02):
    rate = S.warmup_cosine(lr, 5, 20)
    muon = sn.recipes.muon(lr=rate, momentum=S.trapezoid(0.85, 0.95, 5, 20, 5))
    return sn.partition({"matrix": muon, "*": sn.recipes.adamw(lr=0.15 * rate)}, HIDDEN)


def test_parts_have_schedules():
    make = sn.torch_optimizer(scheduled)
    params = run_optimizer(lambda model: make(model.named_parameters(), backend="rule"))
    for name, weight in run_pure(scheduled()).items():
        torch.testing.assert_close(params[name], weight, rtol=1e-12, atol=1e-14)


def test_global_sums_are_over_all_parts():
    rules = {"matrix": "prodigy", "*": sn.bind("prodigy", weight_decay=0.1)}
    rule = sn.partition(rules, HIDDEN)
    params = run_optimizer(lambda model: rule.optimizer(model.named_parameters()))
    for name, weight in run_pure(rule).items():
        torch.testing.assert_close(params[name], weight, rtol=1e-12, atol=1e-14)


def test_evaluation_weights_are_those_of_the_parts():
    rule = sn.partition({"matrix": "schedulefree_sgd", "*": "adamw"}, HIDDEN)
    params = {"0.weight": torch.ones(2, 2), "bias": torch.ones(2)}
    state = functional.init(rule, params)
    params, state = functional.step(rule, params, make_grads(params, 0), state)
    weights = functional.eval_weight(rule, params, state)
    assert torch.equal(weights["0.weight"], state["0.weight"]["x"])
    assert torch.equal(weights["bias"], params["bias"])


def test_the_class_shows_its_parts():
    model = make_model()
    optimizer = sn.torch_optimizer(both)(model.named_parameters())
    assert [group["part"] for group in optimizer.param_groups] == ["matrix", "*"]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 4]
    optimizer.param_groups[1]["adam_lr"] = 0.5
    assert optimizer.rule_of(optimizer.param_groups[1]).rules[-1] == r.StepSize(0.5)
    assert type(partition_by(HIDDEN).optimizer(model.named_parameters())) is sn.optim.AdamW


def both_of_a_typo(lr=0.02):
    rules = {"matrix": sn.recipes.muon(lr=lr), "*": sn.recipes.adamw(lr=lr)}
    return sn.partition(rules, {r".*2\.weight": "matrix", "0.wieght": "matrix"})


def two(*labels, where=None):
    return sn.partition(dict.fromkeys(labels, "sgd"), where or {"a.*": labels[0]})


REFUSED = {
    "label": (lambda: two("matrix", "*", where={"a": "matirx"}), "no rule is for the label"),
    "unused": (lambda: two("matrix", "head", "*"), "no pattern gives the label 'head'"),
    "role": (lambda: two("matirx", "*", where=roles()), "did you mean matrix?"),
    "no rest": (lambda: two("matrix", where=roles()), "no rule is for the label 'head'"),
    "no label": (lambda: two("x").label("b", BATCH), "label '*' of parameter 'b'"),
    "function": (lambda: two("x", where=lambda n, w: "y").label("b", BATCH), "the label 'y'"),
    "nested": (lambda: sn.partition({"x": both}, {"a": "x"}), "'x' is a partition itself"),
    "chain": (lambda: sn.chain(both(), r.StepSize(1.0)), "no rule can hold it"),
    "wrapper": (lambda: sn.bind(sn.wrappers.averaged(both)).rule, "no rule can hold it"),
    "no names": (lambda: sn.torch_optimizer(both)(make_model().parameters()), "named_parameters()"),
    "groups": (lambda: both().groups([]), "'matrix' has a rule, and a param_group names a recipe"),
    "pattern": (lambda: two("x", where={"(": "x"}), "'(' is no regular expression"),
    "names nothing, pure": (
        lambda: functional.init(two("x", "*", where={"wieght": "x"}), {"weight": BATCH}),
        "matches 'wieght', the pattern of 'x'; did you mean weight?",
    ),
    "names nothing, groups": (
        lambda: partition_by({"0.wieght": "matrix"}).optimizer(make_model().named_parameters()),
        "matches '0.wieght'",
    ),
    "names nothing, class": (
        lambda: sn.torch_optimizer(both_of_a_typo)(make_model().named_parameters()),
        "matches '0.wieght'",
    ),
    "list": (lambda: two("x", where=["x"]), "got ['x']"),
    "init": (lambda: both().init(BATCH), "partition.rules['matrix']"),
    "export": (lambda: sn.export(both()), "'matrix' has a rule"),
    "check": (lambda: sn.testing.check(both), "check the recipes of its parts"),
}


def roles():
    return sn.roles(make_model(), BATCH)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_partition_cannot_do_is_refused(name):
    make, message = REFUSED[name]
    with refuses(message, by=(TypeError, ValueError)):
        make()


def test_groups_of_one_recipe_have_labels_of_their_own():
    groups = sn.param_groups(
        make_model(),
        BATCH,
        "graft(muon, adamw)",
        rest=ADAMW,
        decay=0.1,
        overrides={"2.weight": {"lr": 0.5}, "4.*": {"lr": 0.25}},
    )
    partition = groups.partition
    assert partition.labels == ("graft(muon, adamw)", "adamw", "graft(muon, adamw) 2", "adamw 2")
    for group, bound in zip(groups, partition.bounds, strict=True):
        assert {name: bound.hyper_parameters[name] for name in group if name in bound.defaults} == {
            name: group[name] for name in group if name in bound.defaults
        }


def test_a_refused_parameter_adds_no_group():
    optimizer = sn.torch_optimizer(both)(make_model().named_parameters())
    weight = torch.ones(2, 2, dtype=torch.complex64, requires_grad=True)
    with refuses("complex", by=TypeError):
        optimizer.add_param_group({"params": [("0.weight", torch.ones(2, 2)), ("b", weight)]})
    assert len(optimizer.param_groups) == 2
