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
    """Run the command of `sys.argv`; its exit code."""
    # Imports take seconds, and a KeyboardInterrupt raised in torch's may not come out.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if str(Path.cwd()) not in sys.path:  # for a user's own modules, as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
    commands = {entry.name: entry for entry in sorted(entry_points(group=GROUP))}
    name, *arguments = sys.argv[1:] or [""]
    if name in ("", "-h", "--help"):
        width = max(map(len, commands), default=0)
        lines = [f"  {each:{width}}  {_summary(entry)}" for each, entry in commands.items()]
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
    """The first line of a command's docstring, read from the source: imports take seconds."""
    package, *rest = entry.module.split(".")
    spec = find_spec(package)
    place = Path((spec and spec.origin) or "").parent.joinpath(*rest)
    for file in (place.with_suffix(".py"), *sorted(place.glob("*.py"))):
        for node in ast.parse(file.read_bytes()).body if file.exists() else ():
            if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
                return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _needs(entry: EntryPoint, error: ModuleNotFoundError) -> str:
    """The package that a command lacks, and the extra that has it.

    Raises:
        ModuleNotFoundError: it is a module of ours, or of the user's.
    """
    missing, home = ((name or "").partition(".")[0] for name in (error.name, entry.module))
    extra = home.removeprefix("spherenorm_")
    if missing.startswith("spherenorm") or extra == home:
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
