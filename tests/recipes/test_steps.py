"""Steps of each recipe against its oracle, in float64, under every pair of conditions."""

from functools import partial

import pytest
import torch

import spherenorm as sn
from tests.harness import ANY_WEIGHTS, FAMILIES, ROWS, ZOO, gradient, pairs, zoo_loops
from tests.harness.rows import VARIANTS
from tests.harness.tables import mostly_long

pytestmark = ANY_WEIGHTS

STEPS = 5
EXACT = 1e-12
"""Of the way travelled, beside a rounding of the weight at each step."""

FALLING = (1.0, 0.5, 0.9, 0.7, 0.4)
RATES = {"constant": (1.0,) * STEPS, "scheduled": FALLING}
SCALES = (1.0, 1e-6, 1e6)
MATRICES = ((4, 3), (3, 5), (3, 2, 2, 2))
SHAPES = (*MATRICES, (5,), ())
LAYOUTS = ("contiguous", "transposed", "channels_last", "expanded gradient")
WAYS = ("rule", "optimizer", "functional", "auto")
CONDITIONS = {
    "family": FAMILIES,
    "scale": SCALES,
    "shape": SHAPES,
    "layout": LAYOUTS,
    "rates": tuple(RATES),
    "way": WAYS,
    "maximize": (False, True),
}
HALF = {
    "dtype": (torch.bfloat16, torch.float16, torch.float32),
    "shape": MATRICES,
    "way": ("optimizer", "functional"),
    "family": ("mixed", "alternating"),
}
DEFAULTS = {"layout": "contiguous", "rates": "scheduled", "way": "rule", "maximize": False}


class Run:
    """A row under a case of conditions: its weights, gradients and learning rates."""

    def __init__(self, row, case):
        self.row, self.case = row, {**DEFAULTS, **case}
        self.together = row.together
        given = dict(sn.bind(row.recipe, **row.settings).hyper_parameters)
        scale = self.case.get("scale", 1.0)
        scaled = {name: given[name] * scale**power for name, power in row.scaled}
        self.settings = {**row.settings, **scaled}
        lr = self.settings.pop("lr", given["lr"])
        self.rates = [lr * factor for factor in RATES[self.case["rates"]]]

    def start(self, dtype=torch.float64):
        """The weights: one of the case's shape, or all of a step that looks at all."""
        sphere = sn.sphere_of(self.row.rule())
        for i, shape in enumerate(SHAPES if self.together else (self.case["shape"],)):
            generator = torch.Generator().manual_seed(7 + i)
            weight = torch.randn(shape, generator=generator, dtype=torch.float64)
            weight = weight if sphere is None else sphere.normalize(weight)
            if self.case["layout"] == "transposed" and weight.ndim > 1:
                weight = weight.transpose(0, 1).contiguous().transpose(0, 1)
            if self.case["layout"] == "channels_last" and weight.ndim == 4:
                weight = weight.to(memory_format=torch.channels_last)
            yield weight.to(dtype)

    def gradient(self, weight, step):
        generator = torch.Generator().manual_seed(100 + step)
        double = gradient(self.case["family"], weight.detach().double(), generator, step)
        double = self.case.get("scale", 1.0) * double
        if self.case["layout"] == "expanded gradient" and weight.ndim:
            double = double[:1].expand_as(double)
        return double.to(weight.dtype)

    def rule(self, step):
        return self.row.rule(**self.settings, lr=self.rates[step])


def by_oracle(run):
    """The weights after each step of the oracle."""
    oracle, weights = run.row.oracle, [w.contiguous() for w in run.start()]
    settings = {**run.settings, **run.row.oracle_settings}
    for name, value in run.row.oracle_settings.items():
        if value is None:
            del settings[name]
    if isinstance(oracle, type):

        def make(params):
            return oracle(params, lr=run.rates[0], **settings)

        yield from by_optimizer(run, make, weights)
        return
    if run.together:
        walk = oracle(weights, **settings)
        weights = next(walk)
        for step, lr in enumerate(run.rates):
            weights = walk.send(([run.gradient(w, step) for w in weights], lr))
            yield weights
        return
    walks = [oracle(w, **settings) for w in weights]
    weights = [next(walk) for walk in walks]
    for step, lr in enumerate(run.rates):
        both = zip(walks, weights, strict=True)
        weights = [walk.send((run.gradient(w, step), lr)) for walk, w in both]
        yield weights


def by_optimizer(run, make, weights, sign=1):
    params = [w.requires_grad_() for w in weights]
    optimizer = make(params)
    for step, lr in enumerate(run.rates):
        optimizer.param_groups[0]["lr"] = lr
        for param in params:
            param.grad = sign * run.gradient(param, step)
        optimizer.step()
        yield [param.detach().clone() for param in params]


def by_library(run, dtype=torch.float64):
    """The weights after each step of the library, in the way of the case."""
    way = run.case["way"]
    if way == "rule":
        yield from by_rule(run)
    elif way == "functional":
        yield from by_function(run, dtype)
    else:
        up = run.case["maximize"]
        options = {"backend": "auto" if way == "auto" else "rule", "maximize": up}

        def make(params):
            return run.row.cls(params, lr=run.rates[0], **run.settings, **options)

        yield from by_optimizer(run, make, run.start(dtype), sign=-1 if up else 1)


def by_rule(run):
    [weight] = run.start()
    state = run.rule(0).init(weight)
    for step in range(STEPS):
        weight, state = run.rule(step).step(weight, run.gradient(weight, step), state)
        yield [weight]


def by_function(run, dtype):
    params = {str(i): w for i, w in enumerate(run.start(dtype))}
    state = sn.functional.init(run.rule(0), params)
    for step in range(STEPS):
        grads = {name: run.gradient(w, step) for name, w in params.items()}
        params, state = sn.functional.step(run.rule(step), params, grads, state)
        yield list(params.values())


def allowed(row, case):
    """True if a case, which may be partial, makes sense for a row."""
    still = {"shape": (3, 5), "family": "alternating"} if case.get("way") == "auto" else {}
    still = still or {"shape": (1,) * 4, "family": row.families[0]}
    case = {**DEFAULTS, **still, **case}
    ndim, layout, way = len(case["shape"]), case["layout"], case["way"]
    return (
        ndim >= row.fewest
        and case["family"] in row.families
        and (layout != "transposed" or ndim > 1)
        and (layout != "channels_last" or ndim == 4)
        and (ndim > 1 or case["family"] == row.families[0])  # vectors know one family
        and not (way == "rule" and row.together)
        and not (way in ("rule", "functional") and case["maximize"])
        # Kernels have a room of their own.
        and not (way == "auto" and (case["family"], case["shape"]) != ("alternating", (3, 5)))
        # The eigenvectors of a gradient of rank 1 are not unique, nor those of 0 by its rounding.
        and not (layout == "expanded gradient" and row.oracle is zoo_loops.soap)
        and not (layout == "transposed" and row.oracle is zoo_loops.soap)
    )


def cases(rows, conditions):
    """Every pair of conditions for a row; for one of the zoo each condition, and pairs later."""
    return [
        pytest.param(row, case, id="-".join(map(str, (row, *case.values()))), marks=late)
        for i, row in enumerate(rows)
        for strength, late in (((1, ()), (2, (pytest.mark.long,))) if row in ZOO else ((2, ()),))
        for case in pairs(conditions, partial(allowed, row), seed=i, strength=strength)
    ]


def assert_near(run, ours):
    starts = [w.contiguous() for w in run.start()]
    for step, (all_ours, all_theirs) in enumerate(zip(ours, by_oracle(run), strict=True)):
        for start, one, other in zip(starts, all_ours, all_theirs, strict=True):
            way = (other - start).abs().max()
            rounding = (step + 1) * torch.finfo(start.dtype).eps * other.abs().max()
            off = (one - other).abs().max()
            assert off <= EXACT * way + rounding, f"step {step}: off by {off:.1e} of {way:.1e}"


@pytest.mark.parametrize(("row", "case"), mostly_long(cases([*ROWS, *ZOO], CONDITIONS), kept=480))
def test_steps_are_the_oracles(row, case):
    run = Run(row, case)
    assert_near(run, by_library(run))


def few(rows):
    """Each family once, at other scales and shapes."""
    for i, row in enumerate(rows):
        shapes = [shape for shape in MATRICES if len(shape) >= row.fewest]
        for j, family in enumerate(row.families):
            scale, shape = SCALES[(i + j) % 3], shapes[(i // 3 + j) % len(shapes)]
            case = {"family": family, "scale": scale, "shape": shape}
            yield pytest.param(row, case, id=f"{row}-{family}-{scale:g}-{shape}")


@pytest.mark.parametrize(("row", "case"), list(few(VARIANTS)))
def test_steps_of_other_settings_are_the_oracles(row, case):
    run = Run(row, case)
    assert_near(run, by_library(run))


@pytest.mark.parametrize(
    ("row", "case"), cases([row for row in [*ROWS, *ZOO] if not row.together], HALF)
)
def test_half_precision_is_the_float32_step_rounded_once(row, case):
    run = Run(row, case)
    weights = list(run.start(case["dtype"]))
    states = [run.rule(0).init(w.float()) for w in weights]
    for step, ours in enumerate(by_library(run, case["dtype"])):
        for i, weight in enumerate(weights):
            grad = run.gradient(weight, step).float()
            moved, states[i] = run.rule(step).step(weight.float(), grad, states[i])
            weights[i] = moved.to(case["dtype"])
            assert torch.equal(ours[i], weights[i])
