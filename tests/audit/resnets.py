"""ResNets of He et al. 2016, as plain modules: the full networks of the paper's tables."""

from torch import nn


class Block(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut, self.relu = body, shortcut, nn.ReLU()

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def normalized(inputs, outputs, kernel, stride=1):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def basic(inputs, width, stride):
    body = [*normalized(inputs, width, 3, stride), nn.ReLU(), *normalized(width, width, 3)]
    return body, width


def bottleneck(inputs, width, stride):
    body = [*normalized(inputs, width, 1), nn.ReLU(), *normalized(width, width, 3, stride)]
    return [*body, nn.ReLU(), *normalized(width, 4 * width, 1)], 4 * width


def resnet(block, counts, classes, width):
    layers, inputs = [*normalized(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], width
    for stage, count in enumerate(counts):
        for index in range(count):
            stride = 2 if stage and not index else 1
            body, outputs = block(inputs, width * 2**stage, stride)
            same = stride == 1 and inputs == outputs
            shortcut = (
                nn.Identity() if same else nn.Sequential(*normalized(inputs, outputs, 1, stride))
            )
            layers.append(Block(nn.Sequential(*body), shortcut))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def resnet18(classes=1000, width=64):
    return resnet(basic, (2, 2, 2, 2), classes, width)


def resnet50(classes=1000, width=64):
    return resnet(bottleneck, (3, 4, 6, 3), classes, width)
