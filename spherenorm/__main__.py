"""`python -m spherenorm`: the command `spherenorm`; here is its `audit`, which needs no extra."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from torch import nn

from spherenorm._views import as_view
from spherenorm.audit import Audit, audit_batch
from spherenorm.support import located, look_up

EPILOG = """\
The factory is a function without arguments that returns (model, batch) or (model, batch, loss):
a batch is a tensor, a tuple of the model's arguments, or a dict of its keyword arguments; a loss
is a function of the model's output.
"""


def audit(arguments: Sequence[str]) -> int:
    """`spherenorm audit module:factory`; the exit code is 2 for a wrong request."""
    parser = argparse.ArgumentParser(
        prog="spherenorm audit",
        description="Find the scale-invariant weights of a model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("factory", help="module:function")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seed", type=int, default=0, help="of the audit's random numbers")
    parser.add_argument(
        "--view", action="append", metavar="VIEW", help='try only this, such as "groups=8"; again'
    )
    given = parser.parse_args(arguments)
    try:
        views = None if given.view is None else [as_view(view) for view in given.view]
        result = _audit(given.factory, views, given.seed)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    text = json.dumps(result.to_dict(), indent=2) if given.json else str(result)
    sys.stdout.write(f"{text}\n")
    return 0


def _audit(name: str, views: Any, seed: int) -> Audit:
    with _users_code(name):
        made = look_up("factory", name, "function", callable)()
    if not (isinstance(made, tuple) and len(made) in (2, 3) and isinstance(made[0], nn.Module)):
        kind = type(made).__name__
        raise ValueError(f"{name} must return (model, batch) or (model, batch, loss), got {kind}")
    model, batch, loss = (*made, None)[:3]
    with _users_code(name):
        return audit_batch(model, batch, views=views, loss=loss, seed=seed)


@contextmanager
def _users_code(name: str) -> Iterator[None]:
    """Raise what a factory, its model or its loss raises as an error that names it."""
    try:
        yield
    except (Exception, SystemExit) as error:
        said = repr(name) in str(error)
        text = str(error) if said else f"factory {name!r}: {located(error)}"
        raise ValueError(text) from error


if __name__ == "__main__":
    # By name, since imports go one way: the command has the tools of the packages above this one.
    sys.exit(import_module("spherenorm_experiments.cli").main())
