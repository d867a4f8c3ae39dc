"""Optimizers as compositions of update rules: studies, laws and audits of them.

Exit codes: 0 everything asked for is done; 1 some of it failed or is lost; 2 the command is wrong;
3 the store cannot be written; 130 interrupted (`resume` goes on).
"""

from __future__ import annotations

import faulthandler
import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import typer

from spherenorm_experiments.cli._console import hush, quiet, say_error, store_errors
from spherenorm_experiments.cli._report import export, report, results
from spherenorm_experiments.cli._run import compare, resume, run
from spherenorm_experiments.cli._stored import data, gc, list_, show, status
from spherenorm_experiments.cli._theory import theory
from spherenorm_experiments.files import CorruptFileWarning, RequestWarning

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__
)
app.add_typer(data, name="data")


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says of a store that cannot be read or written what is wrong.

    With --json it prints nothing but its answer.
    """

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        with (
            store_errors(),
            quiet() if options.get("as_json") else nullcontext(),
        ):
            command(*arguments, **options)

    return guarded


app.command("list")(_guarded(list_))
for command in (run, compare, resume, status, report, results, export, show, gc):
    app.command()(_guarded(command))
app.command()(theory)


@app.command()
def audit() -> None:
    """Find the scale-invariant weights of a model (needs no extra)."""
    # `main` answers it before this app is imported; it is here for the list of commands.


def run_app() -> None:
    """Run the command of `sys.argv`."""
    warnings.showwarning = _show_warning
    faulthandler.enable()  # a crash in a user's code names its line
    try:
        app(prog_name="spherenorm")
    finally:
        hush()


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    if issubclass(category, CorruptFileWarning | RequestWarning):
        say_error(str(message), "[yellow]warning[/yellow]: ")
