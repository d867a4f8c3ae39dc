"""Probes: each weight's norm, effective step, turn and invariance, while any loop trains it.

    probe = sn.probe(optimizer, every=10, model=model, to=sn.probes.JSONLines("runs/probe"))

A probe uses the hooks of `torch.optim.Optimizer`, so that the training loop stays as it is. It
measures on the device of the weights and copies to the host once per block of measured steps.

- `probe.py`: when to measure, and when to hand over a block.
- `meter.py`: which weights are measured, and their measurements.
- `kernel.py`: inner products by a C++ kernel, on a CPU.
- `products.py`: inner products by torch operations, and singular values.
- `sinks.py`: files and pages that receive the measurements.
"""

from spherenorm.probes.meter import Measurement, Units
from spherenorm.probes.probe import Probe, probe
from spherenorm.probes.sinks import JSONLines, Page, Sink, TensorBoard, WandB

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
