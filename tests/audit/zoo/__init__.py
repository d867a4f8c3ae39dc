"""More than a hundred small models of known truth, one a row, and the audit's errors on them."""

from __future__ import annotations

import zlib
from collections.abc import Callable

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


def check(name: str) -> tuple[list[str], list[str]]:
    """The weights of a case that are falsely invariant, and those that are missed, in words.

    Falsely invariant is one that the audit calls invariant though it is not, or in a finer view
    than the true one. A verdict that is not the expected one counts as missed.
    """
    made, false, missed = build(name), [], []
    findings = sn.audit(made.model, made.inputs, loss=made.loss)
    names = {finding.name for finding in findings}
    for pattern in (*made.views, *made.verdicts):
        assert any(n.startswith(pattern.rstrip("*")) for n in names), (name, pattern, names)
    for each in findings:
        true, sure = made.true_view(each.name), each.name not in made.either
        wanted = made.verdicts.get(each.name, each.verdict)
        line = f"{name}: {each.name} {each.view} instead of {true}, {each.verdict}: {each.reason}"
        if each.view not in (None, true):
            false.append(line)
        elif (each.view != true and sure) or each.verdict != wanted:
            missed.append(line)
    return false, missed
