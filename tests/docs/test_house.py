"""The form of the code, as far as a machine can tell: short classes, and docstrings that state."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("spherenorm", "theory", "experiments", "benchmarks", "docs", "tests")
LONGEST_CLASS = 120
QUESTIONS = ("What", "How", "Where", "Whether", "Whatever")
"""A docstring that starts so describes its subject by a riddle."""
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_classes_are_short_and_docstrings_state(path):
    for node in ast.walk(ast.parse(path.read_text())):
        # of a module, class or function, and below a constant or a field
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                assert text.split()[0].strip(",:") not in QUESTIONS, text
        if isinstance(node, ast.ClassDef):
            assert node.end_lineno - node.lineno < LONGEST_CLASS, node.name
