"""The norm-growth law of any recipe: derived from its record, and held against its code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import sympy as sp
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.algebra.claims import Claim, Hypothesis, Kind, positive_norms
from spherenorm_theory.algebra.printing import Letters
from spherenorm_theory.algebra.recording import hold_as_constants, trace
from spherenorm_theory.algebra.statement import Statement, words
from spherenorm_theory.algebra.symbols import GrowthError
from spherenorm_theory.algebra.trace import Trace
from spherenorm_theory.laws.claims import claims_of, closed_form
from spherenorm_theory.laws.evaluate import Agreement, Inputs, evaluate
from spherenorm_theory.laws.proposition import proposition, setting
from spherenorm_theory.laws.split import Split, derive
from spherenorm_theory.laws.step import one_step
from spherenorm_theory.laws.verify import (
    OWN_STEPS,
    DifferenceError,
    hold,
    hold_claims,
    verify_numbers,
)


@dataclass(frozen=True, eq=False)
class Law(Split):
    """The norm under a recipe: the law of a step, and its solution in time.

    Attributes:
        agreement: the weights for which the law was held against its code.
        claims: all that the law says, as relations with what shows them and their hypotheses.

    The other attributes are those of `spherenorm_theory.laws.split.Split`.

    Example:
        >>> law = norm_growth("sgd", weight_decay=0.0, dampening=0.0)
        >>> print(show(law.cross))
        -lr beta <w, m>
        >>> norm_growth("sgdp").cross, norm_growth("sgd", momentum=0.0).cross
        (0, 0)
    """

    agreement: Agreement
    claims: tuple[Claim, ...]

    def closed_form(self) -> sp.Eq | None:
        """|w_{t+1}|^2 as a sum over the steps before; |w_t|^2 where the cross term is 0.

        None if the law is open, has several unknowns, factors that change from step to step, or a
        first step of another kind.

        Example:
            >>> from spherenorm_theory import norm_growth, show
            >>> print(show(norm_growth("sgdw", dampening=0.0).closed_form()))
            |w_{t+1}|^2 = (1 - lr wd)^2 |w_t|^2 + |s_t|^2 + 2 Sum_{k<t} (beta (1 - lr wd))^(t - k) |s_k|^2
        """  # noqa: E501
        return closed_form(self) if self.agreement.from_start else None

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Those of all claims, and of the step that is split, each once."""
        found = [
            *map(self.entered, self.step.hypotheses),
            *(h for c in self.claims for h in c.under),
        ]
        found += positive_norms(*self.drive.values(), self.cross)
        closed = {words(h) for h in self.at_start}
        distinct = {words(each): each for each in found if words(each) not in closed}
        return tuple(distinct.values())

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The setting and the hypotheses of the law, in text."""
        return tuple(map(words, (*setting(self, self.agreement.note), *self.hypotheses)))

    def proposition(self) -> Statement:
        """The law as a paper states it: Setting, Assume, Then, Closed form, Status.

        Print it for text of 80 columns; `.latex()` is a proposition environment of amsthm.

        Example:
            >>> print(norm_growth("sgdw", momentum=0.0).proposition())  # doctest: +ELLIPSIS
            Proposition (sgdw)
            Setting. ...
        """
        held = self.agreement
        return proposition(self, self.claims, self.hypotheses, held.note, held.from_start)

    def __str__(self) -> str:
        return str(self.proposition())

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The proposition as LaTeX, for a document with amsmath and amsthm.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}; the other names have
                the paper's letters.

        Raises:
            ValueError: two names would have one letter.
        """
        return self.proposition().latex(letters)

    def evaluate(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], **hyper_parameters: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The step w' = (1 - kappa) w + s that the law says, and the new state, in numbers.

        Args:
            weight: of any shape that `agreement.view` splits into units; of one unit where
                `agreement.several` is False.
            gradient: shaped as the weight; orthogonal to each unit where the law assumes that.
            state: as the rule's `init` or `step` returns it.
            hyper_parameters: numbers; those that are not given have the recipe's defaults.

        Returns:
            The new weight and the new state, in float64.

        Raises:
            OutsideError: an assumption of the law does not hold for these numbers.
            TraceError: the code takes another step at these hyper-parameters.
            ValueError: a hyper-parameter is unknown, outside its open interval, or held at another
                number by the law; or a state is missing.

        Example:
            >>> law, w = norm_growth("sgdp", momentum=0.9), torch.tensor([[3.0, 4.0]])
            >>> numbers = {"lr": 1.0, "weight_decay": 0.01, "dampening": 0.5}
            >>> law.evaluate(w, torch.tensor([[-8.0, 6.0]]), {"momentum": 0 * w}, **numbers)[0]
            tensor([[6.9700, 0.9600]], dtype=torch.float64)
        """
        traced = self.step.traced
        values = traced.numbers(**hyper_parameters)
        self.agreement.require(self.name, weight)
        verify_numbers(self, traced.values(**hyper_parameters))
        return evaluate(
            self.split_step, self.agreement.view, Inputs(weight, gradient, state, values)
        )


def norm_growth(recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **given: Any) -> Law:
    """Derive the growth of a weight's norm under one step of `recipe`.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: put <w, g> = 0; otherwise <w, g> is a general number.
        given: hyper-parameters to hold at a value: `norm_growth(sgd, nesterov=True)`.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on formal
            vectors; or the law is not the step of its code.

    Example:
        >>> print(show(norm_growth("sgdw", momentum=0.0).law))
        |w'|^2 = (1 - lr wd)^2 |w|^2 + |s|^2
    """
    return _verified_law(trace(recipe, **given), scale_invariant)


def verified_trace(recipe: str | Recipe | Trace, **given: Any) -> Trace:
    """The trace of a recipe from which a law can be derived that is the step of its code.

    Args:
        recipe: as for `norm_growth`.
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: as for `norm_growth`.
    """
    traced = trace(recipe, **given)
    try:
        return _verified_law(traced, scale_invariant=True).step.traced
    except GrowthError:
        return traced  # whoever derives a law from it names that error


def _verified_law(traced: Trace, scale_invariant: bool) -> Law:
    """The law of a trace; where the code takes given numbers otherwise than tensors, of these."""
    try:
        return _law(traced, scale_invariant)
    except DifferenceError:
        if not traced.given:
            raise
        return _law(hold_as_constants(traced), scale_invariant)


@lru_cache(maxsize=512)
def _law(traced: Trace, scale_invariant: bool) -> Law:
    split = derive(one_step(traced, scale_invariant=scale_invariant))
    claims = claims_of(split)
    agreement = hold(split, claims)
    if traced.given:
        split = split.with_numbers()
        claims = claims_of(split)
    from_start = hold_claims(split, claims, OWN_STEPS, own=True) and agreement.from_start
    agreement = replace(agreement, from_start=from_start)
    if not from_start:
        claims = tuple(claim for claim in claims if claim.kind is not Kind.INDUCTION)
    return Law(**{f.name: getattr(split, f.name) for f in fields(split)},
               agreement=agreement, claims=claims)  # fmt: skip
