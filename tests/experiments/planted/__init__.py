"""The faults of `python -m tests.experiments.faults`: edits of the code, and who should notice."""

from tests.experiments.planted._fault import Fault
from tests.experiments.planted._keeping import KEEPING
from tests.experiments.planted._mending import MENDING
from tests.experiments.planted._training import TRAINING

__all__ = ["FAULTS", "Fault"]

FAULTS = TRAINING + KEEPING + MENDING
