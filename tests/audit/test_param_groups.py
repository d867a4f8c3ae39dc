"""`param_groups`: groups from the audit, for recipes of every kind and of users."""

import copy
import math
import warnings
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import rules as r
from tests.audit.zoo.parts import Net
from tests.harness.refusals import refuses


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Conv2d(4, 5, 2), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * 64, 2)),
    )


def images():
    return torch.randn(6, 3, 8, 8)


def places(groups):
    return {
        assignment.name: (assignment.treatment, assignment.view)
        for assignment in groups.assignments
    }


def group_of(groups, name):
    return groups[
        next(assignment.group for assignment in groups.assignments if assignment.name == name)
    ]


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


EUCLIDEAN = ("euclidean", None)
NAMES = [name for name, _ in model().named_parameters()]


def polar(matrix):
    """M (M^T M)^(-1/2), by the singular values."""
    u, _, v = torch.linalg.svd(matrix.flatten(1).double(), full_matrices=False)
    return u @ v


@dataclass(frozen=True)
class Polar(sn.Rule):
    """The nearest matrix with orthonormal rows or columns, of the direction."""

    def init(self, weight):
        if weight.ndim < 2:
            raise ValueError(f"a matrix is needed, got shape {tuple(weight.shape)}")
        return super().init(weight)

    def update(self, update, state):
        direction = polar(update.direction).to(update.direction)
        return replace(update, direction=direction.reshape(update.weight.shape)), dict(state)


def orthogonal(lr=0.02, weight_decay=0.0):
    return sn.chain(Polar(), r.DecoupledDecay(weight_decay), r.StepSize(lr))


def accumulated(lr=0.1, views=("channel", "layer")):
    return sn.chain(r.AccumulatedInvarianceTest(views=views), r.RadialProjection(), r.StepSize(lr))


def always(lr=0.1):
    return sn.chain(r.RadialProjection("channel"), r.StepSize(lr))


def fixed_test(lr=0.1):
    return sn.chain(r.ScaleInvarianceTest(), r.RadialProjection(), r.StepSize(lr))


BOTH = {"0.weight": "dim=1", "3.weight": "channel"}
"""The true views."""


@pytest.mark.parametrize(
    ("recipe", "rest", "treatment", "views"),
    [
        ("sgdg", None, "sphere", BOTH),
        ("adamg", None, "sphere", BOTH),
        ("sgdg", "sgdp", "sphere", BOTH),
        ("sgdp", None, "projected", BOTH),
        ("adamp", None, "projected", BOTH),
        (f"{__name__}:accumulated", None, "projected", BOTH),
        (always, "sgdw", "projected", {"3.weight": "channel"}),  # its view is its own
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_invariant_weights_are_treated_in_their_views_and_no_others(recipe, rest, treatment, views):
    """Each parameter is in one group, a sphere's weights start on it, and no other one moves."""
    net, batch = model(), images()
    net.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)
    before = snapshot(net)
    groups = sn.param_groups(net, batch, recipe, rest=rest, lr=0.1)
    treated = {name: (treatment, view) for name, view in views.items()}
    assert places(groups) == dict.fromkeys([*NAMES, "frozen"], EUCLIDEAN) | treated
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in net.parameters())
    for name, value in net.state_dict().items():
        if treatment == "sphere" and name in views:
            sphere = sn.Sphere(sn.as_view(views[name]))
            torch.testing.assert_close(value, sphere.normalize(before[name]))
        elif "running" not in name:  # these follow the weights
            assert torch.equal(value, before[name])
    for name, view in views.items():
        group = group_of(groups, name)
        assert group["lr"] == 0.1
        assert group.get("view", view) == view
        assert group.get("views", (view,)) == (view,)
    if rest == "sgdp" or "views" in group_of(groups, "0.weight"):  # the recipe tests
        assert group_of(groups, "6.weight")["views"] == ()
    started = snapshot(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no weight has another norm, or cannot move
        optimizer = sn.torch_optimizer(sn.find_recipe(recipe))(groups)
    net(batch).square().mean().backward()
    optimizer.step()
    if treatment == "sphere":
        norms = sn.metrics.norm(net[0].weight.detach(), "dim=1")
        torch.testing.assert_close(norms, torch.ones(4))
    moved_names = {n for n, p in net.named_parameters() if not torch.equal(p, started[n])}
    assert moved_names >= {"0.weight", "3.weight", "6.weight", "6.bias"}


def test_a_recipe_for_matrices_takes_them_and_the_rest_takes_what_it_refuses():
    net, batch = model(), images()
    rest, overrides = sn.bind("sgd", lr=0.5), {"6.weight": {"weight_decay": 0.0}}
    groups = sn.param_groups(net, batch, orthogonal, rest=rest, overrides=overrides)
    before = snapshot(net)
    optimizer = sn.torch_optimizer(orthogonal)(groups)
    net(batch).square().mean().backward()
    optimizer.step()
    for name, weight in net.named_parameters():
        expected = -0.5 * weight.grad
        if weight.ndim > 1:
            expected = -0.02 * polar(weight.grad).reshape(weight.shape).float()
        assert group_of(groups, name).get("recipe") == (None if weight.ndim > 1 else "sgd")
        torch.testing.assert_close(weight.detach() - before[name], expected, rtol=1e-3, atol=2e-6)
    head = sn.param_groups(net, batch, orthogonal, rest="adamw", overrides={"6.*": "euclidean"})
    assert group_of(head, "6.weight")["recipe"] == "adamw"


def test_more_units_than_entries_are_not_turned_apart():
    def alphas(recipe, **settings):
        wide, tall = nn.Linear(6, 4), nn.Linear(4, 6)
        net = nn.Sequential(wide, nn.BatchNorm1d(4), nn.ReLU(), tall, nn.BatchNorm1d(6), nn.Tanh())
        result = sn.audit(net, torch.randn(16, 6), tolerance=1e-2)
        groups = sn.param_groups(net, result, recipe, **settings)
        return [group_of(groups, name)["alpha"] for name in ("0.weight", "3.weight")]

    assert alphas("sgdg") == alphas("adamg") == [0.1, 0]
    assert alphas("sgdg", alpha=0.1) == [0.1, 0.1]
    assert alphas(sn.bind("sgdg", alpha=0.2)) == [0.2, 0.2]
    for override in ({"alpha": 0.1}, "layer"):
        assert alphas("sgdg", overrides={"3.weight": override}) == [0.1, 0.1]


def test_a_recipe_without_geometry_takes_all_weights_in_groups_for_torch():
    groups = sn.param_groups(model(), images(), "sgd", lr=0.1)
    assert [(len(group["params"]), "recipe" in group) for group in groups] == [(10, False)]
    torch.optim.SGD(groups)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ({"invariant": 0.0, "weights": 0.1, "vectors": 0.0}, (0.0, 0.1, 0.0)),
        ({"vectors": 0.0}, (0.5, 0.5, 0.0)),
        (0.3, (0.3, 0.3, 0.3)),
    ],
)
def test_decay_by_kind(decay, expected):
    groups = sn.param_groups(model(), images(), "adamw", decay=decay, weight_decay=0.5)
    decays = [group_of(groups, name)["weight_decay"] for name in ("3.weight", "6.weight", "6.bias")]
    assert tuple(decays) == expected


def test_overrides_by_name_and_pattern():
    overrides = {
        "0.*": "euclidean",
        "6.weight": {"as": "layer", "lr": 0.3},
        "*.bias": {"lr": 0.7},
        "3.weight": sn.View(None),
    }
    groups = sn.param_groups(model(), images(), "sgdg", overrides=overrides)
    on_sphere = dict.fromkeys(("3.weight", "6.weight"), ("sphere", "layer"))
    assert places(groups) == dict.fromkeys(NAMES, EUCLIDEAN) | on_sphere
    rates = [group_of(groups, name)["lr"] for name in ("6.weight", "6.bias", "1.weight")]
    assert rates == [0.3, 0.7, 0.01]


def numbers(optimizer, name):
    return [(group["recipe"], group[name]) for group in optimizer.param_groups]


PRESETS = {"muon+adamw": "muon", "hyperball": "hyperball(adam)"}


@pytest.mark.parametrize("preset", PRESETS)
def test_what_the_user_gives_reaches_the_groups_and_the_rest_is_open(preset):
    """Rates: a preset's, those of the call of the class, those of the groups; then an error."""
    recipe, net, batch = PRESETS[preset], model(), images()
    make = sn.torch_optimizer(recipe)
    for call in (lambda groups: groups.optimizer(), make, lambda groups: make(list(groups))):
        rates = numbers(call(sn.param_groups(net, batch, preset)), "lr")
        assert sorted(rates) == [("adamw", 1e-3), (recipe, 0.02)]
    groups = sn.param_groups(net, batch, preset)
    assert groups[0]["lr"] == 0.02 or groups[1]["lr"] == 0.02
    assert "lr=0.02" in str(groups)
    assert "lr=0.001, betas=(0.9, 0.999)" in str(groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(numbers(make(groups, lr=0.01), "lr")) == [("adamw", 1e-3), (recipe, 0.01)]
        groups = sn.param_groups(net, batch, recipe, rest=sn.bind("adamw", lr=3e-4))
        assert "lr" not in groups[[group.get("recipe") for group in groups].index(None)]
        assert sorted(numbers(make(groups, lr=0.5), "lr")) == [("adamw", 3e-4), (recipe, 0.5)]
        preset_groups = sn.param_groups(net, batch, preset, lr=0.03)
        assert sorted(numbers(preset_groups.optimizer(), "lr")) == [("adamw", 1e-3), (recipe, 0.03)]
    with pytest.warns(UserWarning, match="lr=0.01 reaches no param_group"):
        assert sorted(numbers(make(preset_groups, lr=0.01), "lr")) == [
            ("adamw", 1e-3),
            (recipe, 0.03),
        ]


def test_an_override_of_a_presets_rate_is_the_users():
    overrides = {"0.weight": {"lr": 0.02}, "3.weight": {"recipe": sn.bind("muon", lr=0.02)}}
    net = nn.Sequential(model(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    overrides = {f"0.{name}": value for name, value in overrides.items()}
    groups = sn.param_groups(net, images(), "muon+adamw", overrides=overrides)
    stepped = sn.optim.Muon(groups, lr=0.01).param_groups
    rates = {assignment.name: stepped[assignment.group]["lr"] for assignment in groups.assignments}
    assert (rates["0.0.weight"], rates["0.3.weight"], rates["1.weight"]) == (0.02, 0.02, 0.01)


def test_groups_for_another_recipe_are_a_warning():
    groups = sn.param_groups(model(), images(), "muon+adamw")
    with pytest.warns(UserWarning, match="'adamw' that were made for 'muon'"):
        sn.optim.AdamW(groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sn.torch_optimizer("averaged(muon)")(groups)


def test_a_recipe_that_is_none_is_refused_with_the_presets():
    with refuses("muon+adam", "did you mean muon+adamw?"):
        sn.param_groups(model(), images(), "muon+adam")
    with refuses("moun", "did you mean muon", "'muon+adamw'", "'hyperball'"):
        sn.param_groups(model(), images(), "moun")


def test_an_error_of_the_model_names_the_batch():
    with pytest.raises(RuntimeError) as error:
        sn.param_groups(torch.nn.Linear(4, 2), torch.ones(3, 5), "adamw")
    assert "`batch`" in error.value.__notes__[0]
    assert "(3, 5)" in error.value.__notes__[0]


FROZEN = (torch.uint8, torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", FROZEN, ids=str)
@pytest.mark.parametrize("recipe", ["muon+adamw", "sgdg", "adamp", "adamw"])
def test_frozen_weights_in_which_no_step_exists_are_left_out(recipe, dtype):
    """As in QLoRA: a frozen base in 4 or 8 bits, and trained adapters."""

    def forward(self, x):
        base = self.quantized.real if self.quantized.is_complex() else self.quantized
        return self.head(self.norm(x @ base.to(x).T + self.up(self.down(x))))

    net = Net(
        forward,
        **{"down": nn.Linear(6, 2, bias=False), "up": nn.Linear(2, 8, bias=False)},
        **{"norm": nn.LayerNorm(8), "head": nn.Linear(8, 2)},
    )
    net.quantized = nn.Parameter(torch.ones(8, 6).to(dtype), requires_grad=False)
    net.base = nn.Parameter(torch.ones(3, 3), requires_grad=False)  # frozen, and may be trained
    groups = sn.param_groups(net, torch.randn(16, 6), recipe)
    parameter_ids = {id(x) for group in groups for x in group["params"]}
    assert parameter_ids == {id(x) for n, x in net.named_parameters() if n != "quantized"}
    assignment = next(
        assignment for assignment in groups.assignments if assignment.name == "quantized"
    )
    assert (assignment.group, assignment.treatment) == (None, "left out")
    assert str(dtype) in assignment.reason
    optimizer = groups.optimizer()
    net(torch.randn(16, 6)).square().mean().backward()
    optimizer.step()


def embedding(norm, eps=1e-12):
    """A table whose rows have this norm, before a LayerNorm."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8, eps=eps), nn.Linear(8, 2))
    with torch.no_grad():
        net[0].weight.mul_(norm / net[0].weight.norm(dim=1, keepdim=True))
    return net, torch.arange(7).repeat(3)


def first_unit(scale):
    """A first unit of this scale, invariant without an eps."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)) if scale else nn.Linear(6, 8)
    weight = list(layer.parameters())[-1 if scale else 0]
    weight.data[0] *= scale
    return nn.Sequential(layer, nn.BatchNorm1d(8), nn.Linear(8, 2)), torch.randn(16, 6)


def one_tiny_row():
    net, tokens = embedding(1.0)
    net[0].weight.data[2] *= 1e-4
    return net, tokens


CHANNEL = {"overrides": {"0.weight": "channel"}}


@pytest.mark.parametrize(
    ("make", "recipe", "options", "treatment"),
    [
        (partial(embedding, 0.099), "sgdp", {}, "euclidean"),
        (partial(embedding, 0.101), "sgdp", {}, "projected"),
        (partial(embedding, 0.099), "sgdg", {}, "euclidean"),
        (partial(embedding, 0.101), "sgdg", {}, "sphere"),
        (partial(embedding, 0.01), "sgdg", {"smallest_norm": 0}, "sphere"),
        (partial(embedding, 0.01), "sgdp", CHANNEL, "projected"),
        (partial(embedding, 1.0), "sgdg", {"smallest_norm": 2}, "euclidean"),
        (partial(embedding, 0.85, 1e-2), "sgdg", {}, "euclidean"),  # invariant up to eps
        (partial(embedding, 0.85, 1e-2), "sgdg", CHANNEL, "sphere"),
        (partial(embedding, 0.85, 1e-2), "sgdp", {}, "projected"),
        (partial(first_unit, 0.0), "sgdg", {}, "euclidean"),
        (partial(first_unit, 1e-3), "sgdg", {}, "euclidean"),
        (one_tiny_row, "sgdp", {}, "projected"),
    ],
)
def test_tiny_units_and_those_up_to_an_eps_are_left_to_plain_steps_unless_the_user_says(
    make, recipe, options, treatment
):
    net, batch = make()
    before = snapshot(net)
    groups = sn.param_groups(net, batch, recipe, **options)
    names = "0.weight", "0.parametrizations.weight.original1"
    (weight,) = (assignment for assignment in groups.assignments if assignment.name in names)
    assert weight.treatment == treatment
    assert torch.equal(net.state_dict()[weight.name], before[weight.name]) == (
        treatment != "sphere"
    )


def test_an_audit_instead_of_a_batch_and_keyword_batches():
    net = Net(lambda self, *, x: self.f(x), f=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    batch = {"x": torch.randn(8, 4)}
    for batch_or_audit in (batch, sn.audit(net, batch)):
        assert places(sn.param_groups(net, batch_or_audit, "sgdp"))["f.0.weight"] == (
            "projected",
            "channel",
        )
    with refuses("audit", "model"):
        sn.param_groups(model(), sn.audit(net, batch), "sgdp")


def test_trained_statistics_that_do_not_fit_the_sphere_are_a_warning_and_new_ones_are_none():
    net, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), torch.randn(9, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sn.param_groups(copy.deepcopy(net), x, "sgdg")
    net(x)
    with pytest.warns(UserWarning, match="running_var"):
        sn.param_groups(net, x, "sgdg")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model": None}, ["model", "NoneType"]),
        ({"batch": None}, ["batch", None]),
        ({"base": model(), "transfer": "mup"}, ["transfer", "mup", "spectral()", "turn()"]),
        ({"recipe": "sgdgg"}, ["sgdgg", "sgdg"]),
        ({"recipe": fixed_test}, ["recipe", "fixed_test", "views"]),
        ({"rest": fixed_test}, ["recipe", "fixed_test", "views"]),
        ({"recipe": orthogonal}, ["0.bias", "orthogonal", "a matrix is needed", "rest"]),
        ({"lr": -1}, ["lr", -1]),
        ({"momentun": 0.1}, ["momentun"]),
        ({"overrides": {"3.weigth": "layer"}}, ["3.weigth", "3.weight"]),
        ({"overrides": {"3.weight": "chanel"}}, ["3.weight", "chanel", "view"]),
        ({"overrides": {"3.weight": "groups=2"}}, ["3.weight", "groups=2"]),
        ({"overrides": {"3.weight": {"mu": 1}}}, ["3.weight", "sgdg", "mu"]),
        ({"decay": {"biases": 0}}, ["decay", "invariant", "vectors", "biases"]),
        ({"decay": {"invariant": 0.1}}, ["decay", "sgdg", "invariant"]),
        ({"rest": "sgdx"}, ["sgdx"]),
        ({"smallest_norm": -0.1}, ["smallest_norm", -0.1]),
        ({"smallest_norm": math.nan}, ["smallest_norm", math.nan]),
    ],
)
def test_bad_input_is_refused_before_anything_changes(settings, named):
    net = model()
    before = snapshot(net)
    with refuses(*named, by=(TypeError, ValueError)):
        sn.param_groups(**{"model": net, "batch": images(), "recipe": "sgdg", **settings})
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
