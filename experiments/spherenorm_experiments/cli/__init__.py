"""The commands of the experiments: one typer app, and each command as a function of its words.

The entry points of the group `spherenorm.commands` name the functions.
"""

from __future__ import annotations

import faulthandler
import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from spherenorm.support import on_interrupt
from spherenorm_experiments.cli import _look, _report, _run
from spherenorm_experiments.cli._options import INTERRUPTED, STORE, say_error
from spherenorm_experiments.store import StoreError, StoreWarning

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says how to go on after Ctrl-C, and what is wrong with a store."""

    @functools.wraps(command)
    def guarded(**given: Any) -> None:
        on_interrupt()
        try:
            command(**given)
        except KeyboardInterrupt:
            out = Path(given.get("out") or ".")
            begun = "out" in given and (out / "plans").is_dir()
            go_on = f"; go on with: spherenorm resume --out {out}" if begun else ", nothing ran"
            say_error(f"interrupted{go_on}", "")
            raise typer.Exit(INTERRUPTED) from None
        except StoreError as error:
            say_error(f"{error}; what was finished is kept")
            raise typer.Exit(STORE) from None

    return guarded


def _added(command: Callable[..., None]) -> Callable[[Sequence[str]], None]:
    """The function of a command, which is added to the app."""
    name = command.__name__.rstrip("_")
    app.command(name)(_guarded(command))
    return functools.partial(_run_app, name)


def _run_app(name: str, words: Sequence[str]) -> None:
    warnings.showwarning = _show_warning
    faulthandler.enable()  # a crash in a user's code names its line
    app([name, *words], prog_name="spherenorm")


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    if issubclass(category, StoreWarning):
        say_error(str(message), "[yellow]warning[/yellow]: ")


run, compare, resume = _added(_run.run), _added(_run.compare), _added(_run.resume)
report, results = _added(_report.report), _added(_report.results)
export, convert = _added(_report.export), _added(_look.convert)
list_, status, show = _added(_look.list_), _added(_look.status), _added(_look.show)


def data(words: Sequence[str]) -> None:
    """The paper's data sets on disk, held against their official layouts and counts."""
    _run_app("data", words)


app.add_typer(_look.data, name="data", help=data.__doc__)
