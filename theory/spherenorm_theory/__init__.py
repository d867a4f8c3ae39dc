"""Laws of an optimizer, derived from the code of its recipe.

    from spherenorm_theory import norm_growth, check, equilibrium
    print(norm_growth("sgdp"))                 # the law, from the recipe's own code
    print(check("sgdp", weight_decay=1e-2))    # against a float64 run

or `spherenorm theory sgdp` in a shell. From a recipe to its law:

1. `spherenorm_theory.tracing`: `trace` records one step of the recipe as a list of tensor
   operations.
2. `spherenorm_theory.interpreter` runs the record on formal vectors, of which only inner products
   are known (`spherenorm_theory.vectors`); `one_step` in `spherenorm_theory.step` is the result.
3. `spherenorm_theory.norm_law`: `norm_growth` makes it a law of the norm, a `NormLaw`, which
   `spherenorm_theory.verify` compares with the code, by the numbers of
   `spherenorm_theory.evaluate`.
4. `spherenorm_theory.equilibria`: `equilibrium` and `equilibrium_turn` are laws of many steps.
5. `spherenorm_theory.proofs`: the paper's statements in `lemmas`, further ones in `beyond`, each a
   function that returns a `Proof`.
6. `spherenorm_theory.checks`: `check` and others compare laws with float64 runs of the recipe.
7. `spherenorm_theory.report`: all of it as text or LaTeX.

`norm_growth("sgdp")` is thus seven files: `norm_law`, where it begins and ends, and between them
`tracing`, `interpreter`, `vectors`, `step`, `verify` and `evaluate`. Their words are in `symbols`
(vectors and canonical forms) and `facts` (how a comparison is decided).

A module imports only from those above it in this list.
"""

from spherenorm.testing import PROPERTIES, NotApplicable, RecipeUnderTest
from spherenorm_theory.checks import Check, check, check_equilibrium, check_turn
from spherenorm_theory.claim import Proof
from spherenorm_theory.equilibria.equilibrium import (
    Equilibrium,
    equilibrium,
    equilibrium_turn,
    growth_ratio,
    rotational_rate,
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
    "equilibrium_turn",
    "false_positive_law",
    "false_positive_rate",
    "growth_ratio",
    "lemmas",
    "norm_growth",
    "one_step",
    "rotational_rate",
    "run_law",
    "trace",
]


def _law_property(under_test: RecipeUnderTest) -> str:
    """Derive the law of a recipe, for the promise "law" of `spherenorm.testing.check`.

    Raises:
        NotApplicable: there is no law that agrees with the code, and why.
    """
    recipe, values = under_test.bound.recipe, under_test.bound.hyper_parameters
    defaults = under_test.bound.defaults
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    try:
        law = norm_growth(recipe, **changed)
    except ValueError as error:
        raise NotApplicable(str(error)) from error
    return show(law.equation)


PROPERTIES["law"] = _law_property
