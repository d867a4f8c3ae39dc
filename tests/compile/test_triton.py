"""Triton kernels: under the interpreter, cross-compiled for a GPU, and on one if there is one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import spherenorm as sn
from spherenorm import optim
from spherenorm import rules as r
from spherenorm.compile import _paths as paths
from spherenorm.compile import gpu
from spherenorm.compile._guard import Guard, UnsupportedRuleError
from spherenorm.compile._kernels import Specialization
from spherenorm.compile._lower import lower
from spherenorm.compile.gpu import _launch as launch
from tests.compile.words import TRACED, Word
from tests.harness.gradients import FAMILIES, gradient

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SPHERENORM_CACHE", str(tmp_path))
    launch._load.cache_clear()


@pytest.mark.parametrize("mark", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_under_the_interpreter(mark):
    pytest.importorskip("triton")
    file = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", file, "-m", mark, "-p", "no:cacheprovider"]
    # Not a worker of the run that starts it.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST")
    } | {"TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-10000:] + result.stderr[-2000:]


def layout_of(cls, shape, dtype=torch.float32, **settings):
    guard = Guard.of(cls.recipe(**settings))
    return gpu.emit(lower(guard, shape, dtype), len(guard.numbers), dtype)


def compiled(layout):
    """The layout's kernels, compiled for a Hopper GPU as a launch would."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = launch._load(layout.text)
    for number in range(len(layout.flat)):
        for kind, warps in launch.WARPS.items():
            kernel = getattr(module, f"{kind}{number}")
            signature = {
                name: {"items": "*i32", "pointers": "*i64", "shape": "*i64"}.get(name, "*fp64")
                for name in kernel.arg_names
            }
            aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(signature))}
            source = ASTSource(kernel, signature=signature, constexprs={}, attrs=aligned)
            options = {"num_warps": warps, "enable_fp_fusion": True}
            yield triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spilled(ptx, path):
    """Bytes that do not fit into registers."""
    from triton.backends.nvidia.compiler import get_ptxas

    path.write_text(ptx)
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", str(path), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(map(int, re.findall(r"(\d+) bytes spill", said)))


ADAMP = optim.AdamP, {"weight_decay": 0.01}
CLASSES = [ADAMP, (optim.SGDP, {"momentum": 0.9}), (optim.AdamW, {})]


@pytest.mark.parametrize("shape", [(6, 5), (5,)], ids=["rows", "vector"])
@pytest.mark.parametrize(
    ("cls", "settings", "dtype"),
    [*((*each, torch.float32) for each in CLASSES), (*ADAMP, torch.bfloat16)],
)
def test_kernels_compile_for_a_gpu(cls, settings, shape, dtype, tmp_path):
    pytest.importorskip("triton")
    layout = layout_of(cls, shape, dtype, **settings)
    kernels = list(compiled(layout))
    assert len(kernels) == 2 * len(layout.flat)
    for kernel in kernels:
        assert kernel.asm["cubin"][:4] == b"\x7fELF"
        assert spilled(kernel.asm["ptx"], tmp_path / "kernel.ptx") == 0
        # Division and square root as torch's, not Triton's faster ones.
        assert not re.search(r"\bdiv\.full|\bsqrt\.approx", kernel.asm["ptx"])
    if dtype is torch.bfloat16:
        assert "cvt.rn.bf16" in kernels[-1].asm["ptx"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_functions_of_the_prelude_compile_for_a_gpu(dtype):
    pytest.importorskip("triton")

    def softened(lr=0.1):
        return sn.chain(Word((TRACED["softplus"], TRACED["log1p"])), r.StepSize(lr))

    for kernel in compiled(layout_of(sn.torch_optimizer(softened), (6, 5), dtype)):
        assert kernel.asm["cubin"][:4] == b"\x7fELF"
        assert "div.full" not in kernel.asm["ptx"]


def test_one_kernel_for_all_shapes_and_none_for_what_has_no_word():
    assert layout_of(optim.AdamP, (6, 5)) == layout_of(optim.AdamP, (64, 3, 7, 7))
    with pytest.raises(UnsupportedRuleError, match="OrthogonalityRegularization: "):
        layout_of(optim.SGDG, (6, 5))


def test_without_triton_the_reason_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    launch.launcher.cache_clear()
    guard = Guard.of(optim.AdamW.recipe())
    graph = lower(guard, (6, 5), torch.float32)

    def make(shape):
        return Specialization.of(graph, len(guard.numbers), torch.float32, torch.device("cuda"))

    with pytest.raises(ImportError):
        make((6, 5))
    with pytest.raises(UnsupportedRuleError, match="Triton, which makes kernels") as refused:
        paths.Paths()._checked("a key", make, guard, torch.ones(6, 5))
    assert paths.could_be_built(refused.value)


def test_what_was_uploaded_is_not_uploaded_again():
    device = torch.device("cpu")
    first = launch.upload(np.array([[1, 2], [3, 4]]), device)
    assert launch.upload(np.array([[1, 2], [3, 4]]), device).data_ptr() == first.data_ptr()
    assert launch.upload(np.array([[1, 2], [3, 5]]), device).data_ptr() != first.data_ptr()
    assert first.tolist() == [[1, 2], [3, 4]]


def test_what_waits_for_the_device_is_refused_within_a_capture(monkeypatch):
    launch.refuse_capture(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    launch.refuse_capture(torch.device("cpu"))
    with pytest.raises(RuntimeError, match="step them once before capturing a CUDA graph"):
        launch.refuse_capture(torch.device("cuda"))


def twins_on_gpu(cls, settings, dtype):
    shapes = ((64, 3, 7, 7), (300, 9), (70, 1001), (3, 70000), (2048,), (), (0, 4))
    eager = [torch.randn(shape, dtype=dtype, device="cuda").requires_grad_() for shape in shapes]
    fast = [w.detach().clone().requires_grad_() for w in eager]
    slow_opt = cls(eager, backend="rule", **settings)
    return eager, fast, slow_opt, cls(fast, backend="compiled", **settings)


def set_gradients_on_gpu(eager, fast, step):
    for i, (w, f) in enumerate(zip(eager, fast, strict=True)):
        kind = FAMILIES[(i + step) % 4] if w.ndim > 1 and w.numel() else "random"
        new = gradient(kind, w.detach().cpu(), torch.Generator().manual_seed(step), step).to(
            w.device
        )
        if f.grad is None:
            w.grad, f.grad = new, new.clone()
        else:
            w.grad.copy_(new)
            f.grad.copy_(new)


def assert_twins_on_gpu(eager, fast, dtype):
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    for w, f in zip(eager, fast, strict=True):
        torch.testing.assert_close(f, w, rtol=tolerance, atol=tolerance)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("cls", "settings"), CLASSES)
def test_a_gpu_steps_as_the_rule_and_the_host_does_not_wait(cls, settings, dtype, monkeypatch):
    monkeypatch.setattr(paths.Inductor, "__init__", None)
    eager, fast, slow_opt, fast_opt = twins_on_gpu(cls, settings, dtype)
    for step in range(5):
        set_gradients_on_gpu(eager, fast, step)
        slow_opt.step()
        # The first step with a set of shapes may wait: it compiles.
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        try:
            fast_opt.param_groups[0]["lr"] = slow_opt.param_groups[0]["lr"]
            fast_opt.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        slow_opt.param_groups[0]["lr"] = 1e-3 / (step + 1)
    assert_twins_on_gpu(eager, fast, dtype)


@on_gpu
@pytest.mark.parametrize(("cls", "settings"), CLASSES)
def test_a_captured_step_follows_the_learning_rate(cls, settings, monkeypatch):
    monkeypatch.setattr(paths.Inductor, "__init__", None)
    eager, fast, slow_opt, fast_opt = twins_on_gpu(cls, settings, torch.float64)
    rate = torch.tensor(1e-3, dtype=torch.float64, device="cuda")
    fast_opt.param_groups[0]["lr"] = rate
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    for step in range(6):
        set_gradients_on_gpu(eager, fast, step)
        now = 1e-3 / (step + 1)
        rate.fill_(now)
        slow_opt.param_groups[0]["lr"] = now
        slow_opt.step()
        if step < 2:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                fast_opt.step()
            torch.cuda.current_stream().wait_stream(stream)
            continue
        if step == 2:
            with torch.cuda.graph(graph):
                fast_opt.step()
        graph.replay()
    assert_twins_on_gpu(eager, fast, torch.float64)


@on_gpu
def test_capturing_shapes_that_were_never_stepped_is_refused():
    weight = torch.randn(17, 13, device="cuda").requires_grad_()
    weight.grad = torch.randn_like(weight)
    optimizer = optim.AdamW([weight], backend="compiled")
    with (
        pytest.raises(RuntimeError, match="step them once before capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        optimizer.step()
