"""A probe of all weights: in a module of its own, which alone decides what runs measure."""

from __future__ import annotations

from typing import Any

from spherenorm import metrics
from spherenorm_experiments.probes import MeasuredStep


def rotation(step: MeasuredStep) -> dict[str, Any]:
    """The norm, the turn in radians and the gradient's norm of each weight as a whole."""
    return {
        "rotation": {
            name: [
                float(metrics.norm(after, "layer")),
                float(metrics.angular_update(step.before[name], after, "layer")),
                float(metrics.norm(step.grad[name], "layer")),
            ]
            for name, after in step.after.items()
        }
    }


PROBE = f"{__name__}:rotation"
