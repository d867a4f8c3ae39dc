"""The norm-growth law of any recipe, derived from the record of its step.

The record is read on symbols (`one_step`), the step is split into decay and drive, and the
recursion of the cross terms is solved in time (`LinearRecurrence`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sympy as sp
from torch import Tensor

from spherenorm import Recipe
from spherenorm_theory.algebra import Array, Letters, Trace, budget, trace
from spherenorm_theory.laws._agreement import Agreement, Path, read_path
from spherenorm_theory.laws._evaluation import Inputs, OutsideError, evaluate, require_states
from spherenorm_theory.laws._inputs import rule_of
from spherenorm_theory.laws._one_step import one_step
from spherenorm_theory.laws._prediction import predict_norms, predict_range
from spherenorm_theory.laws._quantities import primed, product
from spherenorm_theory.laws._recurrence import SolvedLaw
from spherenorm_theory.laws._step_law import derive
from spherenorm_theory.laws._text import align, describe, list_hypotheses, write_interval
from spherenorm_theory.laws._verify import compare, compare_products


@dataclass(frozen=True)
class NormGrowth(SolvedLaw):
    """The norm under a recipe, from the first step on: the law of a step, and its solution in time.

    Attributes:
        agreement: the weights for which the law was held against its code.

    Example:
        >>> norm_growth("sgdp").cross, norm_growth("sgd", momentum=0.0).cross
        (0, 0)
    """

    agreement: Agreement

    def evaluate(
        self, weight: Tensor, gradient: Tensor, state: Mapping[str, Tensor], **hyper_parameters: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The step w' = (1 - kappa) w + s that the law says, and the new state, in numbers.

        Args:
            weight: of any shape that `agreement.view` splits into units; of one unit where
                `agreement.several` is False.
            gradient: shaped as the weight; orthogonal to each unit where the law assumes that.
            state: as the rule's `init` or `step` returns it. The first state gives the first step.
            hyper_parameters: numbers; those that are not given have the recipe's defaults.

        Returns:
            The new weight and the new state, in float64.

        Raises:
            OutsideError: an assumption of the law does not hold for these numbers.
            ValueError: a hyper-parameter is unknown, outside its interval, or held at another
                number by the law; or a state is missing.

        Example:
            >>> law, w = norm_growth("sgdp", momentum=0.9), torch.tensor([[3.0, 4.0]])
            >>> law.evaluate(w, torch.tensor([[-4.0, 3.0]]), {"momentum": 0 * w}, lr=1.0)[0]
            tensor([[7., 1.]], dtype=torch.float64)
        """
        values = {s.name: x for s, x in self.step.traced.values(**hyper_parameters).items()}
        require_states(self.step, state)

        path = partial(_path_at, self, values, weight, gradient, state)
        if refusal := self.agreement.refuse(weight, path):
            raise OutsideError(f"{self.name}: {refusal}")
        inputs = Inputs(weight, gradient, state, values)
        return evaluate(self.split_step, self.agreement.view, inputs)

    def predict(
        self,
        norms: Any,
        drive: Any,
        measured: Mapping[str, Any] | None = None,
        **hyper_parameters: Any,
    ) -> Array:
        """|w_t| over a run, from |w_0| and the lengths of the steps by the law alone.

        Args:
            norms: |w_0| of each unit, shape (...); or |w_t|, shape (steps + 1, ...), whose first
                entry is taken.
            drive: |s_t|, shape (steps, ...), with s the drive of the law.
            measured: other products that the law needs, by name, shape (steps, ...): `<w,s>` of an
                open law, `<m,s>` with Nesterov momentum.
            hyper_parameters: numbers, or an array of one per step for a schedule; those that are
                not given have the recipe's defaults.

        Returns:
            |w_t|, shape (steps + 1, ...).

        Raises:
            ValueError: lengths that do not fit, a product that the law needs and does not get, or
                a hyper-parameter as for `evaluate`.

        Example:
            >>> plain = norm_growth("sgd", momentum=0.0, weight_decay=0.0, dampening=0.0)
            >>> plain.predict(3.0, [4.0, 12.0], lr=0.1)
            array([ 3.,  5., 13.])
        """
        return predict_norms(self, norms, drive, measured or {}, hyper_parameters)

    def predict_range(self, norms: Any, drive: Any, **hyper_parameters: Any) -> tuple[Array, Array]:
        """The least and the greatest |w_t| that steps of these lengths can give.

        For a law that stays open: |<w, s>| <= |w| |s| holds for any step.

        Args:
            norms, drive, hyper_parameters: as for `predict`.
        """
        return predict_range(self, norms, drive, hyper_parameters)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The hypotheses under which the law holds."""
        return (self.agreement.note, *self.agreement.conditions, *list_hypotheses(self))

    @property
    def bounds(self) -> tuple[str, ...]:
        """The bounds of <w, s> and of the growth where the law stays open."""
        return tuple(write_interval(self)) if self.open_because and not self.constant else ()

    def __str__(self) -> str:
        return describe(self, self.bounds, self.assumptions)

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The law, its cross term, the recursion and the closed form as an `aligned` block.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}; the other names have
                the paper's letters. `spherenorm_theory.report.law_to_latex` adds the hypotheses.

        Raises:
            ValueError: two names would have one letter.
        """
        cross = sp.Eq(product("w", "s"), self.cross, evaluate=False)
        recursion = (sp.Eq(primed(u), e, evaluate=False) for u, e in self.recursion.items())
        closed = self.closed_form()
        rest = [] if self.constant else [cross, *recursion]
        return align([self.law, *rest, *([closed] if closed is not None else [])], letters)


def _path_at(
    law: NormGrowth,
    values: Mapping[str, float],
    weight: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
) -> Path:
    """The path of a step of the rule at numbers, by the names of their symbols."""
    numbers = law.step.traced.numbers.items()
    given = {n: float(x) if x.is_number else values[x.name] for n, x in numbers}
    return read_path(rule_of(law.step, given), weight, gradient, state)


def norm_growth(
    recipe: str | Recipe | Trace, *, scale_invariant: bool = True, **given: Any
) -> NormGrowth:
    """Derive the growth of a weight's norm under one step of `recipe`.

    Args:
        recipe: a recipe, its registered name, "module:function", or a trace.
        scale_invariant: put <w, g> = 0; otherwise <w, g> is a general number.
        given: hyper-parameters to hold at a value: `norm_growth(sgd, nesterov=True)`.

    Raises:
        ValueError: no such recipe or hyper-parameter.
        TraceError: the step cannot be traced, or holds an operation that has no meaning on symbols.

    Example:
        >>> law = norm_growth("sgd", weight_decay=0.0, dampening=0.0)
        >>> print(law.cross)
        -<w,m>*lr*momentum
    """
    traced = recipe if isinstance(recipe, Trace) else trace(recipe, **given)
    with budget(traced.name):
        return _norm_growth(traced, scale_invariant)


def _norm_growth(traced: Trace, scale_invariant: bool) -> NormGrowth:
    law = derive(one_step(traced, scale_invariant=scale_invariant))
    start = one_step(traced, scale_invariant=scale_invariant, first=True)
    first = derive(start, law.unknowns)
    open_because = law.open_because or first.open_because
    law = replace(law, open_because=open_because, first=first if law.step.states else None)
    compare_products(law)
    parts = (law.step, law.kappa, law.drive, law.cross, law.recursion, open_because, law.first)
    return NormGrowth(*parts, compare(law.split_step, law.constant))
