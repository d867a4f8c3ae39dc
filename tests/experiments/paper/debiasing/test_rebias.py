"""The networks of ReBias: counts, and how many pixels a feature sees."""

import torch

from spherenorm_experiments.paper.debiasing.rebias import (
    BagNet18,
    ConvStack,
)


def _count(network):
    return sum(weight.numel() for weight in network.parameters())


def _seen(maps, size):
    """The side of the square of pixels on which one pixel of the last map depends."""
    image = torch.rand(1, 3, size, size, requires_grad=True)
    out = maps(image)
    middle = out.shape[-1] // 2
    out[0, :, middle, middle].sum().backward()
    rows, columns = torch.nonzero(image.grad.abs().sum((0, 1)), as_tuple=True)
    spans = {int(x.max() - x.min()) + 1 for x in (rows, columns)}
    (side,) = spans
    return side


def test_bagnet_has_the_parameters_of_its_description():
    """ResNet-18's widths and blocks; one block's kernel is 3 x 3, all others are 1 x 1."""

    def block(inputs, outputs, kernel=1, shortcut=True):
        weights = kernel**2 * inputs * outputs + outputs**2 + shortcut * inputs * outputs
        return weights + (2 + shortcut) * 2 * outputs  # BatchNorm: a gain and a bias

    stem = 3 * 64 + 9 * 64 * 64 + 2 * 64
    pairs = ((64, 64, 3), (64, 128, 1), (128, 256, 1), (256, 512, 1))
    groups = sum(block(a, b, kernel) + block(b, b, shortcut=False) for a, b, kernel in pairs)
    assert _count(BagNet18(9)) == stem + groups + 512 * 9 + 9 == 1_480_905


def test_a_feature_of_g_sees_little_and_one_of_f_much():
    """No shape fits into one pixel, or into 5 x 5 of 224 x 224."""
    torch.manual_seed(0)
    bag = BagNet18(9, (16, 16, 16, 16)).eval()
    assert _seen(lambda x: bag.blocks(bag.stem(x)), 64) == 5
    assert _seen(ConvStack(1).eval().body, 9) == 1
    assert _seen(ConvStack(7, (8, 8, 8, 8)).eval().body, 40) == 25
