"""VGG-16's trunk has the published number of parameters; small ones are the same network."""

import pytest
import torch

from spherenorm_experiments.paper.detection.vgg import stages


def test_full_size_has_the_published_count():
    with torch.device("meta"):
        trunks = [torch.nn.ModuleList(stages(normalized=n)) for n in (True, False)]
    counts = [sum(p.numel() for p in trunk.parameters()) for trunk in trunks]
    classifier = 512 * 7**2 * 4096 + 4096**2 + 4096 * 1000 + 4096 + 4096 + 1000
    assert [count + classifier for count in counts] == [138_365_992, 138_357_544]


def test_a_stage_is_convolutions_normalized_one_by_one():
    (stage,) = stages(((4, 6),))
    stage.eval()
    x = torch.randn(2, 3, 5, 5)
    expected = x
    for conv, norm in ((stage[0], stage[1]), (stage[3], stage[4])):
        norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
        y = torch.nn.functional.conv2d(expected, conv.weight, conv.bias, padding=1)
        y = (y - norm.running_mean[:, None, None]) / (norm.running_var + 1e-5)[:, None, None].sqrt()
        expected = y.clamp(min=0)
    torch.testing.assert_close(stage(x), expected)


def test_a_stage_without_convolutions_is_refused():
    with pytest.raises(ValueError, match="each stage needs a convolution"):
        stages(((4,), ()))
