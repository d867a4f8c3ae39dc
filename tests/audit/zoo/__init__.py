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
    case, false, missed = build(name), [], []
    findings = sn.audit(case.model, case.inputs, loss=case.loss)
    names = {finding.name for finding in findings}
    for pattern in (*case.views, *case.verdicts):
        assert any(n.startswith(pattern.rstrip("*")) for n in names), (name, pattern, names)
    for finding in findings:
        true_view, is_decided = case.true_view(finding.name), finding.name not in case.either
        expected_verdict = case.verdicts.get(finding.name, finding.verdict)
        line = (
            f"{name}: {finding.name} {finding.view} instead of {true_view},"
            f" {finding.verdict}: {finding.reason}"
        )
        if finding.view not in (None, true_view):
            false.append(line)
        elif (finding.view != true_view and is_decided) or finding.verdict != expected_verdict:
            missed.append(line)
    return false, missed
