"""The result of an audit: findings, what was skipped, and what makes them doubtful."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from spherenorm.audit._roles import Roles
from spherenorm.audit._verdict import Finding
from spherenorm.support import columns


@dataclass(frozen=True)
class Skipped:
    """A parameter that was not audited.

    Attributes:
        name, shape: the parameter's.
        reason: "frozen", "0-d", "1-d", "complex", "empty" or "no batch".

    Example:
        >>> found = sn.audit(torch.nn.Linear(2, 1), torch.randn(8, 2))
        >>> found.skipped
        (Skipped(name='bias', shape=(1,), reason='1-d'),)
    """

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Audit(Sequence[Finding]):
    """The findings of `audit`, one for each weight in the model's order; prints as a table.

    Attributes:
        findings: of the weights of two or more dimensions that take a gradient.
        skipped: the other parameters.
        doubts: sentences on what makes the findings doubtful.
        parameters: the number of entries of all parameters.
        roles: the role of each parameter; see `roles`.

    Example:
        >>> layers = torch.nn.Linear(4, 3, bias=False), torch.nn.BatchNorm1d(3)
        >>> found = sn.audit(torch.nn.Sequential(*layers), torch.randn(32, 4))
        >>> len(found), found[0].name, f"{found.share:.2f}"
        (1, '0.weight', '0.67')
    """

    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    doubts: tuple[str, ...]
    parameters: int
    roles: Roles

    @property
    def share(self) -> float:
        """The scale-invariant share of all parameters (the paper: 95.5 % of a ResNet-18)."""
        invariant = sum(math.prod(f.shape) for f in self.findings if f.view is not None)
        return invariant / max(self.parameters, 1)

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The audit as numbers, strings, lists and dicts, for JSON; None for nan."""
        findings = [{**asdict(each), "verdict": str(each.verdict)} for each in self.findings]
        plain: dict[str, Any] = _without_nan(
            {
                "share": self.share,
                "parameters": self.parameters,
                "findings": findings,
                "skipped": [asdict(each) for each in self.skipped],
                "doubts": list(self.doubts),
                "roles": [asdict(each) for each in self.roles],
            }
        )
        return plain

    def __str__(self) -> str:
        head = ("weight", "shape", "verdict", "view", "statistic", "elsewhere", "why")
        rows = [_row(finding) for finding in self.findings]
        lines = [columns([head, *rows]), ""]
        lines.append(f"{100 * self.share:.1f} % of {self.parameters:,} parameters scale-invariant")
        if self.skipped:
            counts = Counter(each.reason for each in self.skipped)
            lines.append("skipped: " + ", ".join(f"{n} {reason}" for reason, n in counts.items()))
        return "\n".join([*lines, *(f"doubtful: {doubt}" for doubt in self.doubts)])

    __repr__ = __str__


def _row(finding: Finding) -> tuple[str, ...]:
    figures = next(iter(finding.figures.values()), None)
    numbers = ("", "") if figures is None else (figures.here, figures.elsewhere)
    shown = ("" if x == "" or math.isnan(float(x)) else f"{x:.1g}" for x in numbers)
    verdict, view = str(finding.verdict), finding.view or ""
    return (finding.name, _shape(finding.shape), verdict, view, *shown, finding.reason)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "()"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
