"""Rules from source text: each is a class of its own, as users write it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import spherenorm as sn

HEAD = """
import torch
from torch import where
from torch.nn.functional import softplus
import spherenorm as sn

def axes(x):
    return tuple(range(1, x.ndim))

def per_row(x):
    return x.sum(axes(x), keepdim=True)
"""
RULE = """
class {name}(sn.Rule):
    state_names = {names}

    def init(self, weight):
        start = {start}
        return {{name: start.clone() for name in self.state_names}}

    def update(self, update, state):
        w, d, old = update.weight, update.direction, state
        {before}
        return update.replace(direction={direction}), {{{new}}}
"""
_numbers, _patterns = itertools.count(), itertools.count(1)


def rule(
    states: Mapping[str, str],
    direction: str = "d",
    before: str = "",
    start: str = "torch.zeros_like(weight)",
    name: str = "Mine",
) -> Any:
    """The class of a rule.

    Args:
        states: expressions of each new state, in the weight w, the direction d and the states
            `old`.
        direction: an expression of the new one.
        before: a statement before these.
        start: an expression of the states' first value, in `weight`.
        name: of the class.
    """
    new = ", ".join(f"{state!r}: {expression}" for state, expression in states.items())
    source = RULE.format(
        names=tuple(states), start=start, before=before, direction=direction, new=new, name=name
    )
    module = ModuleType(f"written_{next(_numbers)}")
    sys.modules[module.__name__] = module  # where torch.compile looks for it
    exec(HEAD + source, vars(module))
    return getattr(module, name)


def optimizer_of(*rules: sn.Rule, lr: float = 0.1) -> Any:
    """The optimizer class of a chain that ends with a step."""
    return sn.torch_optimizer(lambda lr=lr: sn.chain(*rules, sn.rules.StepSize(lr)), "Written")


def new_recipe(*rules: sn.Rule) -> Any:
    """A recipe of the library's rules whose kernel no other test has made.

    Args:
        rules: with which its chain begins.
    """
    bits = f"{next(_patterns):08b}"
    more = [
        sn.rules.HeavyBall(0.5, buffer=f"m{i}") if bit == "1" else sn.rules.CoupledDecay(0.1 + i)
        for i, bit in enumerate(bits)
    ]
    return lambda lr=0.1: sn.chain(*rules, *more, sn.rules.StepSize(lr))
