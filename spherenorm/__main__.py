"""`python -m spherenorm audit module:factory`: the audit of a model from the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from spherenorm._located import located
from spherenorm._modules import look_up
from spherenorm._views import as_view
from spherenorm.audit import Audit, audit_batch

EPILOG = """\
The factory is a function without arguments that returns (model, batch) or (model, batch, loss):
a batch is a tensor, a tuple of the model's arguments, or a dict of its keyword arguments; a loss
is a function of the model's output.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 2 for a wrong request."""
    parser = argparse.ArgumentParser(prog="python -m spherenorm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "audit",
        help="find the scale-invariant weights of a model",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("factory", help="module:function")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.add_argument("--seed", type=int, default=0, help="of the audit's random numbers")
    command.add_argument(
        "--view", action="append", metavar="VIEW", help='try only this, such as "groups=8"; again'
    )
    given = parser.parse_args(arguments)
    sys.path.insert(0, str(Path.cwd()))
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
    sys.exit(main())
