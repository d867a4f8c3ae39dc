import pytest
import torch
from torch import nn

from spherenorm.invariance import audit


def views(model, *inputs, **kwargs):
    return {finding.name: finding.view for finding in audit(model, *inputs, **kwargs)}


def test_each_normalization_has_its_view():
    x = torch.randn(16, 3, 8, 8)
    batch = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )
    assert views(batch, x) == {"0.weight": "channel", "4.weight": None}
    layer = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 2))
    assert views(layer, torch.randn(9, 5)) == {
        "0.weight": None,
        "2.weight": None,
    }  # a bias before LayerNorm spoils it
    layer[0].bias = None
    assert views(layer, torch.randn(9, 5)) == {"0.weight": "layer", "2.weight": None}
    transposed = nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))
    assert views(transposed, x) == {"0.weight": "layer"}
    assert views(transposed, x, views=("channel", "dim=1", "layer")) == {"0.weight": "dim=1"}
    grouped = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.GroupNorm(2, 8))
    assert views(grouped, x, views=("channel", "groups=2")) == {"0.weight": "groups=2"}


def test_in_eval_mode_batch_statistics_are_constants():
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.BatchNorm1d(3))
    x = torch.randn(16, 5)
    assert views(model, x) == {"0.weight": "channel"}
    assert views(model.eval(), x) == {"0.weight": None}


def test_the_model_and_the_random_state_are_left_alone():
    model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, random_state = (
        {k: v.clone() for k, v in model.state_dict().items()},
        torch.get_rng_state(),
    )
    assert views(model, torch.ones(4, 5) * torch.arange(4.0)[:, None]) == {"0.weight": "channel"}
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    assert torch.equal(random_state, torch.get_rng_state())


def test_an_output_that_tells_nothing():
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="maximum nan"):
        audit(model, torch.full((2, 3), float("nan")))
