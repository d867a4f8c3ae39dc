"""Helpers that the library shares with `spherenorm_theory` and `spherenorm_experiments`.

None of them is about optimization: error messages about unknown names and about a user's code,
objects by the name `module:attribute`, signatures, optional packages, tables of text, and atomic
writes.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import operator
import os
import signal
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class MissingExtraError(ImportError, ValueError):
    """An optional package is not installed; the message names what needs it and how to get it."""


def did_you_mean(name: str, valid_names: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of an error message about an unknown name: the nearest valid names.

    Args:
        name: the unknown name.
        valid_names: the names that exist.
        otherwise: the end of the message if none is near; by default it lists all valid names.

    Example:
        >>> did_you_mean("sgpd", ["adam", "sgd", "sgdp"])
        'did you mean sgd or sgdp?'
        >>> did_you_mean("lion", ["adam", "sgd"])
        'known: adam, sgd'
    """
    valid_names = list(valid_names)
    close = difflib.get_close_matches(name, valid_names)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return otherwise or f"known: {', '.join(sorted(valid_names))}"


def unknown_name(kind: str, name: str, valid_names: Iterable[str], hint: str = "") -> ValueError:
    """Return the error to raise for an unknown name.

    Args:
        kind: what was asked for, such as "schedule".
        name: the unknown name.
        valid_names: the names that exist.
        hint: follows the nearest names.

    Example:
        >>> unknown_name("schedule", "cosin", ["constant", "cosine"])
        ValueError("no schedule is named 'cosin'; did you mean cosine?")
    """
    hint = f" {hint}" if hint else ""
    return ValueError(f"no {kind} is named {name!r}; {did_you_mean(name, valid_names)}{hint}")


def unknown_attribute(module: str, names: Sequence[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a public module, whose error suggests the nearest names.

    Example:
        >>> sn.optim.Prodigi
        Traceback (most recent call last):
        AttributeError: module 'spherenorm.optim' has no attribute 'Prodigi'; did you mean Prodigy?
    """

    def refuse(name: str) -> Any:
        hint = ""
        if not name.startswith("_"):
            hint = f"; {did_you_mean(name, names, f'see dir({module})')}"
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}")

    return refuse


def split_at_commas(text: str) -> list[str]:
    """Split a list at the commas outside of parentheses.

    Example:
        >>> split_at_commas("graft(muon, adamw), lion")
        ['graft(muon, adamw)', 'lion']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def require_module(module: str, otherwise: str) -> Any:
    """Import an optional module.

    Args:
        module: the name of the module.
        otherwise: the message if it is missing: what needs it, and how to install it. "{error}"
            in it becomes the import's own error.

    Raises:
        MissingExtraError: the module cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(otherwise.replace("{error}", str(error))) from error


def look_up(kind: str, name: str, what: str, accepts: Callable[[Any], bool]) -> Any:
    """Return the object that `module:attribute` names.

    The module that runs as a script is not imported a second time under its own name.

    Args:
        kind: the kind of object in messages: "recipe", "task", ...
        name: `module:attribute`; the attribute may have dots.
        what: the type of an accepted object in messages: "function", "class", ...
        accepts: returns whether an object is of the right type.

    Raises:
        ValueError: there is no such module, or no such object in it.
        Exception: any error that the module itself raises when it is imported.

    Example:
        >>> look_up("recipe", "spherenorm.recipes:adamp", "function", callable)
        <function adamp at ...>
    """
    module_name, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{kind} {name!r}: give module:{what}")
    try:
        module = load_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise  # the module exists, but one of its imports does not
        raise ValueError(
            f"{kind} {name!r}: there is no module {module_name!r} on the import path"
        ) from None
    result = None
    with contextlib.suppress(AttributeError):
        result = operator.attrgetter(attribute)(module)
    if result is None or not accepts(result):
        defined_here = [
            member_name
            for member_name, member in vars(module).items()
            if accepts(member) and getattr(member, "__module__", None) == module.__name__
        ]
        raise ValueError(
            f"{kind} {name!r}: module {module_name!r} has no {what} {attribute!r}; "
            f"{did_you_mean(attribute, defined_here)}"
        )
    return result


def load_module(name: str) -> ModuleType:
    """Import a module; if it is the script that runs, return `__main__`.

    Raises:
        ModuleNotFoundError: there is no such module.
        Exception: any error that the module itself raises.
    """
    main = sys.modules.get("__main__")
    if name not in sys.modules and getattr(main, "__file__", None):
        origin = getattr(importlib.util.find_spec(name), "origin", None)
        if origin and os.path.realpath(origin) == file_of("__main__"):
            return sys.modules["__main__"]
    return importlib.import_module(name)


# Python 3.14 evaluates an annotation when it is read: a name that only type checkers import, or
# that is defined further down, would raise a NameError.
if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return `inspect.signature(function)`; an annotation may name what is not defined."""
        return inspect.signature(function, annotation_format=Format.FORWARDREF)

    def annotated_names(cls: type) -> frozenset[str]:
        """Return the names that the class annotates itself, without those of its bases."""
        return frozenset(get_annotations(cls, format=Format.FORWARDREF))

else:

    def signature_of(function: Callable[..., Any]) -> inspect.Signature:
        """Return `inspect.signature(function)`; an annotation may name what is not defined."""
        return inspect.signature(function)

    def annotated_names(cls: type) -> frozenset[str]:
        """Return the names that the class annotates itself, without those of its bases."""
        return frozenset(inspect.get_annotations(cls))


def file_of(module_name: str) -> str | None:
    """Return the file of an imported module, without symbolic links; None if it has no file."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return os.path.realpath(file) if file else None


PACKAGES = ("spherenorm", "spherenorm_theory", "spherenorm_experiments", "spherenorm_paper")
"""The packages of this project, whose lines a user did not write."""

_PATHS = sysconfig.get_paths()
FOLDERS = [
    Path(folder).resolve()
    for folder in (
        *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    )
]
"""The folders of Python's own modules and of installed packages."""


def is_installed(path: Path) -> bool:
    """Return True for a file of Python or of an installed package.

    Args:
        path: a path without symbolic links.
    """
    return any(path.is_relative_to(folder) for folder in FOLDERS)


def one_line(error: BaseException) -> str:
    """Return the first line of an error's message, after its type unless it is a ValueError."""
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, ValueError) and text else f"{type(error).__name__}: {text}"


def is_raised_here(error: BaseException) -> bool:
    """Return True if a line of this project has raised an error, and no user's or library's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    package = (frames[-1].f_globals.get("__package__") or "") if frames else ""
    return package.partition(".")[0] in PACKAGES


def describe_with_user_line(error: BaseException) -> str:
    """Return `one_line`, and the last line of a user's own code that led to the error, if any.

    Example:
        >>> describe_with_user_line(KeyError("lr"))
        "KeyError: 'lr'"
    """
    source_location = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = Path(frame.f_code.co_filename)
        package = (frame.f_globals.get("__package__") or "").partition(".")[0]
        if package in PACKAGES or file.name.startswith("<") or is_installed(file.resolve()):
            continue
        source_location = f" ({file.name}, line {line})"
    return f"{one_line(error)}{source_location}"


def on_interrupt() -> None:
    """Raise KeyboardInterrupt at Ctrl-C, and at SIGTERM, so that a command cleans up after both."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.default_int_handler)


def atomic_write(path: Path, content: bytes | str) -> None:
    """Write a file in one step: a reader finds either the old content or the new.

    The content is on the disk when this returns. After an error the old file is unchanged.

    Args:
        path: a file in a folder that exists.
        content: the new content; text is encoded as UTF-8.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of equally many cells as lines with aligned columns.

    Example:
        >>> print(columns([("name", "view"), ("0.weight", "channel")]))
        name      view
        0.weight  channel
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
