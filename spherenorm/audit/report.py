"""The result of an audit: findings, what was skipped, and what makes them doubtful."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spherenorm.audit.roles import Roles, size
from spherenorm.audit.verdict import Finding
from spherenorm.support import columns


@dataclass(frozen=True)
class Audit(Sequence[Finding]):
    """The findings of `audit`, one for each weight in the model's order; prints as a table.

    Attributes:
        findings: of the weights of two or more dimensions that take a gradient.
        skipped: the other parameters, by name, and why: "frozen", "0-d", "1-d", "complex", "empty".
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
    skipped: dict[str, str]
    doubts: tuple[str, ...]
    parameters: int
    roles: Roles

    @property
    def share(self) -> float:
        """The scale-invariant share of all parameters (the paper: 95.5 % of a ResNet-18)."""
        invariant = sum(math.prod(f.shape) for f in self.findings if f.view is not None)
        return invariant / max(self.parameters, 1)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __len__(self) -> int:
        return len(self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The audit as numbers, strings, lists and dicts, for JSON; None for nan."""
        plain: dict[str, Any] = _without_nan({"share": self.share, **asdict(self)})
        return plain

    def __str__(self) -> str:
        head = ("weight", "shape", "verdict", "view", "statistic", "elsewhere", "why")
        rows: list[tuple[str, ...]] = [head]
        for each in self:
            numbers = ("" if math.isnan(x) else f"{x:.1g}" for x in (each.here, each.elsewhere))
            verdict, view = str(each.verdict), each.view or ""
            rows.append((each.name, size(each.shape), verdict, view, *numbers, each.reason))
        lines = [columns(rows), ""]
        lines.append(f"{100 * self.share:.1f} % of {self.parameters:,} parameters scale-invariant")
        if self.skipped:
            counts = Counter(self.skipped.values())
            lines.append("skipped: " + ", ".join(f"{n} {reason}" for reason, n in counts.items()))
        return "\n".join([*lines, *(f"doubtful: {doubt}" for doubt in self.doubts)])

    __repr__ = __str__


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
