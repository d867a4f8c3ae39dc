"""The algebra in which recorded steps are read.

A *record* holds one step of a recipe as a list of operations; a *reading* runs them on symbols
instead of tensors. There are two: `Formal` vectors, of which only inner products are known, hold in
every dimension; `Coordinates` are exact, entrywise operations included, in a dimension that one
names. From the bottom to the top:

| part | names |
|---|---|
| text and LaTeX of a formula | `show`, `latex` |
| canonical forms | `exact`, `tidy`, `normalize_signs` |
| vectors and their inner products | `Vector`, `Space` |
| names, signs and assumptions of scalars | `Assumptions` |
| the two algebras | `Formal`, `Coordinates` |
| polynomial equations | `eliminate` |
| the record of a step | `trace`, `Trace` |
| a reading of it | `interpret` |
| branches of code on sizes | `Branch`, `Branches` |
| an expression that is 0 | `vanishes` |
| a relation and what shows it | `Claim`, `Induction`, `Slope`, `Refutation` |
| a statement and its proof | `Proof` |
"""

import spherenorm_theory.algebra._formal_operations  # noqa: F401  (gives `Formal` its operations)
from spherenorm_theory.algebra._assumptions import Assumptions
from spherenorm_theory.algebra._branches import Branch, Branches
from spherenorm_theory.algebra._budget import BudgetError, budget
from spherenorm_theory.algebra._claims import Claim, Induction, Kind, Proof, Refutation, Slope
from spherenorm_theory.algebra._coordinates import Array, Coordinates
from spherenorm_theory.algebra._decide import vanishes
from spherenorm_theory.algebra._declared import (
    ANY,
    RESERVED,
    count_units,
    declared_views,
    symbol_of,
)
from spherenorm_theory.algebra._elimination import NoClosedFormError, eliminate
from spherenorm_theory.algebra._formal import DIMENSION, Entries, Formal
from spherenorm_theory.algebra._hyper_parameters import (
    are_numbers,
    is_number,
    numbers_by_name,
    resolve_hyper_parameters,
    resolve_recipe,
    structure_of,
)
from spherenorm_theory.algebra._interpreter import interpret, outputs_of, read_values
from spherenorm_theory.algebra._numbers import NumericEvaluator
from spherenorm_theory.algebra._recording import trace
from spherenorm_theory.algebra._symbols import exact, normalize_signs, tidy
from spherenorm_theory.algebra._text import Letters, choose_latex, latex, show
from spherenorm_theory.algebra._trace import Trace, TraceError
from spherenorm_theory.algebra._vectors import Space, Vector

__all__ = [
    "ANY",
    "DIMENSION",
    "RESERVED",
    "Array",
    "Assumptions",
    "Branch",
    "Branches",
    "BudgetError",
    "Claim",
    "Coordinates",
    "Entries",
    "Formal",
    "Induction",
    "Kind",
    "Letters",
    "NoClosedFormError",
    "NumericEvaluator",
    "Proof",
    "Refutation",
    "Slope",
    "Space",
    "Trace",
    "TraceError",
    "Vector",
    "are_numbers",
    "budget",
    "choose_latex",
    "count_units",
    "declared_views",
    "eliminate",
    "exact",
    "interpret",
    "is_number",
    "latex",
    "normalize_signs",
    "numbers_by_name",
    "outputs_of",
    "read_values",
    "resolve_hyper_parameters",
    "resolve_recipe",
    "show",
    "structure_of",
    "symbol_of",
    "tidy",
    "trace",
    "vanishes",
]
