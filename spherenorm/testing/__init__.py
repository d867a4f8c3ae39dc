"""`check`: does a recipe of your own keep the promises that the library's recipes keep?

    print(spherenorm.testing.check("mymodule:mine"))

In a test: `report = check(mine); assert report.passed, report`.

- `check.py`: the table of promises and the report.
- `promises.py`: a function for each promise, and the weights and gradients that recipes step.
- `recording.py`: records of what rules do in a step, which promises read.
"""

from spherenorm.testing.check import PROPERTIES, PromiseResult, Report, check
from spherenorm.testing.promises import NotApplicable, RecipeUnderTest

__all__ = ["PROPERTIES", "NotApplicable", "PromiseResult", "RecipeUnderTest", "Report", "check"]
