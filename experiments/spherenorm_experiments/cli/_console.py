"""The two consoles, the exit codes, and the errors that end a command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.markup import escape

from spherenorm.support import on_interrupt
from spherenorm_experiments.spec import said
from spherenorm_experiments.store import StoreError

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

NOTE = "[yellow]note[/yellow]: "

console = Console()
errors = Console(stderr=True)


def say(text: str, **style: Any) -> None:
    """Print a line that is not wrapped and not colored by its content."""
    console.print(text, soft_wrap=True, highlight=False, **style)


def say_error(text: str, kind: str = "[red]error[/red]: ") -> None:
    """Print a line on the standard error."""
    errors.print(f"{kind}{escape(text)}", soft_wrap=True, highlight=False)


def tell_unusable(requests: Mapping[str, str]) -> bool:
    """Say which requests cannot be read, and what to do; True if there are any."""
    for name, text in requests.items():
        say_error(f"plans/{name}: {text}")
    return bool(requests)


@contextmanager
def interruptible(root: Path) -> Iterator[None]:
    """End with the exit code of an interruption, and say how to go on."""
    on_interrupt()
    try:
        yield
    except KeyboardInterrupt:
        begun = (root / "plans").is_dir()
        go_on = f"; go on with: spherenorm resume --out {root}"
        say_error(f"interrupted{go_on if begun else ', nothing ran'}", "")
        raise typer.Exit(INTERRUPTED) from None


_answers: list[TextIO] = []
"""The standard output while `quiet` holds it."""


@contextmanager
def quiet() -> Iterator[None]:
    """Send all but the `answer` to the standard error: a user's module may print at any moment."""
    _answers.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.pop()


def answer(content: Any) -> None:
    """Print the JSON document that is the command's answer."""
    print(json.dumps(content, indent=1), file=_answers[-1] if _answers else sys.stdout)


@contextmanager
def usage_errors() -> Iterator[None]:
    """End with the exit code of a wrong command."""
    try:
        yield
    except ValidationError as error:
        say_error(said(error))
        raise typer.Exit(USAGE) from None
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
