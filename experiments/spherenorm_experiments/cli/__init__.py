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
from pydantic import ValidationError

from spherenorm.support import on_interrupt
from spherenorm_experiments.cli import look, run_commands
from spherenorm_experiments.cli.options import INTERRUPTED, STORE, USAGE, say_error
from spherenorm_experiments.spec import format_validation_error
from spherenorm_experiments.store import StoreError, StoreWarning

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says in a line what is wrong with it or a store, and how to go on."""

    @functools.wraps(command)
    def guarded(**options: Any) -> None:
        on_interrupt()
        try:
            command(**options)
        except KeyboardInterrupt:
            out = Path(options.get("out") or ".")
            is_begun = "out" in options and (out / "plans").is_dir()
            go_on = f"; go on with: spherenorm resume --out {out}" if is_begun else ", nothing ran"
            say_error(f"interrupted{go_on}", "")
            raise typer.Exit(INTERRUPTED) from None
        except StoreError as error:
            say_error(f"{error}; what was finished is kept")
            raise typer.Exit(STORE) from None
        except ValueError as error:
            say_error(
                format_validation_error(error) if isinstance(error, ValidationError) else str(error)
            )
            raise typer.Exit(USAGE) from None

    return guarded


def _added(name: str, command: Callable[..., None], to: typer.Typer = app) -> Any:
    """Return the function of a command, which is added to an app."""
    to.command(name)(_guarded(command))
    return functools.partial(_run_app, name)


def _run_app(name: str, words: Sequence[str]) -> None:
    warnings.showwarning = _show_warning
    faulthandler.enable()  # a crash in a user's code names its line
    app([name, *words], prog_name="spherenorm")


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    if issubclass(category, StoreWarning):
        say_error(str(message), "[yellow]warning[/yellow]: ")


run, compare = _added("run", run_commands.run), _added("compare", run_commands.compare)
resume, report = _added("resume", run_commands.resume), _added("report", look.report)
results, export = _added("results", look.results), _added("export", look.export)
list_, status = _added("list", look.list_), _added("status", look.status)
show = _added("show", look.show)


def data(words: Sequence[str]) -> None:
    """The paper's data sets on disk, held against their official layouts."""
    _run_app("data", words)


_data = typer.Typer(no_args_is_help=True)
_added("list", look.list_layouts, _data)
_added("check", look.check, _data)
app.add_typer(_data, name="data", help=data.__doc__)
