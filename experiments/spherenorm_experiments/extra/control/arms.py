"""The optimizers of these studies: two bases, Adam and Muon, each under six norm controls."""

from __future__ import annotations

from typing import Any

from spherenorm_experiments.comparison import Arm

BASES = ("Adam", "Muon")
CONTROLS = ("decay", "projection", "Hyperball", "rotational", "brake", "gains")

ENTRIES = tuple(2.0**k for k in range(-8, -2))
"""Rates of Adam's step, whose entries are about 1 before the rate multiplies them."""

TURNS = tuple(2.0**k for k in range(-7, -1))
"""Rates that are about the turn of a step in radians, as Muon's and those on spheres are."""

BETAS = {"betas": [0.9, 0.95]}
DECAYS = {"Adam": 1.0, "Muon": 0.25}
"""At a middle rate of its base each makes lr λ = 2^-6: |w|² decays in 1 / (2 lr λ) = 32 steps."""

MUONP = "spherenorm_experiments.extra.control.muonp:muonp"
MDADAM = "spherenorm_experiments.extra.control.mdadam:mdadam"

REST = {"recipe": "adam", "lr": 2.0**-5, **BETAS}
"""Of all other weights, in all arms: embedding and head keep one rate, under the same schedule."""


def arm_of(base: str, control: str) -> Arm:
    """A base under a norm control, with the rates that it tries.

    Example:
        >>> arm_of("Muon", "Hyperball").recipe
        'hyperball(muon)'
    """
    decayed = {"Adam": "adamw", "Muon": "muon"}[base]
    recipes = {
        "decay": decayed,
        "projection": {"Adam": "adamp", "Muon": MUONP}[base],
        "Hyperball": f"hyperball({decayed})",
        "rotational": f"rotational({decayed})",
        "brake": f"radial_brake({decayed})",
        "gains": {"Adam": MDADAM, "Muon": "mdmuon"}[base],
    }
    fixed: dict[str, Any] = dict(BETAS) if base == "Adam" else {}
    if control in ("decay", "projection"):
        fixed["weight_decay"] = DECAYS[base]
    turns = base == "Muon" or control in ("Hyperball", "rotational", "gains")
    tune = {"lr": TURNS if turns else ENTRIES}
    return Arm(f"{base}, {control}", tune, fixed, against=(), recipe=recipes[control])
