"""Probes: each weight's norm, effective step, turn and invariance, while any loop trains it.

    probe = sn.probe(optimizer, every=10, model=model, to=sn.probes.JSONLines("runs/probe"))

A probe uses the hooks of `torch.optim.Optimizer`, so that the training loop stays as it is. It
measures on the device of the weights and copies to the host once per block of measured steps.

- `probe.py`: when to measure, and when to hand over a block.
- `meter.py`: which weights are measured, and their numbers.
- `measurement.py`: the measurements, and sinks that write them; `page.py`: a live page of them.
"""

from spherenorm.probes.measurement import (
    JSONLines,
    Measurement,
    Sink,
    TensorBoard,
    Units,
    WandB,
)
from spherenorm.probes.page import Page
from spherenorm.probes.probe import Probe, probe

__all__ = [
    "JSONLines",
    "Measurement",
    "Page",
    "Probe",
    "Sink",
    "TensorBoard",
    "Units",
    "WandB",
    "probe",
]
