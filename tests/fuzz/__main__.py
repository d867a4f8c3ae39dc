"""Compare every path with the rule's own code on random cases.

    python -m tests.fuzz --cases 5000 --seed 0
    python -m tests.fuzz --paths compiled --first 480 --cases 520  # a piece, for another core

The paths share the cases out in equal numbers. The output is a table; each difference that is not
explained by rounding of the inputs is a line on stderr that reproduces it; the exit code is 1 if
there is one that rounding of the operations does not explain either. On the path "derivative", a
case is unresolved where differences of values do not tell one of its derivatives.
"""

from __future__ import annotations

import argparse
import os
import pprint
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import torch

from tests.fuzz import derivatives, paths, shards
from tests.fuzz.cases import LIMITS, draw_case
from tests.fuzz.compare import Outcome, outcome

DEFAULT = "auto,compiled,batched,shim,sweep,dtensor,derivative"
COLUMNS = ("compared", "refused", "explained", "unresolved", "of operations", "different")


def outcomes(path: str, seed: int, numbers: Sequence[int]) -> Iterator[Outcome]:
    if path == "dtensor":
        yield from shards.outcomes(seed, numbers)
        return
    for number in numbers:
        case = draw_case(path, seed, number)
        if path == "derivative":
            yield derivatives.outcome(case)
        else:
            yield outcome(path, case, lambda *of: paths.run(path, *of))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000, help="over all paths together")
    parser.add_argument("--first", type=int, default=0, help="the number of each path's first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--paths", default=DEFAULT, help=f"of {', '.join(LIMITS)}")
    parser.add_argument("--only", type=int, help="one case of each path, with its description")
    given = parser.parse_args()
    chosen = given.paths.split(",")
    numbers = range(given.first, given.first + given.cases // len(chosen))
    if given.only is not None:
        numbers = range(given.only, given.only + 1)
        for path in chosen:
            case = draw_case(path, given.seed, given.only)
            print(case.structure.source, pprint.pformat(case), file=sys.stderr)
    torch.set_num_threads(1)
    different = 0
    print(f"{'path':10}{'cases':>8}" + "".join(f"{c:>15}" for c in (*COLUMNS, "seconds")))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("SPHERENORM_CACHE", folder)
        for path in chosen:
            start, counts = time.perf_counter(), Counter[str]()
            for found in outcomes(path, given.seed, numbers):
                counts.update({found.kind, "refused" if found.kind == "refused" else "compared"})
                if found.kind in COLUMNS[-2:]:
                    print(found.line(given.seed), file=sys.stderr)
            different += counts["different"]
            seconds = f"{time.perf_counter() - start:.0f}"
            shown = [*(counts[c] for c in COLUMNS), seconds]
            print(f"{path:10}{len(numbers):8}" + "".join(f"{x:>15}" for x in shown), flush=True)
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
