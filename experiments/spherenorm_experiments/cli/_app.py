"""The commands of the experiments as one typer app, and each as a function."""

from __future__ import annotations

import faulthandler
import functools
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import typer

from spherenorm.support import on_interrupt
from spherenorm_experiments.cli import _report, _run, _stored
from spherenorm_experiments.cli._console import quiet, say_error, store_errors
from spherenorm_experiments.store import StoreWarning

TRAINING = (_run.run, _run.compare, _run.resume)
"""They take Ctrl-C themselves, from where they begin (`interruptible`)."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False)


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says of a store that cannot be read or written what is wrong.

    With --json it prints nothing but its answer.
    """

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        if command not in TRAINING:
            on_interrupt()
        with store_errors(), quiet() if options.get("as_json") else nullcontext():
            command(*arguments, **options)

    return guarded


def _added(command: Callable[..., None]) -> Callable[[Sequence[str]], None]:
    """The function of a command that is added to the app."""
    name = command.__name__.rstrip("_")
    app.command(name)(_guarded(command))
    return functools.partial(_run_app, name)


def _run_app(name: str, arguments: Sequence[str]) -> None:
    warnings.showwarning = _show_warning
    faulthandler.enable()  # a crash in a user's code names its line
    app([name, *arguments], prog_name="spherenorm")


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    if issubclass(category, StoreWarning):
        say_error(str(message), "[yellow]warning[/yellow]: ")


run = _added(_run.run)
compare = _added(_run.compare)
resume = _added(_run.resume)
list_ = _added(_stored.list_)
status = _added(_stored.status)
show = _added(_stored.show)
convert = _added(_stored.convert)
report = _added(_report.report)
results = _added(_report.results)
export = _added(_report.export)


def data(arguments: Sequence[str]) -> None:
    """The paper's data sets on disk, held against their official layouts and counts."""
    _run_app("data", arguments)


app.add_typer(_stored.data, name="data", help=data.__doc__)
