"""The same step on other backends: Inductor, and CUDA where there is one."""

import pytest
import torch

from spherenorm import find_recipe, optim
from tests.harness.gradients import gradient

RECIPES = ["sgd", "sgdp", "adamw", "adamp", "sgdg"]


def test_inductor_agrees_with_eager():
    rule = find_recipe("adamp")(lr=0.1, weight_decay=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(rule.step, fullgraph=True)
    weight = torch.randn(4, 6, dtype=torch.float64)
    eager, eager_state = weight, rule.init(weight)
    fast, fast_state = weight, rule.init(weight)
    for step in range(5):
        grad = gradient("alternating", eager, torch.Generator().manual_seed(step), step)
        eager, eager_state = rule.step(eager, grad, eager_state)
        fast, fast_state = compiled(fast, grad, fast_state)
    torch.testing.assert_close(fast, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", RECIPES)
def test_cuda_agrees_with_cpu(name):
    cpu = torch.randn(4, 6, dtype=torch.float64)
    rule = find_recipe(name)(lr=0.1)
    gpu, cpu_state, gpu_state = cpu.cuda(), rule.init(cpu), rule.init(cpu.cuda())
    for step in range(5):
        grad = gradient("alternating", cpu, torch.Generator().manual_seed(step), step)
        cpu, cpu_state = rule.step(cpu, grad, cpu_state)
        gpu, gpu_state = rule.step(gpu, grad.cuda(), gpu_state)
    torch.testing.assert_close(gpu.cpu(), cpu, rtol=1e-11, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("backend", ["rule", "auto", "compiled"])
@pytest.mark.parametrize("name", ["sgdp", "adamw", "adamp"])
def test_a_cuda_step_does_not_wait_for_the_host(name, backend):
    weights = [
        torch.randn(shape, device="cuda").requires_grad_() for shape in ((6, 5), (4, 3, 2, 2), (7,))
    ]
    optimizer = optim.torch_optimizer(name)(weights, lr=0.01, backend=backend)
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer.step()
    optimizer.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
