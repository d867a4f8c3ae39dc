"""Faults in the CUDA kernel: the comparison before the first step, or the tests, notice each.

A fault is planted in the source that the printer returns. A child process steps weights by it,
since a wrong index may end the process. What no run on a CPU can see, the order in which a GPU's
blocks see each other's numbers, is read in the source.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

import spherenorm as sn
from spherenorm.compile import CUDA_KERNEL_DEVICES, interface
from spherenorm.compile.code import read_header
from spherenorm.compile.cuda import kernel as cuda_kernel
from spherenorm.compile.cuda.kernel import ShimLaunch
from tests.compile.twins import Twins, drawn
from tests.compile.written import optimizer_of, rule

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the shim has the fibres of glibc"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
SUM_OF_PADDING = rule(
    {"m": "0.9 * old['m'] + d"}, direction="d * per_row(torch.exp(-d.abs())) + old['m']"
)
"""A rule whose sum has a part of each entry, even of those beyond a row, which are 0."""
STATE_PER_ROW = rule(
    {"m": "0.5 * old['m'] + 1"},
    direction="d * old['m']",
    start="weight.new_ones((len(weight), *(1,) * (weight.ndim - 1)))",
)
"""Nothing but the barrier lies between the threads that read the old state and the new one."""

# name: (recipe, pattern in the source, replacement)
FAULTS: dict[str, tuple[Any, str, str]] = {
    # Barriers.
    "sums of warps overwritten early": (
        "adamp", r"__syncthreads\(\);  // until all have read the sums before", "",
    ),
    "sums of warps read early": (
        "adamp", r"(shared\.sum_of_warp\[warp\] = x;\n\s*)__syncthreads\(\);", r"\1",
    ),
    "addresses read early": (
        "adamp",
        r"(shared\.S\[i\] = scalars\[i\];\n\s*)__syncthreads\(\);(\n\s*if \(pass == 0 &&)",
        r"\1\2",
    ),
    "scalars read early": (
        "adamp", r"(nullptr, 0\);\n\s*)__syncthreads\(\);(\n\s*Part part;)", r"\1\2",
    ),
    "last block decided early": (
        "adamp", r"(w\.chunks - 1;\n\s*)__syncthreads\(\);", r"\1",
    ),
    "scalars kept early": (
        "adamp", r"__syncthreads\(\);(\n\s*if \(!ends\) for)", r"\1",
    ),
    "row state written early": (STATE_PER_ROW, r"__syncthreads\(\);(\nif \(leads\))", r"\1"),
    # Terms.
    "2 % in a root": (
        "adamp", r"real (v\d+) = std::sqrt", r"real \1 = real(1.02) * std::sqrt",
    ),
    "2 % in a sum of a row": (
        "adamp", r"(a\d+ \+= )(v\d+;)(?!.*a\d+ \+= )", r"\1real(1.02) * \2",
    ),
    "a sum of the weight left out": ("adamp", r"part(\d) = part\1 \|\| v\d+;", ""),
    "a gate turned": ("adamp", r"== true;", "== false;"),
    "a state not written": ("adamp", r"write\(p4 \+ j", "if (false) write(p4 + j"),
    "half precision cut off": (
        "bfloat16", r"\(b \+ 0x7fff \+ \(\(b >> 16\) & 1\)\) >> 16", "b >> 16",
    ),
    "the counter not written": (
        "adamp", r"if \(ends\) Program::finish", "if (false) Program::finish",
    ),
    "the ticket not given back": ("adamp", r"\*reinterpret_cast<int\*>\(ticket\) = 0;", ""),
    # Bounds.
    "padding summed": (SUM_OF_PADDING, r"if \(k < n\) a", "a"),
    "entries beyond a row written": (
        "adamp", r"if \(k < n\) store\(to\[k\]", "store(to[k]",
    ),
    "a row stepped twice": ("adamp", r"row < part\.end \? part\.stop : part\.start", "part.stop"),
    "a piece beyond its row": (
        "adamp", r"smaller\(w\.cols, part\.start \+ a\.chunk\)", "part.start + a.chunk",
    ),
    "a sum of chunks without the first": (
        "adamp", r"int64_t c = thread;", "int64_t c = thread + 1;",
    ),
    "the last block one too early": ("adamp", r"== w\.chunks - 1", "== smaller(w.chunks - 1, 1)"),
    "a shuffle too many": ("adamp", r"&& distance < team", "&& distance <= team"),
    # Indices.
    "a block of the weight before": ("adamp", r"first_block <= block", "first_block < block"),
    "rows and pieces swapped": (
        "adamp", r"chunk % w\.pieces : 0", "chunk / w.pieces : 0",
    ),
    "sums of pieces of other rows": (
        "adamp", r"\(index \* rows \+ row\) \* pieces", "index * pieces",
    ),
    "each piece answers for its row": ("adamp", r" && piece == 0", ""),
    "rows of the first chunk": ("adamp", r"chunk \* w\.rows_of_chunk;", "chunk;"),
    "saved sum of another row": (
        "adamp", r"part\.saved\[(\d+) \* part\.rows \+ r\] =", r"part.saved[\1] =",
    ),
    "one hyper-parameter for another": ("adamp", r": a\.H\[i\];", ": a.H[0];"),
    "an entry of the vector before": ("adamp", r"y0\[k\] = v", "y0[k ? k - 1 : 0] = v"),
}  # fmt: skip
QUICK = ("sums of warps read early",)


def is_noticed(recipe: Any, pattern: str, replacement: str) -> bool:
    """Return whether a fault leads to another path than the CUDA kernel, or to wrong numbers."""
    right = cuda_kernel.cuda_source
    found = []

    def wrong_source(graphs: Any) -> Any:
        source = right(graphs)
        text, n = re.subn(pattern, replacement, source.text, flags=re.DOTALL)
        found.append(n)
        return replace(source, text=text)

    interface._CACHE.clear()
    cuda_kernel.cuda_source = wrong_source
    CUDA_KERNEL_DEVICES.add("cpu")
    dtype = torch.bfloat16 if recipe == "bfloat16" else torch.float32
    name = "adamp" if recipe == "bfloat16" else recipe
    cls = sn.torch_optimizer(name) if isinstance(name, str) else optimizer_of(name())
    shapes = [(6, 5), (5,), (30, 9), (2, 601), (7, 600)]
    if not isinstance(recipe, str):
        shapes.remove((5,))  # without rows
    start = [w.to(dtype) for w in drawn(shapes)]
    for chunk, seed in ((64, 0), (8192, 1), (64, 1), (1024, 12345)):
        cuda_kernel.CHUNK, ShimLaunch.seed = chunk, seed
        twins = Twins(lambda ws, **options: cls(ws, lr=0.05, **options), start, "compiled")
        try:
            for step in range(4):
                twins.step(step=step)
            twins.agree()
        except (AssertionError, ValueError):
            assert any(found), f"the pattern {pattern!r} is not in the source"
            return True
        if twins.paths != {"CUDA kernel"}:
            assert any(found), f"the pattern {pattern!r} is not in the source"
            return True
    assert any(found), f"the pattern {pattern!r} is not in the source"
    return False


def exit_code_of_child(*fault: Any) -> int:
    """Return 0 if a child process has noticed the fault, 1 if not, below 0 if it has crashed."""
    child = os.fork()
    if not child:
        code = 2
        faulthandler.disable()  # of pytest: a crash is what may be expected
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                code = 0 if is_noticed(*fault) else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n not in QUICK)) for n in FAULTS]
)
def test_a_fault_is_noticed(name):
    code = exit_code_of_child(*FAULTS[name])
    assert code <= 0, "not noticed" if code == 1 else "the test is wrong"


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["adamp", "adam_mini"])
def test_a_change_of_nothing_is_no_fault(recipe):
    """The control: what is noticed is the fault, not the way in which it is planted."""
    assert exit_code_of_child(recipe, r"__syncthreads\(\);", "__syncthreads();") == 1


def test_numbers_are_written_before_a_ticket_is_taken_and_read_after_it():
    """Blocks of the shim run one after another, so that it sees no order between them."""
    text = read_header("cuda/kernel.hpp")
    before, _, after = text.partition("atomicAdd(reinterpret_cast<int*>(ticket)")
    assert re.search(r"__threadfence\(\);\s+__syncthreads\(\);\s+if \(thread == 0\)[^;]*$", before)
    last_only = after.partition("if (!shared.is_last) return;")[2]
    assert re.match(r"\s+__threadfence\(\);", last_only)
    assert "const volatile double* const sums = partial;" in last_only
