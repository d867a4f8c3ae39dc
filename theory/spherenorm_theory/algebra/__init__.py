"""The algebra in which recorded steps are read.

A *record* holds one step of a recipe as a list of operations; a *reading* runs them on `Formal`
vectors, of which only inner products are known, so that it holds in every dimension. From the
bottom to the top:

| part | names |
|---|---|
| vectors, their products, canonical forms | `Vector`, `Norm`, `Inner`, `exact`, `tidy` |
| text and LaTeX of a formula | `show`, `latex` |
| comparisons, and what is assumed by them | `Facts` |
| the algebra of vectors, and rules that are letters of it | `Formal` |
| the record of a step, and its reading | `trace`, `Trace`, `interpret` |
| a reading in numbers | `Values` |
| an expression that is 0 | `vanishes` |
| a relation and what shows it | `Claim`, `Induction`, `Refutation` |
| a statement and its proof | `Proof` |
"""

from spherenorm_theory.algebra.claims import (
    Claim,
    Hypothesis,
    Induction,
    Kind,
    Proof,
    Refutation,
    positive_norms,
    read_as,
    words,
)
from spherenorm_theory.algebra.decide import vanishes
from spherenorm_theory.algebra.facts import Facts
from spherenorm_theory.algebra.formal import Entries, Formal, Opaque, names_in
from spherenorm_theory.algebra.hyper_parameters import (
    are_numbers,
    is_number,
    numbers_by_name,
    resolve_hyper_parameters,
    resolve_recipe,
    structure_of,
    structure_of_run,
)
from spherenorm_theory.algebra.letters import RANK, SCALE, SHARE
from spherenorm_theory.algebra.operations import interpret
from spherenorm_theory.algebra.printing import (
    LETTERS,
    SHORT,
    Letters,
    Writer,
    choose_letters,
    latex,
    names_of,
    show,
)
from spherenorm_theory.algebra.recording import RESERVED, count_units, declared_views, trace
from spherenorm_theory.algebra.symbols import (
    DIMENSION,
    READABLE,
    GrowthError,
    Inner,
    Norm,
    Vector,
    at,
    exact,
    normalize_signs,
    product,
    tidy,
)
from spherenorm_theory.algebra.trace import ANY, Trace, TraceError
from spherenorm_theory.algebra.values import Array, Values

__all__ = [
    "ANY",
    "DIMENSION",
    "LETTERS",
    "RANK",
    "READABLE",
    "RESERVED",
    "SCALE",
    "SHARE",
    "SHORT",
    "Array",
    "Claim",
    "Entries",
    "Facts",
    "Formal",
    "GrowthError",
    "Hypothesis",
    "Induction",
    "Inner",
    "Kind",
    "Letters",
    "Norm",
    "Opaque",
    "Proof",
    "Refutation",
    "Trace",
    "TraceError",
    "Values",
    "Vector",
    "Writer",
    "are_numbers",
    "at",
    "choose_letters",
    "count_units",
    "declared_views",
    "exact",
    "interpret",
    "is_number",
    "latex",
    "names_in",
    "names_of",
    "normalize_signs",
    "numbers_by_name",
    "positive_norms",
    "product",
    "read_as",
    "resolve_hyper_parameters",
    "resolve_recipe",
    "show",
    "structure_of",
    "structure_of_run",
    "tidy",
    "trace",
    "vanishes",
    "words",
]
