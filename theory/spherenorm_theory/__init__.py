"""Laws of an optimizer, derived from the code of its recipe.

    from spherenorm_theory import norm_growth, check, equilibrium
    print(norm_growth("sgdp"))                 # the law, from the recipe's own code
    print(check("sgdp", weight_decay=1e-2))    # against a float64 run

or `spherenorm theory sgdp` in a shell. The way from a recipe to a law, one room after the other:

1. `spherenorm_theory.algebra`: one step of the recipe is recorded as a list of tensor operations
   (`trace`), and the record is read on symbols.
2. `spherenorm_theory.laws`: `one_step` gives the new weight as a combination of the old one, the
   gradient and the states; `norm_growth` makes it a law of the norm, `equilibrium` a law of many
   steps.
3. `spherenorm_theory.proofs`: the paper's statements in `lemmas`, further ones in `beyond`, each a
   `Proof` from such laws.
4. `spherenorm_theory.checks`: `check` and its like hold a law against float64 runs of the recipe.
5. `spherenorm_theory.report`: all of it as text or LaTeX.

Each room imports only from the rooms above it in this list.
"""

from spherenorm.testing import PROPERTIES, RefusedError, Subject
from spherenorm_theory.checks import Check, check, check_equilibrium, check_turn
from spherenorm_theory.claim import Proof
from spherenorm_theory.equilibria.equilibrium import (
    Equilibrium,
    equilibrium,
    growth_ratio,
    rotational_rate,
    turn_at_rest,
)
from spherenorm_theory.equilibria.mean_field import NoEquilibriumError
from spherenorm_theory.norm_law import NormLaw, norm_growth
from spherenorm_theory.printing import show
from spherenorm_theory.proofs import beyond, equation_4, false_positive_law, lemmas
from spherenorm_theory.proofs.beyond import false_positive_rate
from spherenorm_theory.run_laws import RunLaw, run_law
from spherenorm_theory.step import Step, one_step
from spherenorm_theory.tracing import Trace, TraceError, trace

__all__ = [
    "Check",
    "Equilibrium",
    "NoEquilibriumError",
    "NormLaw",
    "Proof",
    "RunLaw",
    "Step",
    "Trace",
    "TraceError",
    "beyond",
    "check",
    "check_equilibrium",
    "check_turn",
    "equation_4",
    "equilibrium",
    "false_positive_law",
    "false_positive_rate",
    "growth_ratio",
    "lemmas",
    "norm_growth",
    "one_step",
    "rotational_rate",
    "run_law",
    "trace",
    "turn_at_rest",
]


def _law(subject: Subject) -> str:
    """The promise "law" of `spherenorm.testing.check`.

    A recipe has a norm-growth law that holds for its code, or there is a reason why not.
    """
    recipe, values = subject.bound.recipe, subject.bound.hyper_parameters
    given = {name: value for name, value in values.items() if value != subject.bound.defaults[name]}
    try:
        law = norm_growth(recipe, **given)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    return show(law.equation)


PROPERTIES["law"] = _law
