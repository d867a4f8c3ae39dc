"""`param_groups`: groups from the audit, for recipes of every kind."""

import warnings

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from tests.audit.training import train
from tests.audit.zoo.parts import Attention, Net


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 64, 2)),
    )


def images():
    return torch.randn(6, 3, 8, 8)


def places(groups):
    return {each.name: (each.treatment, each.view) for each in groups.assignments}


def group_of(groups, name):
    return groups[next(each.group for each in groups.assignments if each.name == name)]


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


EUCLIDEAN = ("euclidean", None)
BIASES = dict.fromkeys(
    ["0.bias", "1.weight", "1.bias", "3.bias", "4.weight", "4.bias", "6.bias"], EUCLIDEAN
)


@pytest.mark.parametrize("recipe", ["sgdg", "adamg"])
def test_invariant_weights_go_to_the_sphere_in_their_views(recipe):
    net = model()
    before = snapshot(net)
    groups = sn.param_groups(net, images(), recipe, lr=0.1)
    sphere = {"0.weight": ("sphere", "dim=1"), "3.weight": ("sphere", "channel")}
    assert places(groups) == {**sphere, "6.weight": EUCLIDEAN, **BIASES}
    assert group_of(groups, "0.weight")["view"] == "dim=1"
    assert group_of(groups, "0.weight")["lr"] == 0.1
    assert group_of(groups, "6.weight")["recipe"] == "sgd"
    for name, value in net.state_dict().items():
        if name in sphere:
            view = sn.View(1) if name == "0.weight" else sn.View(0)
            torch.testing.assert_close(value, sn.Sphere(view).normalize(before[name]))
        elif "running" not in name:  # these follow the weights
            assert torch.equal(value, before[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no weight has another norm, or cannot move
        optimizer = sn.torch_optimizer(sn.find_recipe(recipe))(groups)
    net(images()).square().mean().backward()
    optimizer.step()
    norms = sn.metrics.norm(net[0].weight.detach(), "dim=1")
    torch.testing.assert_close(norms, torch.ones(4))
    assert not torch.equal(net[6].bias, before["6.bias"])


def test_more_units_than_entries_are_not_turned_apart():
    def groups(*arguments, **settings):
        wide, tall = nn.Linear(6, 4), nn.Linear(4, 6)
        net = nn.Sequential(wide, nn.BatchNorm1d(4), nn.ReLU(), tall, nn.BatchNorm1d(6), nn.Tanh())
        made = sn.param_groups(net, torch.randn(16, 6), *arguments, tolerance=1e-2, **settings)
        return [group_of(made, name)["alpha"] for name in ("0.weight", "3.weight")], made

    for recipe in ("sgdg", "adamg"):
        alphas, made = groups(recipe)
        assert alphas == [0.1, 0]
        assert "alpha=0: 6 units of 4 entries cannot be orthogonal" in str(made)
    assert groups("sgdg", alpha=0.1)[0] == [0.1, 0.1]
    assert groups(sn.bind("sgdg", alpha=0.2))[0] == [0.2, 0.2]
    assert groups("sgdg", alpha=0)[0] == [0, 0]
    assert groups("sgdg", overrides={"3.weight": {"alpha": 0.1}})[0] == [0.1, 0.1]
    assert groups("sgdg", overrides={"3.weight": "layer"})[0] == [0.1, 0.1]


def test_every_parameter_is_in_one_group():
    net = model()
    net.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    groups = sn.param_groups(net, images(), "sgdg")
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in net.parameters())
    assert places(groups)["frozen"] == EUCLIDEAN


@pytest.mark.parametrize("recipe", ["sgdp", "adamp"])
def test_a_recipe_that_tests_projects_the_invariant_weights_alone(recipe):
    net = model()
    before = snapshot(net)
    groups = sn.param_groups(net, images(), recipe, lr=0.01, weight_decay=0.1)
    projected = {"0.weight": ("projected", "dim=1"), "3.weight": ("projected", "channel")}
    assert places(groups) == {**projected, "6.weight": EUCLIDEAN, **BIASES}
    assert group_of(groups, "0.weight")["views"] == ("dim=1",)
    assert group_of(groups, "6.weight")["views"] == ()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    # A tangential gradient: the head would be projected, had it a view.
    net[6].weight.data, net[6].weight.grad = torch.eye(2, 320), torch.eye(2, 320).flip(0)
    optimizer = sn.torch_optimizer(sn.find_recipe(recipe))(groups)
    rule = optimizer.rule_of(optimizer.param_groups[groups.assignments[-2].group])
    test = next(part for part in rule.tree() if isinstance(part, r.ScaleInvarianceTest))
    update = sn.Update(net[6].weight.data, net[6].weight.grad, net[6].weight.grad)
    assert test.update(update, {})[0].invariance == sn.Invariance()


def test_a_recipe_without_geometry_takes_all_weights():
    groups = sn.param_groups(model(), images(), "sgd", lr=0.1)
    assert [len(group["params"]) for group in groups] == [10]
    assert "recipe" not in groups[0]
    torch.optim.SGD(groups)  # whose entries torch's own optimizer takes, too


def always(lr=0.1, momentum=0.9):
    return sn.chain(r.HeavyBall(momentum), r.RadialProjection("channel"), r.StepSize(lr))


def test_a_recipe_that_projects_without_a_test_gets_what_fits_its_view():
    groups = sn.param_groups(model(), images(), always, rest="sgdw")
    found = places(groups)
    assert found["3.weight"] == ("projected", "channel")
    assert found["0.weight"] == EUCLIDEAN
    assert "the recipe's view is channel" in groups.assignments[0].reason
    assert group_of(groups, "0.weight")["recipe"] == "sgdw"


def fixed_test(lr=0.1):
    return sn.chain(r.ScaleInvarianceTest(), r.RadialProjection(), r.StepSize(lr))


def test_a_test_whose_views_cannot_be_set_is_refused():
    net = model()
    before = snapshot(net)
    for settings in ({"recipe": fixed_test}, {"recipe": "sgdg", "rest": fixed_test}):
        with pytest.raises(
            ValueError, match=r"recipe .*:fixed_test. tests views that cannot be set"
        ):
            sn.param_groups(net, images(), **settings)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_the_rest_is_not_tested():
    groups = sn.param_groups(model(), images(), "sgdg", rest="sgdp")
    assert group_of(groups, "6.weight")["views"] == ()


def test_decay_by_kind():
    kinds = {"invariant": 0.0, "weights": 0.1, "vectors": 0.0}
    groups = sn.param_groups(model(), images(), "adamw", decay=kinds, weight_decay=0.5)
    decays = {each.name: groups[each.group]["weight_decay"] for each in groups.assignments}
    assert {name for name, decay in decays.items() if decay} == {"6.weight"}
    groups = sn.param_groups(model(), images(), "adamw", decay={"vectors": 0.0}, weight_decay=0.5)
    assert sorted({group["weight_decay"] for group in groups}) == [0.0, 0.5]
    assert {g["weight_decay"] for g in sn.param_groups(model(), images(), "adamw", decay=0.3)} == {
        0.3
    }


def test_overrides_by_name_and_pattern():
    overrides = {
        "0.*": "euclidean",
        "6.weight": {"as": "layer", "lr": 0.3},
        "*.bias": {"lr": 0.7},
        "3.weight": sn.View(None),
    }
    groups = sn.param_groups(model(), images(), "sgdg", overrides=overrides)
    found = places(groups)
    assert found["0.weight"] == EUCLIDEAN
    assert found["6.weight"] == ("sphere", "layer")
    assert found["3.weight"] == ("sphere", "layer")
    assert group_of(groups, "6.weight")["lr"] == 0.3
    assert group_of(groups, "6.bias")["lr"] == 0.7
    assert group_of(groups, "1.weight")["lr"] == 0.01
    assert groups.assignments[0].reason.endswith("; as you say")


def test_a_zero_unit_stays_off_the_sphere():
    net = model()
    nn.init.zeros_(net[3].weight[0])
    groups = sn.param_groups(net, images(), "sgdg")
    assert places(groups)["3.weight"] == EUCLIDEAN
    assert "zero unit" in str(groups)


class Normalized(nn.Linear):
    """Its units are invariant without an eps."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight / self.weight.norm(dim=1, keepdim=True))


def test_a_unit_that_is_far_smaller_than_the_others_stays_off_the_sphere():
    net = nn.Sequential(Normalized(6, 8, bias=False), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight[0] *= 1e-3
    groups = sn.param_groups(net, torch.randn(16, 6), "sgdg")
    assert places(groups)["0.weight"] == EUCLIDEAN
    assert "a unit of norm" in str(groups)


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_pruned_channel_does_not_speak_up(scale, count):
    """An eps outweighs its variance; with norm 1 it would be as loud as the others."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 64, 3, bias=False)
    layers = first, nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model, batch = nn.Sequential(*layers, nn.Linear(64, 2)), torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        first.weight[:count] *= scale
    before = model(batch)
    groups = sn.param_groups(model, batch, "sgdg")
    torch.testing.assert_close(model(batch), before)
    assert groups.assignments[0].treatment == "euclidean"
    chosen = {"0.weight": "channel"}
    groups = sn.param_groups(model, batch, "sgdg", overrides=chosen)
    assert groups.assignments[0].treatment == "sphere"


def test_a_weight_that_is_invariant_up_to_eps_goes_onto_a_sphere_at_the_users_word():
    model = nn.Sequential(nn.Embedding(64, 16), nn.LayerNorm(16, eps=1e-2), nn.Linear(16, 2))
    nn.init.normal_(model[0].weight, std=0.3)
    batch = torch.arange(64)
    before = model(batch)
    groups = sn.param_groups(model, batch, "sgdg")
    assert groups.audit[0].verdict == "invariant up to eps"
    assert groups.assignments[0].treatment == "euclidean"
    assert (
        "an override 'channel', or a larger tolerance, puts it there"
        in groups.assignments[0].reason
    )
    assert torch.equal(model(batch), before)
    groups = sn.param_groups(model, batch, "sgdg", overrides={"0.weight": "channel"})
    assert groups.assignments[0].treatment == "sphere"
    assert sn.param_groups(model, batch, "sgdp").assignments[0].treatment == "projected"


def test_an_audit_instead_of_a_batch_and_keyword_batches():
    net = Net(lambda self, *, x: self.f(x), f=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    x = torch.randn(8, 4)
    for batch in ({"x": x}, sn.audit(net, x=x)):
        assert places(sn.param_groups(net, batch, "sgdp"))["f.0.weight"] == ("projected", "channel")
    with pytest.raises(ValueError, match="audit is of another model"):
        sn.param_groups(model(), sn.audit(net, x=x), "sgdp")


def test_parts_of_a_fused_matrix_are_left_alone():
    net = nn.Sequential(Attention(fused=True, normalize=nn.RMSNorm(4)), nn.Flatten())
    found = places(sn.param_groups(net, (torch.randn(3, 5, 16),), "sgdg"))
    assert found["0.qkv.weight"] == EUCLIDEAN


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"recipe": "sgdgg"}, "no recipe is named 'sgdgg'; did you mean"),
        ({"lr": -1}, r"lr must be in \[0, ∞\), got -1"),
        ({"momentun": 0.1}, "no hyper-parameter 'momentun'"),
        ({"overrides": {"3.weigth": "layer"}}, "no parameter is named '3.weigth'; did you mean 3"),
        ({"overrides": {"3.weight": "chanel"}}, "3.weight: a view is .* got 'chanel'"),
        ({"overrides": {"3.weight": "groups=2"}}, "3.weight: view groups=2 needs dimension 0"),
        ({"overrides": {"3.weight": {"mu": 1}}}, "3.weight: recipe 'sgdg' has no hyper-param"),
        ({"decay": {"biases": 0}}, "decay must name invariant, weights, vectors, got 'biases'"),
        ({"decay": {"invariant": 0.1}}, "decay: recipe 'sgdg' of invariant parameters has none"),
        ({"rest": "sgdx"}, "no recipe is named 'sgdx'"),
    ],
)
def test_bad_input_is_refused_before_anything_changes(settings, message):
    net = model()
    before = snapshot(net)
    settings = {"recipe": "sgdg", **settings}
    with pytest.raises(ValueError, match=message):
        sn.param_groups(net, images(), **settings)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_it_prints_the_reason_of_each_line():
    text = str(sn.param_groups(model(), images(), "sgdg"))
    lines = text.splitlines()
    assert lines[1].split()[:8] == ["0.weight", "3", "x", "4", "x", "2", "x", "2"]
    assert "sphere" in lines[1]
    assert "invariant" in lines[1]
    assert "group 0: 1 parameters, recipe='sgdg', lr=0.2, momentum=0.9" in text


@pytest.mark.filterwarnings("ignore:SGDG")
def test_a_zero_head_trains_where_sgdg_on_every_parameter_cannot():
    assert train("zero_head", "sgdg", seed=0, steps=100) < 1.0
    assert train("zero_head", "sgdg on everything", seed=0, steps=100) > 1.3  # log 4 = 1.386
