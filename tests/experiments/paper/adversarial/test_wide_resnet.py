"""Wide residual networks: the published counts, and which weights are scale-invariant."""

import pytest
import torch

from spherenorm import audit
from spherenorm_experiments.paper.adversarial.wide_resnet import WideResNet


def _count(network):
    return sum(weight.numel() for weight in network.parameters())


def test_the_paper_s_network_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert _count(WideResNet(34, 10)) == 46_160_474
        assert _count(WideResNet(28, 10, classes=100)) == 36_536_884  # Zagoruyko and Komodakis


@pytest.mark.parametrize("depth", [4, 12, 35])
def test_a_depth_that_no_number_of_blocks_has_is_refused(depth):
    with pytest.raises(ValueError, match=rf"got {depth}"):
        WideResNet(depth)


def test_only_what_feeds_batchnorm_alone_is_scale_invariant():
    """The second convolution of a block adds to a sum, and only the sum is normalized."""
    torch.manual_seed(0)
    found = audit(WideResNet(10, 2, stem=4, classes=3), torch.rand(16, 3, 8, 8))
    invariant = {finding.name for finding in found if finding.view is not None}
    first = {f"blocks.{block}.conv1.weight" for block in range(3)}
    assert invariant == {"stem.weight", *first}  # the first block has no identity around it
