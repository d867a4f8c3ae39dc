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

from spherenorm.testing import PROPERTIES, RecipeUnderTest, RefusedError
from spherenorm_theory._run_law import RunLaw, run_law
from spherenorm_theory.algebra.claims import Proof
from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.recording import trace
from spherenorm_theory.algebra.trace import Trace, TraceError
from spherenorm_theory.checks.norm_growth import Check, check
from spherenorm_theory.checks.random_gradients import check_equilibrium, check_turn
from spherenorm_theory.laws.detection import false_positive_rate
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError
from spherenorm_theory.laws.step import Step, one_step
from spherenorm_theory.laws.turn import growth_ratio, rotational_rate, turn_at_rest
from spherenorm_theory.proofs import beyond, equation_4, false_positive_law, lemmas

__all__ = [
    "Check",
    "Equilibrium",
    "Law",
    "NoEquilibriumError",
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


def _law(under_test: RecipeUnderTest) -> str:
    """The promise "law" of `spherenorm.testing.check`.

    A recipe has a norm-growth law that holds for its code, or there is a reason why not.
    """
    bound = under_test.bound
    values = bound.hyper_parameters
    given = {name: value for name, value in values.items() if value != bound.defaults[name]}
    try:
        law = norm_growth(bound.recipe, **given)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    return show(law.law)


PROPERTIES["law"] = _law
