"""The algebra in which recorded steps are read.

A *record* holds one step of a recipe as a list of operations; a *reading* runs them on `Formal`
vectors, of which only inner products are known, so that it holds in every dimension. From the
bottom to the top:

| module | holds |
|---|---|
| `symbols` | vectors, their products, canonical forms |
| `printing`, `statement` | text and LaTeX of a formula, and of a statement in words and formulas |
| `facts` | comparisons, and what is assumed by them |
| `formal`, `letters` | the algebra of vectors, and rules that are letters of it |
| `units`, `recording`, `trace` | the record of a step of one unit |
| `entrywise`, `operations` | the reading of a record |
| `values` | a reading in numbers |
| `decide`, `claims` | an expression that is 0; a relation and what shows it; proofs |
"""

from spherenorm_theory.algebra.printing import show
from spherenorm_theory.algebra.symbols import DIMENSION

__all__ = ["DIMENSION", "show"]
