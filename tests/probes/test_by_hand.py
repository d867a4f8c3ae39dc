"""Metrics and probes against the plain formulas; groups that change, steps that are skipped."""

import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import spherenorm as sn
from spherenorm import metrics
from spherenorm import rules as r

VIEWS = {
    **{"channel": (0, None), "dim=1": (1, None), "layer": None},
    **{"groups=2": (0, 2), "dim=1,groups=3": (1, 3)},
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


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}


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
    for laid_out in LAYOUTS.values():
        for shape in ((4, 6), (2, 3, 2), (6, 3, 2, 2), (4, 9)):
            scale = 10.0 ** draw.choice([-3, 0, 2] if dtype == torch.float16 else [-12, 0, 9])
            move = 10.0 ** draw.choice([-4, -2, 0])
            w, d, g = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
            if draw.random() < 0.3:
                w[0], g[-1] = 0, 0
            values = scale * w, scale * (w + move * d), g / scale**0.5
            yield [laid_out(x.to(dtype)) for x in values]


NUMBERS = {
    "norm_before": lambda w, after, g, view: metrics.norm(w, view),
    "norm": lambda w, after, g, view: metrics.norm(after, view),
    "effective_step": lambda w, after, g, view: metrics.effective_step(w, after, view),
    "turn": lambda w, after, g, view: metrics.angular_update(w, after, view),
    "cosine": lambda w, after, g, view: metrics.cosine(w, g, view),
}


def measured(cases, view):
    """The units of weights that jump, by a probe."""
    parameters = [nn.Parameter(w.clone(memory_format=torch.preserve_format)) for w, *_ in cases]
    optimizer = Jump({p: after for p, (_, after, _) in zip(parameters, cases, strict=True)})
    for parameter, (_, _, grad) in zip(parameters, cases, strict=True):
        parameter.grad = grad
    with sn.probe(optimizer, every=1, views=view, units=True) as probe:
        optimizer.step()
    assert [m.weight for m in probe.measurements] == [str(i) for i in range(len(cases))]
    return [m.units for m in probe.measurements]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_metrics_and_probe_say_what_the_formulas_say(dtype, view):
    cases = list(weights(dtype, seed=len(view)))
    exact = 1e-11 if dtype == torch.float64 else 3e-7
    for case, units in zip(cases, measured(cases, view), strict=True):
        triples = zip(*(units_of(x, view) for x in case), strict=True)
        truth = torch.tensor([by_hand(*unit) for unit in triples], dtype=torch.float64).T
        for (name, metric), right in zip(NUMBERS.items(), truth, strict=True):
            is_norm = name in ("norm_before", "norm")
            close = {"rtol": exact, "atol": exact if name == "cosine" else 1e-12}
            close |= {"atol": 0.0} if is_norm else {}
            torch.testing.assert_close(metric(*case, view).double(), right, **close, equal_nan=True)
            # (the probe has a turn up to 1e-8 of a step)
            close = {"rtol": 1e-6, "atol": 0.0 if is_norm else 1e-7}
            torch.testing.assert_close(getattr(units, name), right, **close, equal_nan=True)


@pytest.mark.parametrize("view", ["channel", "dim=1", "layer"])
def test_a_weight_of_more_entries_than_are_summed_at_once_is_measured_as_the_metrics_say(view):
    case = torch.randn(3, 700, 300)
    (units,) = measured([case], view)
    for name, metric in NUMBERS.items():
        right = metric(*case, view).double()
        torch.testing.assert_close(getattr(units, name), right, rtol=1e-5, atol=1e-7)


def test_several_probes_optimizers_and_a_new_dtype_do_not_disturb_each_other():
    a, b = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))
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


def nearly_tangential(weight):
    """A gradient of cosine 1e-3 with each row."""
    noise = torch.randn_like(weight)
    w = weight.detach() / weight.detach().norm(dim=1, keepdim=True)
    tangential = noise - w * (w * noise).sum(1, keepdim=True)
    return tangential / tangential.norm(dim=1, keepdim=True) + 1e-3 * w


def test_a_weight_that_changes_its_group_is_tested_as_its_new_group_says():
    weights = [nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(5, 8))]
    groups = [{"params": weights[:1], "delta": 1e-9}, {"params": weights[1:], "delta": 0.1}]
    optimizer = sn.optim.SGDP(groups, lr=0.1)
    with sn.probe(optimizer, every=1) as found:
        for step in range(3):
            for weight in weights:
                weight.grad = nearly_tangential(weight)
            optimizer.step()
            first, second = optimizer.param_groups
            first["params"], second["params"] = weights, []
            first["delta"] = 0.1 if step else first["delta"]
    views = [(m.step, m.weight, m.invariant_view) for m in found.measurements]
    assert views == [
        *((1, "0", None), (1, "1", "channel"), (2, "0", None), (2, "1", None)),
        *((3, "0", "channel"), (3, "1", "channel")),
    ]


@dataclass(frozen=True)
class LargeOnTheWhole(r.ScaleInvarianceTest):
    """A test of a user's own, which looks at all units of a weight together."""

    def decide(self, sums, state):
        passes = [(x.squared_norm > 0) & (x.squared_norm.sum() > 100) for x in sums]
        silent = [x.squared_norm == 0 for x in sums]
        norms = [x.squared_norm for x in sums]
        return sn.Invariance.decided(self.views, passes, silent, norms, self.per), {}


def large(lr=0.1, per="tensor"):
    test = LargeOnTheWhole(views=("channel",), per=per)
    return sn.chain(test, r.RadialProjection(), r.StepSize(lr))


@pytest.mark.parametrize("per", ["tensor", "unit"])
def test_a_users_test_decides_on_one_weight_at_a_time(per):
    weights = [nn.Parameter(torch.full((6, 4), x)) for x in (1.0, 10.0, 2.0, 3.0)]  # |w|^2 = 24 x^2
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = sn.torch_optimizer(large)(weights, per=per)
    with sn.probe(optimizer, every=1) as found:
        optimizer.step()
    assert [m.invariant for m in found.measurements] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(("fused", "steps"), [(False, [1, 2]), (True, [1, 2, 3])])
def test_a_skipped_step_counts_only_for_a_fused_optimizer(fused, steps):
    weight = nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with sn.probe(optimizer, every=1) as found:
        for factor in (1.0, math.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale((weight * torch.arange(3.0)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [m.step for m in found.measurements] == steps
    turned = [m.turn > 0 for m in found.measurements]
    assert turned == ([True, False, True] if fused else [True, True])
    assert [math.isnan(m.cosine) for m in found.measurements] == [not each for each in turned]


@pytest.mark.parametrize("units", [False, True])
def test_groups_of_the_audit_have_weights_that_no_test_looks_at(units):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    batch = torch.randn(16, 4)
    optimizer = sn.optim.SGDP(sn.param_groups(model, batch, "sgdp", lr=0.01))
    with sn.probe(optimizer, every=1, model=model, units=units) as probe:
        model(batch).square().mean().backward()
        optimizer.step()
    found = {m.weight: (m.invariant, m.invariant_view) for m in probe.measurements}
    assert found == {"0.weight": (1.0, "channel"), "3.weight": (0.0, None)}


class WritesIntoGradients(torch.optim.Optimizer):
    """As older optimizers do: decay is added to the gradient itself, from some step on."""

    def __init__(self, params, start):
        super().__init__(params, {"start": start})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        if closure is not None:
            closure()
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if self.steps >= group["start"]:
                    p.grad.add_(p)
                p.sub_(p.grad, alpha=0.1)


@pytest.mark.parametrize(
    ("start", "lost", "by_closure"), [(1, [], False), (2, [2], False), (1, [], True)]
)
def test_the_raw_gradient_is_measured_though_the_step_writes_into_it(start, lost, by_closure):
    """A step that has not written into gradients before costs one cosine when it does."""
    weight = nn.Parameter(torch.randn(6, 4, dtype=torch.float64))
    optimizer, expected = WritesIntoGradients([weight], start), []

    def closure():
        weight.grad = nearly_tangential(weight)
        expected.append(sn.metrics.cosine(weight, weight.grad).square().mean().sqrt().item())

    with sn.probe(optimizer, every=1) as found:
        for step in range(4):
            if not by_closure:
                closure()
                optimizer.step()
            elif step % 2:
                optimizer.step(closure)
            else:
                optimizer.step(closure=closure)
    for m, cosine in zip(found.measurements, expected, strict=True):
        wanted = math.nan if m.step in lost else cosine
        assert m.cosine == pytest.approx(wanted, rel=1e-12, nan_ok=True)
        assert m.invariant == (m.step not in lost)
