"""Objects by the name `module:attribute`."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from spherenorm._errors import did_you_mean


def look_up(kind: str, name: str, what: str, accepts: Callable[[Any], bool]) -> Any:
    """The object that `module:attribute` stands for.

    The module that runs as a script is not imported a second time under its own name.

    Args:
        kind: of object, for the messages: "recipe", "task", ...
        name: `module:attribute`; the attribute may have dots.
        what: an accepted object is, for the messages: "function", "class", ...
        accepts: tells whether an object is of the right type.

    Raises:
        ValueError: there is no such module, or no such object in it.
        Exception: of any type, which the module itself raises when it is imported.

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
            raise  # the module exists, something that it imports does not
        raise ValueError(
            f"{kind} {name!r}: there is no module {module_name!r} on the import path"
        ) from None
    try:
        found = operator.attrgetter(attribute)(module)
    except AttributeError:
        found = None
    if found is None or not accepts(found):
        own = [n for n, x in vars(module).items() if accepts(x) and _is_defined_in(x, module)]
        lack = f"module {module_name!r} has no {what} {attribute!r}"
        raise ValueError(f"{kind} {name!r}: {lack}; {did_you_mean(attribute, own)}")
    return found


def load_module(name: str) -> ModuleType:
    """Import a module; if it is the script that runs, return `__main__`.

    Raises:
        ModuleNotFoundError: there is no such module.
        Exception: of any type, which the module itself raises.
    """
    main = sys.modules.get("__main__")
    if name not in sys.modules and getattr(main, "__file__", None):
        origin = getattr(importlib.util.find_spec(name), "origin", None)
        if origin and os.path.realpath(origin) == file_of("__main__"):
            return sys.modules["__main__"]
    return importlib.import_module(name)


def file_of(module_name: str) -> str | None:
    """The file of an imported module, without symbolic links; None if it is in none."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return os.path.realpath(file) if file else None


def _is_defined_in(value: Any, module: ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__
