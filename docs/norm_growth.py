"""Train a small ResNet with SGD and with SGDP, and draw docs/norm-growth.png and its numbers.

    python -m docs.norm_growth              # half a minute on one core; writes both files anew

One learning rate, no weight decay, the same batches and starts for both. The picture shows the norm
of the convolutions, and how much farther SGDP turns them at each step than SGD does.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spherenorm as sn
from spherenorm import metrics

LR, MOMENTUM = 0.5, 0.9
STEPS, BATCH, CHANNELS = 300, 64, 16
SEEDS = range(5)
SMOOTHED_STEPS = 10
"""Steps over which an effective step is averaged, since that of one batch is noisy."""
IMAGE = Path(__file__).with_name("norm-growth.png")
NUMBERS = IMAGE.with_suffix(".csv")


class ResidualBlock(nn.Module):
    """Two convolutions with batch normalizations, around which the input passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, activations: Tensor) -> Tensor:
        """Return the activations behind the block."""
        return torch.relu(activations + self.layers(activations))


def make_model() -> nn.Sequential:
    """Return a ResNet of five convolutions for 8 x 8 digits."""
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        ResidualBlock(CHANNELS),
        nn.MaxPool2d(2),
        ResidualBlock(CHANNELS),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, 10),
    )


def train(recipe: str, seed: int) -> tuple[list[float], list[float]]:
    """Return the norm and the effective step of the convolutions' channels, averaged, by step."""
    torch.manual_seed(seed)
    model = make_model()
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float().view(-1, 1, 8, 8) / 16
    weights = [layer.weight for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    optimizer = sn.torch_optimizer(recipe)(model.parameters(), lr=LR, momentum=MOMENTUM)
    norms, effective_steps = [], []
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        before = [weight.detach().clone() for weight in weights]
        optimizer.step()
        after = [weight.detach() for weight in weights]
        channel_steps = [metrics.effective_step(b, a) for b, a in zip(before, after, strict=True)]
        norms.append(torch.cat([metrics.norm(a) for a in after]).mean().item())
        effective_steps.append(torch.cat(channel_steps).mean().item())
    return norms, effective_steps


def measure() -> list[dict[str, float]]:
    """Return, for each stretch of steps, the medians and the range over the seeds."""
    runs = {recipe: [train(recipe, seed) for seed in SEEDS] for recipe in ("sgd", "sgdp")}
    rows = []
    for start in range(0, STEPS, SMOOTHED_STEPS):
        stretch = slice(start, start + SMOOTHED_STEPS)
        steps = {
            recipe: [statistics.fmean(run[1][stretch]) for run in of_recipe]
            for recipe, of_recipe in runs.items()
        }
        ratios = [sgdp / sgd for sgd, sgdp in zip(steps["sgd"], steps["sgdp"], strict=True)]
        row: dict[str, float] = {"step": start + SMOOTHED_STEPS}
        for recipe, of_recipe in runs.items():
            norms = [run[0][start + SMOOTHED_STEPS - 1] for run in of_recipe]
            row[f"norm_{recipe}"] = statistics.median(norms)
            row[f"effective_step_{recipe}"] = statistics.median(steps[recipe])
        row |= {"ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}
        rows.append(row)
    return rows


def draw(rows: list[dict[str, float]], image: Path) -> None:
    """Draw the norms at the left, and the ratio of the effective steps at the right."""
    from matplotlib.figure import Figure

    gray, blue = "#6e7781", "#0969da"
    figure = Figure(figsize=(9, 3.1), dpi=130, facecolor="white", layout="constrained")
    norm, ratio = figure.subplots(1, 2)
    steps = [row["step"] for row in rows]
    for recipe, color in (("sgd", gray), ("sgdp", blue)):
        norms = [row[f"norm_{recipe}"] for row in rows]
        norm.plot(steps, norms, color=color, linewidth=2)
        norm.annotate(f" {recipe.upper()}", (steps[-1], norms[-1]), color=color, va="center")
    norm.set(title="Norm of a channel's weights", xlabel="step", ylim=(0, None))
    ratio.plot(steps, [row["ratio"] for row in rows], color=blue, linewidth=2)
    least, most = [row["least"] for row in rows], [row["most"] for row in rows]
    ratio.fill_between(steps, least, most, color=blue, alpha=0.15, linewidth=0)
    ratio.axhline(1, color=gray, linewidth=1)
    ratio.set(title="Effective step: SGDP / SGD", xlabel="step", ylim=(0, None))
    for axes in (norm, ratio):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(0, 1.12 * steps[-1] if axes is norm else steps[-1])
    figure.savefig(image)


def main() -> None:
    """Train, write the numbers, and draw them."""
    rows = measure()
    with NUMBERS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{name: float(f"{value:.4g}") for name, value in r.items()} for r in rows])
    draw(rows, IMAGE)
    last = rows[-1]
    for recipe in ("sgd", "sgdp"):
        print(f"{recipe}: norm {rows[0][f'norm_{recipe}']:.2f} -> {last[f'norm_{recipe}']:.2f}")
    print(f"SGDP / SGD: {last['ratio']:.1f} ({last['least']:.1f} to {last['most']:.1f})")


if __name__ == "__main__":
    main()
