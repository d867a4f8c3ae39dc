"""Compare every path with the rule's own code on random cases.

    python -m tests.fuzz --cases 5000 --seed 0

The paths share the cases out in equal numbers. Of "derivative" a case is explained, too, where
differences of values do not resolve one of its derivatives. The output is a table; each difference that is not
explained by rounding of the inputs is a line on stderr that reproduces it; the exit code is 1 if
there is one that rounding of the operations does not explain either.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable

import torch

from tests.fuzz.cases import draw_case
from tests.fuzz.outcome import Outcome, outcomes

DEFAULT = "auto,compiled,sweep,dtensor,derivative"
COLUMNS = ("compared", "refused", "explained", "of operations", "different")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=5000, help="over all paths together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--paths", default=DEFAULT, help="of auto, rule, compiled, sweep, dtensor, derivative"
    )
    parser.add_argument("--only", type=int, help="one case of each path, with its description")
    arguments = parser.parse_args()
    paths = arguments.paths.split(",")
    numbers = range(arguments.cases // len(paths)) if arguments.only is None else [arguments.only]
    if arguments.only is not None:
        for path in paths:
            print(draw_case(path, arguments.seed, arguments.only), file=sys.stderr)
    torch.set_num_threads(1)
    different, lines = 0, []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("SPHERENORM_CACHE", folder)
        for path in paths:
            start = time.perf_counter()
            counts = Counter()
            for outcome in watched(path, outcomes(path, arguments.seed, numbers), len(numbers)):
                counts.update(outcome.counts())
                if outcome.kind in ("of operations", "different"):
                    print(f"{outcome.kind}: {outcome.line(arguments.seed)}", file=sys.stderr)
            different += counts["different"]
            seconds = time.perf_counter() - start
            lines.append(
                f"{path:10}{sum(counts[c] for c in ('compared', 'refused')):8}"
                + "".join(f"{counts[c]:15}" for c in COLUMNS)
                + f"{seconds:10.0f}"
            )
    print(
        f"{'path':10}{'cases':>8}" + "".join(f"{c:>15}" for c in COLUMNS) + f"{'seconds':>10}",
        *lines,
        sep="\n",
    )
    return bool(different)


def watched(path: str, outcomes: Iterable[Outcome], count: int) -> Iterable[Outcome]:
    """The outcomes, with a word to stderr every half minute."""
    last = time.perf_counter()
    for done, outcome in enumerate(outcomes, 1):
        if time.perf_counter() - last > 30:
            last = time.perf_counter()
            print(f"{path}: {done} of {count}", file=sys.stderr)
        yield outcome


if __name__ == "__main__":
    sys.exit(main())
