"""AdamP against AdamW on images, with probes on every weight: what does the projection change?

    python examples/cifar_resnet.py                    # digits of scikit-learn, on a CPU
    python examples/cifar_resnet.py --cifar FOLDER     # CIFAR-10, binary version, on a GPU if any

FOLDER holds `data_batch_1.bin`, ..., `test_batch.bin`. Both optimizers start from the same weights
and see the same batches. A probe gives the norm of each convolution and its turn per step, the
angle between the weight before and after. It leaves training as it is.

On the digits (ResNet-8 of width 8, 15 epochs; 80 s on two cores):

    97% of the parameters are scale-invariant
    optimizer  seed   accuracy   norm of convolutions       turn per step, midway
    AdamW         0    94.40 %   0.581 -> 0.663 (x 1.14)       0.0040
    AdamW         1    96.20 %   0.579 -> 0.653 (x 1.13)       0.0039
    AdamW         2    96.00 %   0.575 -> 0.650 (x 1.13)       0.0036
    AdamP         0    94.40 %   0.575 -> 0.580 (x 1.01)       0.0046
    AdamP         1    96.20 %   0.574 -> 0.578 (x 1.01)       0.0043
    AdamP         2    97.60 %   0.570 -> 0.574 (x 1.01)       0.0043

Norms grow by 13 % under AdamW and by 1 % under AdamP. Accuracies of three seeds decide nothing.
"""

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, relu

import spherenorm as sn


class Block(nn.Module):
    """Two convolutions, each before BatchNorm, beside a shortcut (He et al. 2016)."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != width:
            conv = nn.Conv2d(before, width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(y + self.shortcut(x))


def resnet(channels, width, blocks, classes=10):
    """Three stages; blocks=3 and width=16 is the ResNet-20 of the paper."""
    first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    layers, before = [first, nn.BatchNorm2d(width), nn.ReLU()], width
    for stage in range(3):
        for index in range(blocks):
            stride = 2 if stage and not index else 1
            layers.append(Block(before, width * 2**stage, stride))
            before = width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def cifar10(folder, train):
    """Images of shape (n, 3, 32, 32) and labels; a record is a label and 3,072 pixels."""
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] if train else ["test_batch.bin"]
    records = np.concatenate([np.fromfile(Path(folder, name), dtype=np.uint8) for name in names])
    records = torch.from_numpy(records.reshape(-1, 3073))
    return records[:, 1:].view(-1, 3, 32, 32) / 64 - 1.9, records[:, 0].long()


def digits():
    """1,297 and 500 images of shape (1, 8, 8) that come with scikit-learn, and their labels."""
    from sklearn.datasets import load_digits

    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order].float().view(-1, 1, 8, 8) / 8 - 1, labels[order]
    return (images[500:], labels[500:]), (images[:500], labels[:500])


def shift(images, by, generator):
    """Shift all images alike by at most `by` pixels."""
    top, left = torch.randint(2 * by + 1, (2,), generator=generator).tolist()
    return pad(images, (by,) * 4)[:, :, top:, left:][:, :, : images.shape[2], : images.shape[3]]


def train(model, optimizer, data, epochs, batch, move, probe_to):
    generator = torch.Generator().manual_seed(1)
    steps = epochs * (len(data[0]) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    with sn.probe(optimizer, every=max(1, steps // 40), model=model, to=probe_to):
        for _ in range(epochs):
            for chosen in torch.randperm(len(data[0]), generator=generator).split(batch):
                if len(chosen) < batch:
                    continue
                images = shift(data[0][chosen], move, generator)
                optimizer.zero_grad()
                cross_entropy(model(images), data[1][chosen]).backward()
                optimizer.step()
                schedule.step()


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        predictions = torch.cat([model(images).argmax(1) for images in data[0].split(500)])
    return 100 * (predictions == data[1]).double().mean().item()


def main(options):
    if options.cifar:
        data, test = cifar10(options.cifar, True), cifar10(options.cifar, False)
        shape, epochs, batch, move = (3, 16, 3), 100, 128, 4
    else:
        data, test = digits()
        shape, epochs, batch, move = (1, 8, 1), 15, 64, 1
    if options.tiny:
        data, epochs = (data[0][:128], data[1][:128]), 1
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, test = ([part.to(device) for part in split] for split in (data, test))

    audit = sn.audit(resnet(*shape).to(device), data[0][:32])
    print(f"{audit.invariant_share:.0%} of the parameters are scale-invariant")
    print("optimizer  seed   accuracy   norm of convolutions       turn per step, midway")
    for name, make in (("AdamW", torch.optim.AdamW), ("AdamP", sn.optim.AdamP)):
        for seed in range(1 if options.tiny else options.seeds):
            torch.manual_seed(seed)
            model = resnet(*shape).to(device)
            optimizer = make(model.parameters(), lr=3e-3, weight_decay=1e-2)
            measured = []
            train(model, optimizer, data, epochs, batch, move, measured.extend)
            rows = [m for m in measured if m.invariant_view == "channel"]
            steps = sorted({m.step for m in rows})
            first, last = (fmean(m.norm for m in rows if m.step == steps[k]) for k in (0, -1))
            turn = fmean(m.turn for m in rows if m.step == steps[len(steps) // 2])
            print(
                f"{name:9}  {seed:4}  {accuracy(model, test):7.2f} %   {first:.3f} -> {last:.3f} "
                f"(x {last / first:.2f})       {turn:.4f}"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", metavar="FOLDER", help="of the binary version of CIFAR-10")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a few steps, as in the tests")
    main(parser.parse_args())
