"""Random chains of the library's rules: each law is the step of its code, for five shapes.

    python -m tests.theory.chains --cases 200

A chain that is refused counts apart, with its cause.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
import torch

from spherenorm import View
from spherenorm_theory import norm_growth
from spherenorm_theory.laws import OutsideError
from tests.theory.laws.test_random_chains import random_structure

SHAPES = ((1, 7), (3, 4), (4, 4), (5, 2), (2, 3, 2, 2))


def compare_chain(seed: int) -> str:
    """Compare a random chain with its law along a short run on each shape.

    Returns:
        "same", "one unit" if the law is about a weight of one unit only, or the refusal.
    """
    rng = np.random.default_rng([seed, 12])
    structure, numbers = random_structure(rng)
    orthogonal = seed % 3 > 0
    try:
        law = norm_growth(structure.recipe, scale_invariant=orthogonal)
    except ValueError as error:
        return f"refused: {error}"
    numbers = {name: numbers[name] for name in law.step.traced.numbers}
    rule = law.step.traced.build(
        {name: torch.tensor(x, dtype=torch.float64) for name, x in numbers.items()}
    )
    several = law.agreement.several
    for shape in SHAPES if several else SHAPES[:1]:
        _compare_run(law, rule, shape, numbers, orthogonal, rng)
    return "same" if several else "one unit"


def _compare_run(law, rule, shape, numbers, orthogonal, rng) -> None:
    view: View = law.agreement.view
    weight = torch.tensor(rng.normal(size=shape))
    state = rule.init(weight)
    for _ in range(3):
        grad = torch.tensor(rng.normal(size=shape))
        radial = view.radial_coefficient(weight, grad)
        grad = grad - (radial - (0.0 if orthogonal else 2.0)) * weight
        new, after = rule.step(weight, grad, dict(state))
        try:
            law_new, law_after = law.evaluate(weight, grad, state, **numbers)
        except OutsideError:  # an assumption, such as that no projection acts, fails by itself
            law_new, law_after = new, after
        torch.testing.assert_close(law_new, new, rtol=1e-10, atol=1e-10)
        for name in state:
            torch.testing.assert_close(law_after[name], after[name], rtol=1e-10, atol=1e-10)
        weight, state = new, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    outcomes: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.cases):
        try:
            outcomes[compare_chain(seed)] += 1
        except AssertionError as error:
            outcomes["DIFFERENT"] += 1
            print(f"seed {seed}: {error}", flush=True)
    for outcome, count in outcomes.most_common():
        print(f"{count:4} {outcome}")
    if outcomes["DIFFERENT"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
