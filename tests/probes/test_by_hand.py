"""Metrics and probes against the plain formulas, in Python's own numbers, entry by entry."""

import itertools
import math
import random

import pytest
import torch

import spherenorm as sn
from spherenorm import metrics

VIEWS = {
    "channel": (0, None),
    "dim=1": (1, None),
    "groups=2": (0, 2),
    "dim=1,groups=3": (1, 3),
    "layer": None,
}


def units_of(x, view):
    """The units of a weight as lists of numbers."""
    if VIEWS[view] is None:
        return [x.double().flatten().tolist()]
    dim, groups = VIEWS[view]
    count = groups or x.shape[dim]
    size = x.shape[dim] // count
    return [x.narrow(dim, i * size, size).double().flatten().tolist() for i in range(count)]


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def by_hand(before, after, grad):
    """Norms, effective step, turn and cosine of one unit."""
    w, moved, g = (math.sqrt(dot(x, x)) for x in (before, after, grad))
    if not w or not moved:
        return w, moved, 0.0, 0.0, math.nan
    turned = [y / moved - x / w for x, y in zip(before, after, strict=True)]
    chord = math.sqrt(dot(turned, turned))
    cosine = dot(before, grad) / w / g if g else math.nan
    return w, moved, chord, 2 * math.asin(min(1.0, chord / 2)), cosine


def laid_out(x, layout):
    if layout == "transposed":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if layout == "strided":
        return torch.stack([x, x], -1)[..., 0]
    return x


class Jump(torch.optim.Optimizer):
    """Its step gives each weight the value that it is told."""

    def __init__(self, targets):
        self.targets = targets
        super().__init__(list(targets), {})

    @torch.no_grad()
    def step(self):
        for weight, target in self.targets.items():
            weight.copy_(target)


def weights(dtype, seed):
    """Weights before and after a step of any size, and gradients, some of them with zero rows."""
    generator, draw = torch.Generator().manual_seed(seed), random.Random(seed)
    for layout in ("plain", "transposed", "strided"):
        for shape in ((4, 6), (2, 3, 2), (6, 3, 2, 2), (4, 9)):
            scale = 10.0 ** draw.choice([-3, 0, 2] if dtype == torch.float16 else [-12, 0, 9])
            move = 10.0 ** draw.choice([-4, -2, 0])
            w, d, g = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
            if draw.random() < 0.3:
                w[0], g[-1] = 0, 0
            values = scale * w, scale * (w + move * d), g / scale**0.5
            yield [laid_out(x.to(dtype), layout) for x in values]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_metrics_and_probe_say_what_the_formulas_say(dtype, view):
    cases = list(weights(dtype, seed=len(view)))
    kept = [before.clone(memory_format=torch.preserve_format) for before, _, _ in cases]
    parameters = [torch.nn.Parameter(before) for before in kept]
    optimizer = Jump({p: after for p, (_, after, _) in zip(parameters, cases, strict=True)})
    for parameter, (_, _, grad) in zip(parameters, cases, strict=True):
        parameter.grad = grad
    found = [
        [
            metrics.norm(before, view),
            metrics.norm(after, view),
            metrics.effective_step(before, after, view),
            metrics.angular_update(before, after, view),
            metrics.cosine(before, grad, view),
        ]
        for before, after, grad in cases
    ]
    with sn.probe(optimizer, every=1, views=view, units=True) as probe:
        optimizer.step()
    assert [m.weight for m in probe.measurements] == [str(i) for i in range(len(cases))]
    names = "norm_before", "norm", "effective_step", "turn", "cosine"
    exact = 1e-11 if dtype == torch.float64 else 3e-7
    for case, measured, m in zip(cases, found, probe.measurements, strict=True):
        triples = zip(*(units_of(x, view) for x in case), strict=True)
        truth = torch.tensor([by_hand(*unit) for unit in triples], dtype=torch.float64).T
        for name, number, right in zip(names, measured, truth, strict=True):
            close = {"rtol": exact, "atol": 1e-12, "equal_nan": True}
            if name in ("norm_before", "norm"):
                close["atol"] = 0.0
            elif name == "cosine":
                close["atol"] = exact
            torch.testing.assert_close(number.double(), right, **close)
            if name not in ("norm_before", "norm"):  # (the probe has a turn up to 1e-8 of a step)
                close["atol"] = 1e-7
            torch.testing.assert_close(getattr(m.units, name), right, **{**close, "rtol": 1e-6})


def test_several_probes_optimizers_and_a_new_dtype_do_not_disturb_each_other():
    torch.manual_seed(0)
    a, b = (torch.nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    first, second = torch.optim.SGD([a], lr=0.1), torch.optim.Adam([b, a], lr=0.1)
    probes = [sn.probe(first, every=1), sn.probe(first, every=3), sn.probe(second, every=2)]
    norms = {}
    for step, optimizer in enumerate(itertools.islice(itertools.cycle([first, second]), 12)):
        if step == 6:
            a.data, a.grad = a.data.double(), None
            second.state.clear()
        for p in (a, b):
            p.grad = torch.randn_like(p)
        optimizer.step()
        norms[optimizer, step // 2 + 1] = metrics.norm(a.detach()).double().square().mean().sqrt()
    for probe in probes:
        probe.close()
    steps = [sorted({m.step for m in probe.measurements}) for probe in probes]
    assert steps == [[1, 2, 3, 4, 5, 6], [3, 6], [2, 4, 6]]
    for probe, optimizer, weight in zip(probes, (first, first, second), "001", strict=True):
        for m in (m for m in probe.measurements if m.weight == weight):
            assert m.norm == pytest.approx(norms[optimizer, m.step].item(), rel=1e-6)


@pytest.mark.parametrize("view", ["channel", "dim=1", "layer"])
def test_large_weights_and_half_precision_are_measured_as_the_metrics_say(view):
    """A weight of more entries than are summed at once, beside others of three dtypes."""
    shapes = ((700, 300), torch.float32), ((6, 4), torch.bfloat16), ((6, 4), torch.float16)
    weights = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape, dtype in shapes]
    optimizer = Jump({w: w.detach() + torch.randn(w.shape).to(w.dtype) for w in weights})
    before = [w.detach().clone() for w in weights]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    with sn.probe(optimizer, every=1, views=view, units=True) as probe:
        optimizer.step()
    for w, old, m in zip(weights, before, probe.measurements, strict=True):
        for found, right in (
            (m.units.norm, metrics.norm(w.detach(), view)),
            (m.units.turn, metrics.angular_update(old, w.detach(), view)),
            (m.units.cosine, metrics.cosine(old, w.grad, view)),
        ):
            torch.testing.assert_close(found, right.double(), rtol=1e-5, atol=1e-7)
