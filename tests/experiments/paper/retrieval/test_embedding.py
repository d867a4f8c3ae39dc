"""The embedding: its published count, its pooling, its symmetries."""

import torch
from torch import nn

from spherenorm_experiments.paper.retrieval.embedding import Embedding
from spherenorm_experiments.paper.shared.resnet import ResNet, resnet50


def small(**options):
    torch.manual_seed(0)
    return Embedding(ResNet("basic", (1, 1), 4, stem="small", classes=3), 6, **options)


def test_features_are_mean_plus_maximum_and_embeddings_have_length_1():
    model, images = small().eval(), torch.randn(3, 3, 8, 8)
    features = model.trunk.trunk(images)
    mean, most = (
        pool(1)(features).flatten(1) for pool in (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
    )
    expected = model.linear(mean + most)
    torch.testing.assert_close(model(images), expected / expected.norm(dim=1, keepdim=True))


def test_torchvisions_resnet_50_has_tensors_of_these_shapes_in_this_order():
    """Written down from torchvision's module: stem; conv-bn three times; the downsample pair."""
    expected = [(64, 3, 7, 7), *[(64,)] * 4, ()]
    inputs = 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(depth):
            layers = [(width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)]
            if block == 0:
                layers.append((4 * width, inputs, 1, 1))
            for shape in layers:
                expected += [shape, *[(shape[0],)] * 4, ()]
            inputs = 4 * width
    with torch.device("meta"):
        ours = resnet50().state_dict()
    assert [tuple(x.shape) for name, x in ours.items() if not name.startswith("head")] == expected
