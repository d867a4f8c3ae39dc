"""An optimizer of this library in Lightning's command line, chosen and set in a YAML file.

    cd examples/lightning_cli
    python main.py fit --config config.yaml               # seconds on a CPU
    python main.py fit --config config.yaml --optimizer spherenorm.optim.Lion --optimizer.lr 1e-3

A class of `spherenorm.optim` has its recipe's arguments as its `__init__`, so that the command line
checks them, and `python main.py fit --optimizer.help spherenorm.optim.AdamP` lists them.

With the configuration as it is:

    net.0.weight: norm 0.594 -> 0.608
    {'accuracy': '99.40'}
"""

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import spherenorm as sn


class Digits(lightning.LightningDataModule):
    """Handwritten digits of 8 x 8 pixels, which come with scikit-learn.

    Args:
        batch_size: of training.
    """

    def __init__(self, batch_size: int = 64):
        super().__init__()
        images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        rows = [*zip((images.float() / 16)[order], labels[order], strict=True)]
        self.rows, self.held_out, self.batch_size = rows[500:], rows[:500], batch_size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.rows, self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.held_out, 500)


class Classifier(lightning.LightningModule):
    """Dense layers before BatchNorm; the optimizer is the command line's.

    Args:
        width: of the hidden layers.
        depth: how many there are.
    """

    def __init__(self, width: int = 64, depth: int = 2):
        super().__init__()
        layers, before = [], 64
        for _ in range(depth):
            layers += [nn.Linear(before, width, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
            before = width
        self.net = nn.Sequential(*layers, nn.Linear(before, 10))

    def training_step(self, batch, index):
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        hits = (self.net(batch[0]).argmax(1) == batch[1]).float()
        self.log("accuracy", 100 * hits.mean(), prog_bar=True)


class WatchNorms(lightning.Callback):
    """Print the norm of the first weight when training begins and when it ends.

    Args:
        every: steps between two measurements.
    """

    def __init__(self, every: int = 20):
        self.every = every

    def on_train_start(self, trainer, module):
        self.probe = sn.probe(module.optimizers(), every=self.every, model=module)

    def on_train_end(self, trainer, module):
        self.probe.close()
        rows = [m for m in self.probe.measurements if m.weight == "net.0.weight"]
        print(f"net.0.weight: norm {rows[0].norm:.3f} -> {rows[-1].norm:.3f}")


if __name__ == "__main__":
    cli = LightningCLI(Classifier, Digits, save_config_callback=None)
    print({name: f"{value:.2f}" for name, value in cli.trainer.callback_metrics.items()})
