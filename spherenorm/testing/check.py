"""`check`: the promises that a recipe keeps, as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spherenorm.registry import Recipe, bind
from spherenorm.support import columns
from spherenorm.testing import promises
from spherenorm.testing.promises import NotApplicable, RecipeUnderTest

PROPERTIES: dict[str, Callable[[RecipeUnderTest], str]] = {
    "shapes": promises.check_shapes,
    "writes into nothing": promises.check_writes_into_nothing,
    "pure": promises.check_pure,
    "dtypes": promises.check_dtypes,
    "finite": promises.check_finite,
    "acts": promises.check_every_hyper_parameter_matters,
    "ends": promises.check_endpoint_flag,
    "vmap": promises.check_vmap,
    "compiled": promises.check_compiled,
    "resumes": promises.check_resumes,
    "sharded": promises.check_sharded,
}
"""The promises, in the order in which they are tried. `import spherenorm_theory` adds "law".

A function returns what it has compared, in words. It raises AssertionError with the first thing
that does not hold, or `NotApplicable` with the reason why nothing can be compared.

Example:
    >>> list(PROPERTIES)[:4]
    ['shapes', 'writes into nothing', 'pure', 'dtypes']
"""

QUIET_S = 5.0
"""A check that takes longer names each further promise on the standard error as it tries it."""

FOUNDATIONS = ("shapes", "writes into nothing", "pure")
"""If a rule breaks one of these promises, a comparison of two runs says nothing, so that no further
promise is tried."""


@dataclass(frozen=True)
class PromiseResult:
    """The result of trying one promise on a recipe.

    Attributes:
        name: name of the promise.
        verdict: "holds", "fails", "refused" (it does not concern the recipe), or "not run"
            (since an earlier promise fails).
        why: what was compared, what differs, or why it is refused.

    Example:
        >>> [result] = check("sgd", only=("pure",))
        >>> result.name, result.verdict
        ('pure', 'holds')
    """

    name: str
    verdict: Literal["holds", "fails", "refused", "not run"]
    why: str


@dataclass(frozen=True)
class Report:
    """The results of all promises for a recipe; prints as a table.

    Attributes:
        recipe: name of the recipe.
        results: the result of each promise.

    Example:
        >>> report = check("sgd", only=("pure", "finite"))
        >>> report.passed, report["finite"].verdict, len(report.failed)
        (True, 'holds', 0)
    """

    recipe: str
    results: tuple[PromiseResult, ...]

    @property
    def passed(self) -> bool:
        """True if no promise fails."""
        return not self.failed

    @property
    def failed(self) -> tuple[PromiseResult, ...]:
        """The promises that fail."""
        return tuple(result for result in self.results if result.verdict == "fails")

    def __iter__(self) -> Iterator[PromiseResult]:
        return iter(self.results)

    def __getitem__(self, name: str) -> PromiseResult:
        return {result.name: result for result in self.results}[name]

    def __str__(self) -> str:
        rows = [("promise", "verdict", "why")]
        rows += [(result.name, result.verdict, result.why) for result in self.results]
        return f"{self.recipe}\n{columns(rows)}"


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
    | ends | a rule that computes w - d, where the step ends, sets `Rule.uses_endpoint` |
    | vmap | a batch of weights, or of values of each number, and one after another |
    | compiled | `backend="compiled"`, and the rule's own code; or why it is refused |
    | resumes | a run that was saved and loaded, and one that was not |
    | sharded | weights cut along their rows in two processes, and whole ones |
    | law | after `import spherenorm_theory`: the norm-growth law, or why there is none |

    If a rule breaks one of the first three, no further promise is tried. A check takes some
    seconds, most of them in a compiler.

    Args:
        recipe: a recipe, its registered name, or `module:function`.
        only: the promises to try; empty tries all.
        **hyper_parameters: hyper-parameters that are not at their defaults.

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
    unknown = sorted(set(only) - PROPERTIES.keys())
    if unknown:
        raise ValueError(f"only: no promise {unknown[0]!r}; there are {list(PROPERTIES)}")
    bound = bind(recipe, **hyper_parameters)
    bound.rule  # noqa: B018  (a property, which raises)
    under_test = RecipeUnderTest.from_bound(bound)
    results: list[PromiseResult] = []
    began = time.monotonic()
    for name in PROPERTIES:
        if name in only or not only:
            if time.monotonic() - began > QUIET_S:
                sys.stderr.write(f"check {bound.name}: {name} ...\n")
            results.append(_try_promise(name, under_test, results))
    return Report(bound.name, tuple(results))


def _try_promise(
    name: str, under_test: RecipeUnderTest, earlier_results: Sequence[PromiseResult]
) -> PromiseResult:
    """Return the result of one promise; errors of the recipe's code are failures."""
    for result in earlier_results:
        if result.verdict == "fails" and result.name in FOUNDATIONS:
            return PromiseResult(name, "not run", f"{result.name!r} fails, on which it rests")
    try:
        return PromiseResult(name, "holds", PROPERTIES[name](under_test))
    except NotApplicable as error:
        return PromiseResult(name, "refused", _first_line(error))
    except AssertionError as error:
        return PromiseResult(name, "fails", _first_line(error))
    except Exception as error:
        return PromiseResult(name, "fails", f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
