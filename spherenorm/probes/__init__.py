"""Probes: each weight's norm, effective step, turn and invariance, while any loop trains it.

    probe = sn.probe(optimizer, every=10, model=model, to=sn.probes.JSONLines("runs/probe"))

A probe hangs on the hooks of `torch.optim.Optimizer`, so that the training loop stays as it is. It
measures on the device of the weights and comes to the host once per block of measured steps.
"""

from spherenorm.probes.measurement import Measurement, Sink, Units
from spherenorm.probes.page import Page
from spherenorm.probes.probe import Probe, probe
from spherenorm.probes.writers import JSONLines, TensorBoard, WandB

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
