"""Rules that nobody would write, drawn at random: kernels against the rule's own code."""

import random

import pytest
import torch

import spherenorm as sn
from spherenorm import rules as r
from spherenorm._rule import scalar_state
from spherenorm.compile import _paths as paths
from spherenorm.compile._guard import UnsupportedRuleError
from tests.compile.twins import Twins, random_weights
from tests.harness.rows import Row

# {x} and {y} have as many values as the result, {z} as many or fewer; {f} and {g} are one per
# entry, {k} is a number.
ELEMENTWISE = (
    "{x} + {z}", "{z} - {x}", "{x} * {z}", "{x} / (1 + abs({z}))", "hp * {x} + (1 - hp) * {y}",
    "{x} + {k} * ({x} * {z})", "{x} - {y} * {z}", "{x} - {k} * {z}", "{x} * {z} * {k}", "-{x}",
    "{x}.abs().sqrt()", "{x}.square()", "{x}.tanh()", "{x}.sign()", "{x}.sin() + 0",
    "torch.exp(-{x}.abs())", "where({x} > {z}, {x}, {z})", "where({s} > {k}, {x}, {z})",
    "where({s} > {k}, 0.0, {x})", "where(({f} > {k}).any(), {x}, {y})",
    "where(({f} > -1.5).all(), {y}, {x})", "{x}.clamp(-0.5, 0.7)", "torch.maximum({x}, {y})",
    "({x} > {y}).to(w.dtype) * {z}", "torch.add({x}, {y}, alpha=0.5)",
    "torch.addcmul({x}, {y}, {z}, value=0.5)", "torch.zeros_like({x})", "torch.full_like({x}, 0.5)",
    "{x} * 0", "0 * {x} + {z}", "1 - (~({x} > {z})).to(w.dtype)", "torch.sigmoid({x})",
    "torch.log1p({x}.abs())", "torch.nn.functional.softplus({x}, 2.0, 0.5)",
    "(({x} > {y}) | ({z} < {x})).to(w.dtype)", "{x}.lerp({y}, 0.3)",
)  # fmt: skip
SUMS = (
    "{f}.sum({dims})",
    "({f} * {g}).sum({dims})",
    "({f} > 0).to(w.dtype).sum({dims})",
    "{f}.square().mean({dims})",
    "where({s} > {k}, {f}, {z} + w * 0).sum({dims})",
)


def random_rule(draw, ndim):
    """The source of a step whose states are a, b (as the weight), c (per row) and n (a counter)."""
    values = {
        "full": ["w", "d", "a", "b"],
        "row": ["c"] if ndim > 1 else [],
        "one": ["n.to(w.dtype)"],
    }
    wider = {"full": ("full", "row", "one"), "row": ("row", "one"), "one": ("one",)}
    lines = []
    for i in range(draw.randint(4, 18)):
        kind = draw.choice(
            ("full", "full", "full", "row", "one") if ndim > 1 else ("full", "full", "one")
        )

        def one_of(*kinds):
            return draw.choice([value for each in kinds for value in values[each][-6:]])

        form = draw.choice(SUMS if kind != "full" and draw.random() < 0.4 else ELEMENTWISE)
        dims = "" if kind == "one" else f"{tuple(range(1, ndim))}, keepdim=True"
        expression = form.format(
            x=one_of(kind),
            y=one_of(kind),
            z=one_of(*wider[kind]),
            f=one_of("full"),
            g=one_of("full"),
            s=one_of("one"),
            dims=dims,
            k=draw.choice(("0.5", "1", "-0.7", "0.0", "3", "hp", "hq", "(1 - hp)")),
        )
        if (
            (form in ELEMENTWISE and "{f}" in form)
            or kind == "full"
            or form in SUMS
            or values[kind]
        ):
            lines.append(f"{kind}{i} = {expression}")
            values[kind].append(f"{kind}{i}")
    results = [draw.choice(values["full"]) for _ in range(3)]
    row = draw.choice(values["row"]) if ndim > 1 else "c"
    body = "\n    ".join(
        [*lines, f"return {results[0]} * 1.0, ({results[1]}, {results[2]}, {row}, n + 1)"]
    )
    head = "def step(w, d, a, b, c, n, hp, hq):"
    return f"from torch import where\nimport torch\n\n{head}\n    {body}\n"


class Drawn(sn.Rule):
    state_names = ("a", "b", "c", "n")

    def __init__(self, step, hp, hq):
        for name, value in (("compute", step), ("hp", hp), ("hq", hq)):
            object.__setattr__(self, name, value)

    def init(self, weight):
        rows = weight.new_zeros((len(weight), *[1] * (weight.ndim - 1)))
        return {
            "a": torch.zeros_like(weight),
            "b": torch.ones_like(weight),
            "c": rows,
            "n": scalar_state(weight),
        }

    def update(self, update, state):
        direction, new = self.compute(
            update.weight, update.direction, *state.values(), self.hp, self.hq
        )
        return sn.Update(update.weight, update.grad, direction), dict(
            zip(self.state_names, new, strict=True)
        )


def refuse(*_):
    raise UnsupportedRuleError("no kernel")


@pytest.mark.parametrize("rules", [4, pytest.param(60, marks=pytest.mark.long)])
@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_random_rules_step_as_they_are_written(ndim, rules, monkeypatch):
    monkeypatch.setattr(paths.Inductor, "__init__", refuse)
    draw, taken, drawn = random.Random(ndim), 0, 0
    while taken < rules:
        drawn += 1
        assert drawn < 8 * rules  # the others are refused
        source = random_rule(draw, ndim)
        made = {}
        exec(source, made)

        def recipe(lr=0.1, hp=0.3, hq=0.0, compute=made["step"]):
            return sn.chain(Drawn(compute, hp, hq), r.StepSize(lr))

        shape = {1: (7,), 2: draw.choice(((4, 4), (5, 3), (1, 5), (5, 1))), 3: (3, 2, 2)}[ndim]
        twins = Twins(Row(sn.torch_optimizer(recipe)), random_weights([shape]))
        try:
            for step in range(3):
                twins.step("random", step)
            twins.agree()
        except sn.BackendError:
            continue
        except AssertionError as error:
            raise AssertionError(f"shape {shape}:\n{source}") from error
        taken += 1
