"""The recipes of norm control against plain loops, written from the papers, in float64."""

import math

import pytest
import torch

import spherenorm as sn
from tests.harness.gradients import gradient

STEPS = 6
SHAPES = [(6, 4), (4, 6), (4, 3, 2, 2)]


def by_recipe(name, weight, **settings):
    rule = sn.bind(name, **settings).rule
    state = rule.init(weight)
    for step in range(STEPS):
        weight, state = rule.step(weight, grad_of(weight, step), state)
    return weight


def grad_of(weight, step):
    return gradient("alternating", weight, torch.Generator().manual_seed(step), step)


def unit(x):
    return x / x.norm()


def rows(x):
    """The norms of rows, to be divided by."""
    return x.flatten(1).norm(dim=1).reshape(-1, *[1] * (x.ndim - 1))


def adam(betas=(0.9, 0.999), eps=1e-8):
    """A function of gradients that returns Adam's direction."""
    (b1, b2), moments = betas, {"m": 0, "v": 0, "t": 0}

    def direction(g):
        moments["t"] += 1
        moments["m"] = b1 * moments["m"] + (1 - b1) * g
        moments["v"] = b2 * moments["v"] + (1 - b2) * g**2
        m, v = moments["m"] / (1 - b1 ** moments["t"]), moments["v"] / (1 - b2 ** moments["t"])
        return m / (v.sqrt() + eps)

    return direction


def polar(x):
    """U V^T, by the singular value decomposition."""
    u, _, vh = torch.linalg.svd(x.flatten(1), full_matrices=False)
    return (u @ vh).reshape(x.shape)


def newton_schulz(x, polynomials):
    """As Jordan et al. write it, matrix by matrix."""
    flat = x.flatten(1)
    flat = flat.T if x.shape[0] > flat.shape[1] else flat
    y = flat / flat.norm()
    for a, b, c in polynomials:
        y = a * y + b * (y @ y.T @ y) + c * (y @ y.T @ y @ y.T @ y)
    return (y.T if x.shape[0] > flat.shape[1] or y.shape[0] != x.shape[0] else y).reshape(x.shape)


MUON = ((3.4445, -4.7750, 2.0315),) * 5


def lion(w):
    m = 0
    for step in range(STEPS):
        g = grad_of(w, step)
        u = (0.9 * m + 0.1 * g).sign()
        m = 0.99 * m + 0.01 * g
        w = w - 0.01 * (u + 0.1 * w)
    return w


def lamb(w):
    direction = adam(eps=1e-6)
    for step in range(STEPS):
        u = direction(grad_of(w, step)) + 0.1 * w
        w = w - 0.01 * w.norm() / u.norm() * u
    return w


def lars(w):
    v = 0
    for step in range(STEPS):
        g = grad_of(w, step) + 0.1 * w
        v = 0.9 * v + 2.0 * 0.01 * w.norm() / g.norm() * g
        w = w - v
    return w


def adamc(w):
    direction, most = adam(), 0.04
    for step in range(STEPS):
        w = w - 0.01 * direction(grad_of(w, step)) - 0.1 * 0.01**2 / most * w
    return w


def adamh(w):
    direction, radius = adam((0.9, 0.95)), w.norm()
    for step in range(STEPS):
        u = unit(direction(grad_of(w, step)))
        w = radius * unit(w - 0.02 * radius * u)
    return w


def muonh(w):
    m, radius = 0, w.norm()
    for step in range(STEPS):
        g = grad_of(w, step)
        m = 0.95 * m + 0.05 * g
        u = unit(newton_schulz(0.05 * g + 0.95 * m, MUON))
        w = radius * unit(w - 0.02 * radius * u)
    return w


def aspect(w):
    """The numbers of rows and of columns."""
    return w.shape[0], w[0].numel()


def over(x, dim):
    """Sums for each index of a dimension."""
    return x.sum(dim=[d for d in range(x.ndim) if d != dim], keepdim=True)


def polar_express():
    """Amsel et al. 2025, with the safety factor 1.01."""
    first = (8.28721201814563, -23.595886519098837, 17.300387312530933)
    rest = (
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    )
    shrunk = [(first, 1.01**2), *((each, 1.01) for each in rest)]
    return [*((a / s, b / s**3, c / s**5) for (a, b, c), s in shrunk), (1.875, -1.25, 0.375)]


def muonsphere(w):
    m, fan = 0, math.sqrt(w.shape[0] / w[0].numel())
    for step in range(STEPS):
        g = grad_of(w, step)
        m = 0.9 * m + 0.1 * g
        sigma = torch.linalg.matrix_norm(w.flatten(1), 2)
        o = newton_schulz(0.1 * g + 0.9 * m, polar_express())
        w = 3.0 * fan / sigma * w - 0.02 * 3.0 * fan * o
    return w


PLAIN = ((2.0, -1.5, 0.5),) * 12


def spel(w):
    m = 0
    for step in range(STEPS):
        m = 0.9 * m + 0.1 * grad_of(w, step)
        flat, d = w.flatten(1), m.flatten(1)
        if flat.shape[0] < flat.shape[1]:
            tangent = d - (d @ flat.T + flat @ d.T) / 2 @ flat
        else:
            tangent = d - flat @ (flat.T @ d + d.T @ flat) / 2
        w = newton_schulz(w - 0.1 * newton_schulz(tangent.reshape(w.shape), PLAIN), PLAIN)
    return w


def muown(w):
    """v has a length of its own; the gains decay."""
    v, g, m, gain = w, rows(w), 0, adam((0.9, 0.95))
    scale = math.sqrt(max(1, aspect(w)[0] / aspect(w)[1]))
    for step in range(STEPS):
        grad, unit_rows = grad_of(w, step), v / rows(v)
        slope = over(grad * unit_rows, 0)
        m = 0.95 * m + 0.05 * g / rows(v) * (grad - unit_rows * slope)
        v = v - 0.02 * scale * newton_schulz(m, MUON)
        g = g - 0.01 * (gain(slope) + 0.1 * g)
        w = g * v / rows(v)
    return w


def angularmuown(w):
    u, g, m, gain = w / rows(w), rows(w), 0, adam((0.9, 0.95))
    scale = math.sqrt(max(1, aspect(w)[0] / aspect(w)[1]))
    for step in range(STEPS):
        grad = grad_of(w, step)
        slope = over(grad * u, 0)
        tangent = g * (grad - u * slope)
        m = 0.95 * m + tangent
        u = u - 0.02 * scale * newton_schulz(tangent + 0.95 * m, MUON)
        u = u / rows(u)
        g = g - 0.02 * gain(slope)
        w = g * u
    return w


def mdmuon(w):
    v, radius, m = w, w.norm(), 0
    raw = [torch.full_like(over(w, dim), math.log(math.e - 1)) for dim in (0, 1)]
    adams = [adam((0.9, 0.95)), adam((0.9, 0.95))]
    scale = math.sqrt(max(aspect(w)) / min(aspect(w)))
    for step in range(STEPS):
        grad = grad_of(w, step)
        a, b = ((1 + x.exp()).log() for x in raw)
        slopes = over(v * b * grad, 0), over(v * a * grad, 1)
        slopes = [slope / (1 + (-x).exp()) for slope, x in zip(slopes, raw, strict=True)]
        m = 0.95 * m + 0.05 * a * b * grad
        v = v - 0.02 * scale * newton_schulz(0.05 * a * b * grad + 0.95 * m, MUON)
        v = radius * unit(v)
        raw = [x - 0.002 * step(s) for x, step, s in zip(raw, adams, slopes, strict=True)]
        a, b = ((1 + x.exp()).log() for x in raw)
        w = a * v * b
    return w


def normuon(w):
    m, v = 0, 0
    for step in range(STEPS):
        g = grad_of(w, step)
        m = 0.95 * m + 0.05 * g
        o = newton_schulz(0.05 * g + 0.95 * m, MUON)
        v = 0.9 * v + 0.1 * rows(o) ** 2
        scaled = o / v.sqrt()
        w = w - 0.02 * 0.1 * w - 0.02 * o.norm() * unit(scaled)
    return w


def scion(w):
    d = 0
    fan = math.sqrt(w.shape[0] / w[0].numel())
    for step in range(STEPS):
        d = 0.9 * d + 0.1 * grad_of(w, step)
        w = 0.98 * w - 0.02 * 5.0 * fan * newton_schulz(d, MUON)
    return w


def nora(w):
    m = 0
    for step in range(STEPS):
        m = 0.95 * m + 0.05 * grad_of(w, step)
        along = (w * m).flatten(1).sum(1).reshape(-1, *[1] * (w.ndim - 1))
        tangent = m - along / rows(w) ** 2 * w
        w = w - 0.02 * (tangent / rows(tangent) + 0.1 * w)
    return w


def orthograd(w):
    direction = adam()
    for step in range(STEPS):
        g = grad_of(w, step)
        tangent = g - (w * g).sum() / (w * w).sum() * w
        w = w - 0.01 * direction(unit(tangent) * g.norm())
    return w


def ngpt(w):
    direction = adam((0.9, 0.95))
    for step in range(STEPS):
        w = w - 0.01 * direction(grad_of(w, step))
        w = w / rows(w)
    return w


def rotational(w):
    direction, radius, nu = adam((0.9, 0.99)), rows(w), 0
    for t in range(1, STEPS + 1):
        d = direction(grad_of(w, t - 1))
        along = (w * d).flatten(1).sum(1).reshape(-1, *[1] * (w.ndim - 1))
        d = d - along / radius**2 * w
        d = d - d.mean(dim=tuple(range(1, d.ndim)), keepdim=True)
        nu = 0.9 * nu + 0.1 * rows(d) ** 2
        w = w - 0.02 * radius * d / ((nu / (1 - 0.9**t)).sqrt() + 1e-8)
        w = radius * w / rows(w)
    return w


def brake(w):
    for step in range(STEPS):
        u, norm = grad_of(w, step), w.norm()
        c = (u * w).sum() / norm**2
        u = u - c * w + (0.5 if c < 0 else 1.0) * c * w
        if u.norm() / norm < 0.5:
            u = u * 0.5 * norm / u.norm()
        intended = norm - 0.05 * (u * w).sum() / norm
        w = w - 0.05 * u
        w = w * intended / w.norm()
    return w


MUON_SETTINGS = {"lr": 0.02, "weight_decay": 0.1}
LOOPS = [
    ("lion", lion, {"lr": 0.01, "weight_decay": 0.1}),
    ("lamb", lamb, {"lr": 0.01, "weight_decay": 0.1}),
    ("lars", lars, {"lr": 2.0, "weight_decay": 0.1, "trust": 0.01}),
    ("adamc", adamc, {"lr": 0.01, "weight_decay": 0.1, "max_lr": 0.04}),
    ("adamh", adamh, {"lr": 0.02}),
    ("hyperball(adamw)", adamh, {"lr": 0.02, "betas": (0.9, 0.95)}),
    ("muonh", muonh, {"lr": 0.02}),
    ("hyperball(muon)", muonh, {"lr": 0.02}),
    ("muonsphere", muonsphere, {"lr": 0.02, "radius": 3.0}),
    ("normuon", normuon, {**MUON_SETTINGS, "beta2": 0.9, "scale": "none"}),
    ("spel", spel, {"lr": 0.1, "momentum": 0.9}),
    ("muown", muown, {"lr": 0.02, "gain_ratio": 0.5, "weight_decay": 0.1}),
    ("angularmuown", angularmuown, {"lr": 0.02}),
    ("mdmuon", mdmuon, {"lr": 0.02}),
    ("scion", scion, {"lr": 0.02, "radius": 5.0}),
    ("nora", nora, {"lr": 0.02, "weight_decay": 0.1}),
    ("orthograd", orthograd, {"lr": 0.01}),
    ("ngpt", ngpt, {"lr": 0.01}),
    ("rotational(adam)", rotational, {"lr": 0.02, "betas": (0.9, 0.99)}),
    ("radial_brake(sgd)", brake, {"lr": 0.05, "floor": 0.5}),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "loop", "settings"), LOOPS, ids=[row[0] for row in LOOPS])
def test_against_a_plain_loop(name, loop, settings, shape):
    start = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = by_recipe(name, start, **settings)
    torch.testing.assert_close(ours, loop(start), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", SHAPES[:2])
def test_muon_is_torchs(shape, scale, nesterov, monkeypatch):
    """Torch iterates in bfloat16; here it iterates in double precision."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    start = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theirs = start.clone().requires_grad_()
    optimizer = torch.optim.Muon([theirs], lr=0.02, adjust_lr_fn=scale, nesterov=nesterov)
    for step in range(STEPS):
        theirs.grad = grad_of(theirs.detach(), step)
        optimizer.step()
    ours = by_recipe("muon", start, lr=0.02, scale=scale, nesterov=nesterov)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(64, 32), (32, 64), (48, 48)])
def test_muon_in_bfloat16_is_torchs(shape):
    """Up to a rounding here and there, since the norms at the start are summed otherwise."""
    start = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    theirs, ours = start.clone().requires_grad_(), start.clone().requires_grad_()
    settings = {"lr": 0.02, "weight_decay": 0.1}
    optimizers = (
        torch.optim.Muon([theirs], **settings),
        sn.optim.Muon([ours], **settings, precision="bfloat16", backend="rule"),
    )
    for step in range(STEPS):
        theirs.grad = grad_of(theirs.detach(), step)
        ours.grad = theirs.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    longest = (theirs - start).abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0.02 * longest)


@pytest.mark.parametrize("backend", ["rule", "auto"])
def test_units_of_one_entry_have_no_step_where_all_of_it_is_radial(backend):
    """Rounding of a projection must not be normalized to a step of full length."""
    bias = torch.tensor([0.3, -1.7, 2.9, 0.1, 5.3], dtype=torch.float64, requires_grad=True)
    before = bias.detach().clone()
    optimizer = sn.optim.Nora([bias], backend=backend)
    for seed in range(5):
        bias.grad = torch.randn(5, generator=torch.Generator().manual_seed(seed)).double()
        optimizer.step()
    assert torch.equal(bias.detach(), before)
