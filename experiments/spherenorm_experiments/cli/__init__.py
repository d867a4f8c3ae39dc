"""The commands of the experiments, each a function of the arguments behind its name.

The entry points of the group `spherenorm.commands` name them.
"""

from spherenorm_experiments.cli._app import (
    compare,
    convert,
    data,
    export,
    list_,
    report,
    results,
    resume,
    run,
    show,
    status,
)

__all__ = [
    "compare",
    "convert",
    "data",
    "export",
    "list_",
    "report",
    "results",
    "resume",
    "run",
    "show",
    "status",
]
