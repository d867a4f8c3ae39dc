"""A small normalized network as a pure loss: all learning rates, decays and seeds train at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F  # noqa: N812

from spherenorm import metrics
from spherenorm.functional import Sweep
from spherenorm_experiments.task import Budget, PureTask, Splits, fingerprint_of, generator
from spherenorm_paper.shared.clips import spectra
from spherenorm_paper.shared.digits import Digits

TRAIN, VALIDATION = 1024, 256
BATCH = 64
STEPS_PER_EPOCH = TRAIN // BATCH

MAX_CURVE_POINTS = 120
"""Points of a curve that are kept."""

PROJECTED = 1e-9
"""The radial share of a step in float64 that was projected is rounding, below this."""

SETTLED = 10
"""Steps after which momentum has a radial part, so that a projection can be told."""

COSINE_BATCHES = 4

LAYERS = {
    "plain": ("unit0", "unit1", "unit2"),
    "prenorm": ("unit0", "free1", "free2", "free3", "free4"),
}
"""The hidden matrices of each variant; those that are scale-invariant begin with "unit"."""


@dataclass(frozen=True)
class Network(PureTask):
    """Fully connected layers, each followed by BatchNorm without gains, and a classifier.

    Every hidden matrix is scale-invariant row by row; the classifier and its bias are not. Weights
    are float64; `precision` is that of the forward and backward pass.

    Attributes:
        variant: plain (three hidden layers) or prenorm (two blocks that are normalized at their
            entrance, as a transformer's, so that nothing but the stem is scale-invariant).
        data: digits (8 x 8 pixels, ten classes; accuracy) or tagging (harmonic spectra averaged
            over time, ten tags; ROC-AUC).
        width: units of a hidden layer.
        sphere: as optimizers on the sphere expect it: scale-invariant rows start at norm 1, in the
            same directions, and the classifier stays at its start, so that every weight that trains
            is on the sphere. At another norm r a gradient is 1 / r times as long, and a step turns
            the row 1 / r times as far.
        precision: of the gradient.

    Each seed has its own start, order of the data, and split into training, validation and test
    set.
    """

    variant: Literal["plain", "prenorm"] = "plain"
    data: Literal["digits", "tagging"] = "digits"
    width: int = 32
    sphere: bool = False
    precision: Literal["float64", "float32", "float16"] = "float32"

    name = "network"
    tiers = {"smoke": Budget(6), "small": Budget(240), "full": Budget(2400)}  # noqa: RUF012

    def start(self, seed: int) -> dict[str, Tensor]:
        units = {name: self.drawn(name, seed) for name in LAYERS[self.variant]}
        if self.sphere:
            return {name: w / w.norm(dim=-1, keepdim=True) for name, w in units.items()}
        bias = torch.zeros(10, dtype=torch.float64)
        return {**units, "head": self.drawn("head", seed), "bias": bias}

    def drawn(self, name: str, seed: int) -> Tensor:
        """A matrix with He's variance."""
        pixels = 64 if self.data == "digits" else 128
        rows = 10 if name == "head" else self.width
        columns = pixels if name == "unit0" else self.width
        scale = math.sqrt((1.0 if name == "head" else 2.0) / columns)
        random = generator(seed, f"init {name}")
        return torch.randn(rows, columns, generator=random, dtype=torch.float64) * scale

    def loss(self, params: dict[str, Tensor], *batch: Any) -> Tensor:
        inputs, targets, *fixed = batch[0]
        logits = self.logits(params, inputs, *fixed)
        if self.data == "tagging":
            return F.binary_cross_entropy_with_logits(logits, targets)
        loss: Tensor = -(targets * logits.log_softmax(dim=-1)).sum(dim=-1).mean()
        return loss

    def logits(
        self, params: Mapping[str, Tensor], inputs: Tensor, *fixed: Tensor, rows: int | None = None
    ) -> Tensor:
        """The outputs for a batch, normalized over its first rows.

        Args:
            *fixed: the classifier, if it does not train.
            rows: how many; all of them by default.
        """
        kind = getattr(torch, self.precision)
        normalized = functools.partial(normalize, rows=rows)

        def layer(x: Tensor, matrix: Tensor) -> Tensor:
            return x.to(kind) @ matrix.to(kind).T

        x = torch.relu(normalized(layer(inputs, params["unit0"])))
        if self.variant == "plain":
            for name in ("unit1", "unit2"):
                x = torch.relu(normalized(layer(x, params[name])))
        else:
            for name_in, name_out in (("free1", "free2"), ("free3", "free4")):
                inner = torch.relu(layer(normalized(x), params[name_in]))
                x = x + layer(inner, params[name_out]).to(x.dtype)
            x = normalized(x)
        if fixed:
            return layer(x, fixed[0]).double()
        return (layer(x, params["head"]) + params["bias"].to(kind)).double()

    def batches(self, seed: int) -> Callable[[int], tuple[Tensor, ...]]:
        inputs, targets, *_ = split_of(self.data, seed)
        fixed = [self.drawn("head", seed)] if self.sphere else []

        @functools.lru_cache(maxsize=2)
        def order(epoch: int) -> Tensor:
            return torch.randperm(TRAIN, generator=generator(seed, "data", epoch))

        def batch(step: int) -> tuple[Tensor, ...]:
            epoch, index = divmod(step, STEPS_PER_EPOCH)
            part = order(epoch)[index * BATCH : (index + 1) * BATCH]
            return (inputs[part], targets[part], *fixed)

        return batch

    def record(self, before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
        units = [name for name in before if name.startswith("unit")]
        variant_names = [name for name in before if name.startswith(("free", "head"))]
        norms = torch.cat([metrics.norm(after[name]) for name in units])
        effective_steps = torch.cat(
            [metrics.effective_step(before[name], after[name]) for name in units]
        )
        straight = [(after[name] - before[name]).square().sum() for name in units]
        kinds = {"invariant": units, **({"variant": variant_names} if variant_names else {})}
        radial = {kind: torch.stack([_radial(before[name], after[name]) for name in names])
                  for kind, names in kinds.items()}  # fmt: skip
        return {
            "norm": norms.mean(),
            "norm_squared": norms.square().sum(),
            "effective_step": effective_steps.mean(),
            "squared_move": torch.stack(straight).sum(),
            **{f"projected_{k}": x.lt(PROJECTED).double().mean() for k, x in radial.items()},
        }

    def summarize(
        self, seeds: Sequence[int], start: dict[str, Tensor], swept: Sweep
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Numbers, curves and cosines, by point and seed."""
        records, norm = swept.records, swept.records["norm"]
        units = [value for name, value in start.items() if name.startswith("unit")]
        start_norms = torch.cat([w.norm(dim=-1) for w in units], dim=1)
        path_squared = records["squared_move"].sum(dim=0)
        growth = records["norm_squared"][-1] - start_norms.square().sum(dim=1)
        late, interval = min(SETTLED, len(norm) - 1), max(1, len(norm) // MAX_CURVE_POINTS)
        numbers = {
            "norm_start": start_norms.mean(dim=1).expand_as(growth),
            "norm_first_epoch": norm[min(STEPS_PER_EPOCH, len(norm)) - 1],
            "norm_last": norm[-1],
            "path": records["effective_step"].sum(dim=0),
            "growth_over_moves": growth / path_squared,
            "every": torch.full_like(path_squared, interval),
            **{name: 100 * shares[late:].mean(dim=0)
               for name, shares in records.items() if name.startswith("projected")},
            **_scores(self, seeds, swept.params),
        }  # fmt: skip
        curves = {name: records[name][::interval].float().movedim(0, 2)
                  for name in ("norm", "effective_step")}  # fmt: skip
        return numbers, {**curves, **_cosines(self, seeds, swept.params)}

    def fingerprint(self) -> str:
        return fingerprint_of(_splits(self.data))


def _splits(data: str) -> Splits:
    return Digits().data() if data == "digits" else spectra()


@functools.cache
def pool_of(data: str) -> tuple[Tensor, Tensor]:
    """All inputs, flat, and targets; spectra as their means over time."""
    x, y = (torch.cat([part[i] for part in _splits(data)]) for i in (0, 1))
    if data == "digits":
        return x.flatten(1).double(), F.one_hot(y, 10).double()
    return x.mean(dim=-1).flatten(1).double(), y.double()


@functools.lru_cache(maxsize=64)
def split_of(data: str, seed: int) -> tuple[Tensor, ...]:
    """Inputs and targets of training, validation and test set, from a stream of the seed's own."""
    inputs, targets = pool_of(data)
    order = torch.randperm(len(inputs), generator=generator(seed, "split"))
    parts = torch.split(order, [TRAIN, VALIDATION, len(order) - TRAIN - VALIDATION])
    return tuple(tensor[part] for part in parts for tensor in (inputs, targets))


def normalize(x: Tensor, rows: int | None = None) -> Tensor:
    """BatchNorm by the statistics of the first rows, in at least float32, as frameworks do."""
    wide = x.float() if x.dtype == torch.float16 else x
    centered = wide - wide[:rows].mean(dim=0)
    normalized: Tensor = centered / (centered[:rows].square().mean(dim=0) + 1e-12).sqrt()
    return normalized


def _scores(task: Network, seeds: Sequence[int], params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores on validation and test set, normalized by the statistics of the training set."""
    fixed = [torch.stack([task.drawn("head", seed) for seed in seeds])] if task.sphere else []
    splits = [split_of(task.data, seed) for seed in seeds]
    inputs = torch.stack([torch.cat(split[::2]) for split in splits])
    over_seeds = vmap(functools.partial(task.logits, rows=TRAIN))
    over_points = vmap(over_seeds, in_dims=(0, None, *(None for _ in fixed)))
    sizes = [len(part) for part in splits[0][::2]]
    logits = torch.split(over_points(dict(params), inputs, *fixed), sizes, dim=-2)
    scores = {}
    for part, name in enumerate(("validation", "test"), 1):
        targets = torch.stack([split[2 * part + 1] for split in splits])
        if task.data == "digits":
            hits = logits[part].argmax(-1) == targets.argmax(-1)
            scores[name] = 100 * hits.double().mean(dim=-1)
        else:
            scores[name] = 100 * _areas(logits[part], targets)
    return scores


def _cosines(
    task: Network, seeds: Sequence[int], params: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """|cos(w, g)| of every weight on a few batches at the end: the largest of a weight's rows.

    By "cosines_invariant", of scale-invariant weights, and "cosines_variant", of others as a whole.
    """
    batches = [task.batches(seed) for seed in seeds]
    over_points = vmap(vmap(grad(task.loss), in_dims=(0, 0)), in_dims=(0, None))
    cosines: dict[str, list[Tensor]] = {"cosines_invariant": [], "cosines_variant": []}
    for step in range(COSINE_BATCHES):
        drawn = [batch(10**6 * STEPS_PER_EPOCH + step) for batch in batches]
        grads = over_points(dict(params), tuple(map(torch.stack, zip(*drawn, strict=True))))
        for name, weight in params.items():
            kind, w, g = "invariant", weight, grads[name]
            if name == "bias":
                continue
            if not name.startswith("unit"):
                kind, w, g = "variant", w.flatten(2)[:, :, None], g.flatten(2)[:, :, None]
            inner = (w * g).sum(-1).abs() / (w.norm(dim=-1) * g.norm(dim=-1))
            cosines[f"cosines_{kind}"].append(inner.max(dim=-1).values)
    return {kind: torch.stack(x, dim=-1).nan_to_num() for kind, x in cosines.items() if x}


def _radial(before: Tensor, after: Tensor) -> Tensor:
    """|cos(w, dw)| of a whole weight: rounding where the step was projected, row-wise or whole."""
    move = after - before
    size = before.norm() * move.norm()
    return torch.where(size > 0, (before * move).sum().abs() / size, 0.0)


def _areas(logits: Tensor, targets: Tensor) -> Tensor:
    """The area under the ROC curve, the mean over tags: the share of pairs in the right order."""
    ranks = logits.argsort(dim=-2).argsort(dim=-2).double() + 1
    positive = targets.sum(dim=-2)
    negative = targets.shape[-2] - positive
    above = (ranks * targets).sum(dim=-2) - positive * (positive + 1) / 2
    return (above / (positive * negative)).mean(dim=-1)
