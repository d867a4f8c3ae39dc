"""Rates of a narrow model in a wider one: fan-in as it is seen, factors, starts, and muP itself."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn

WIDTH, WIDER = 32, 128
INPUTS = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))


def mlp(width):
    layers = nn.Linear(16, width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    blocks = [module for layer in layers for module in (layer, nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


class Transposed(nn.Module):
    """Products `x @ W`, of which the second takes a copy of its weight."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, width) / 4)
        self.second = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.head = nn.Parameter(torch.randn(width, 10) / width**0.5)
        self.copied = nn.Parameter(torch.randn(width, 10) / width**0.5)

    def forward(self, x):
        hidden = torch.relu(torch.relu(x @ self.first) @ self.second)
        return hidden @ self.head + hidden @ (2 * self.copied)


def fan_in(model, batch):
    return {role.name: role.fan_in for role in sn.roles(model, batch)}


@pytest.mark.parametrize(
    ("model", "batch", "expected"),
    [
        (nn.Linear(4, 3), torch.randn(2, 4), {"weight": (1,), "bias": None}),
        (nn.Conv2d(3, 8, 3), torch.randn(2, 3, 5, 5), {"weight": (1, 2, 3), "bias": None}),
        (nn.ConvTranspose2d(3, 8, 3), torch.randn(2, 3, 5, 5), {"weight": (0, 2, 3), "bias": None}),
        (nn.Embedding(5, 3), torch.arange(4), {"weight": (0,)}),
        (
            Transposed(8),
            torch.randn(2, 16),
            {"first": (0,), "second": (0,), "head": (0,), "copied": None},
        ),
        (
            nn.MultiheadAttention(8, 2, bias=False),
            (torch.randn(3, 2, 8),) * 3,
            {"in_proj_weight": (1,), "out_proj.weight": (1,)},
        ),
    ],
    ids=["linear", "convolution", "transposed", "embedding", "x @ W", "attention"],
)
def test_fan_in_is_what_a_product_sums_over(model, batch, expected):
    assert fan_in(model, batch) == expected


def test_two_products_over_different_dimensions_have_no_fan_in():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return torch.relu(x @ self.weight) @ self.weight.T

    assert fan_in(Both(), torch.randn(3, 4)) == {"weight": None}


def factors(recipe, policy, make=mlp, **arguments):
    groups = sn.param_groups(
        make(WIDER), INPUTS, recipe, base=make(WIDTH), transfer=policy, **arguments
    )
    return [round(x.factor, 6) for x in groups.assignments if len(x.shape) == 2]


@pytest.mark.parametrize(
    ("recipe", "policy", "expected"),
    [
        ("adamw", sn.transfer.mup("adam"), [1, 0.25, 0.25, 0.25]),
        ("sgd", sn.transfer.mup("sgd"), [4, 1, 1, 0.25]),
        ("adamw", sn.transfer.spectral(), [1, 0.25, 0.25, 0.25]),
        ("lion", sn.transfer.spectral(), [1, 0.25, 0.25, 0.25]),
        ("adamp", sn.transfer.spectral(), [1, 0.25, 0.25, 0.25]),
        ("muon+adamw", sn.transfer.spectral(), [1, 1, 1, 0.25]),
    ],
)
def test_factors_of_a_width_four_times_as_large(recipe, policy, expected):
    assert factors(recipe, policy) == pytest.approx(expected, abs=1e-6)


def test_muon_scaled_as_adamw_needs_the_root():
    recipe = sn.bind("muon", scale="match_rms_adamw")
    measured = factors(recipe, sn.transfer.spectral(), rest="adamw")
    assert measured == pytest.approx([1, 0.5, 0.5, 0.25], abs=1e-6)


def test_the_orientation_of_a_weight_decides_and_not_its_shape():
    groups = sn.param_groups(
        Transposed(WIDER),
        INPUTS,
        "adamw",
        base=Transposed(WIDTH),
        transfer=sn.transfer.mup("adam"),
    )
    assert {x.name: x.factor for x in groups.assignments} == {
        "first": 1.0,
        "second": 0.25,
        "head": 0.25,
        "copied": 1.0,
    }
    assert [doubt.partition(":")[0] for doubt in groups.caveats] == ["copied"]
    assert "in x4, out x4" in str(groups)
    assert "doubtful: copied" in str(groups)


@pytest.mark.parametrize(
    ("vocabulary", "narrow", "wide"), [(50304, 64, 256), (32000, 32, 512), (10, 32, 8192)]
)
def test_a_vocabulary_and_a_large_ratio_leave_the_factor_of_a_head(vocabulary, narrow, wide):
    def make(width):
        return nn.Sequential(nn.Linear(16, width), nn.Linear(width, vocabulary, bias=False))

    groups = sn.param_groups(
        make(wide), INPUTS, "adamw", base=make(narrow), transfer=sn.transfer.spectral()
    )
    [head] = [x for x in groups.assignments if x.name == "1.weight"]
    assert head.factor == pytest.approx(narrow / wide, rel=1e-3)


def test_the_turn_of_a_product_does_not_depend_on_its_layout():
    turned = {}
    for make in (
        Transposed,
        lambda width: nn.Sequential(nn.Linear(16, width), nn.Linear(width, 10)),
    ):
        groups = sn.param_groups(
            make(128), INPUTS, "adamw", base=make(32), transfer=sn.transfer.turn()
        )
        turned |= {x.name: x.factor for x in groups.assignments}
    assert turned["first"] == pytest.approx(turned["0.weight"], rel=0.05)
    assert turned["head"] == pytest.approx(turned["1.weight"], rel=0.05)
    assert turned["head"] == pytest.approx(0.5, rel=0.05)


def test_a_matrix_in_several_dimensions_is_doubtful():
    class Heads(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.embed = nn.Linear(16, width)
            self.heads = nn.Parameter(torch.randn(4, width // 4, width) / width**0.5)

        def forward(self, x):
            return torch.einsum("bi,hdi->bhd", self.embed(x), self.heads)

    groups = sn.param_groups(
        Heads(128), INPUTS, "adamw", base=Heads(32), transfer=sn.transfer.spectral()
    )
    assert [caveat.partition(":")[0] for caveat in groups.caveats] == ["heads"]


def test_held_norms_keep_their_turn_or_say_that_the_rule_is_open():
    turned = factors("hyperball", sn.transfer.turn())
    assert turned[1:3] == pytest.approx([1, 1], rel=0.02)
    groups = sn.param_groups(
        mlp(WIDER), INPUTS, "hyperball", base=mlp(WIDTH), transfer=sn.transfer.spectral()
    )
    assert [doubt.split(":")[0] for doubt in groups.caveats] == ["2.weight", "4.weight"]


def test_parameters_of_one_factor_share_a_group():
    groups = sn.param_groups(
        mlp(WIDER), INPUTS, "adamw", lr=0.012, base=mlp(WIDTH), transfer=sn.transfer.spectral()
    )
    assert {group["lr"] for group in groups} == {0.012, 0.003}


def test_a_width_that_stays_changes_nothing():
    plain = sn.param_groups(mlp(WIDTH), INPUTS, "muon+adamw", weight_decay=0.1)
    same = sn.param_groups(
        mlp(WIDTH),
        INPUTS,
        "muon+adamw",
        weight_decay=0.1,
        base=mlp(WIDTH),
        transfer=sn.transfer.spectral(),
    )
    for old, new in zip(plain, same, strict=True):
        assert {k: v for k, v in old.items() if k != "params"} == {
            k: v for k, v in new.items() if k != "params"
        }


def test_decay_follows_and_a_rate_of_the_users_stays():
    groups = sn.param_groups(
        mlp(WIDER),
        INPUTS,
        "adamw",
        lr=0.01,
        weight_decay=0.1,
        base=mlp(WIDTH),
        transfer=sn.transfer.mup("adam"),
        overrides={"6.weight": {"lr": 0.5}},
    )
    settings = {
        parameter: (group["lr"], group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    by_name = {
        x.name: settings[p] for x, p in zip(groups.assignments, settings_order(groups), strict=True)
    }
    assert by_name["2.weight"] == pytest.approx((0.0025, 0.4))
    assert by_name["2.bias"] == pytest.approx((0.01, 0.1))
    assert by_name["6.weight"] == pytest.approx((0.5, 0.1))


def settings_order(groups):
    """Yield the parameters in the order of the assignments."""
    iterators = [iter(group["params"]) for group in groups]
    return [next(iterators[x.group]) for x in groups.assignments]


class Tied(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(16, width)

    def forward(self, tokens):
        return self.embedding(tokens) @ self.embedding.weight.T


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sn.transfer.mup("muon"), ["like", "'muon'"]),
        (
            lambda: sn.param_groups(mlp(8), INPUTS, "adamw", base=mlp(4)),
            ["base needs transfer"],
        ),
        (
            lambda: factors("sgd", sn.transfer.spectral()),
            ["sgd is proportional to the gradient", "mup('sgd')"],
        ),
        (
            lambda: sn.param_groups(
                mlp(8), INPUTS, "adamw", base=nn.Linear(16, 2), transfer=sn.transfer.turn()
            ),
            ["base has other parameters", "'0.bias'"],
        ),
        (
            lambda: sn.param_groups(
                Tied(8),
                torch.arange(4),
                "adamw",
                base=Tied(4),
                transfer=sn.transfer.mup("adam"),
            ),
            ["embedding.weight is an embedding and a head"],
        ),
    ],
)
def test_what_has_no_answer_is_refused(call, words):
    with pytest.raises(ValueError, match=r".") as error:
        call()
    assert all(word in str(error.value) for word in words)


def test_a_start_is_that_of_mup_and_a_second_one_changes_nothing():
    torch.manual_seed(0)
    base, model = mlp(WIDTH), mlp(WIDER)
    before = copy.deepcopy(model)
    changes = {x.name: x.factor for x in sn.transfer.start(model, base, INPUTS)}
    heads_and_biases = {"6.weight": 0.5, "2.bias": 2.0, "4.bias": 2.0, "6.bias": 2.0}
    assert changes == dict.fromkeys(changes, 1.0) | heads_and_biases
    for (name, new), old in zip(model.named_parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(new, changes[name] * old, rtol=0, atol=0)
    assert {x.factor for x in sn.transfer.start(model, base, INPUTS)} == {1.0}


@pytest.mark.parametrize(
    ("name", "torch_class", "like", "lr", "decay"),
    [
        # L2 decay of Adam's head is not of one form: in muP it acts on a weight r times as large.
        ("adam", torch.optim.Adam, "adam", 0.01, 0.0),
        ("adamw", torch.optim.AdamW, "adam", 0.01, 0.1),
        ("sgd", torch.optim.SGD, "sgd", 0.1, 0.01),
    ],
)
def test_twelve_losses_are_those_of_mup_with_its_readout(name, torch_class, like, lr, decay):
    """A plain loop of muP as it was published: multiplier behind the head, and its own groups."""
    torch.manual_seed(0)
    labels = torch.randint(10, (64,))
    inputs, ratio = INPUTS.double(), WIDER / WIDTH
    base, ours = mlp(WIDTH).double(), mlp(WIDER).double()
    published = copy.deepcopy(ours)
    eps = {} if like == "sgd" else {"eps": 1e-12}

    with torch.no_grad():
        for layer in (published[2], published[4], published[6]):
            layer.bias *= ratio**0.5  # a bias has the start of the base's
        published[6].weight *= ratio**0.5  # MuReadout's start

    def published_output(x):
        hidden = published[:6](x)
        return hidden @ published[6].weight.T / ratio + published[6].bias

    rates = {}
    for key, weight in published.named_parameters():
        is_hidden = key in ("2.weight", "4.weight")
        if like == "adam":
            rates[weight] = lr / ratio if is_hidden else lr
        else:
            grows_out = key not in ("6.weight", "6.bias")
            rates[weight] = lr if is_hidden else lr * ratio if grows_out else lr
    # The head of MuReadout: its gradient is divided by the ratio, so that its rate is multiplied.
    if like == "sgd":
        rates[published[6].weight] = lr * ratio
    reference = torch_class(
        [
            {"params": [weight], "lr": rate, "weight_decay": decay * lr / rate}
            for weight, rate in rates.items()
        ],
        lr=lr,
        **eps,
    )
    sn.transfer.start(ours, base, inputs)
    groups = sn.param_groups(
        ours,
        inputs,
        name,
        lr=lr,
        weight_decay=decay,
        base=base,
        transfer=sn.transfer.mup(like),
        **eps,
    )
    optimizer = groups.optimizer()
    losses = []
    for output, optim in ((published_output, reference), (ours, optimizer)):
        run = []
        for _ in range(12):
            optim.zero_grad()
            loss = cross_entropy(output(inputs), labels)
            loss.backward()
            optim.step()
            run.append(loss.item())
        losses.append(run)
    assert losses[1] == pytest.approx(losses[0], abs=1e-9)
    assert losses[0][-1] < losses[0][0]


def loss_of(output):
    labels = torch.arange(64) % 10
    return cross_entropy(output, labels)


def grouped(recipe, transfer, lr):
    torch.manual_seed(5)
    base = mlp(WIDTH)

    def groups(model):
        if transfer is None:
            return sn.param_groups(model, INPUTS, recipe, lr=lr)
        sn.transfer.start(model, base, INPUTS)
        return sn.param_groups(model, INPUTS, recipe, lr=lr, base=base, transfer=transfer)

    return groups


@pytest.mark.parametrize(
    ("recipe", "transfer", "lr", "holds"),
    [
        ("adamw", None, 0.01, False),
        ("adamw", sn.transfer.mup("adam"), 0.01, True),
        ("muon+adamw", None, 0.05, False),  # the head alone
        ("muon+adamw", sn.transfer.spectral(), 0.05, True),
    ],
)
def test_coordinates_are_alike_at_every_width_where_rates_transfer(recipe, transfer, lr, holds):
    check = sn.coordinate_check(
        mlp, INPUTS, loss_of, groups=grouped(recipe, transfer, lr), widths=(32, 64, 128)
    )
    assert check.holds is holds, check
    assert check.verdict in str(check)
    slopes = {x.name: x.last_change for x in check}
    if holds:
        assert max(map(abs, slopes.values())) < 0.15
    else:
        assert slopes["6"] > 0.4
    assert check.svg().count("<path") == len(check)


def test_a_coordinate_check_leaves_the_random_state_and_refuses_one_width():
    groups = grouped("adamw", None, 0.01)
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sn.coordinate_check(mlp, INPUTS, loss_of, groups=groups, widths=(16, 32))
    assert torch.equal(torch.rand(1), expected)
    with pytest.raises(ValueError, match="two widths"):
        sn.coordinate_check(mlp, INPUTS, loss_of, groups=None, widths=(16,))
