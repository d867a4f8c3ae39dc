"""`roles`: the part of each parameter, where names say nothing, and groups of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import spherenorm as sn
from tests.audit.zoo.parts import Net, linear, parameter
from tests.harness.refusals import refuses


def gpt(tied=False, dim=8, tokens=11):
    """One block, with learned positions and normalized queries and keys; names say nothing."""

    def forward(self, tokens, targets=None):
        x = self.a(tokens) + self.b[: tokens.shape[1]]
        parts = self.c(F.layer_norm(x, (dim,))).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        q, k = (F.rms_norm(part, part.shape[-1:]) for part in (q, k))
        x = x + self.d(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.f(F.gelu(self.e(F.layer_norm(x, (dim,)))))
        logits = 30 * torch.tanh(self.g(F.layer_norm(x, (dim,))) / 30)
        return logits if targets is None else F.cross_entropy(logits.mT, targets)

    net = Net(forward, a=nn.Embedding(tokens, dim), b=parameter(6, dim), g=linear(dim, tokens))
    net.c, net.d = linear(dim, 3 * dim), linear(dim, dim)
    net.e, net.f = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
    if tied:
        net.g.weight = net.a.weight
    return net


def tokens():
    return torch.randint(11, (2, 6))


def found(roles):
    """The roles of all that has two or more dimensions."""
    return {each.name: each.role for each in roles if len(each.shape) > 1}


MATRICES = dict.fromkeys(("c.weight", "d.weight", "e.weight", "f.weight"), "matrix")
GPT = {"b": "vector", "a.weight": "embedding", "g.weight": "head", **MATRICES}
TIED = {"b": "vector", "a.weight": "tied", **MATRICES}


@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize(("tied", "expected"), [(False, GPT), (True, TIED)])
def test_a_language_model(tied, expected, with_loss):
    batch = (tokens(), tokens()) if with_loss else (tokens(),)
    assert found(sn.roles(gpt(tied), batch)) == expected


def mixture(form="bmm"):
    """Experts as one stack of matrices, applied in one of three ways."""

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        best = shares.argmax(-1)
        if form == "bmm":
            hidden = torch.bmm(x.expand(4, *x.shape), self.up).relu()
            y = (torch.bmm(hidden, self.down) * shares.T[..., None]).sum(0)
        elif form == "loop":
            y = torch.zeros_like(x)
            for e in range(4):
                mine = (best == e).nonzero()[:, 0]
                y[mine] = (x[mine] @ self.up[e]).relu() @ self.down[e] * shares[mine, e, None]
        else:
            y = torch.bmm(torch.bmm(x[:, None], self.up[best]).relu(), self.down[best])[:, 0]
        return self.out(x + y)

    parts = {"up": parameter(4, 8, 16), "down": parameter(4, 16, 8)}
    return Net(forward, gate=linear(8, 4), out=nn.Linear(8, 3), **parts)


EXPERTS = {"up": "experts", "down": "experts", "gate.weight": "matrix", "out.weight": "head"}


def convolutional(self, x):
    x = self.b(self.a(x)).relu()
    return self.e((x + self.d(self.c(x).relu())).mean((2, 3)))


def three_dimensional(self, x):
    """(d, h, k) is one matrix, dimension 0 by the others; (h, k, d) of its first two is not."""
    heads = torch.einsum("bd,dhk->bhk", x, self.into)
    return self.last(torch.einsum("bhk,hkd->bd", heads, self.out).relu())


def made_of_it(self, x):
    """Weight normalization, a low-rank sum, a mask, and a scale for each output."""
    x = self.normal(x).relu()
    x = F.linear(x, self.plain.weight + self.left @ self.right).relu()
    x = F.linear(x, self.masked * torch.eye(6)).relu()
    return self.last(x * self.scale.T)


def codebook(self, x):
    """A parameter that is written, as it follows its batch in a VQ-VAE, stays one."""
    nearest = torch.cdist(x, self.codes.weight).argmin(-1)
    self.codes.weight.data.index_copy_(0, nearest, x.detach())
    return self.head(self.codes(nearest))


def of_constants(self, x, tokens):
    """A bias made of coordinates, as Swin v2 has it, a filtered grid, and a table by its norm."""
    grid = torch.linspace(-1, 1, 10).reshape(5, 2)
    x = self.into(x) + self.second(self.first(grid).relu())
    x = x + self.filters(grid.T[None]).mT[0]
    return self.head(x.relu() + self.table(tokens))


def added(self, x):
    """Terms of a sum are no factors of the product beside them."""
    x = torch.addmm(self.position, x, self.into)
    scores = torch.baddbmm(self.bias, x.expand(2, 5, 6), x.expand(2, 5, 6).mT)
    x = (scores.softmax(-1) @ x).sum(0).addmm_(x, self.last)
    return self.pairs(x.relu(), x.relu())


def several_heads(self, x):
    x = x + self.branch(x) + self.other(x)
    return {"boxes": self.boxes(x), "classes": self.classes(x).log_softmax(-1), "state": x}


def recurrent(self, x):
    """Products with the state, of zeros at first, become sums in place."""
    return self.head(self.layer(x)[0])


def cells(cell):
    return {"layer": cell(4, 6, batch_first=True), "head": linear(6, 3)}


def weight_norm(layer):
    return nn.utils.parametrizations.weight_norm(layer)


ORIGINAL = "parametrizations.weight.original"
CELL = {"layer.weight_ih_l0": "matrix", "layer.weight_hh_l0": "matrix", "head.weight": "head"}


@pytest.mark.parametrize(
    ("forward", "parts", "shapes", "expected"),
    [
        (
            convolutional,
            lambda: {
                **{"a": nn.Conv2d(3, 8, 3, padding=1), "b": nn.BatchNorm2d(8)},
                **{"c": nn.Conv2d(8, 8, 3, padding=1), "e": nn.Linear(8, 5)},
                "d": nn.Conv2d(8, 8, 3, padding=1, groups=8),
            },
            [(4, 3, 8, 8)],
            {
                **{"a.weight": "convolution", "c.weight": "convolution"},
                **{"d.weight": "vector", "e.weight": "head"},
            },
        ),
        (
            three_dimensional,
            lambda: {"into": parameter(8, 2, 4), "out": parameter(2, 4, 8), "last": linear(8, 3)},
            [(5, 8)],
            {"into": "matrix", "out": "other", "last.weight": "head"},
        ),
        (
            made_of_it,
            lambda: {
                **{"normal": weight_norm(nn.Linear(8, 6)), "plain": linear(6, 6)},
                **{"left": parameter(6, 2), "right": parameter(2, 6), "masked": parameter(6, 6)},
                **{"scale": parameter(6, 1), "last": linear(6, 2)},
            },
            [(5, 8)],
            {
                **{f"normal.{ORIGINAL}0": "vector", f"normal.{ORIGINAL}1": "matrix"},
                **dict.fromkeys(("plain.weight", "left", "right", "masked"), "matrix"),
                **{"scale": "vector", "last.weight": "head"},
            },
        ),
        (recurrent, lambda: cells(nn.RNN), [(2, 1, 4)], CELL),
        (recurrent, lambda: cells(nn.GRU), [(2, 3, 4)], CELL),
        (recurrent, lambda: cells(nn.LSTM), [(2, 3, 4)], CELL),
        (
            codebook,
            lambda: {"codes": nn.Embedding(9, 4), "head": linear(4, 2)},
            [(3, 4)],
            {"codes.weight": "embedding", "head.weight": "head"},
        ),
        (
            of_constants,
            lambda: {
                **{"into": linear(4, 6), "first": nn.Linear(2, 8), "second": nn.Linear(8, 6)},
                **{"filters": nn.Conv1d(2, 6, 3, padding=1), "head": linear(6, 3)},
                "table": nn.utils.parametrizations.spectral_norm(nn.Embedding(7, 6)),
            },
            [(5, 4), 5],
            {
                **dict.fromkeys(("into.weight", "first.weight", "second.weight"), "matrix"),
                **{"filters.weight": "convolution", "head.weight": "head"},
                f"table.{ORIGINAL}": "embedding",
            },
        ),
        (
            added,
            lambda: {
                **{"position": parameter(5, 6), "bias": parameter(2, 5, 5)},
                **{"into": parameter(4, 6), "last": parameter(6, 6)},
                "pairs": nn.Bilinear(6, 6, 3),
            },
            [(5, 4)],
            {
                **{"position": "vector", "bias": "vector", "into": "matrix", "last": "matrix"},
                "pairs.weight": "head",
            },
        ),
        (
            several_heads,
            lambda: {n: linear(8, 8) for n in ("branch", "other", "boxes", "classes")},
            [(5, 8)],
            {
                **{"branch.weight": "matrix", "other.weight": "matrix"},
                **{"boxes.weight": "head", "classes.weight": "head"},
            },
        ),
        (
            lambda self, x: self.used(x),
            lambda: {"used": linear(8, 3), "unused": linear(8, 3), "own": parameter(3, 3)},
            [(5, 8)],
            {"used.weight": "head", "unused.weight": "matrix", "own": "unmeasured"},
        ),
        *((mixture(form).function, lambda: {}, [(16, 8)], EXPERTS) for form in ("bmm", "loop", "")),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_role_is_what_a_weight_does(forward, parts, shapes, expected):
    net = Net(forward, **parts()) if parts() else mixture()
    net.function = forward
    batch = [torch.arange(x) if isinstance(x, int) else torch.randn(x) for x in shapes]
    roles = sn.roles(net, batch)
    assert found(roles) == expected
    assert all(each.name in str(roles) and each.reason in str(roles) for each in roles)


def test_without_inputs_it_says_which_roles_it_cannot_measure():
    roles = sn.roles(gpt(tied=True))
    assert roles.unmeasured == ("b", "c.weight", "d.weight", "e.weight", "f.weight")
    assert found(roles)["a.weight"] == "tied"  # by identity
    deep = nn.Conv2d(8, 8, 3, groups=8)
    by_modules = sn.roles(nn.Sequential(nn.Conv2d(3, 8, 3), deep, nn.Embedding(3, 2)))
    assert list(found(by_modules).values()) == ["convolution", "vector", "embedding"]


def recipes(groups):
    own = {each.name: groups[each.group].get("recipe", "own") for each in groups.assignments}
    return {name: recipe for name, recipe in own.items() if not name.endswith("bias")}


HIDDEN = {name: "own" if role == "matrix" else "adamw" for name, role in GPT.items()}


@pytest.mark.parametrize("recipe", ["muon", "rotational(adamw)", "hyperball(lion)"])
def test_a_recipe_for_matrices_gets_the_hidden_ones(recipe):
    net, batch = gpt(), tokens()
    assert sn.audit(net, batch).roles == sn.roles(net, batch)
    groups = sn.param_groups(net, batch, recipe, rest="adamw", lr=0.02)
    assert recipes(groups) == HIDDEN
    assert "for hidden matrices, not embedding" in str(groups)
    net(batch).square().mean().backward()
    groups.optimizer().step()


def test_roles_have_recipes_and_lines_are_overridden():
    groups = sn.param_groups(
        *(gpt(), tokens(), "muon"),
        rest="adamw",
        by_role={"head": sn.bind("adamh", lr=0.01), "matrix": "muon"},
        overrides={
            **{"d.weight": "head", "c.weight": "groups=3", "e.weight": "euclidean"},
            "b": {"as": "matrix", "lr": 0.5},
        },
    )
    own = {"a.weight": "adamw", "d.weight": "adamh", "e.weight": "adamw", "g.weight": "adamh"}
    assert recipes(groups) == {**dict.fromkeys(GPT, "own"), **own}
    place = {each.name: groups[each.group] for each in groups.assignments}
    assert place["c.weight"]["view"] == "groups=3"  # each of three parts is one matrix
    assert place["f.weight"]["view"] == "layer"
    assert (place["b"]["lr"], place["g.weight"]["lr"]) == (0.5, 0.01)


def test_each_expert_is_a_matrix_of_its_own():
    net, batch = mixture(), torch.randn(16, 8)
    groups = sn.param_groups(net, batch, "muon", rest="adamw", lr=0.1)
    net(batch).square().mean().backward()
    rule, expert = sn.bind("muon", lr=0.1).rule, net.up[2].detach().clone()
    alone, _ = rule.step(expert, net.up.grad[2], rule.init(expert))
    sn.optim.Muon(groups).step()
    torch.testing.assert_close(net.up[2].detach(), alone)
    by_role = sn.param_groups(net, batch, "adamw", by_role={"experts": sn.bind("muon", lr=0.1)})
    views = {each.name: by_role[each.group].get("view") for each in by_role.assignments}
    assert views["up"] == "channel"
    others = sn.param_groups(net, batch, "normuon", rest="adamw")
    assert recipes(others)["up"] == "adamw"
    assert "it takes no view" in str(others)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"recipe": "muon"}, ["muon", "hidden matrices", "rest"]),
        ({"recipe": "sgd", "by_role": {"haed": "sgd"}}, ["by_role", "haed", "head"]),
        ({"recipe": "sgd", "overrides": {"b": "haed"}}, ["b", "haed", "head"]),
    ],
)
def test_refusals(settings, named):
    with refuses(*named):
        sn.param_groups(gpt(), tokens(), **settings)


def test_groups_for_optimizers_of_torch_step_each_parameter_once():
    net, batch = gpt(), tokens()
    measured = sn.roles(net, batch)
    matrices, small, rest = measured.groups(net, {"matrix": {"lr": 0.1}, ("vector", "head"): {}})
    assert {n for n in matrices["param_names"] if "bias" not in n} == set(MATRICES)
    assert rest["param_names"] == ["a.weight"]
    optimizers = torch.optim.Muon([matrices]), torch.optim.AdamW([small, rest])
    assert optimizers[0].param_groups[0]["lr"] == 0.1
    before = [x.detach().clone() for x in net.parameters()]
    net(batch).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert not any(map(torch.equal, before, net.parameters()))
    for options, name in (({"haed": {}}, "haed"), ({"head": {}, ("head",): {}}, "head")):
        with refuses("options", name):
            measured.groups(net, options)
    with refuses("roles", "another model"):
        measured.groups(nn.Linear(2, 2), {})
    with refuses("unmeasured", "batch"):
        sn.roles(net).groups(net, {})


@pytest.mark.parametrize(
    ("preset", "recipe"), [("muon+adamw", "muon"), ("hyperball", "hyperball(adam)")]
)
def test_a_preset_is_its_recipe_with_the_usual_rest(preset, recipe):
    net, batch = gpt(tied=True), tokens()
    groups = sn.param_groups(net, batch, preset, lr=0.03)
    assert str(groups) == str(sn.param_groups(net, batch, recipe, rest="adamw", lr=0.03))
    given = sn.param_groups(net, batch, preset, rest="lion")
    assert set(recipes(given).values()) == {"own", "lion"}


def test_learning_rates_that_print_alike_are_two_groups():
    rates = [torch.tensor(1.2e-4), torch.tensor(1.4e-4)]
    overrides = {"c.weight": {"lr": rates[0]}, "d.weight": {"lr": rates[1]}}
    groups = sn.param_groups(gpt(), tokens(), "adamw", overrides=overrides)
    own = {each.name: groups[each.group]["lr"] for each in groups.assignments}
    assert (own["c.weight"], own["d.weight"]) == tuple(rates)
