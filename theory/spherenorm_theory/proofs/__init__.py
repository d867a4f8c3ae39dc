"""Proofs from recorded steps: the paper's statements, and statements beyond the lemmas.

Each function returns a `spherenorm_theory.Proof`: the statement with the claims that it rests on,
and other readings of it that they refute.

| statement | name |
|---|---|
| Eq. 4, for normalized functions | `equation_4` |
| the lemmas, Corollary 2.3, Eq. 5 and 14, Proposition 3.1 | `lemmas` |
| other momenta, equilibria, the rate of false positives | `beyond` |
| all of them, in the order of the paper | `STATEMENTS` |
"""

from collections.abc import Callable

from spherenorm_theory.claim import Proof
from spherenorm_theory.proofs import beyond, lemmas
from spherenorm_theory.proofs.beyond import false_positive_law
from spherenorm_theory.proofs.lemmas import equation_4

__all__ = ["STATEMENTS", "beyond", "equation_4", "false_positive_law", "lemmas"]

STATEMENTS: dict[str, tuple[Callable[[], Proof], ...]] = {
    "The paper's statements": (
        equation_4,
        lemmas.effective_step,
        lemmas.lemma_2_1,
        lemmas.lemma_2_2,
        lemmas.lemma_2_2_scheduled,
        lemmas.corollary_2_3,
        lemmas.equation_14,
        lemmas.proposition_3_1,
        beyond.adam_can_shrink,
    ),
    "Beyond the paper": (
        beyond.momentum_by_any_name,
        beyond.nesterov_never_shrinks,
        beyond.ratio_laws,
        beyond.equilibria_of_the_literature,
        beyond.matched_decay,
        false_positive_law,
    ),
}
"""All statements, by section."""
