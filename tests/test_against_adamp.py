"""Parity with the PyPI package `adamp`, through all branches of the scale-invariance test."""

import pytest
import torch

adamp = pytest.importorskip("adamp")

from spherenorm import optim  # noqa: E402
from tests.harness.gradients import FAMILIES  # noqa: E402
from tests.trajectories import largest_difference  # noqa: E402

SCALES = (1e-6, 1.0, 1e6)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_adamp(family, nesterov, scale):
    settings = {"lr": 0.02, "weight_decay": 0.05, "nesterov": nesterov, "eps": 1e-16}
    assert (
        largest_difference(
            lambda p: optim.AdamP(p, **settings),
            lambda p: adamp.AdamP(p, **settings),
            family=family,
            scale=scale,
        )
        < 1e-12
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_sgdp_with_the_projected_buffer(family, nesterov, scale):
    settings = {
        "lr": 0.02 / scale,
        "momentum": 0.9,
        "dampening": 0.2,
        "weight_decay": 0.05 * scale,
        "nesterov": nesterov,
    }
    difference = largest_difference(
        lambda p: optim.SGDP(p, project_buffer=not nesterov, **settings),
        lambda p: adamp.SGDP(p, eps=1e-16, **settings),
        family=family,
        scale=scale,
    )
    assert difference < 1e-12


@pytest.mark.parametrize("name", ["AdamP", "SGDP"])
def test_at_the_default_eps_the_release_is_off_by_its_own_projection(name):
    settings = {"lr": 0.02, "nesterov": True} | ({"momentum": 0.9} if name == "SGDP" else {})
    difference = largest_difference(
        lambda p: getattr(optim, name)(p, **settings),
        lambda p: getattr(adamp, name)(p, **settings),
        family="row_tangential",
    )
    assert 1e-12 < difference < 1e-6


def test_the_paper_remembers_the_unprojected_momentum():
    settings = {"lr": 0.02, "momentum": 0.9}
    difference = largest_difference(
        lambda p: optim.SGDP(p, **settings),
        lambda p: adamp.SGDP(p, **settings),
        family="row_tangential",
    )
    assert difference > 1e-3


class PaperSGDP(torch.optim.Optimizer):
    """Algorithm 1 for weights whose rows are all scale-invariant, without the library."""

    def __init__(self, params, lr, momentum):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                p = self.state[w]["p"] = (
                    group["momentum"] * self.state[w].get("p", torch.zeros_like(w)) + w.grad
                )
                q = p
                if w.ndim > 1:
                    unit = w.reshape(len(w), -1) / w.reshape(len(w), -1).norm(dim=1, keepdim=True)
                    rows = p.reshape(len(w), -1)
                    q = (rows - (unit * rows).sum(1, keepdim=True) * unit).reshape(w.shape)
                w.sub_(group["lr"] * q)


@pytest.mark.parametrize("scale", SCALES)
def test_sgdp_is_the_papers_algorithm_1(scale):
    settings = {"lr": 0.02 / scale, "momentum": 0.9}
    difference = largest_difference(
        lambda p: optim.SGDP(p, **settings),
        lambda p: PaperSGDP(p, **settings),
        family="row_tangential",
        scale=scale,
    )
    assert difference < 1e-12


def test_arguments_and_defaults_are_those_of_the_release():
    weight = [torch.zeros(2, 2)]
    for ours, theirs in (
        (optim.AdamP(weight), adamp.AdamP(weight)),
        (optim.SGDP(weight, lr=0.1), adamp.SGDP(weight, lr=0.1)),
    ):
        assert {name: ours.defaults[name] for name in theirs.defaults} == theirs.defaults


@pytest.mark.parametrize("to_ours", [True, False])
@pytest.mark.parametrize("name", ["AdamP", "SGDP"])
def test_checkpoints_of_the_release_load_and_continue_and_ours_in_the_release(name, to_ours):
    settings = {"lr": 0.02, "nesterov": True, "eps": 1e-16} | (
        {"momentum": 0.9} if name == "SGDP" else {}
    )
    first, second = (
        getattr(module, name) for module in ((adamp, optim) if to_ours else (optim, adamp))
    )

    def switched(weights):
        """One for the first step, then the other from its checkpoint."""

        class Switched:
            optimizer = first(weights, **settings)

            def step(self):
                self.optimizer.step()
                if isinstance(self.optimizer, first):
                    saved = self.optimizer.state_dict()
                    self.optimizer = second(weights, lr=0.5)
                    self.optimizer.load_state_dict(saved)

        return Switched()

    assert (
        largest_difference(
            switched, lambda p: getattr(adamp, name)(p, **settings), family="alternating"
        )
        < 1e-12
    )


def test_a_zero_gradient_decays_as_a_variant_weight_here_and_tenfold_less_in_the_release():
    """The one decision that differs on purpose: no gradient is no evidence of invariance."""
    ours, theirs = (torch.ones(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ours.grad, theirs.grad = torch.zeros_like(ours), torch.zeros_like(theirs)
    optim.AdamP([ours], lr=0.1, weight_decay=0.5).step()
    adamp.AdamP([theirs], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(
        ours.detach(), torch.full_like(ours, 1 - 0.1 * 0.5), rtol=1e-15, atol=0
    )
    torch.testing.assert_close(
        theirs.detach(), torch.full_like(theirs, 1 - 0.1 * 0.5 * 0.1), rtol=1e-15, atol=0
    )
