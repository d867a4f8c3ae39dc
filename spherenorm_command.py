"""The command `spherenorm`, of all packages: a module of its own, so that it starts without torch.

A command is an entry point of the group `spherenorm.commands`: a function of the arguments behind
its name, whose docstring begins with a line for the list of commands. It may return an exit code.
One of a package `spherenorm_X` needs the extra X. Until it calls `support.on_interrupt`,
Ctrl-C ends the process at once.
"""

from __future__ import annotations

import ast
import difflib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GROUP = "spherenorm.commands"
USAGE, INTERRUPTED = 2, 130
HELP = """\
usage: spherenorm COMMAND ...

Optimizers as compositions of update rules: studies, laws and audits of them.

{commands}

Exit codes: 0 everything asked for is done; 1 some of it failed or is lost; 2 the command is wrong;
3 the store cannot be written; 130 interrupted (`resume` goes on).
`spherenorm COMMAND --help` has the options of a command.
"""


def main() -> int:
    """Run the command of `sys.argv`, and return its exit code."""
    # Imports take seconds, and torch's may swallow a KeyboardInterrupt.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, _stop)
    if str(Path.cwd()) not in sys.path:  # for a user's own modules, as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
    commands = {entry.name: entry for entry in sorted(entry_points(group=GROUP))}
    name, *arguments = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        width = max(map(len, commands), default=0)
        lines = [
            f"  {command_name:{width}}  {_summary(entry)}"
            for command_name, entry in commands.items()
        ]
        sys.stdout.write(HELP.format(commands="\n".join(lines)))
        return 0 if name else USAGE
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(commands)}"
        return _refuse(f"unknown command {name!r}; {hint}")
    try:
        command: Callable[[Sequence[str]], int | None] = commands[name].load()
        return command(arguments) or 0
    except ModuleNotFoundError as error:
        return _refuse(f"spherenorm {name} {_needs(commands[name], error)}")


def _summary(entry: EntryPoint) -> str:
    """Return the first line of a command's docstring, without importing its module."""
    package, *submodules = entry.module.split(".")
    spec = find_spec(package)
    path = Path((spec and spec.origin) or "").parent.joinpath(*submodules)
    for file in (path.with_suffix(".py"), *sorted(path.glob("*.py"))):
        for node in ast.parse(file.read_bytes()).body if file.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
                return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _needs(entry: EntryPoint, error: ModuleNotFoundError) -> str:
    """Say which package a command lacks, and which extra installs it.

    Raises:
        ModuleNotFoundError: the module is one of this project's, or the command is the user's.
    """
    missing = (error.name or "").partition(".")[0]
    package = entry.module.partition(".")[0]
    extra = package.removeprefix("spherenorm_")
    if missing.startswith("spherenorm") or extra == package:
        raise error
    return f"needs {missing}: pip install 'spherenorm[{extra}]'"


def _refuse(message: str) -> int:
    sys.stderr.write(f"error: {message}\n")
    return USAGE


def _stop(*_: Any) -> None:
    os.write(2, b"interrupted, nothing ran\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
