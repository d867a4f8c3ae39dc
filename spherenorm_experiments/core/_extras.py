"""Optional packages: a missing one is noticed before anything runs, by one error for all."""

from __future__ import annotations

from typing import Any

from spherenorm.support import require_module

__all__ = ["require_extra"]

EXTRAS = {
    "ray": "ray",
    "submitit": "slurm",
    "optuna": "tune",
    "pandas": "experiments",
    "pyarrow": "data",
    "pyarrow.parquet": "data",
    "PIL.Image": "data",
    "PIL.ImageDraw": "data",
    "PIL.ImageEnhance": "data",
    "PIL.ImageFont": "data",
    "PIL.ImageOps": "data",
    "faster_coco_eval": "data",
    "matplotlib": "data",
    "pytorch_metric_learning": "data",
    "skimage": "data",
    "sklearn.datasets": "experiments",
    "sklearn.model_selection": "experiments",
    "soundfile": "data",
    "torch.utils.tensorboard": "tensorboard",
}
"""The extra of `pyproject.toml` that installs a module."""


def require_extra(module: str, purpose: str) -> Any:
    """Import an optional module.

    Args:
        module: its name, a key of `EXTRAS`.
        purpose: the feature that needs it; the error begins with it.

    Raises:
        MissingExtraError: the module is missing; it is a ValueError too.
    """
    extra = EXTRAS[module]
    missing = f"{purpose} needs the extra {extra} ({{error}}): pip install 'spherenorm[{extra}]'"
    return require_module(module, missing)
