"""Check a recipe of your own: does it keep the promises that the library's recipes keep?

    print(spherenorm.testing.check("mymodule:mine"))

See `check`. In a test: `report = check(mine); assert report.passed, report`.
"""

from spherenorm.testing.check import PROPERTIES, Finding, Report, check
from spherenorm.testing.subject import RefusedError, Subject

__all__ = ["PROPERTIES", "Finding", "RefusedError", "Report", "Subject", "check"]
