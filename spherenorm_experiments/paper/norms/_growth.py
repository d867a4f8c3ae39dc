"""The arms of Table 1, with the paper's numbers, and the growth of their norms."""

from __future__ import annotations

from spherenorm_experiments.analysis import (
    Arm,
    Grid,
    Results,
    Sample,
    advantage,
    grid_of,
    paired_values,
    printed,
)

__all__ = [
    "ADAM_RATES",
    "ARMS",
    "DECAYS",
    "DECAY_SCALE",
    "PAIRS",
    "PAPER",
    "SGD_RATES",
    "SHARED",
    "decay_of",
    "growth_of",
    "ratios_of",
]

SGD_RATES, ADAM_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
DECAY_SCALE = 100
"""Our weight decay per one of the paper's: 240 steps instead of 500,000 would not feel 1e-4."""

DECAYS = {"0": 0.0, "1e-6": 1e-6, "1e-5": 1e-5, "1e-4": 1e-4}
SHARED = ("0", "1e-6", "1e-5")
"""The paper's weight decays, and those that both of its arms have."""

ARMS = {
    name: Arm(name, recipe, {"data": data})
    for name, recipe, data in (
        ("SGD", "sgd", "digits"),
        ("SGDP", "sgdp", "digits"),
        ("AdamW", "adamw", "digits"),
        ("AdamP", "adamp", "digits"),
        ("tagging: AdamW", "adamw", "tagging"),
        ("tagging: AdamP", "adamp", "tagging"),
    )
}
PAIRS = (("SGD", "SGDP"), ("AdamW", "AdamP"), ("tagging: AdamW", "tagging: AdamP"))

PAPER = {
    ("SGD", "0"): printed("1.35 4.34 67.94"),
    ("SGD", "1e-6"): printed("1.35 4.08 67.89"),
    ("SGD", "1e-5"): printed("1.33 2.70 69.06"),
    ("SGD", "1e-4"): printed("1.21 1.02 70.43"),
    ("SGDP", "0"): printed("1.25 2.10 70.21"),
    ("SGDP", "1e-6"): printed("1.25 1.96 70.27"),
    ("SGDP", "1e-5"): printed("1.25 1.19 70.57"),
    ("AdamW", "0"): printed("1.70 10.41 68.38"),
    ("AdamP", "0"): printed("1.29 3.02 70.55"),
    ("tagging: AdamW", "0"): printed("7.35 11.56 90.86"),
    ("tagging: AdamP", "0"): printed("7.30 7.62 91.19"),
}
"""Norm after the first epoch, norm after the last, score."""


def decay_of(name: str) -> float:
    """Ours, of the paper's."""
    return DECAY_SCALE * DECAYS[name]


def growth_of(grid: Grid, index: int | None) -> Sample:
    """From the first epoch to the last, as in the paper's table."""
    last, first = (grid.sample(key, index) for key in ("norm_last", "norm_first_epoch"))
    return paired_values(last, first)


def ratios_of(results: Results, a: str, b: str, key: str) -> dict[float, Sample]:
    """b over a at every rate without weight decay; of "growth", of that."""
    theirs, ours = (grid_of(results, ARMS[name]) for name in (a, b))
    found = {}
    for rate in SGD_RATES if a == "SGD" else ADAM_RATES:
        pair = [(grid, grid.at(lr=rate, weight_decay=0.0)) for grid in (ours, theirs)]
        one, other = (growth_of(g, i) if key == "growth" else g.sample(key, i) for g, i in pair)
        found[rate] = advantage(one, other, "ratio")
    return found
