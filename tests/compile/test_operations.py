"""One row is all that an operation needs; a hole in it, or a wrong form, is an error in time."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm.operations import (
    OPERATIONS,
    REGISTERED,
    Batched,
    NotHere,
    Operation,
    Python,
    check_registered,
)
from spherenorm_theory import TraceError, norm_growth
from tests.compile.faults import plant_fault
from tests.compile.twins import drawn
from tests.compile.written import optimizer_of, rule
from tests.harness import refuses

ROOT = Path(__file__).parents[2]
COMPILER = pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler")

# A new operation


def copy_with_row(row: str, folder: Path) -> Path:
    """Return a folder of the packages in which one file is edited, in one place."""
    (walk,) = re.findall(r"^  ```python\n(  _row\(.*?)^  ```", row, re.DOTALL | re.MULTILINE)
    (folder / "spherenorm").mkdir()
    for path in (ROOT / "spherenorm").iterdir():
        if path.name != "operations.py":
            (folder / "spherenorm" / path.name).symlink_to(path)
    table = (ROOT / "spherenorm" / "operations.py").read_text()
    place = "    # Functions.\n"
    assert table.count(place) == 1
    new_row = textwrap.indent(textwrap.dedent(walk).rstrip(), "    ") + ",\n"
    (folder / "spherenorm" / "operations.py").write_text(table.replace(place, place + new_row))
    return folder


USE = """
import torch
import spherenorm as sn
from spherenorm import rules as r
from spherenorm.compile import BATCHED_DEVICES

class Hypot(sn.Rule):
    def update(self, update, state):
        w, d = update.weight, update.direction
        return update.replace(direction=d / torch.hypot(w.norm(), d.norm())), {}

class OfEntries(sn.Rule):
    def update(self, update, state):
        return update.replace(direction=torch.hypot(update.weight, update.direction)), {}

recipe = lambda lr=0.1: sn.chain(Hypot(), OfEntries(), r.StepSize(lr))
for path in ("C++ kernel", "batched"):
    if path == "batched":
        BATCHED_DEVICES.add("cpu")
    weight = torch.nn.Parameter(torch.randn(6, 5))
    weight.grad = torch.randn(6, 5)
    (row,) = sn.compare_paths(sn.torch_optimizer(recipe, "Mine")([weight], backend="compiled"))
    assert row.path == path, row
    assert row.float64_difference < 1e-14, row
assert "torch.hypot(" in sn.export(recipe, "Mine")
from spherenorm_theory import norm_growth
print(norm_growth(lambda lr=0.1: sn.chain(Hypot(), r.StepSize(lr))))
"""


def run_with(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that imports the edited packages."""
    path = f"sys.path[:0] = [{str(folder)!r}, {str(ROOT / 'theory')!r}]"
    command = [sys.executable, "-c", f"import sys\n{path}\n{script}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@COMPILER
def test_the_row_of_the_walk_gives_kernel_batched_export_and_law(tmp_path):
    walk = (ROOT / "CONTRIBUTING.md").read_text()
    done = run_with(copy_with_row(walk, tmp_path), USE)
    assert done.returncode == 0, done.stderr
    assert "sqrt(" in done.stdout


def test_a_column_that_is_left_out_is_an_error_at_import(tmp_path):
    walk = (ROOT / "CONTRIBUTING.md").read_text()
    with_hole, count = re.subn(r"export=Python\(.*\),\s+law", "law", walk)
    assert count == 1
    done = run_with(copy_with_row(with_hole, tmp_path), "import spherenorm")
    assert done.returncode != 0
    last_line = done.stderr.splitlines()[-1]
    assert all(word in last_line for word in ("TypeError", "'hypot'", "export", "NotHere"))


ROW = {
    "name": "hypot",
    "overloads": ("hypot.default",),
    "cpp": "std::hypot({0}, {1})",
    "batched": Batched(torch.hypot, torch.hypot),
    "export": Python("torch.hypot({0}, {1})"),
    "law": NotHere("a reason"),
}


def test_a_row_says_something_of_every_backend():
    assert Operation(**ROW).name == "hypot"
    for column in ("cpp", "batched", "export", "law"):
        with refuses("hypot", column, "NotHere", by=TypeError):
            Operation(**{**ROW, column: NotHere()})
    derived = OPERATIONS["sub"].law
    for column in ("cpp", "export", "law"):
        with refuses("hypot", column, "derived", by=TypeError):
            Operation(**{**ROW, column: derived})
    for column in ("cpp", "batched"):
        with refuses("hypot", "cpp", "batched", by=TypeError):
            Operation(**{**ROW, column: NotHere("a reason")})


@pytest.mark.parametrize("column", ["cpp", "export", "law"])
def test_a_backend_registers_what_the_table_promises(column):
    promised = [row.name for row in OPERATIONS.values() if getattr(row, column) is REGISTERED]
    check_registered(column, promised)
    with refuses(column, promised[0], "NotHere", by=TypeError):
        check_registered(column, promised[1:])
    absent = next(
        row.name for row in OPERATIONS.values() if isinstance(getattr(row, column), NotHere)
    )
    for name in ("hypot", absent):
        with refuses(column, name, by=TypeError):
            check_registered(column, [*promised, name])


# Wrong forms

FIVE = {
    "sqrt": "d / (1 + d.square().sum().sqrt())",
    "mul": "(d * d).sum() * d",
    "add": "d + 0.3 * w",
    "lerp": "torch.lerp(d, w, 0.3)",
    "div": "d / (w * w).sum()",
}
"""Operations, and a direction that has each of them."""
OPERATION = pytest.mark.parametrize("operation", FIVE)


@COMPILER
@OPERATION
@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        ("cpp", torch.bfloat16),
        pytest.param("cpp", torch.float32, marks=pytest.mark.long),
        ("batched", torch.bfloat16),
        pytest.param("batched", torch.float16, marks=pytest.mark.long),
        ("batched", torch.float32),
    ],
    ids=str,
)
def test_a_wrong_form_in_an_executor_moves_no_weight(
    column, dtype, operation, choose, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path))
    choose("kernel" if column == "cpp" else "batched")
    plant_fault(monkeypatch, operation, column)
    cls = optimizer_of(r.AdaptiveMoments(0.9, 0.99, 1e-8), rule({}, FIVE[operation])())
    weight = drawn([(4, 3)])[0].to(dtype).requires_grad_()
    weight.grad = drawn([(4, 3)], seed=1)[0].to(dtype)
    before = weight.detach().clone()
    with refuses("numbers", by=sn.BackendError):
        cls([weight], backend="compiled").step()
    assert torch.equal(weight.detach(), before)


@OPERATION
def test_a_wrong_form_in_an_exported_file_is_not_returned(operation, monkeypatch):
    mine = rule({}, FIVE[operation])()
    recipe = lambda lr=0.1: sn.chain(mine, r.StepSize(lr))  # noqa: E731
    assert sn.export(recipe, "Mine")
    plant_fault(monkeypatch, operation, "export")
    with refuses("differs", by=sn.ExportError):
        sn.export(recipe, "Mine")


@OPERATION
def test_a_wrong_form_on_formal_vectors_gives_no_law(operation, monkeypatch):
    mine = rule({}, FIVE[operation])()
    recipe = lambda lr=0.1: sn.chain(mine, r.StepSize(lr))  # noqa: E731
    assert norm_growth(recipe)
    plant_fault(monkeypatch, operation, "law")
    with refuses("differs from the step of the code", by=TraceError):
        norm_growth(recipe)
