"""The outcome of one case on one path."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

import spherenorm as sn
from tests.fuzz import paths
from tests.fuzz.cases import Case, draw_case
from tests.fuzz.compare import judge
from tests.fuzz.reference import Gradients, Moment, reference


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    kind: "equal", "explained" by rounding of the inputs, "of operations", "different", or
        "refused".
    detail: the first difference, or the error.
    """

    path: str
    number: int
    kind: str
    detail: str = ""

    def counts(self) -> list[str]:
        """The columns of the table that count it."""
        return (
            ["refused"]
            if self.kind == "refused"
            else ["compared"]
            if self.kind == "equal"
            else ["compared", self.kind]
        )

    def line(self, seed: int) -> str:
        command = f"python -m tests.fuzz --seed {seed} --paths {self.path} --only {self.number}"
        return f"{command}  # {self.detail}"


def outcomes(path: str, seed: int, numbers: Iterable[int]) -> Iterator[Outcome]:
    if path == "dtensor":
        from tests.fuzz import shards

        return shards.outcomes(seed, list(numbers))
    if path == "derivative":
        from tests.fuzz import derivatives

        return derivatives.outcomes(seed, numbers)
    return (
        outcome(path, draw_case(path, seed, number), lambda *of: paths.run(path, *of))
        for number in numbers
    )


def outcome(path: str, case: Case, run: Callable[[Case, Gradients], list[Moment]]) -> Outcome:
    """The case on the path that `run` takes."""
    torch.manual_seed(case.number)
    doing = "the rule's own code raises"
    try:
        gradients = reference(case).gradients
        doing = "raises"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            moments = run(case, gradients)
        doing = "the rule's own code, from the path's weights and states, raises"
        kind, difference = judge(case, moments, gradients)
    except sn.BackendError as error:
        return Outcome(path, case.number, "refused", short(error))
    except Exception as error:
        detail = f"{doing} {type(error).__name__}: {short(error)}"
        return Outcome(path, case.number, "different", detail)
    return Outcome(path, case.number, kind, str(difference or ""))


def short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
