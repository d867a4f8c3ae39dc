"""`spherenorm audit` and `spherenorm code`: the commands of the library itself, without extras."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from spherenorm.audit import Audit
from spherenorm.audit import audit as audit_model
from spherenorm.export import export
from spherenorm.support import atomic_write, describe_with_user_line, look_up, on_interrupt
from spherenorm.views import as_view

EPILOG = """\
The factory is a function without arguments that returns (model, batch) or (model, batch, loss):
a batch is a tensor, a tuple of the model's arguments, or a dict of its keyword arguments; a loss
is a function of the model's output.
"""


def audit(arguments: Sequence[str]) -> int:
    """Find the scale-invariant weights of a model.

    Returns:
        The exit code, which is 2 for a wrong request.
    """
    parser = argparse.ArgumentParser(
        prog="spherenorm audit",
        description="Find the scale-invariant weights of a model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("factory", help="module:function")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--seed", type=int, default=0, help="seed of the audit's random numbers")
    parser.add_argument(
        "--view", action="append", metavar="VIEW", help='try only this, such as "groups=8"; again'
    )
    args = parser.parse_args(arguments)
    on_interrupt()
    try:
        result = _audit(args.factory, args.view, args.seed)
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    text = json.dumps(result.to_dict(), indent=2) if args.json else str(result)
    sys.stdout.write(f"{text}\n")
    return 0


def code(arguments: Sequence[str]) -> int:
    """Write a recipe as one file of plain torch, which needs nothing of this library.

    Returns:
        The exit code, which is 2 for a wrong request.
    """
    parser = argparse.ArgumentParser(
        prog="spherenorm code",
        description="Write a recipe as one file of plain torch; see spherenorm.export.",
    )
    parser.add_argument("recipe", help="a name as `spherenorm list` has them, or module:function")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="hyper-parameters")
    parser.add_argument("--name", help="name of the class")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write this file")
    args = parser.parse_args(arguments)
    on_interrupt()
    try:
        settings = dict(map(_parse_setting, args.settings))
        text = export(args.recipe, args.name, **settings)
        if args.into:
            atomic_write(args.into, text)
    except (ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if not args.into:
        sys.stdout.write(text)
    return 0


def _parse_setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a setting is NAME=VALUE, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a choice, such as view=layer


def _audit(factory_name: str, view_names: Sequence[str] | None, seed: int) -> Audit:
    """Call a factory, and audit the model that it returns."""
    views = None if view_names is None else [as_view(name) for name in view_names]
    with _naming_the_factory(factory_name):
        result = look_up("factory", factory_name, "function", callable)()
    is_tuple = isinstance(result, tuple) and len(result) in (2, 3)
    if not (is_tuple and isinstance(result[0], nn.Module)):
        raise ValueError(
            f"{factory_name} must return (model, batch) or (model, batch, loss), "
            f"got {type(result).__name__}"
        )
    model, batch, loss = (*result, None)[:3]
    with _naming_the_factory(factory_name):
        return audit_model(model, batch, views=views, loss=loss, seed=seed)


@contextmanager
def _naming_the_factory(name: str) -> Iterator[None]:
    """Turn errors of a factory, its model or its loss into ValueErrors that name the factory."""
    try:
        yield
    except (Exception, SystemExit) as error:
        text = str(error)
        if repr(name) not in text:
            text = f"factory {name!r}: {describe_with_user_line(error)}"
        raise ValueError(text) from error
