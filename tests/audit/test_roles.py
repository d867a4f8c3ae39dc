"""`roles`: the part of each parameter, where names say nothing, and groups of them."""

import re

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


def roles_of_weights(roles):
    """The roles of all that has two or more dimensions."""
    return {parameter.name: parameter.role for parameter in roles if len(parameter.shape) > 1}


MATRICES = dict.fromkeys(("c.weight", "d.weight", "e.weight", "f.weight"), "matrix")
GPT = {"b": "vector", "a.weight": "embedding", "g.weight": "head", **MATRICES}
TIED = {"b": "vector", "a.weight": "tied", **MATRICES}


@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize(("tied", "expected"), [(False, GPT), (True, TIED)])
def test_a_language_model(tied, expected, with_loss):
    batch = (tokens(), tokens()) if with_loss else (tokens(),)
    assert roles_of_weights(sn.roles(gpt(tied), batch)) == expected


def experts(form):
    """Experts as one stack of matrices, applied in one of three ways."""

    def forward(self, x):
        shares = self.matrix(x).softmax(-1)
        best = shares.argmax(-1)
        up, down = self.experts_up, self.experts_down
        if form == "bmm":
            hidden = torch.bmm(x.expand(4, *x.shape), up).relu()
            y = (torch.bmm(hidden, down) * shares.T[..., None]).sum(0)
        elif form == "loop":
            y = torch.zeros_like(x)
            for e in range(4):
                mine = (best == e).nonzero()[:, 0]
                y[mine] = (x[mine] @ up[e]).relu() @ down[e] * shares[mine, e, None]
        else:
            y = torch.bmm(torch.bmm(x[:, None], up[best]).relu(), down[best])[:, 0]
        return self.head(x + y)

    return forward


def mixture():
    parts = {"experts_up": parameter(4, 8, 16), "experts_down": parameter(4, 16, 8)}
    return {**parts, "matrix": linear(8, 4), "head": nn.Linear(8, 3)}


# In the models that follow, each weight is named after its role, which no role is read from.


def convolutional(self, x):
    x = self.norm(self.convolution_a(x)).relu()
    return self.head((x + self.vector(self.convolution_b(x).relu())).mean((2, 3)))


def three_dimensional(self, x):
    """(d, h, k) is one matrix, dimension 0 by the others; (h, k, d) of its first two is not."""
    heads = torch.einsum("bd,dhk->bhk", x, self.matrix)
    return self.head(torch.einsum("bhk,hkd->bd", heads, self.other).relu())


def made_of_it(self, x):
    """A low-rank sum, a mask, and a scale for each output."""
    x = F.linear(x, self.matrix.weight + self.matrix_left @ self.matrix_right).relu()
    x = F.linear(x, self.matrix_masked * torch.eye(8)).relu()
    return self.head(x * self.vector.T)


def codebook(self, x):
    """A parameter that is written, as it follows its batch in a VQ-VAE, stays one."""
    nearest = torch.cdist(x, self.embedding.weight).argmin(-1)
    self.embedding.weight.data.index_copy_(0, nearest, x.detach())
    return self.head(self.embedding(nearest))


def of_constants(self, x, tokens):
    """A bias made of coordinates, as Swin v2 has it, a filtered grid, and a table by its norm."""
    grid = torch.linspace(-1, 1, 10).reshape(5, 2)
    x = self.matrix(x) + self.matrix_b(self.matrix_a(grid).relu())
    x = x + self.convolution(grid.T[None]).mT[0]
    return self.head(x.relu() + self.embedding(tokens))


def added(self, x):
    """Terms of a sum are no factors of the product beside them."""
    x = torch.addmm(self.vector, x, self.matrix)
    scores = torch.baddbmm(self.vector_bias, x.expand(2, 5, 6), x.expand(2, 5, 6).mT)
    x = (scores.softmax(-1) @ x).sum(0).addmm_(x, self.matrix_b)
    return self.head(x.relu(), x.relu())


def several_heads(self, x):
    x = x + self.matrix_a(x) + self.matrix_b(x)
    return {"boxes": self.head_a(x), "classes": self.head_b(x).log_softmax(-1), "state": x}


def recurrent(self, x):
    """Products with the state, of zeros at first, become sums in place."""
    return self.head(self.matrix(x)[0])


def weight_norm(self, x):
    return self.head(self.normed(x).relu())


def normed(kind, layer):
    return getattr(nn.utils.parametrizations, kind)(layer)


@pytest.mark.parametrize(
    ("forward", "shapes", "parts"),
    [
        (
            convolutional,
            [(4, 3, 8, 8)],
            lambda: {
                **{"convolution_a": nn.Conv2d(3, 8, 3, padding=1), "norm": nn.BatchNorm2d(8)},
                **{"convolution_b": nn.Conv2d(8, 8, 3, padding=1), "head": nn.Linear(8, 5)},
                "vector": nn.Conv2d(8, 8, 3, padding=1, groups=8),
            },
        ),
        (
            three_dimensional,
            [(5, 8)],
            lambda: {
                **{"matrix": parameter(8, 2, 4), "other": parameter(2, 4, 8), "head": linear(8, 3)}
            },
        ),
        (
            made_of_it,
            [(5, 8)],
            lambda: {
                **{"matrix": linear(8, 8), "matrix_left": parameter(8, 2), "head": linear(8, 2)},
                **{"matrix_right": parameter(2, 8), "matrix_masked": parameter(8, 8)},
                "vector": parameter(8, 1),
            },
        ),
        (recurrent, [(2, 1, 4)], lambda: {"matrix": nn.RNN(4, 6), "head": linear(6, 3)}),
        (recurrent, [(2, 3, 4)], lambda: {"matrix": nn.GRU(4, 6), "head": linear(6, 3)}),
        (recurrent, [(2, 3, 4)], lambda: {"matrix": nn.LSTM(4, 6), "head": linear(6, 3)}),
        (codebook, [(3, 4)], lambda: {"embedding": nn.Embedding(9, 4), "head": linear(4, 2)}),
        (
            of_constants,
            [(5, 4), 5],
            lambda: {
                **{"matrix": linear(4, 6), "matrix_a": nn.Linear(2, 8), "head": linear(6, 3)},
                **{"matrix_b": nn.Linear(8, 6), "convolution": nn.Conv1d(2, 6, 3, padding=1)},
                "embedding": normed("spectral_norm", nn.Embedding(7, 6)),
            },
        ),
        (
            added,
            [(5, 4)],
            lambda: {
                **{"vector": parameter(5, 6), "vector_bias": parameter(2, 5, 5)},
                **{"matrix": parameter(4, 6), "matrix_b": parameter(6, 6)},
                "head": nn.Bilinear(6, 6, 3),
            },
        ),
        (
            several_heads,
            [(5, 8)],
            lambda: {n: linear(8, 8) for n in ("matrix_a", "matrix_b", "head_a", "head_b")},
        ),
        (
            lambda self, x: self.head(x),
            [(5, 8)],
            lambda: {"head": linear(8, 3), "matrix": linear(8, 3), "unmeasured": parameter(3, 3)},
        ),
        *((experts(form), [(16, 8)], mixture) for form in ("bmm", "loop", "looked up")),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_the_role_is_what_a_weight_does(forward, shapes, parts):
    batch = [torch.arange(x) if isinstance(x, int) else torch.randn(x) for x in shapes]
    roles = sn.roles(Net(forward, **parts()), batch)
    assert {
        name: re.split(r"[_.]", name)[0] for name in roles_of_weights(roles)
    } == roles_of_weights(roles)
    assert all(
        parameter.name in str(roles) and parameter.reason in str(roles) for parameter in roles
    )


def test_a_matrix_of_normalized_rows_is_one_and_their_lengths_are_a_vector():
    net = Net(weight_norm, normed=normed("weight_norm", nn.Linear(8, 6)), head=linear(6, 2))
    assert list(roles_of_weights(sn.roles(net, torch.randn(5, 8))).values()) == [
        "vector",
        "matrix",
        "head",
    ]


def recipes(groups):
    recipe_by_name = {
        assignment.name: groups[assignment.group].get("recipe", "own")
        for assignment in groups.assignments
    }
    return {name: recipe for name, recipe in recipe_by_name.items() if not name.endswith("bias")}


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


def test_lines_are_overridden_by_roles_views_and_recipes():
    net, batch = gpt(), tokens()
    overrides = {
        **{"d.weight": "head", "c.weight": "groups=3", "e.weight": "euclidean"},
        **{"b": {"as": "matrix", "lr": 0.5}, "g.weight": {"recipe": sn.bind("adamh", lr=0.01)}},
    }
    groups = sn.param_groups(net, batch, "muon", rest="adamw", overrides=overrides)
    overridden = {
        "a.weight": "adamw",
        "d.weight": "adamw",
        "e.weight": "adamw",
        "g.weight": "adamh",
    }
    assert recipes(groups) == {**dict.fromkeys(GPT, "own"), **overridden}
    stepped = groups.optimizer().param_groups
    group_by_name = {
        assignment.name: stepped[assignment.group] for assignment in groups.assignments
    }
    assert group_by_name["c.weight"]["view"] == "groups=3"  # each of three parts is one matrix
    assert group_by_name["f.weight"]["view"] == "layer"
    assert (group_by_name["b"]["lr"], group_by_name["g.weight"]["lr"]) == (0.5, 0.01)


def test_each_expert_is_a_matrix_of_its_own():
    net, batch = Net(experts("bmm"), **mixture()), torch.randn(16, 8)
    groups = sn.param_groups(net, batch, "muon", rest="adamw", lr=0.1)
    net(batch).square().mean().backward()
    rule, expert = sn.bind("muon", lr=0.1).rule, net.experts_up[2].detach().clone()
    new_expert, _ = rule.step(expert, net.experts_up.grad[2], rule.init(expert))
    sn.optim.Muon(groups).step()
    torch.testing.assert_close(net.experts_up[2].detach(), new_expert)
    others = sn.param_groups(net, batch, "normuon", rest="adamw")
    assert recipes(others)["experts_up"] == "adamw"
    assert "it takes no view" in str(others)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"recipe": "muon"}, ["muon", "hidden matrices", "rest"]),
        ({"recipe": "sgd", "overrides": {"b": {"recipe": "sgdd"}}}, ["b", "sgdd", "sgd"]),
        ({"recipe": "sgd", "overrides": {"b": "haed"}}, ["b", "haed", "head"]),
    ],
)
def test_refusals(settings, named):
    with refuses(*named):
        sn.param_groups(gpt(), tokens(), **settings)


def test_groups_for_optimizers_of_torch_step_each_parameter_once():
    net, batch = gpt(), tokens()
    measured = sn.roles(net, batch)
    matrices, small, remaining = measured.groups(
        net, {"matrix": {"lr": 0.1}, ("vector", "head"): {}}
    )
    assert {n for n in matrices["param_names"] if "bias" not in n} == set(MATRICES)
    assert remaining["param_names"] == ["a.weight"]
    optimizers = torch.optim.Muon([matrices]), torch.optim.AdamW([small, remaining])
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


@pytest.mark.parametrize(
    ("preset", "recipe"), [("muon+adamw", "muon"), ("hyperball", "hyperball(adam)")]
)
def test_a_preset_is_its_recipe_with_the_usual_rest(preset, recipe):
    net, batch = gpt(tied=True), tokens()
    groups = sn.param_groups(net, batch, preset, lr=0.03)
    assert str(groups) == str(sn.param_groups(net, batch, recipe, rest="adamw", lr=0.03))
    groups = sn.param_groups(net, batch, preset, rest="lion")
    assert set(recipes(groups).values()) == {"own", "lion"}


def test_learning_rates_that_print_alike_are_two_groups():
    rates = [torch.tensor(1.2e-4), torch.tensor(1.4e-4)]
    overrides = {"c.weight": {"lr": rates[0]}, "d.weight": {"lr": rates[1]}}
    groups = sn.param_groups(gpt(), tokens(), "adamw", overrides=overrides)
    rate_by_name = {
        assignment.name: groups[assignment.group].get("lr") for assignment in groups.assignments
    }
    assert (rate_by_name["c.weight"], rate_by_name["d.weight"]) == tuple(rates)
