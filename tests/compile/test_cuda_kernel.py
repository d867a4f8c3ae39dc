"""The CUDA kernel on a CPU, by g++ and a shim: what steps weights there is what a GPU compiles."""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spherenorm as sn
from spherenorm.compile import BATCHED_DEVICES, RuleKey
from spherenorm.compile.code import read_header
from spherenorm.compile.cuda import kernel as cuda_kernel
from spherenorm.compile.cuda.code import CudaSource, cuda_source
from spherenorm.compile.cuda.kernel import DriverLaunch, ShimLaunch, build_cuda_executor, tile
from spherenorm.compile.interface import WeightStep
from spherenorm.compile.kernel import Export, load_function
from spherenorm.compile.trace import trace
from spherenorm.record import Unsupported
from tests.compile import twins as twins_module
from tests.compile.twins import Twins, drawn, paths
from tests.harness.recipes import EVERY_RECIPE

pytestmark = [
    pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler"),
    pytest.mark.skipif(sys.platform != "linux", reason="the shim has the fibres of glibc"),
    pytest.mark.filterwarnings("ignore:optimizers step by"),
]
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = (
    *((6, 5), (4, 3, 3, 3), (5,), (), (300, 9), (3, 20001), (0, 4), (4, 0), (12, 64), (6, 1)),
    *((1, 6), (6, 6), (5000,)),
)
"""Rows shorter than a vector, rows of a warp and of a block, a row in pieces, no entries at all."""
QUICK = (("adamp", torch.float32), ("sgdp", torch.bfloat16), ("adam_mini", torch.float64))
"""Three passes and a gate; row sums of an earlier pass; a state per row."""
VIEWS = ("adamp(views=layer)", "sgdp(views=channel)")


@pytest.fixture(autouse=True)
def _on_the_shim(choose):
    choose("shim")


def split_name(recipe: str) -> tuple[str, dict[str, Any]]:
    """Return the recipe's name, and the options behind it."""
    name, _, views = recipe.partition("(views=")
    return name, {"views": (views.removesuffix(")"),)} if views else {}


def make_twins(recipe: str, dtype: torch.dtype, backend: str = "auto") -> Twins:
    """Make two optimizers of two groups with weights of all shapes that the recipe takes."""
    name, options = split_name(recipe)
    shapes = []
    for shape in SHAPES:
        try:
            sn.find_recipe(name)(**options).init(torch.ones(shape))
        except ValueError:
            continue
        shapes.append(shape)

    def make(weights: list[Tensor], **more: Any) -> torch.optim.Optimizer:
        cut = -(-len(weights) // 2)
        groups = [{"params": part} for part in (weights[:cut], weights[cut:]) if part]
        return sn.torch_optimizer(name)(groups, lr=0.05, **options, **more)

    return Twins(make, [w.to(dtype) for w in drawn(shapes)], backend)


def is_recorded(recipe: str, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Return whether a step of the weight has a graph, of which a kernel can be printed."""
    name, options = split_name(recipe)
    key = RuleKey.of(sn.find_recipe(name)(lr=0.05, **options))
    if key.unsupported_because is not None:
        return False
    try:
        trace(key, shape, dtype)
    except Unsupported:
        return False
    return True


def train_twins(twins: Twins, n_steps: int = 4) -> None:
    """Take steps with a falling rate, and without the gradient of one weight or another."""
    for step in range(n_steps):
        for group in (*twins.own_opt.param_groups, *twins.fast_opt.param_groups):
            group["lr"] = 0.05 / (1 + step)
        generator = torch.Generator().manual_seed(1000 + step)
        for i, (own, fast) in enumerate(twins):
            grad = torch.randn(own.shape, generator=generator, dtype=torch.float64).to(own.dtype)
            is_missing = step in (1, 2) and i == step
            own.grad, fast.grad = (None if is_missing else grad.clone() for _ in range(2))
            if own.dtype in (torch.bfloat16, torch.float16):  # one rounding may lead to others
                fast.data.copy_(own)
        twins.own_opt.step()
        twins.fast_opt.step()
    twins.largest = 1.0


@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [
        pytest.param(recipe, dtype, marks=[pytest.mark.long] * ((recipe, dtype) not in QUICK))
        for recipe in (*EVERY_RECIPE, *VIEWS)
        for dtype in DTYPES
    ],
    ids=str,
)
def test_a_recipe_steps_by_the_cuda_kernel_as_by_its_own_code(recipe, dtype, monkeypatch):
    monkeypatch.setitem(twins_module.ROUNDING, torch.float16, 2**-9)
    matrices = "soap", "shampoo"  # whose states would take gigabytes
    shapes = [s for s in SHAPES if not (recipe.endswith(matrices) and max(s, default=0) > 1000)]
    monkeypatch.setattr("tests.compile.test_cuda_kernel.SHAPES", shapes)
    twins = make_twins(recipe, dtype)
    with_kernel = {w.shape for w in twins.fast if is_recorded(recipe, w.shape, dtype)}
    for line in sn.explain(twins.fast_opt):
        if 0 not in line.shape:
            assert line.path == ("CUDA kernel" if line.shape in with_kernel else "rule"), line
    if not with_kernel:
        assert (recipe, dtype) not in QUICK
        pytest.skip("is not recorded")
    train_twins(twins)
    twins.agree()


@pytest.mark.parametrize(
    ("chunk", "shapes"),
    [(4, ((6, 5), (5,), (4, 3, 2, 2))), (64, ((6, 5), (70, 9), (3, 301), (2, 0)))],
)
@pytest.mark.parametrize("recipe", ["adamp", "adam_mini"])
def test_blocks_may_share_weights_and_rows(recipe, chunk, shapes, monkeypatch):
    monkeypatch.setattr(cuda_kernel, "CHUNK", chunk)
    monkeypatch.setattr("tests.compile.test_cuda_kernel.SHAPES", shapes)
    twins = make_twins(recipe, torch.float32 if recipe == "adamp" else torch.float64)
    train_twins(twins, n_steps=3)
    twins.agree()
    assert twins.paths == {"CUDA kernel"}


@pytest.mark.parametrize("recipe", ["adamp", "adam_mini"])
def test_the_order_of_blocks_and_threads_changes_no_bit(recipe, monkeypatch):
    monkeypatch.setattr(cuda_kernel, "CHUNK", 256)
    monkeypatch.setattr("tests.compile.test_cuda_kernel.SHAPES", ((6, 5), (30, 9), (2, 601)))
    results = []
    for seed in (0, 1, 12345):
        monkeypatch.setattr(ShimLaunch, "seed", seed)
        twins = make_twins(recipe, torch.float32 if recipe == "adamp" else torch.float64)
        train_twins(twins, n_steps=3)
        twins.agree()
        results.append(twins.fast)
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))


def executor_of(recipe: str, shape: tuple[int, ...], dtype: torch.dtype, **options: Any) -> Any:
    """Make the executor of a shape, and the key of its rule."""
    key = RuleKey.of(sn.find_recipe(recipe)(**options))
    siblings = [trace(key, sibling, dtype) for sibling in ((4,), (4, 3))]
    graph = trace(key, shape, dtype)
    return build_cuda_executor(graph, siblings, dtype, torch.device("cpu")), key


def batch_of(recipe: str, shapes: list[tuple[int, ...]], **options: Any) -> Any:
    """Make weights of shapes, and the batch that steps all of them."""
    executors, steps = {}, []
    for shape in shapes:
        if shape not in executors:
            executors[shape], key = executor_of(recipe, shape, torch.float32, **options)
        weight = torch.randn(shape)
        steps.append(WeightStep(weight, torch.randn(shape), key.rule.init(weight)))
    of_weights = [executors[shape] for shape in shapes]
    return of_weights[0].bind(steps, of_weights), steps, key


def test_more_weights_than_fit_into_the_arguments_take_more_launches():
    batch, steps, key = batch_of("sgdp", [(3, 2), (4,)] * 300, momentum=0.9, lr=0.1)
    expected = [key.rule.step(w.weight.clone(), w.grad, w.state)[0] for w in steps]
    capacity = batch.kernel.source.sizes["MAX_WEIGHTS"]
    assert batch.n_launches == 3 * math.ceil(600 / capacity) > 3
    batch.run(steps, key.scalars)
    for step, value in zip(steps, expected, strict=True):
        torch.testing.assert_close(step.weight, value)


@pytest.mark.long  # 67 shapes to record
def test_more_constants_than_fit_into_the_arguments_take_more_launches():
    """The root of a row's length is one of them, so that each shape has its own."""
    shapes = [(2, n) for n in range(1, 68)]
    batch, steps, key = batch_of("adamp", shapes, lr=0.1)
    n_literals = batch.kernel.source.sizes["MAX_LITERALS"] // 16
    assert n_literals < len(shapes) < batch.kernel.source.sizes["MAX_WEIGHTS"]
    expected = [key.rule.step(w.weight.clone(), w.grad, {**w.state})[0] for w in steps]
    assert batch.n_launches == 2 * 3
    batch.run(steps, key.scalars)
    for step, value in zip(steps, expected, strict=True):
        torch.testing.assert_close(step.weight, value)


class OnDevice(Tensor):
    """A number that is on a device: the host may take its address, and not its value."""

    is_cpu = False

    def __float__(self) -> float:
        raise AssertionError("the host waits for a device")


def test_hyper_parameters_on_the_device_are_read_there():
    batch, steps, key = batch_of("adamp", [(6, 5), (5,)], lr=0.1, weight_decay=0.5)
    expected = [key.rule.step(w.weight.clone(), w.grad, {**w.state})[0] for w in steps]
    scalars = [torch.tensor(float(x)).as_subclass(OnDevice) for x in key.scalars]
    batch.run(steps, scalars)
    for step, value in zip(steps, expected, strict=True):
        torch.testing.assert_close(step.weight, value)


@pytest.mark.parametrize(
    ("recipe", "n_bytes", "n_launches"), [("adamw", 28, 1), ("adamp", 48, 3), ("sgdp", 36, 3)]
)
def test_a_step_moves_few_bytes_in_few_launches(recipe, n_bytes, n_launches):
    """Each byte is counted that a thread reads or writes, though a cache may have it."""
    options = {"momentum": 0.9} if recipe == "sgdp" else {}
    shapes = [(64, 576), (64, 3, 7, 7), (64,)]
    batch, steps, key = batch_of(recipe, shapes, **options)
    for step in steps:
        if step.weight.ndim > 1:  # so that each row is invariant, as under BatchNorm
            dims = tuple(range(1, step.weight.ndim))
            share = (step.weight * step.grad).sum(dims, True) / step.weight.square().sum(dims, True)
            step.grad.sub_(share * step.weight)
    launch = batch.kernel.launch
    before = launch.n_bytes, launch.n_launches
    batch.run(steps, key.scalars)
    n_moved = launch.n_bytes - before[0]
    assert launch.n_launches - before[1] == batch.n_launches == n_launches
    n_entries = sum(step.weight.numel() for step in steps)
    assert n_bytes - 1 < n_moved / n_entries <= n_bytes


def test_the_memory_beside_weights_and_states_is_small():
    batch, steps, _ = batch_of("adamp", [(256, 2304), (256,), (512, 128, 3, 3), (1000, 2048)])
    assert batch.memory_bytes < 0.1 * sum(step.weight.numel() for step in steps)


def test_replayed_launches_are_steps():
    """A captured CUDA graph repeats launches with their arguments, and nothing that Python does."""
    batch, steps, key = batch_of("adamp", [(6, 5), (5,), (70, 9)], lr=0.1)
    twins = [
        WeightStep(s.weight.clone(), s.grad, {k: x.clone() for k, x in s.state.items()})
        for s in steps
    ]
    launches = []
    right = batch.kernel.launch

    def record(arguments: np.ndarray, n_blocks: int) -> None:
        launches.append((arguments.copy(), n_blocks))
        right(arguments, n_blocks)

    object.__setattr__(batch.kernel, "launch", record)
    batch.run(steps, key.scalars)
    object.__setattr__(batch.kernel, "launch", right)
    recorded = [*launches]
    twin_batch, _, _ = batch_of("adamp", [(6, 5), (5,), (70, 9)], lr=0.1)
    twin_batch.run(twins, key.scalars)
    for step in range(3):
        for weight in steps:
            weight.grad.copy_(torch.randn(weight.grad.shape))
        for arguments, n_blocks in recorded:
            right(arguments, n_blocks)
        twin_batch.run(twins, key.scalars)
        for ours, theirs in zip(steps, twins, strict=True):
            assert torch.equal(ours.weight, theirs.weight), step
            assert ours.state["step"] == theirs.state["step"] == step + 2


DRIVER = """
extern "C" int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return memcmp(image, "cubin", 5) ? 200 : 0;
}
extern "C" int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return strcmp(name, "step_weights") ? 500 : 0;
}
extern "C" int cuGetErrorString(int error, const char** text) {
  *text = error == 200 ? "device kernel image is invalid" : "invalid argument";
  return 0;
}
extern "C" int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads,
                              unsigned y_threads, unsigned z_threads, unsigned shared_bytes,
                              void* stream, void** parameters, void** extra) {
  const bool right = !strcmp(static_cast<char*>(function), "cubin") && y == 1 && z == 1 &&
                     threads == THREADS && y_threads == 1 && z_threads == 1 &&
                     shared_bytes == 0 && stream == reinterpret_cast<void*>(7) && !extra;
  int64_t bytes = 0;
  return right ? launch(static_cast<const Arguments*>(parameters[0]), int(x), 0, &bytes) : 1;
}"""
"""A driver whose only kernel is the shim's, and which looks at what it is given."""


def test_the_driver_is_called_as_it_is_declared(tmp_path, monkeypatch):
    batch, steps, key = batch_of("adamp", [(6, 5), (5,), (70, 9)])
    twin_batch, _, _ = batch_of("adamp", [(6, 5), (5,), (70, 9)])
    twins = [
        WeightStep(s.weight.clone(), s.grad, {k: x.clone() for k, x in s.state.items()})
        for s in steps
    ]
    source = read_header("cuda/shim.hpp") + batch.kernel.source.text + DRIVER
    (tmp_path / "driver.cpp").write_text(source)
    flags = "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-march=native"
    command = ["g++", *flags, *batch.kernel.types, "driver.cpp", "-o", "driver.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    driver = ctypes.CDLL(str(tmp_path / "driver.so"))
    monkeypatch.setattr(cuda_kernel, "load_library", lambda name: driver)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    gpu = torch.device("cuda", 0)
    launch = DriverLaunch(b"cubin", gpu)
    object.__setattr__(batch.kernel, "launch", launch)
    batch.run(steps, key.scalars)
    twin_batch.run(twins, key.scalars)
    for ours, theirs in zip(steps, twins, strict=True):
        assert torch.equal(ours.weight, theirs.weight)
    stream.cuda_stream = 8
    with pytest.raises(Unsupported, match="cuLaunchKernel: invalid argument"):
        batch.run(steps, key.scalars)
    with pytest.raises(Unsupported, match="cuModuleLoadData: device kernel image is invalid"):
        DriverLaunch(b"no image", gpu)


def test_a_weight_without_a_kernel_steps_batched_and_the_reason_is_shown():
    BATCHED_DEVICES.add("cpu")
    weights = [torch.randn(5, 6).t().requires_grad_(), torch.randn(6, 5).requires_grad_()]
    optimizer = sn.optim.SGDP(weights, lr=0.1)
    reasons = [line.reason for line in sn.explain(optimizer) if line.path == "batched"]
    assert all("no CUDA kernel: the weight's rows do not lie" in reason for reason in reasons)
    assert paths(optimizer) == {"batched", "CUDA kernel"}


def test_without_a_gpu_there_is_no_kernel_for_one():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    graph = trace(RuleKey.of(sn.recipes.sgd()), (4, 3), torch.float32)
    with pytest.raises(Unsupported, match="CUDA"):
        build_cuda_executor(graph, [], torch.float32, torch.device("cuda", 0))


def test_a_step_of_too_many_constants_has_no_kernel(monkeypatch):
    monkeypatch.setattr("spherenorm.compile.cuda.code.MAX_LITERALS", 5)
    graph = trace(RuleKey.of(sn.recipes.adamp()), (4, 3), torch.float32)
    with pytest.raises(Unsupported, match="has 16 constants, and a launch takes 5"):
        cuda_source([graph])


@pytest.mark.parametrize(
    ("rows", "cols", "chunk"), [(1, 1, 4), (300, 9, 64), (3, 301, 64), (0, 4, 8), (4, 0, 8)]
)
def test_tiles_cover_a_weight(rows, cols, chunk):
    tiling = tile(rows, cols, chunk, vector=4)
    if tiling.pieces > 1:
        assert tiling.pieces == math.ceil(cols / chunk)
        assert tiling.chunks == rows * tiling.pieces
    else:
        assert tiling.chunks == max(1, math.ceil(rows / tiling.rows_of_chunk))
    assert tiling.team in (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_half_precision_is_rounded_as_torch_rounds():
    """All numbers of 16 bits, and float32 numbers between and beyond them."""
    source = """
    extern "C" int convert(int64_t n, const uint16_t* halves, float* wide, const float* x,
                           uint16_t* rounded) {
      for (int64_t i = 0; i < n; ++i) {
        STORED half;
        half.bits = halves[i];
        wide[i] = float(half);
        rounded[i] = STORED(x[i]).bits;
      }
      return 0;
    }"""
    export = Export("convert", (ctypes.c_int64, *[ctypes.c_void_p] * 4))
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2**32, 2**16, dtype=np.uint32)
    bits[:2000] = 0x38800000 + generator.integers(-3000, 3000, 2000)  # near the least normal one
    bits[2000:4000] = 0x477FF000 + generator.integers(-3000, 3000, 2000)  # near the largest
    bits[4000:6000] = 0x33000000 + generator.integers(-3000, 3000, 2000)  # near half of the least
    halves = np.arange(2**16, dtype=np.uint16)
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        function = load_function(
            read_header("numbers.hpp") + source, ("-DREAL=float", f"-DSTORED={name}"), export
        )
        near = torch.from_numpy(halves.view(np.int16)).view(dtype).float().numpy()
        with np.errstate(invalid="ignore"):  # of the infinities
            between = near * np.float32(1 + 2**-9)
        for x in (bits.view(np.float32), near, between):
            wide, rounded = np.empty(2**16, np.float32), np.empty(2**16, np.uint16)
            function(2**16, *(a.ctypes.data for a in (halves, wide, x, rounded)))
            assert np.array_equal(wide, near, equal_nan=True)
            ours = torch.from_numpy(rounded.view(np.int16)).view(dtype)
            expected = torch.from_numpy(x.copy()).to(dtype)
            assert ((ours == expected) | (ours.isnan() & expected.isnan())).all()
            is_number = ~expected.isnan()
            assert torch.equal(ours.signbit()[is_number], expected.signbit()[is_number])


# What a GPU's compilers make of the source

MAX_SPILL_BYTES = {torch.bfloat16: 0, torch.float64: 128}
"""Bounds for one thread. Registers are bounded, so that two blocks fit on a processor."""
MAX_REGISTERS = 128


def source_of(recipe: str) -> CudaSource:
    """Print the kernel of a recipe for vectors and matrices."""
    key, graphs = RuleKey.of(sn.find_recipe(recipe)()), []
    for shape in ((4,), (4, 3)):
        try:
            graph = trace(key, shape, torch.float32)
            cuda_source([graph])
        except ValueError:
            continue
        if graph.structure not in [other.structure for other in graphs]:
            graphs.append(graph)
    if not graphs:
        pytest.skip("is not recorded")
    return cuda_source(graphs)


@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc")
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[pytest.mark.long] * (recipe != "adamp"))
        for recipe in EVERY_RECIPE
    ],
)
def test_nvcc_compiles_the_kernel_without_spills(recipe, tmp_path):
    (tmp_path / "step.cu").write_text(source_of(recipe).text)
    for dtype, architecture in ((torch.bfloat16, "sm_80"), (torch.float64, "sm_90")):
        if recipe == "adamp" and dtype is torch.float64:
            continue  # ten seconds; among the long tests
        real, stored = cuda_kernel.TYPES[dtype]
        flags = "-std=c++17", "--fmad=false", f"-arch={architecture}", "-cubin", "-Xptxas", "-v"
        done = subprocess.run(
            ["nvcc", *flags, f"-DREAL={real}", f"-DSTORED={stored}", "step.cu"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        spills = [int(n) for n in re.findall(r"(\d+) bytes spill", done.stderr)]
        registers = [int(n) for n in re.findall(r"Used (\d+) registers", done.stderr)]
        print(recipe, dtype, architecture, "registers", registers, "spilled bytes", spills)
        assert max(spills) <= MAX_SPILL_BYTES[dtype]
        assert max(registers) <= MAX_REGISTERS


def test_nvrtc_compiles_the_kernel_without_headers():
    """Compile by the NVRTC that torch for CUDA brings, or any that the loader finds."""
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        try:
            cuda_kernel.load_library(name)
        except Unsupported:
            continue
        break
    else:
        pytest.skip("no NVRTC")
    options = ("--gpu-architecture=sm_80", *cuda_kernel.NVRTC_OPTIONS)
    types = ("-DREAL=float", "-DSTORED=bfloat16")
    cubin = cuda_kernel.compile_cubin(source_of("adamp").text, (*options, *types), name)
    assert cubin[:4] == b"\x7fELF"
    assert b"step_weights" in cubin
    with pytest.raises(Unsupported, match="error"):
        cuda_kernel.compile_cubin("not CUDA", options, name)
