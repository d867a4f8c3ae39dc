"""Names and docstrings say what a thing is: no pronoun or participle stands in its place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (
    *("spherenorm", "theory", "benchmarks", "docs"),
    *(f"experiments/{name}" for name in ("spherenorm_experiments", "spherenorm_paper", "studies")),
)
"""Folders and files that are checked."""
FILES = sorted(
    path
    for folder in FOLDERS
    for path in ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("*.py"))
)
BARE_NAMES = {
    *("each", "own", "ours", "theirs"),
    *("found", "given", "held", "kept", "known", "left", "made", "said", "shown", "taken", "told"),
}
OPENERS = ("Of ", "Those ", "Its ", "The same")


def bare_words(source):
    """Return the banned names that a source binds, and its docstrings with a banned opener."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names = [name]
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case _:
                names = []
        yield from (name for name in names if name.strip("_").lower() in BARE_NAMES)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            if docstring.startswith(OPENERS):
                yield docstring.splitlines()[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_name_things_and_docstrings_begin_with_them(path):
    assert not list(bare_words(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("found = 1", ["found"]),
        ("for each in []: pass", ["each"]),
        ("def f(_own): pass", ["_own"]),
        ("class Made: pass", ["Made"]),
        ('def f():\n    """Of a weight."""', ["Of a weight."]),
        ('def f(weight):\n    """Return the norm of a weight."""', []),
        ("print(found)", []),
    ],
)
def test_a_bare_word_is_found(source, words):
    assert list(bare_words(source)) == words
