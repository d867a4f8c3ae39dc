"""Annotations that cannot be evaluated, as of names that only type checkers import."""

import inspect
import sys
import types

import torch

import spherenorm as sn
from spherenorm import registry
from tests.harness import refuses

SOURCE = """
import spherenorm as sn
from spherenorm import rules as r


@sn.recipe
def lazily_annotated(lr: Undefined = 0.1, keep: bool = True) -> Undefined:
    return sn.chain(Halved(keep), r.StepSize(lr))


class Halved(sn.Rule):
    keep: bool
    share: Undefined = 0.5

    def update(self, update, state):
        return update.replace(direction=self.share * update.direction), {}
"""
FIRST = "" if sys.version_info >= (3, 14) else "from __future__ import annotations"
"""Defers annotations where Python itself does not."""


def test_a_recipe_and_a_rule_step_whose_annotations_name_what_is_not_defined(monkeypatch):
    monkeypatch.setattr(registry, "_recipes", dict(registry._recipes))
    module = types.ModuleType("lazily")
    monkeypatch.setitem(sys.modules, "lazily", module)
    exec(compile(FIRST + SOURCE, "lazily.py", "exec", dont_inherit=True), vars(module))
    cls = sn.torch_optimizer("lazily_annotated")
    assert [*inspect.signature(cls).parameters][:3] == ["params", "lr", "keep"]
    weight = torch.ones(2, 3, dtype=torch.float64)
    weight.grad = torch.ones_like(weight)
    cls([weight], lr=0.5).step()
    assert torch.equal(weight, torch.full_like(weight, 0.75))
    with refuses("Halved", "keep", "yes", by=TypeError):
        module.Halved("yes")
