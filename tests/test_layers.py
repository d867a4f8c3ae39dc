"""experiments -> theory -> spherenorm: imports go one way, and the library neither prints (but a bar it is asked for), plots nor reads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "spherenorm": {"theory", "experiments", "matplotlib", "rich", "typer", "sympy", "sklearn"},
    "theory": {"experiments"},
}
ALLOWED = {"spherenorm/progress.py": {"rich"}}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_go_one_way(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        allowed = ALLOWED.get(path.relative_to(ROOT).as_posix(), set())
        assert not (FORBIDDEN[package] - allowed) & set(imports(path)), path


def test_the_library_does_no_input_or_output():
    for path in (ROOT / "spherenorm").rglob("*.py"):
        calls = {
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        assert not calls & {"print", "open", "input"}, path


def test_importing_the_library_imports_no_compiler():
    """Dynamo takes as long to import as torch itself."""
    heavy = ["torch._dynamo", "torch._inductor", "triton", "sympy", "rich"]
    code = f"import sys, spherenorm; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
