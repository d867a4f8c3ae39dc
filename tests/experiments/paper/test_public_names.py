"""The paper's package and our own studies use the framework as a stranger's package would."""

import ast
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[3] / "experiments"
FILES = [
    path
    for folder in ("spherenorm_paper", "studies")
    for path in sorted((EXPERIMENTS / folder).rglob("*.py"))
]
ENGINE = ("campaign", "cli", "execute", "jobs", "results", "run")
"""Modules of the framework that run studies and show them; no study needs them."""


def imported(source):
    """Return the module and the name of each import from the framework."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(EXPERIMENTS).as_posix())
def test_only_public_names_of_the_framework_are_used(path):
    for module, name in imported(path.read_text(encoding="utf-8")):
        package, *parts = module.split(".")
        if package == "spherenorm_experiments":
            assert not {*parts, name} & {*ENGINE}
            assert not any(part.startswith("_") for part in (*parts, name))


def test_an_import_of_the_engine_is_found():
    names = [*imported("from spherenorm_experiments import campaign\nimport numpy.linalg")]
    assert names == [("spherenorm_experiments", "campaign"), ("numpy.linalg", "")]
