"""Helpers that the library shares with `spherenorm_theory` and `spherenorm_experiments`.

None of them is about optimization: error messages about unknown names and about a user's code,
objects by the name `module:attribute`, optional packages, and files that are written whole.
"""

from spherenorm._errors import (
    MissingExtraError,
    close_names,
    did_you_mean,
    require_module,
    unknown_name,
)
from spherenorm._files import write_whole
from spherenorm._installed import is_installed
from spherenorm._located import located, one_line
from spherenorm._modules import load_module, look_up

__all__ = [
    "MissingExtraError",
    "close_names",
    "did_you_mean",
    "is_installed",
    "load_module",
    "located",
    "look_up",
    "one_line",
    "require_module",
    "unknown_name",
    "write_whole",
]
