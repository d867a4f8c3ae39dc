"""`roles`: the part of each parameter, where names say nothing, and groups of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import spherenorm as sn
from tests.audit.zoo.parts import Net, linear, parameter
from tests.harness.refusals import refuses


def gpt(tied, dim=8, tokens=11):
    """One block, with learned positions and normalized queries and keys; names say nothing."""

    def forward(self, tokens, targets=None):
        x = self.a(tokens) + self.b[: tokens.shape[1]]
        parts = self.c(F.layer_norm(x, (dim,))).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)
        q, k = (F.rms_norm(part, part.shape[-1:]) for part in (q, k))
        x = x + self.d(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = x + self.f(F.gelu(self.e(F.layer_norm(x, (dim,)))))
        logits = 30 * torch.tanh(self.g(F.layer_norm(x, (dim,))) / 30)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    net = Net(
        forward,
        a=nn.Embedding(tokens, dim),
        c=linear(dim, 3 * dim),
        d=linear(dim, dim),
        e=nn.Linear(dim, 4 * dim),
        f=nn.Linear(4 * dim, dim),
        g=linear(dim, tokens),
    )
    net.b = parameter(6, dim)
    if tied:
        net.g.weight = net.a.weight
    return net


def tokens():
    return torch.randint(11, (2, 6))


def resnet():
    def forward(self, x):
        x = self.b(self.a(x)).relu()
        x = x + self.d(self.c(x).relu())
        return self.e(x.mean((2, 3)))

    return Net(
        forward,
        a=nn.Conv2d(3, 8, 3, padding=1, bias=False),
        b=nn.BatchNorm2d(8),
        c=nn.Conv2d(8, 8, 3, padding=1),
        d=nn.Conv2d(8, 8, 3, padding=1, groups=8),
        e=nn.Linear(8, 5),
    )


def mixture(form):
    """Experts as one stack of matrices, applied in one of four ways."""

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        best = shares.argmax(-1)
        if form == "einsum":
            hidden = torch.einsum("nd,edk->enk", x, self.up).relu()
            y = torch.einsum("enk,ekd,ne->nd", hidden, self.down, shares)
        elif form == "bmm":
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

    net = Net(forward, gate=linear(8, 4), out=nn.Linear(8, 3))
    net.up, net.down = parameter(4, 8, 16), parameter(4, 16, 8)
    return net


def found(roles):
    """The roles of all that has two or more dimensions."""
    return {each.name: each.role for each in roles if len(each.shape) > 1}


GPT = {
    **{"b": "vector", "a.weight": "embedding", "g.weight": "head"},
    **dict.fromkeys(("c.weight", "d.weight", "e.weight", "f.weight"), "matrix"),
}
TIED = {**GPT, "a.weight": "tied"}
del TIED["g.weight"]


@pytest.mark.parametrize("with_loss", [False, True])
@pytest.mark.parametrize(("tied", "expected"), [(False, GPT), (True, TIED)])
def test_a_language_model(tied, expected, with_loss):
    batch = (tokens(), tokens()) if with_loss else (tokens(),)
    assert found(sn.roles(gpt(tied), batch)) == expected


def test_a_convolutional_network():
    roles = sn.roles(resnet(), torch.randn(4, 3, 8, 8))
    convolutions = {"a.weight": "convolution", "c.weight": "convolution"}
    assert found(roles) == {**convolutions, "d.weight": "vector", "e.weight": "head"}
    assert "a filter for each channel by itself" in str(roles)


@pytest.mark.parametrize("form", ["einsum", "bmm", "loop", "gathered"])
def test_stacks_of_experts(form):
    stacks = {"up": "experts", "down": "experts"}
    assert found(sn.roles(mixture(form), torch.randn(16, 8))) == {
        **stacks,
        "gate.weight": "matrix",
        "out.weight": "head",
    }


def test_matrices_of_three_dimensions():
    """(d, h, k) is one matrix, dimension 0 by the others; (h, k, d) of its first two is not."""

    def forward(self, x):
        heads = torch.einsum("bd,dhk->bhk", x, self.into)
        return self.last(torch.einsum("bhk,hkd->bd", heads, self.out).relu())

    net = Net(forward, last=linear(8, 3))
    net.into, net.out = parameter(8, 2, 4), parameter(2, 4, 8)
    roles = {"into": "matrix", "out": "other", "last.weight": "head"}
    assert found(sn.roles(net, torch.randn(5, 8))) == roles


def test_a_weight_is_followed_through_what_is_made_of_it():
    """Weight normalization, a low-rank sum, a mask, and a scale for each output."""

    def forward(self, x):
        x = self.normal(x).relu()
        x = F.linear(x, self.plain.weight + self.left @ self.right).relu()
        x = F.linear(x, self.masked * torch.eye(6)).relu()
        return self.last(x * self.scale.T)

    normal = nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))
    net = Net(forward, normal=normal, plain=linear(6, 6), last=linear(6, 2))
    net.left, net.right, net.masked = parameter(6, 2), parameter(2, 6), parameter(6, 6)
    net.scale = parameter(6, 1)
    assert found(sn.roles(net, torch.randn(5, 8))) == {
        "normal.parametrizations.weight.original0": "vector",
        "normal.parametrizations.weight.original1": "matrix",
        **dict.fromkeys(("plain.weight", "left", "right", "masked"), "matrix"),
        "scale": "vector",
        "last.weight": "head",
    }


@pytest.mark.parametrize(("cell", "length"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 3)])
def test_recurrent_layers_and_the_head_behind_them(cell, length):
    """Their products with the state, of zeros at first, become sums in place."""

    def forward(self, x):
        return self.head(self.layer(x)[0])

    net = Net(forward, layer=cell(4, 6, batch_first=True, num_layers=2), head=linear(6, 3))
    roles = found(sn.roles(net, torch.randn(2, length, 4)))
    assert roles.pop("head.weight") == "head"
    assert len(roles) == 4
    assert set(roles.values()) == {"matrix"}


def test_a_parameter_that_is_written_stays_one():
    """A codebook that follows its batch, as in a VQ-VAE."""

    def forward(self, x):
        nearest = torch.cdist(x, self.codes.weight).argmin(-1)
        self.codes.weight.data.index_copy_(0, nearest, x.detach())
        return self.head(self.codes(nearest))

    net = Net(forward, codes=nn.Embedding(9, 4), head=linear(4, 2))
    roles = {"codes.weight": "embedding", "head.weight": "head"}
    assert found(sn.roles(net, torch.randn(3, 4))) == roles


def test_matrices_of_constants_are_matrices():
    """A bias made of coordinates, as Swin v2 has it, a filtered grid, and a table by its norm."""

    def forward(self, x, tokens):
        x = self.into(x) + self.second(self.first(self.grid).relu())
        x = x + self.filters(self.grid.T[None]).mT[0]
        return self.head(x.relu() + self.table(tokens))

    table = nn.utils.parametrizations.spectral_norm(nn.Embedding(7, 6))
    net = Net(forward, into=linear(4, 6), first=nn.Linear(2, 8), second=nn.Linear(8, 6))
    net.filters, net.table, net.head = nn.Conv1d(2, 6, 3, padding=1), table, linear(6, 3)
    net.register_buffer("grid", torch.randn(5, 2))
    assert found(sn.roles(net, (torch.randn(5, 4), torch.arange(5)))) == {
        **dict.fromkeys(("into.weight", "first.weight", "second.weight"), "matrix"),
        "filters.weight": "convolution",
        "table.parametrizations.weight.original": "embedding",
        "head.weight": "head",
    }


def test_what_is_added_to_a_product_is_no_factor_of_it():
    def forward(self, x):
        x = torch.addmm(self.position, x, self.into)
        scores = torch.baddbmm(self.bias, x.expand(2, 5, 6), x.expand(2, 5, 6).mT)
        x = (scores.softmax(-1) @ x).sum(0).addmm_(x, self.last)
        return self.pairs(x.relu(), x.relu())

    net = Net(forward, pairs=nn.Bilinear(6, 6, 3))
    net.position, net.bias = parameter(5, 6), parameter(2, 5, 5)
    net.into, net.last = parameter(4, 6), parameter(6, 6)
    assert found(sn.roles(net, torch.randn(5, 4))) == {
        **dict.fromkeys(("position", "bias"), "vector"),
        **dict.fromkeys(("into", "last"), "matrix"),
        "pairs.weight": "head",
    }


def test_all_last_matrices_are_heads_and_no_residual_branch_is():
    def forward(self, x):
        x = x + self.branch(x) + self.other(x)
        return {"boxes": self.boxes(x), "classes": self.classes(x).log_softmax(-1), "state": x}

    net = Net(forward, **{n: linear(8, 8) for n in ("branch", "other", "boxes", "classes")})
    roles = found(sn.roles(net, torch.randn(5, 8)))
    assert {name for name, role in roles.items() if role == "head"} == {
        "boxes.weight",
        "classes.weight",
    }


def test_what_a_pass_does_not_reach_has_the_role_of_its_module():
    def forward(self, x):
        return self.used(x)

    net = Net(forward, used=linear(8, 3), unused=linear(8, 3))
    net.own = parameter(3, 3)
    roles = sn.roles(net, torch.randn(5, 8))
    assert found(roles) == {"used.weight": "head", "unused.weight": "matrix", "own": "unmeasured"}
    assert str(roles).count("not used on this batch") == 2


def test_without_inputs_it_says_which_roles_it_cannot_measure():
    roles = sn.roles(gpt(tied=True))
    assert roles.unmeasured == ("b", "c.weight", "d.weight", "e.weight", "f.weight")
    assert found(roles)["a.weight"] == "tied"  # by identity
    assert sn.roles(resnet()).unmeasured == ("e.weight",)


def recipes(groups):
    own = {each.name: groups[each.group].get("recipe", "own") for each in groups.assignments}
    return {name: recipe for name, recipe in own.items() if not name.endswith("bias")}


@pytest.mark.parametrize("recipe", ["muon", "rotational(adamw)", "hyperball(lion)"])
def test_a_recipe_for_matrices_gets_the_hidden_ones(recipe):
    net, batch = gpt(tied=False), tokens()
    assert sn.audit(net, batch).roles == sn.roles(net, batch)
    groups = sn.param_groups(net, batch, recipe, rest="adamw", lr=0.02)
    expected = {name: "own" if role == "matrix" else "adamw" for name, role in GPT.items()}
    assert recipes(groups) == expected
    assert "for hidden matrices, not embedding" in str(groups)
    optimizer = sn.torch_optimizer(recipe, "Own")(groups)
    net(batch).square().mean().backward()
    optimizer.step()


def test_roles_have_recipes_and_lines_are_overridden():
    net, batch = gpt(tied=False), tokens()
    groups = sn.param_groups(
        net,
        batch,
        "muon",
        rest="adamw",
        by_role={"head": sn.bind("adamh", lr=0.01), "matrix": "muon"},
        overrides={
            "d.weight": "head",
            "c.weight": "groups=3",
            "b": {"as": "matrix", "lr": 0.5},
            "e.weight": "euclidean",
        },
    )
    own = {"a.weight": "adamw", "d.weight": "adamh", "e.weight": "adamw", "g.weight": "adamh"}
    assert recipes(groups) == {**dict.fromkeys(GPT, "own"), **own}
    place = {each.name: groups[each.group] for each in groups.assignments}
    assert place["c.weight"]["view"] == "groups=3"  # each of three parts is one matrix
    assert place["f.weight"]["view"] == "layer"
    assert (place["b"]["lr"], place["g.weight"]["lr"]) == (0.5, 0.01)


def test_each_expert_is_a_matrix_of_its_own():
    net, batch = mixture("bmm"), torch.randn(16, 8)
    groups = sn.param_groups(net, batch, "muon", rest="adamw", lr=0.1)
    net(batch).square().mean().backward()
    rule, expert = sn.bind("muon", lr=0.1).rule, net.up[2].detach().clone()
    alone, _ = rule.step(expert, net.up.grad[2], rule.init(expert))
    sn.optim.Muon(groups).step()
    torch.testing.assert_close(net.up[2].detach(), alone)
    by_role = sn.param_groups(net, batch, "adamw", by_role={"experts": sn.bind("muon", lr=0.1)})
    assert by_role[by_role.assignments[0].group]["view"] == "channel"
    others = sn.param_groups(net, batch, "normuon", rest="adamw")
    assert recipes(others)["up"] == "adamw"
    assert "it takes no view" in str(others)


def test_groups_without_a_batch_where_the_user_gives_the_roles():
    net = gpt(tied=False)
    overrides = {"[cdef].weight": "matrix", "g.weight": "head", "b": "vector"}
    groups = sn.param_groups(net, None, "muon", rest="adamw", overrides=overrides)
    assert recipes(groups) == {n: "own" if role == "matrix" else "adamw" for n, role in GPT.items()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"recipe": "muon"}, ["b", "muon", "vector", "rest"]),
        ({"recipe": "muon", "rest": "sgd", "batch": None}, ["b", "c.weight", "d.weight"]),
        ({"recipe": "adamp", "batch": None}, ["adamp", "audit"]),
        ({"recipe": "sgd", "by_role": {"haed": "sgd"}}, ["by_role", "haed", "head"]),
        ({"recipe": "sgd", "overrides": {"b": "haed"}}, ["b", "haed", "head"]),
    ],
)
def test_refusals(settings, named):
    with refuses(*named):
        sn.param_groups(gpt(tied=False), **{"batch": tokens(), **settings})


def test_groups_for_optimizers_of_torch_step_each_parameter_once():
    net, batch = gpt(tied=False), tokens()
    found = sn.roles(net, batch)
    matrices, small, rest = found.groups(net, {"matrix": {"lr": 0.1}, ("vector", "head"): {}})
    assert {n for n in matrices["param_names"] if "bias" not in n} == {
        name for name, role in GPT.items() if role == "matrix"
    }
    assert rest["param_names"] == ["a.weight"]
    optimizers = torch.optim.Muon([matrices]), torch.optim.AdamW([small, rest])
    assert optimizers[0].param_groups[0]["lr"] == 0.1
    before = [x.detach().clone() for x in net.parameters()]
    net(batch).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    assert not any(map(torch.equal, before, net.parameters()))
    for options in ({"haed": {}}, {"head": {}, ("matrix", "head"): {}}):
        with refuses("options", next(iter(options)) if "haed" in options else "head"):
            found.groups(net, options)
    with refuses("roles", "another model"):
        found.groups(nn.Linear(2, 2), {})
    with refuses("unmeasured", "batch"):
        sn.roles(net).groups(net, {})


@pytest.mark.parametrize(
    ("preset", "recipe"), [("muon+adamw", "muon"), ("hyperball", "hyperball(adam)")]
)
def test_a_preset_is_its_recipe_with_the_usual_rest(preset, recipe):
    net, batch = gpt(tied=True), tokens()
    groups = sn.param_groups(net, batch, preset, lr=0.03)
    assert str(groups) == str(sn.param_groups(net, batch, recipe, rest="adamw", lr=0.03))
    net(batch).square().mean().backward()
    groups.optimizer().step()
    given = sn.param_groups(net, batch, preset, rest="lion")
    assert set(recipes(given).values()) == {"own", "lion"}


def test_learning_rates_that_print_alike_are_two_groups():
    net, batch = gpt(tied=True), tokens()
    rates = [torch.tensor(1.2e-4), torch.tensor(1.4e-4)]
    overrides = {"c.weight": {"lr": rates[0]}, "d.weight": {"lr": rates[1]}}
    groups = sn.param_groups(net, batch, "adamw", overrides=overrides)
    own = {each.name: groups[each.group]["lr"] for each in groups.assignments}
    assert (own["c.weight"], own["d.weight"]) == tuple(rates)
