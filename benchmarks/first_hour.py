"""Check the first hour on a GPU: what holds there, in ten minutes and one table.

    python -m benchmarks.first_hour --out gpu.json     on a machine with a GPU
    python -m benchmarks.first_hour --dry              the same code on a CPU, a few recipes

Each section has its own clock and stops when it is over. A check is a line "ok", "FAIL" or "skip"
with its figures; nothing raises, and the JSON file is written after each section. The exit code is
1 if a check failed.
"""

from __future__ import annotations

import copy
import io
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import spherenorm as sn
from benchmarks.contenders import available, parameters
from benchmarks.measure import bandwidth, interleaved, peak_memory_of, synchronized
from benchmarks.shapes import SETS, Shape
from spherenorm.compile import BATCHED_DEVICES, CUDA_KERNEL_DEVICES
from spherenorm.optim import RecipeOptimizer
from spherenorm.support import atomic_write

ROOT = Path(__file__).parents[1]
WRAPPED = (
    *("hyperball(adamw)", "hyperball(muon)", "rotational(adamw)", "averaged(adamp)"),
    *("radial_brake(adamw)", "blocks(adamw)", "low_precision(adamw)"),
)
DRY_RECIPES = ("adamp", "muon", "soap", "amsgrad")
KERNEL_RECIPES = ("adamw", "adamp", "sgdp", "adam_mini", "lamb", "lion")
"""Recipes that step by the CUDA kernel: one pass or three, sums of rows, a state per row."""
WAITING_RECIPES = ("soap", "shampoo")
"""Recipes that work every k steps, for which the host reads a counter."""
MATRIX_STATE_RECIPES = ("soap", "shampoo")
"""Recipes whose states are as large as the square of a dimension."""
SHAPES: tuple[Shape, ...] = ((6, 5), (6, 5), (4, 3, 3, 3), (9, 33), (12,), (300, 9), (3, 20001))
MATRICES: tuple[Shape, ...] = ((64, 30), (64, 30), (30, 64))
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 2**-6, torch.float16: 2**-9}
"""Relative to the largest entry of a tensor, after five steps."""
N_STEPS = 5


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        section, name: what was checked.
        holds: None if it could not be checked here.
        figures: what was measured.
    """

    section: str
    name: str
    holds: bool | None
    figures: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """The word for the table."""
        return {True: "ok", False: "FAIL", None: "skip"}[self.holds]


@dataclass
class Report:
    """The checks so far, and the machine that they run on.

    Attributes:
        device: a torch device.
        recipes: the names of the recipes to check.
        dry: on a CPU, with small parameter sets.
        checks: the results.
        seconds: of each section.
    """

    device: str
    recipes: Sequence[str]
    dry: bool
    checks: list[Check] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    section: str = ""
    deadline: float = math.inf

    @property
    def on_cuda(self) -> bool:
        """True on a GPU."""
        return self.device.startswith("cuda")

    @property
    def is_late(self) -> bool:
        """True if the section's time is over."""
        return time.monotonic() > self.deadline

    def add(self, name: str, holds: bool | None, **figures: Any) -> None:
        """Add the result of a check, and print it."""
        check = Check(self.section, name, holds, figures)
        self.checks.append(check)
        print(f"{check.verdict:5}{self.section}/{name}: {figures}", flush=True)

    def add_comparison(
        self,
        name: str,
        n_compared: int,
        differences: Mapping[str, float],
        errors: Mapping[str, str],
        **figures: Any,
    ) -> None:
        """Add the result of recipes that were compared; it holds if one was and none differs."""
        holds = not differences and not errors and (n_compared > 0 or None)
        figures = {"differences": differences, "errors": errors, **figures}
        self.add(name, holds, compared=n_compared, **figures)

    def until_late(self, names: Sequence[str]) -> Iterator[str]:
        """Yield names as long as there is time; the rest is a check that was skipped."""
        for name in names:
            if self.is_late:
                self.add(f"from {name} on", None, reason="no time")
                return
            yield name

    def to_json(self) -> str:
        """Return everything as JSON."""
        checks = [{**asdict(check), "verdict": check.verdict} for check in self.checks]
        facts = {"device": self.device, "dry": self.dry, "seconds": self.seconds}
        return json.dumps({**facts, "checks": checks}, indent=1, default=str)

    def table(self) -> Table:
        """Return the table of what held."""
        table = Table(title=f"The first hour on {self.device}", box=box.SIMPLE_HEAD)
        for column in ("section", "s", "ok", "FAIL", "skip", "what failed"):
            table.add_column(column)
        for section, seconds in self.seconds.items():
            checks = [check for check in self.checks if check.section == section]
            counts = Counter(check.verdict for check in checks)
            failed = ", ".join(check.name for check in checks if check.holds is False)
            numbers = [str(counts[verdict]) for verdict in ("ok", "FAIL", "skip")]
            table.add_row(section, f"{seconds:.0f}", *numbers, failed)
        return table


# Steps


def start_weights(
    recipe: str, dtype: torch.dtype, shapes: Sequence[Shape] = SHAPES
) -> list[Tensor]:
    """Draw the weights of those shapes that a recipe takes."""
    weights = []
    for index, shape in enumerate(shapes):
        if recipe.endswith(MATRIX_STATE_RECIPES) and max(shape) > 1000:
            continue
        generator = torch.Generator().manual_seed(index)
        weight = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        try:
            sn.find_recipe(recipe)().init(weight)
        except ValueError:
            continue
        weights.append(weight)
    return weights


def make_optimizer(
    recipe: str,
    start: Sequence[Tensor],
    devices: Sequence[str],
    lay_out: Callable[[Tensor], Tensor] = lambda weight: weight,
    **options: Any,
) -> tuple[list[Tensor], RecipeOptimizer]:
    """Put copies of weights in turn on devices, in two groups, and make their optimizer."""
    weights = [
        lay_out(w.clone().to(devices[i % len(devices)])).requires_grad_()
        for i, w in enumerate(start)
    ]
    groups = [{"params": part} for part in (weights[::2], weights[1::2]) if part]
    return weights, sn.torch_optimizer(recipe)(groups, **{"lr": 0.01, **options})


def draw_gradients(weights: Sequence[Tensor], step: int) -> None:
    """Give weights the gradients of a step, in the memory of the last ones."""
    generator = torch.Generator().manual_seed(1000 + step)
    for weight in weights:
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        if weight.grad is None:
            weight.grad = torch.empty_like(weight)
        weight.grad.copy_(drawn)


def trained(
    recipe: str, start: Sequence[Tensor], devices: Sequence[str], **options: Any
) -> tuple[list[Tensor], RecipeOptimizer]:
    """Take steps with a schedule and missing gradients."""
    weights, optimizer = make_optimizer(recipe, start, devices, **options)
    for step in range(N_STEPS):
        draw_gradients(weights, step)
        if step in (1, 2):
            weights[step - 1].grad = None
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
        optimizer.step()
    return weights, optimizer


def tensors_of(weights: Sequence[Tensor], optimizer: RecipeOptimizer) -> list[Tensor]:
    """List weights and states."""
    states = [optimizer.state[weight] for weight in weights]
    return [*(w.detach() for w in weights), *(x for state in states for x in state.values())]


def largest_difference(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of tensors, relative to the largest entry of each."""
    largest = 0.0
    for x, y in zip(actual, expected, strict=True):
        if not x.numel():
            continue
        a, b = x.cpu().double(), y.cpu().double()
        same = (a == b) | (a.isnan() & b.isnan())
        if not (same | (a.isfinite() & b.isfinite())).all():
            return math.inf
        scale = max(b.nan_to_num(0, 0, 0).abs().max().item(), 1e-30)
        largest = max(largest, (a - b).abs().where(~same, 0.0).max().item() / scale)
    return largest


def first_line(error: Exception) -> str:
    """Return the type of an error and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"


# Sections


def check_numbers(report: Report) -> None:
    """Compare every recipe on the device with own code on the CPU, in four dtypes."""
    for dtype, tolerance in TOLERANCE.items():
        differences, errors, paths, n_compared = {}, {}, Counter[str](), 0
        for recipe in report.until_late(report.recipes):
            start = start_weights(recipe, dtype)
            try:
                expected = tensors_of(*trained(recipe, start, ["cpu"], backend="rule"))
                weights, optimizer = trained(recipe, start, [report.device])
                difference = largest_difference(tensors_of(weights, optimizer), expected)
                paths.update(row.path for row in sn.explain(optimizer))
            except Exception as error:
                errors[recipe] = first_line(error)
                continue
            n_compared += 1
            if not difference <= tolerance:
                differences[recipe] = difference
        report.add_comparison(
            str(dtype), n_compared, differences=differences, errors=errors, paths=dict(paths)
        )


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda w: w.t().contiguous().t() if w.ndim == 2 else w,
    "channels_last": lambda w: (
        w.contiguous(memory_format=torch.channels_last) if w.ndim == 4 else w
    ),
    "rows with gaps": lambda w: (
        torch.cat([w, w], -1)[..., : w.shape[-1]].detach() if w.ndim > 1 else w
    ),
}


def check_layouts(report: Report) -> None:
    """Compare weights whose rows do not lie one after another in memory."""
    for layout, lay_out in LAYOUTS.items():
        for recipe in report.until_late([x for x in report.recipes if x in DRY_RECIPES]):
            start = start_weights(recipe, torch.float32)
            try:
                expected = tensors_of(*trained(recipe, start, ["cpu"], backend="rule"))
                actual = tensors_of(*trained(recipe, start, [report.device], lay_out=lay_out))
                difference = largest_difference(actual, expected)
            except Exception as error:
                report.add(f"{layout} {recipe}", False, error=first_line(error))
                continue
            report.add(f"{layout} {recipe}", difference <= 2e-4, difference=difference)


def check_waits(report: Report) -> None:
    """Require that no step waits for the device, from the third one on."""
    if not report.on_cuda:
        report.add("waits", None, reason="no GPU; tests/compile/test_devices.py counts them")
        return
    errors = {}
    for recipe in report.until_late(report.recipes):
        start = start_weights(recipe, torch.float32, [(64, 3, 7, 7), (64,), (256, 64)])
        weights, optimizer = make_optimizer(recipe, start, [report.device])
        for step in range(N_STEPS):
            draw_gradients(weights, step)
            torch.cuda.set_sync_debug_mode("error" if step > 2 else "default")
            try:
                optimizer.step()
            except Exception as error:
                errors[recipe] = first_line(error)
                break
            finally:
                torch.cuda.set_sync_debug_mode("default")
    report.add("steps", set(errors) <= set(WAITING_RECIPES), errors=errors)


def check_capture(report: Report) -> None:
    """Replay a captured step with new gradients and another rate, beside an eager one."""
    if not report.on_cuda:
        report.add("capture", None, reason="no GPU; tests/compile/test_capture.py replays steps")
        return
    differences, errors, n_compared = {}, {}, 0
    for recipe in report.until_late([x for x in report.recipes if x not in WAITING_RECIPES]):
        try:
            difference = _replay(recipe, report.device)
        except Exception as error:
            errors[recipe] = first_line(error)
            continue
        n_compared += 1
        if not difference < 1e-4:
            differences[recipe] = difference
    report.add_comparison("replays", n_compared, differences=differences, errors=errors)


def _replay(recipe: str, device: str) -> float:
    """Return the largest difference between replayed and eager steps."""
    rate = torch.tensor(0.01, device=device)
    start = start_weights(recipe, torch.float32, MATRICES)
    captured, optimizer = make_optimizer(recipe, start, [device], lr=rate)
    eager, eager_optimizer = make_optimizer(recipe, start, [device], lr=rate)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in range(3):
            draw_gradients(captured, step)
            draw_gradients(eager, step)
            optimizer.step()
            eager_optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # which records the step and does not take it
        optimizer.step()
    for step in range(3, 8):
        rate.fill_(0.01 / (1 + step))
        draw_gradients(captured, step)
        draw_gradients(eager, step)
        graph.replay()
        eager_optimizer.step()
    return largest_difference(tensors_of(captured, optimizer), tensors_of(eager, eager_optimizer))


def check_devices(report: Report) -> None:
    """Mix devices in one optimizer, and step on a device that is not the current one."""
    cases = {"CPU beside the device": ["cpu", report.device]}
    if report.on_cuda and torch.cuda.device_count() > 1:
        cases |= {"cuda:1": ["cuda:1"], "cuda:0 and cuda:1": ["cuda:0", "cuda:1"]}
    for case, devices in cases.items():
        differences, errors, n_compared = {}, {}, 0
        for recipe in report.until_late(report.recipes):
            start = start_weights(recipe, torch.float32, [(6, 5), (6, 5), (9, 33), (9, 33)])
            try:
                expected = tensors_of(*trained(recipe, start, ["cpu"], backend="rule"))
                difference = largest_difference(
                    tensors_of(*trained(recipe, start, devices)), expected
                )
            except Exception as error:
                errors[recipe] = first_line(error)
                continue
            n_compared += 1
            if not difference <= 2e-4:
                differences[recipe] = difference
        report.add_comparison(case, n_compared, differences=differences, errors=errors)


def _model(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(8 * 36, 4)).to(device)


def check_training(report: Report) -> None:
    """Train with autocast and a scaler; resume from the CPU; probe, audit and sweep."""
    device, kind = report.device, torch.device(report.device).type
    x, y = torch.randn(16, 3, 8, 8, device=device), torch.randint(0, 4, (16,), device=device)
    for dtype in (torch.float16, torch.bfloat16):
        _train_in_autocast(report, kind, dtype, x, y)

    def train(model: nn.Module, optimizer: RecipeOptimizer) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    torch.backends.cudnn.deterministic = True
    model = _model(device)
    optimizer = sn.optim.AdamP(model.parameters(), lr=1e-2)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved_model, saved_optimizer = torch.load(file, map_location="cpu", weights_only=True)
    resumed = _model(device)
    resumed.load_state_dict(saved_model)
    resumed_optimizer = sn.optim.AdamP(resumed.parameters(), lr=1e-2)
    resumed_optimizer.load_state_dict(saved_optimizer)
    copied, copied_optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer)
    for name, (other, other_optimizer) in {
        "a checkpoint on the CPU": (resumed, resumed_optimizer),
        "a deep copy": (copied, copied_optimizer),
    }.items():
        train(other, other_optimizer)
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        report.add(f"{name} goes on bit by bit", all(torch.equal(a, b) for a, b in pairs))
    with sn.probe(optimizer, every=1) as probe:
        train(model, optimizer)
    turns = [measurement.turn for measurement in probe.measurements]
    report.add("probe", bool(turns) and all(map(math.isfinite, turns)), n=len(turns))
    report.add("audit", "invariant" in str(sn.audit(model, x)))
    for name, rates in {
        "a list": [0.1, 0.2],
        "a tensor on the CPU": torch.tensor([0.1, 0.2]),
        "a tensor on the device": torch.tensor([0.1, 0.2], device=device),
    }.items():
        params = {"w": torch.ones(2, 4, 3, device=device)}
        try:
            result = sn.functional.sweep(
                "adamp", lambda p: (p["w"] ** 2).sum(), params, {"lr": rates}, steps=12
            )
            report.add(f"a sweep over {name}", result.loss.device.type == kind)
        except Exception as error:
            report.add(f"a sweep over {name}", False, error=first_line(error))


def _train_in_autocast(report: Report, kind: str, dtype: torch.dtype, x: Tensor, y: Tensor) -> None:
    model = _model(report.device)
    optimizer = sn.optim.AdamP(model.parameters(), lr=1e-2, weight_decay=1e-2)
    scaler = torch.amp.GradScaler(kind, init_scale=2.0**40)  # so that first steps are skipped
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    holds = math.isfinite(losses[-1]) and losses[-1] < losses[0]
    report.add(f"autocast {dtype} with a scaler", holds, first=losses[0], last=losses[-1],
               scale=scaler.get_scale())  # fmt: skip


@contextmanager
def _tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


@contextmanager
def _deterministic() -> Iterator[None]:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check_switches(report: Report) -> None:
    """Say what TF32 changes in recipes that multiply, and repeat deterministic steps bit by bit."""
    matrices = ("muon", "normuon", "soap", "shampoo", "spel", "polargrad")
    for recipe in report.until_late([x for x in report.recipes if x in matrices]):
        start = start_weights(recipe, torch.float32, [(192, 128), (192, 128), (64, 256)])
        try:
            expected = tensors_of(*trained(recipe, start, [report.device]))
            with _tf32():
                actual = tensors_of(*trained(recipe, start, [report.device]))
        except Exception as error:
            report.add(f"TF32 {recipe}", False, error=first_line(error))
            continue
        report.add(f"TF32 {recipe}", None, difference=largest_difference(actual, expected))
    for recipe in report.until_late([x for x in report.recipes if x in DRY_RECIPES]):
        start = start_weights(recipe, torch.float32)
        try:
            with _deterministic():
                runs = [tensors_of(*trained(recipe, start, [report.device])) for _ in range(2)]
        except Exception as error:
            report.add(f"deterministic {recipe}", False, error=first_line(error))
            continue
        report.add(f"deterministic {recipe}", largest_difference(*runs) == 0.0)


def check_tests(report: Report) -> None:
    """Run the tests that are marked for a GPU."""
    if not report.on_cuda:
        report.add("tests", None, reason="no GPU")
        return
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "cuda or captured"]
    _run(report, "pytest", [*command, "tests/test_backends.py"])


def check_benchmarks(report: Report) -> None:
    """Run `python -m benchmarks` on the device."""
    sets = "many-small" if report.dry else "small-resnet,resnet50"
    options = {"sections": "step,first", "sets": sets, "rounds": "2" if report.dry else "9"}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    device = f"--device={report.device}"
    _run(report, "benchmarks", [sys.executable, "-m", "benchmarks", *arguments, device])


def _run(report: Report, name: str, command: Sequence[str]) -> None:
    """Run a command until the section's time is over; its output is a figure."""
    seconds = max(report.deadline - time.monotonic(), 1.0)
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        report.add(name, None, reason=f"not over after {seconds:.0f} s")
        return
    report.add(name, done.returncode == 0, output=f"{done.stdout}{done.stderr}".splitlines()[-60:])


def check_speed(report: Report) -> None:
    """Measure milliseconds, kernels, and bytes for each weight; nothing here fails."""
    report.add("bandwidth", True, gb_per_s=round(bandwidth(report.device, 2**24 if report.dry
                                                           else 2**31)))  # fmt: skip
    for name in report.until_late(["many-small"] if report.dry else ["resnet50", "gpt2-124m"]):
        shapes = SETS[name]()
        weights = parameters(shapes, report.device)
        n_entries = sum(w.numel() for w in weights)
        optimizers, missing = available(weights, report.device)
        rounds = 1 if report.dry else 7
        steps = {contender: optimizer.step for contender, optimizer in optimizers.items()}
        seconds = interleaved(steps, rounds, report.device)
        for contender, optimizer in optimizers.items():
            figures = {
                "ms": round(1e3 * seconds[contender], 3),
                "peak_bytes": round(peak_memory_of(optimizer.step, report.device) / n_entries, 1),
            }
            if report.on_cuda:
                figures |= _host_time_and_kernels(optimizer)
            report.add(f"{name} {contender}", True, **figures)
        report.add(f"{name} missing", None, contenders=missing)
        _time_missing_gradient(report, name, shapes)


def _host_time_and_kernels(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the milliseconds after which the host is free, and the number of kernels."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    optimizer.step()
    host_seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        optimizer.step()
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type.name == "CUDA"]
    return {"host_ms": round(1e3 * host_seconds, 3), "kernels": len(kernels)}


def _time_missing_gradient(report: Report, name: str, shapes: Sequence[Shape]) -> None:
    """Time the first step without one of the gradients, and a later one."""
    weights = parameters(shapes, report.device)
    optimizer = sn.optim.AdamP(weights, lr=1e-3)
    milliseconds = []
    for missing in (None, None, -1, None, -1):
        grads = [w.grad for w in weights]
        if missing is not None:
            weights[missing].grad = None
        clock = synchronized(report.device, time.perf_counter)
        begin = clock()
        optimizer.step()
        milliseconds.append(round(1e3 * (clock() - begin), 2))
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = grad
    report.add(f"{name} a missing gradient", True, ms=milliseconds)


@contextmanager
def _cuda_kernel(report: Report) -> Iterator[None]:
    """Let weights step by the CUDA kernel; on a CPU by the same kernel behind its shim."""
    kind = torch.device(report.device).type
    was_on = kind in CUDA_KERNEL_DEVICES
    CUDA_KERNEL_DEVICES.add(kind)
    try:
        yield
    finally:
        if not was_on:
            CUDA_KERNEL_DEVICES.discard(kind)


def check_kernel(report: Report) -> None:
    """Check numbers, layouts, waits and capture of the CUDA kernel, and time it."""
    recipes = [x for x in KERNEL_RECIPES if not report.dry or x in report.recipes]
    of_kernel = replace(report, recipes=recipes)
    with _cuda_kernel(report):
        for check in (check_numbers, check_layouts, check_waits, check_capture):
            check(of_kernel)
    for name in report.until_late(["many-small"] if report.dry else ["resnet50", "gpt2-124m"]):
        _time_kernel(report, name)


def _time_kernel(report: Report, name: str) -> None:
    """Time the CUDA kernel and the batched executor beside the optimizers of `available`."""
    weights = parameters(SETS[name](), report.device)
    baselines, _ = available(weights, report.device)
    optimizers: dict[str, torch.optim.Optimizer] = {
        label: optimizer
        for label, optimizer in baselines.items()
        if label in ("AdamW, torch fused", "AdamW, torch foreach", "AdamP, released")
    }
    settings: dict[str, dict[str, Any]] = {"AdamW": {}, "AdamP": {}, "SGDP": {"momentum": 0.9}}
    for label, options in settings.items():
        cls = getattr(sn.optim, label)
        batched, kernel = (cls(weights, lr=1e-8, **options) for _ in range(2))
        batched.step()  # a plan keeps its paths
        with _cuda_kernel(report):
            kernel.step()
            paths = sorted({row.path for row in sn.explain(kernel)})
            reasons = sorted({row.reason for row in sn.explain(kernel)})
        report.add(f"{name} {label} takes the kernel", paths == ["CUDA kernel"], reasons=reasons)
        name_of_kernel = "CUDA kernel" if report.on_cuda else "CUDA kernel on the CPU"
        optimizers |= {f"{label}, batched": batched, f"{label}, {name_of_kernel}": kernel}
    seconds = interleaved(
        {label: optimizer.step for label, optimizer in optimizers.items()},
        1 if report.dry else 7,
        report.device,
    )
    for label, optimizer in optimizers.items():
        figures = {"ms": round(1e3 * seconds[label], 3)}
        if report.on_cuda:
            figures |= _host_time_and_kernels(optimizer)
        report.add(f"{name} {label}", True, **figures)


SECTIONS: dict[str, tuple[float, Callable[[Report], None]]] = {
    "numbers": (90, check_numbers),
    "layouts": (25, check_layouts),
    "waits": (40, check_waits),
    "capture": (60, check_capture),
    "devices": (30, check_devices),
    "training": (40, check_training),
    "switches": (30, check_switches),
    "tests": (45, check_tests),
    "benchmarks": (60, check_benchmarks),
    "speed": (90, check_speed),
    "kernel": (90, check_kernel),
}
"""Each section, and its seconds; together less than ten minutes."""


def run_sections(report: Report, names: Sequence[str], out: Path | None = None) -> None:
    """Run sections one after another; an error of one is a failed check, and the next one runs."""
    for name in names:
        seconds, section = SECTIONS[name]
        begin = time.monotonic()
        report.section, report.deadline = name, begin + seconds
        try:
            section(report)
        except Exception as error:
            report.add("section", False, error=first_line(error))
        report.seconds[name] = round(time.monotonic() - begin, 1)
        if out is not None:
            atomic_write(out, report.to_json())


app = typer.Typer(add_completion=False, pretty_exceptions_show_locals=False)


@app.command()
def main(
    device: Annotated[str, typer.Option()] = "cuda",
    dry: Annotated[bool, typer.Option(help="Run on the CPU, with a few recipes.")] = False,
    only: Annotated[
        str, typer.Option(help=f"Comma-separated sections: {', '.join(SECTIONS)}.")
    ] = ",".join(SECTIONS),
    out: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
) -> None:
    """Check what holds on a GPU, and print a table."""
    names = only.split(",")
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(SECTIONS)}", param_hint="--only"
        )
    if not dry and not (device.startswith("cuda") and torch.cuda.is_available()):
        raise typer.BadParameter(
            f"{device!r} is no GPU of this machine; --dry runs on the CPU", param_hint="--device"
        )
    recipes = DRY_RECIPES if dry else (*sn.recipe_names(), *WRAPPED)
    report = Report("cpu" if dry else device, recipes, dry)
    if dry:
        BATCHED_DEVICES.add("cpu")  # the executor that a GPU would run
    warnings.simplefilter("ignore")
    try:
        run_sections(report, names, out)
    finally:
        BATCHED_DEVICES.discard("cpu")
    Console(width=110).print(report.table())
    raise typer.Exit(any(check.holds is False for check in report.checks))


if __name__ == "__main__":
    app()
