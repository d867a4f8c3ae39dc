"""The two consoles, the exit codes, and the errors that end a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from experiments.engine import StoreError

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "STORE",
    "USAGE",
    "console",
    "errors",
    "interruptible",
    "quiet",
    "say",
    "say_error",
    "store_errors",
    "usage_errors",
]

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

console = Console()
errors = Console(stderr=True)


def say(text: str, **style: Any) -> None:
    """Print a line that is not wrapped and not colored by its content."""
    console.print(text, soft_wrap=True, highlight=False, **style)


def say_error(text: str, kind: str = "[red]error[/red]: ") -> None:
    """Print a line on the standard error."""
    errors.print(f"{kind}{escape(text)}", soft_wrap=True, highlight=False)


@contextmanager
def interruptible(root: Path) -> Iterator[None]:
    """End with the exit code of an interruption, and say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (root / "plans").is_dir()
        go_on = f"; go on with: python -m experiments resume --out {root}"
        say_error(f"interrupted{go_on if begun else ', nothing ran'}", "")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def quiet(as_json: bool) -> Iterator[None]:
    """Send what a recipe or a task prints to the standard error, if the command prints JSON."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


@contextmanager
def usage_errors() -> Iterator[None]:
    """End with the exit code of a wrong command."""
    try:
        yield
    except (ValueError, TypeError, StoreError) as error:
        say_error(str(error))
        raise typer.Exit(USAGE) from None


@contextmanager
def store_errors() -> Iterator[None]:
    """End with the exit code of a store that cannot be written."""
    try:
        yield
    except StoreError as error:
        say_error(f"{error}; what was finished is kept")
        raise typer.Exit(STORE) from None
