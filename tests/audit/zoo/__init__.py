"""More than a hundred small models of known truth, one a row, and the audit's errors on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

import spherenorm as sn
from tests.audit.zoo import evidence, layers, networks
from tests.audit.zoo.parts import Case

CASES: dict[str, Callable[[], Case]] = {
    **layers.NORMS,
    **layers.SHAPES,
    **layers.BETWEEN,
    **layers.OWN_NORM,
    **networks.SEQUENCES,
    **networks.NETWORKS,
    **evidence.EVIDENCE,
    **evidence.DECEPTIONS,
}


def build(name: str) -> Case:
    """The case, with weights drawn for its name, whatever other cases there are."""
    torch.manual_seed(zlib.crc32(name.encode()))
    return CASES[name]()


@dataclass
class Outcome:
    """The weights of a case: how many are invariant, and the audit's errors, in words."""

    weights: int
    invariant: int
    false: list[str]
    missed: list[str]


def check(name: str) -> Outcome:
    """The audit's errors on a case; a verdict that is not the expected one counts as missed."""
    made = build(name)
    findings = sn.audit(made.model, made.inputs, loss=made.loss)
    outcome = Outcome(len(findings), 0, [], [])
    names = {finding.name for finding in findings}
    for pattern in (*made.views, *made.verdicts):
        assert any(n.startswith(pattern.rstrip("*")) for n in names), (name, pattern, names)
    for each in findings:
        true, sure = made.true_view(each.name), each.name not in made.either
        wanted = made.verdicts.get(each.name, each.verdict)
        outcome.invariant += true is not None and sure
        line = f"{name}: {each.name} {each.view} instead of {true}, {each.verdict}: {each.reason}"
        if each.view not in (None, true):
            outcome.false.append(line)
        elif (each.view != true and sure) or each.verdict != wanted:
            outcome.missed.append(line)
    return outcome
