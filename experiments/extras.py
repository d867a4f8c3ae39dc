"""Optional packages: found missing before anything runs, by one error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["needed"]

EXTRAS = {
    "ray": "ray",
    "submitit": "slurm",
    "optuna": "tune",
    "torch.utils.tensorboard": "tensorboard",
}
"""The extra of `pyproject.toml` that installs a module."""


def needed(module: str, what: str) -> Any:
    """The module; ValueError, which names its extra, if `what` has to do without."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = EXTRAS[module]
        raise ValueError(
            f"{what} needs the extra {extra} ({error}): pip install -e '.[{extra}]'"
        ) from error
