"""The same step elsewhere: under torch.compile, on a GPU that is not there, on one that is."""

import pytest
import torch
from torch import nn

from benchmarks.launches import count_launches
from benchmarks.shapes import SETS
from spherenorm import find_recipe, optim
from spherenorm.compile import CUDA_KERNEL_DEVICES
from tests.compile.twins import Twins, drawn
from tests.compile.written import optimizer_of, rule
from tests.harness import Row, gradient

RECIPES = ["sgd", "sgdp", "adamw", "adamp", "sgdg"]
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_a_users_rule_that_multiplies_matrices_steps_as_a_stack():
    mine = rule(
        {"m": "0.9 * old['m'] + d"},
        "torch.sub(torch.add(d, old['m'], alpha=0.9), w, alpha=0.3)",
        before="d = 0.1 * (d @ d.T) @ d",
    )
    twins = Twins(optimizer_of(mine()), drawn([(6, 4), (6, 4), (3, 4)]))
    for step in range(4):
        for group in (*twins.own_opt.param_groups, *twins.fast_opt.param_groups):
            group["lr"] = 0.1 / (1 + step)
        twins.step(step=step)
    twins.agree()
    assert twins.paths == {"stack"}


MOST = {"adamp": 200, "adamw": 50, "lion": 20}


@pytest.mark.parametrize("recipe", MOST)
def test_a_step_on_a_gpu_launches_little_and_waits_for_nothing(recipe):
    """Of a stage of ResNet-50, on a GPU that need not be there; however many weights there are."""
    shapes = SETS["resnet50"]()[:30]
    counted = count_launches(recipe, shapes)
    assert counted.waits == []
    assert sum(counted.counts.values()) <= MOST[recipe]
    assert count_launches(recipe, 2 * shapes).counts == counted.counts


@pytest.mark.parametrize("backend", ["auto", "rule"])
def test_a_train_step_under_torch_compile_gives_the_same_numbers(backend):
    found = []
    for compiled in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 6, bias=False), nn.ReLU(), nn.Linear(6, 3)).double()
        optimizer = optim.AdamP(model.parameters(), lr=0.1, weight_decay=0.01, backend=backend)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def train_step(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()

        # What Dynamo does with the step is at stake, not the code that Inductor makes.
        step = torch.compile(train_step, backend="eager") if compiled else train_step
        for _ in range(3):
            step(torch.randn(5, 8).double(), torch.randn(5, 3).double())
            schedule.step()
        found.append([weight.detach() for weight in model.parameters()])
    assert all(map(torch.equal, *found))


def test_a_step_in_one_graph_is_refused_with_what_to_do():
    weight = torch.ones(3, 2, requires_grad=True)
    weight.grad = torch.ones(3, 2)
    optimizer = optim.AdamP([weight], lr=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(optimizer.step, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported) as refused:
        compiled()
    assert "step()" in str(refused.value)
    assert torch.equal(weight.detach(), torch.ones(3, 2))


@ON_GPU
@pytest.mark.parametrize("name", RECIPES)
def test_cuda_agrees_with_cpu(name):
    cpu = torch.randn(4, 6, dtype=torch.float64)
    step_of = find_recipe(name)(lr=0.1)
    gpu, cpu_state, gpu_state = cpu.cuda(), step_of.init(cpu), step_of.init(cpu.cuda())
    for step in range(5):
        grad = gradient("alternating", cpu, torch.Generator().manual_seed(step), step)
        cpu, cpu_state = step_of.step(cpu, grad, cpu_state)
        gpu, gpu_state = step_of.step(gpu, grad.cuda(), gpu_state)
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-11, atol=1e-12)


@pytest.fixture(params=["batched", "CUDA kernel"])
def executor(request):
    """How recorded steps run on a GPU."""
    if request.param == "CUDA kernel":
        CUDA_KERNEL_DEVICES.add("cuda")
    yield request.param
    CUDA_KERNEL_DEVICES.discard("cuda")


@ON_GPU
@pytest.mark.parametrize("backend", ["rule", "auto", "compiled"])
@pytest.mark.parametrize("name", ["sgdp", "adamw", "adamp"])
def test_a_cuda_step_does_not_wait_for_the_host_and_follows_the_rate(name, backend, executor):
    shapes = (64, 3, 7, 7), (300, 9), (70, 1001), (2048,), ()
    rate = torch.tensor(1e-3, dtype=torch.float64, device="cuda")
    make = Row(name, {"lr": rate}).optimizer
    twins = Twins(make, [w.cuda() for w in drawn(shapes)], backend)
    for step in range(4):
        rate.fill_(1e-3 / (step + 1))
        for (own, fast), grad in zip(twins, drawn(shapes, seed=step + 1), strict=True):
            own.grad, fast.grad = (grad.cuda() for _ in range(2))
        twins.own_opt.step()
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            twins.fast_opt.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    twins.agree()
    assert twins.paths == ({"rule"} if backend == "rule" else {executor})


@ON_GPU
def test_a_captured_step_follows_the_rate_and_needs_a_step_before(executor):
    def fresh():
        weight = torch.ones(17, 13, device="cuda", dtype=torch.float64).requires_grad_()
        weight.grad = torch.ones_like(weight)
        return weight, optim.SGD([weight], lr=rate, backend="compiled")

    rate = torch.tensor(0.5, dtype=torch.float64, device="cuda")
    weight, optimizer = fresh()
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()
    weight, optimizer = fresh()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        optimizer.step()
        optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    rate.fill_(2.0)
    graph.replay()
    torch.testing.assert_close(weight.detach().cpu(), torch.full((17, 13), -2.0).double())
