"""A hundred small models of known truth, and the audit's errors on them."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

import spherenorm as sn
from tests.audit.zoo import (
    between,
    evidence,
    interfaces,
    normalizations,
    reparametrized,
    residual,
    sequences,
    shapes,
)
from tests.audit.zoo.case import CASES, Case

ROOMS = (
    normalizations,
    shapes,
    between,
    reparametrized,
    sequences,
    residual,
    evidence,
    interfaces,
)


def build(name: str, draw: int | None = None) -> Case:
    """The case with weights drawn for its name, whatever other cases there are."""
    torch.manual_seed(zlib.crc32(name.encode()) if draw is None else draw)
    return CASES[name]()


@dataclass
class Outcome:
    """The weights of a case: how many are invariant, and the audit's errors, in words."""

    weights: int
    invariant: int
    false: list[str]
    missed: list[str]


def check(name: str, draw: int | None = None, seed: int = 0) -> Outcome:
    """The audit's errors on a case, of weights that its name or `draw` decides."""
    made = build(name, draw)
    findings = sn.audit(made.model, made.inputs, loss=made.loss, seed=seed)
    outcome = Outcome(len(findings), 0, [], [])
    names = {finding.name for finding in findings}
    for pattern in made.views:
        assert any(n.startswith(pattern.rstrip("*")) for n in names), (name, pattern, names)
    for finding in findings:
        true = made.true_view(finding.name)
        sure = all(finding.name != each for each in made.either)
        outcome.invariant += true is not None and sure
        line = f"{name}: {finding.name} {finding.view} instead of {true}: {finding.reason}"
        if finding.view not in (None, true):
            outcome.false.append(line)
        elif finding.view != true and sure:
            outcome.missed.append(line)
    return outcome
