"""Audit a hundred models of known truth.

    python -m tests.audit.zoo

A weight that the audit calls invariant though it is not, or in a finer view than the true one, is
falsely invariant; one that it does not find in its view is missed. The exit code is 1 if there is
a falsely invariant one, or more than 1 % are missed.
"""

import sys
import time
import warnings

from tests.audit.zoo import CASES, check


def main() -> int:
    start, cpu = time.perf_counter(), time.process_time()
    warnings.simplefilter("ignore")
    outcomes = [check(name) for name in CASES]
    false = [line for outcome in outcomes for line in outcome.false]
    missed = [line for outcome in outcomes for line in outcome.missed]
    weights = sum(outcome.weights for outcome in outcomes)
    invariant = sum(outcome.invariant for outcome in outcomes)
    print(*(f"falsely invariant: {line}" for line in false), sep="\n")
    print(*(f"missed: {line}" for line in missed), sep="\n")
    print(
        f"{len(CASES)} models, {weights} weights, {invariant} of them invariant: {len(false)} "
        f"falsely invariant, {len(missed)} missed; {time.perf_counter() - start:.0f} s, "
        f"{time.process_time() - cpu:.0f} s of CPU"
    )
    return bool(false) or len(missed) > 0.01 * invariant


if __name__ == "__main__":
    sys.exit(main())
