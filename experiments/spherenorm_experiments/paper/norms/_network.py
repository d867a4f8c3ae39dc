"""The parts that the studies of the small network share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from spherenorm_experiments.comparison import Setup
from spherenorm_experiments.paper.shared.photographs import on_imagenet
from spherenorm_experiments.runs import Key, across

NESTEROV: dict[str, Any] = {"momentum": 0.9, "nesterov": True}
"""The momentum of SGD and SGDP."""

SEEDS = {"smoke": 2, "small": 6, "evidence": 12, "full": 12}

MEASURES: Mapping[str, tuple[Key, str]] = {"path on sphere": ("path", ".3g")}

RESNET18 = on_imagenet("resnet18", task="classification", epochs=100, batch_size=256)
"""The paper's runs: Table 2's setting."""


def real(**fields: Any) -> Setup:
    """The same with other fields of `Spec`."""
    return RESNET18.updated(Setup(fields=fields))


def grown(frame: pd.DataFrame, since: str = "norm_first_epoch") -> pd.Series:
    """The growth of the norm: in the paper's Table 1 from the first epoch to the last."""
    lost = frame.norm_last == math.inf
    return (frame.norm_last - frame[since]).mask(lost, math.inf)


def grown_over(a: pd.DataFrame, b: pd.DataFrame, since: str = "norm_first_epoch") -> pd.Series:
    """The growth of one over that of another, which may shrink; infinite if the first diverged."""
    ours = grown(a, since)
    return (ours / grown(b, since)).mask(ours == math.inf, math.inf)


def spread_of(parts: Iterable[pd.Series], *, ratio: bool = False) -> pd.Series:
    """Largest minus, or over, smallest of several Series."""
    frame = across(parts)
    return frame.max(axis=1) / frame.min(axis=1) if ratio else frame.max(axis=1) - frame.min(axis=1)
