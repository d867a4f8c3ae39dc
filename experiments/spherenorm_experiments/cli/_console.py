"""The two consoles, the exit codes, and the errors that end a command."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape

from spherenorm.support import on_interrupt
from spherenorm_experiments.files import StoreError

FAILED, USAGE, STORE, INTERRUPTED = 1, 2, 3, 130

OUTPUT = 1
"""The descriptor of the standard output."""

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
    # A process's first torch optimizer would import it, in the middle of a run.
    import torch._dynamo  # noqa: F401

    on_interrupt()
    try:
        yield
    except KeyboardInterrupt:
        begun = (root / "plans").is_dir()
        go_on = f"; go on with: spherenorm resume --out {root}"
        say_error(f"interrupted{go_on if begun else ', nothing ran'}", "")
        raise typer.Exit(INTERRUPTED) from None


_answered = False
_answers: ContextVar[TextIO | None] = ContextVar("answers", default=None)


@contextmanager
def quiet() -> Iterator[None]:
    """Send all but the `answer` to the standard error: a user's module may print at any moment."""
    with _apart() as output:
        token = _answers.set(output)
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _answers.reset(token)


@contextmanager
def _apart() -> Iterator[TextIO]:
    """The standard output; its descriptor is the standard error's meanwhile, for what C prints."""
    if not _is_plain():
        yield sys.stdout
        return
    sys.stdout.flush()
    with os.fdopen(os.dup(OUTPUT), "w", encoding=sys.stdout.encoding) as output:
        os.dup2(sys.stderr.fileno(), OUTPUT)
        try:
            yield output
        finally:
            output.flush()
            os.dup2(output.fileno(), OUTPUT)


def _is_plain() -> bool:
    """True if the standard output has its own descriptor: not that of a test, nor closed."""
    try:
        return sys.stdout.fileno() == OUTPUT and sys.stderr is not None
    except (AttributeError, OSError, ValueError):
        return False


def answer(content: Any) -> None:
    """Print the JSON document that is the command's answer."""
    global _answered  # noqa: PLW0603  (of the process, whose descriptor it is)
    _answered = True
    print(json.dumps(content, indent=1), file=_answers.get() or sys.stdout)


def hush() -> None:
    """After an answer, send what modules print at exit to the standard error."""
    if _answered and _is_plain():
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), OUTPUT)


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
