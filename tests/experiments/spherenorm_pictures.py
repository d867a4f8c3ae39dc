"""A task on a map-style data set with random augmentation, and one that tests every metric."""

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import swa_utils

from spherenorm_experiments.spec import Spec
from spherenorm_experiments.task import Budget, Collected, Mean, Splits, Task


class Pictures(torch.utils.data.Dataset):
    """Vectors of three classes; each item draws from all three global random states."""

    def __init__(self, count, seed, augment):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=generator)
        centers = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
        noise = torch.randn(count, 6, generator=generator)
        self.x = centers[self.labels] + noise
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        x = self.x[index]
        if self.augment:
            x = x + 0.1 * torch.randn(6) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return x, self.labels[index]


class Averaging(nn.Module):
    """A model, and the average of its weights, which is evaluated."""

    def __init__(self, live):
        super().__init__()
        average = swa_utils.get_ema_avg_fn(0.9)
        self.live = live
        self.average = swa_utils.AveragedModel(live, avg_fn=average, use_buffers=True)
        self.average.requires_grad_(False)

    def forward(self, x):
        return (self.live if self.training else self.average)(x)


@dataclass(frozen=True)
class PictureTask(Task):
    """Three classes; 37 items, so that neither batches nor ranks divide them evenly.

    `tensors` gives the same items as tensors. With `noisy`, BatchNorm and dropout. With `averaged`,
    the exponential average of the weights is evaluated.
    """

    tensors: bool = False
    noisy: bool = True
    augment: bool = True
    delay: float = 0.0
    averaged: bool = False

    name = "pictures"
    tiers = {"smoke": Budget(2, 8), "small": Budget(3, 8), "full": Budget(3, 8)}  # noqa: RUF012
    evaluation_batch = 5

    def data(self):
        sets = (Pictures(37, 1, self.augment), Pictures(13, 2, False), Pictures(11, 3, False))
        return Splits(*((each.x, each.labels) for each in sets) if self.tensors else sets)

    def model(self):
        first = nn.Linear(6, 9, bias=False)
        if self.noisy:
            inner = [nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.2)]
        else:
            inner = [nn.LayerNorm(9), nn.ReLU()]
        model = nn.Sequential(first, *inner, nn.Linear(9, 3))
        return Averaging(model) if self.averaged else model

    @contextmanager
    def around_step(self, training, step):
        yield
        if self.averaged:
            training.module.average.update_parameters(training.module.live)

    def loss(self, model, batch):
        time.sleep(self.delay)
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, batch):
        x, labels = batch
        logits = model(x)
        predicted = logits.argmax(1)
        losses = cross_entropy(logits, labels, reduction="none")
        with torch.enable_grad():
            leaf = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(model(leaf), labels), leaf)
        attacked = model(x + 0.3 * slope.sign() + 0.01 * torch.rand_like(x)).argmax(1)
        one = labels == 1
        return {
            "accuracy": Mean(100.0 * (predicted == labels)),
            "perplexity": Mean(losses, then=np.exp),
            "attacked": Mean(100.0 * (attacked == labels)),
            "f1": Collected(f1, predicted == 1, one),
            "auc": Collected(auc, one, logits[:, 1]),
            "ap": Collected(average_precision, one, logits[:, 1]),
            "recall@1": Collected(recall_at_1, logits, labels),
            "boxes": Collected(len, [{"label": int(y)} for y in labels]),
        }


def f1(found, there):
    return 2 * (found & there).sum() / max(1.0, float(found.sum() + there.sum()))


def auc(tags, scores):
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(tags, scores)


def average_precision(tags, scores):
    from sklearn.metrics import average_precision_score

    return average_precision_score(tags, scores)


def recall_at_1(embeddings, labels):
    apart = torch.cdist(embeddings.double(), embeddings.double()).fill_diagonal_(torch.inf)
    return (labels[apart.argmin(1)] == labels).double().mean()


def picture_spec(recipe="adamp", seed=0, epochs=3, batch_size=8, regime=None, **options):
    return Spec(
        "spherenorm_pictures:PictureTask",
        recipe,
        {"lr": 0.02},
        options,
        seed=seed,
        epochs=epochs,
        batch_size=batch_size,
        **({} if regime is None else {"regime": regime}),
    )


@dataclass(frozen=True)
class Drawing(PictureTask):
    """Its model and its loss draw from Python's and NumPy's random states."""

    name = "drawing"

    def model(self):
        model = super().model()
        with torch.no_grad():
            model[0].weight.mul_(1 + random.random() + np.random.rand())
        return model

    def loss(self, model, batch):
        return super().loss(model, batch) * (1 + random.random() + float(np.random.rand()))


class BrokenPictures(Pictures):
    def __getitem__(self, index):
        if index == 10:
            raise OSError("item 10 is broken")
        return super().__getitem__(index)


@dataclass(frozen=True)
class Broken(PictureTask):
    """One of its items raises."""

    name = "broken"

    def data(self):
        return Splits(BrokenPictures(37, 1, True), *super().data()[1:])

    def audit_inputs(self):
        return ()
