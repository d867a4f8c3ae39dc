"""The tools of the tests: rows, conditions, gradients, plain loops, dishonest rules, mutants."""

from tests.harness.conditions import pairs
from tests.harness.gradients import FAMILIES, gradient
from tests.harness.refusals import refuses
from tests.harness.rows import ANY_WEIGHTS, ROWS, Row, set_gradients, train
from tests.harness.zoo import ZOO

__all__ = [
    "ANY_WEIGHTS",
    "FAMILIES",
    "ROWS",
    "ZOO",
    "Row",
    "gradient",
    "pairs",
    "refuses",
    "set_gradients",
    "train",
]
