"""The paper's experiments: run them by `spherenorm run`, read them by `load`.

from spherenorm_experiments import load

frame = load("runs")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spherenorm_experiments.analysis import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:  # torch takes a second to import, which `--help` need not wait
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spherenorm_experiments.analysis import load

    return load
