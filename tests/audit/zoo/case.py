"""One model of the zoo, and what many of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

CHANNEL, LAYER = "channel", "layer"


@dataclass
class Case:
    """A model, a batch, and the view of each of its scale-invariant weights.

    Attributes:
        model: with fixed weights.
        inputs: the arguments of the model, or a dict of its keyword arguments.
        views: the views of the invariant weights, by name; all other weights are not invariant. A
            name with a "*" at its end stands for all weights that begin so.
        loss: of the audit.
        either: weights that may be found or not: nothing in the batch tells.
    """

    model: nn.Module
    inputs: tuple[Any, ...] | dict[str, Any]
    views: dict[str, str] = field(default_factory=dict)
    loss: Callable[[Any], Any] | None = None
    either: dict[str, str] = field(default_factory=dict)

    def true_view(self, name: str) -> str | None:
        for pattern, view in {**self.views, **self.either}.items():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                return view
        return None


CASES: dict[str, Callable[[], Case]] = {}


def case(make):
    """Add a case to the zoo."""
    CASES[make.__name__] = make
    return make


def cases(**makers):
    """Add cases, by name; each is made by a function without arguments."""
    CASES.update(makers)


def vectors(n=16, d=6):
    return torch.randn(n, d)


def images(n=6, c=3, s=8):
    return torch.randn(n, c, s, s)


def tokens(n=4, t=6):
    return torch.randint(11, (n, t))


def sequential(inputs, *layers, **views):
    """A chain of layers; the keywords are the views of layers by their number: _0="channel"."""
    named = {f"{key[1:]}.weight": view for key, view in views.items()}
    return Case(nn.Sequential(*layers), (inputs,), named)
