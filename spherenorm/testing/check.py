"""`check`: the promises that a recipe keeps, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spherenorm.registry import Recipe, bind
from spherenorm.support import columns
from spherenorm.testing import properties
from spherenorm.testing.sharded import sharded
from spherenorm.testing.subject import RefusedError, Subject

PROPERTIES: dict[str, Callable[[Subject], str]] = {
    "shapes": properties.shapes,
    "writes into nothing": properties.writes_into_nothing,
    "pure": properties.pure,
    "dtypes": properties.dtypes,
    "finite": properties.finite,
    "acts": properties.acts,
    "vmap": properties.vmap,
    "compiled": properties.compiled,
    "resumes": properties.resumes,
    "sharded": sharded,
}
"""The promises, in the order in which they are tried. `import spherenorm_theory` adds "law".

Example:
    >>> list(PROPERTIES)[:4]
    ['shapes', 'writes into nothing', 'pure', 'dtypes']
"""

FOUNDATIONS = ("shapes", "writes into nothing", "pure")
"""Of a rule that breaks one of these, no comparison of two runs says anything."""


@dataclass(frozen=True)
class Finding:
    """One promise.

    Attributes:
        name: of the promise.
        verdict: "holds", "fails", or "refused": it does not concern the recipe.
        why: what was compared, what differs, or why it is refused.

    Example:
        >>> [found] = check("sgd", only=("pure",))
        >>> found.name, found.verdict
        ('pure', 'holds')
    """

    name: str
    verdict: Literal["holds", "fails", "refused"]
    why: str


@dataclass(frozen=True)
class Report:
    """The promises of a recipe; print it for a table.

    Attributes:
        recipe: its name.
        findings: one for each promise.

    Example:
        >>> report = check("sgd", only=("pure", "finite"))
        >>> report.passed, report["finite"].verdict, len(report.failed)
        (True, 'holds', 0)
    """

    recipe: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """True if nothing fails."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The promises that do not hold."""
        return tuple(each for each in self.findings if each.verdict == "fails")

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, name: str) -> Finding:
        return {each.name: each for each in self.findings}[name]

    def __str__(self) -> str:
        head = ("promise", "verdict", "why")
        rows = [(each.name, each.verdict, each.why) for each in self.findings]
        return f"{self.recipe}\n{columns([head, *rows])}"


def check(recipe: str | Recipe, *, only: tuple[str, ...] = (), **hyper_parameters: Any) -> Report:
    """Try the promises that the library's recipes keep on a recipe of your own.

    | promise | what is compared |
    |---|---|
    | shapes | matrices, convolutions, vectors, numbers and empty weights keep shape and state |
    | writes into nothing | weight, gradient and state are as before |
    | pure | a step gives equal bits a second time |
    | dtypes | half precision is the float32 step, rounded once |
    | finite | steps with gradients of 0, 1e-6 and 1e6 |
    | acts | a step at other values of each number and switch; at lr = 0 nothing moves |
    | vmap | a batch of weights, or of values of each number, and one after another |
    | compiled | `backend="compiled"`, and the rule's own code; or why it is refused |
    | resumes | a run that was saved and loaded, and one that was not |
    | sharded | weights cut along their rows in two processes, and whole ones |
    | law | after `import spherenorm_theory`: the norm-growth law, or why there is none |

    Of a rule that breaks one of the first three, no further promise is tried. It takes some
    seconds; most of it is a compiler.

    Args:
        recipe: a recipe, its registered name, or `module:function`.
        only: the promises to try; all if it is empty.
        **hyper_parameters: those that are not at their defaults.

    Returns:
        What holds, what fails, and what does not concern the recipe.

    Raises:
        ValueError, TypeError: there is no such recipe, or it takes no such hyper-parameters; no
            such promise.

    Example:
        >>> report = check("sgdp", momentum=0.9, only=("pure", "vmap"))
        >>> print(report)
        sgdp
        promise  verdict  why
        pure     holds    equal bits a second time, and by the rule made anew
        vmap     holds    weights, lr, momentum, dampening, weight_decay, ...
        >>> report.passed
        True
    """
    if unknown := set(only) - PROPERTIES.keys():
        raise ValueError(f"only: no promise {sorted(unknown)[0]!r}; there are {list(PROPERTIES)}")
    bound = bind(recipe, **hyper_parameters)
    bound.rule  # noqa: B018  (it raises)
    subject = Subject.of(bound)
    findings: list[Finding] = []
    for name in PROPERTIES:
        if name in only or not only:
            findings.append(_tried(name, subject, findings))
    return Report(bound.name, tuple(findings))


def _tried(name: str, subject: Subject, before: Sequence[Finding]) -> Finding:
    for each in before:
        if each.verdict == "fails" and each.name in FOUNDATIONS:
            return Finding(name, "refused", f"not tried, since {each.name!r} fails")
    try:
        return Finding(name, "holds", PROPERTIES[name](subject))
    except RefusedError as reason:
        return Finding(name, "refused", str(reason).strip().partition("\n")[0])
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        own = isinstance(error, AssertionError)
        return Finding(name, "fails", first if own else f"{type(error).__name__}: {first}")
