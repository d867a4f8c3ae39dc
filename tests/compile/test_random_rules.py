"""Rules that nobody would write, drawn at random: kernels against the rule's own code."""

import random
import shutil

import pytest

import spherenorm as sn
from tests.compile.conftest import EXECUTORS
from tests.compile.twins import Twins, drawn
from tests.compile.written import HEAD

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="kernels need a compiler")

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
    update = "\n        ".join(lines)
    return f"import dataclasses\n{HEAD}{CLASS.format(update, results[0], *results[1:], row)}"


CLASS = """
@dataclasses.dataclass(frozen=True)
class Drawn(sn.Rule):
    state_names = ("a", "b", "c", "n")
    hp: float = sn.hyper("[0, 1]", 0.3)
    hq: float = sn.hyper("[0, 1]", 0.0)

    def init(self, weight):
        rows = weight.new_zeros((len(weight), *[1] * (weight.ndim - 1)))
        counter = torch.zeros((), dtype=torch.float64, device=weight.device)
        full = torch.zeros_like(weight), torch.ones_like(weight)
        return {{"a": full[0], "b": full[1], "c": rows, "n": counter}}

    def update(self, update, state):
        w, d = update.weight, update.direction
        a, b, c, n = (state[name] for name in self.state_names)
        hp, hq = self.hp, self.hq
        {}
        return update.replace(direction={} * 1.0), {{"a": {}, "b": {}, "c": {}, "n": n + 1}}
"""


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 30))]
)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_rules_step_as_they_are_written(executor, ndim, seed, choose):
    choose(executor)
    draw = random.Random(f"{ndim} {seed}")
    for _ in range(8):  # kernels refuse the others
        source, module = random_rule(draw, ndim), {"__name__": f"drawn_{ndim}_{seed}"}
        exec(source, module)

        def recipe(lr=0.1, hp=0.3, hq=0.0, rule=module["Drawn"]):
            return sn.chain(rule(hp, hq), sn.rules.StepSize(lr))

        shape = {1: (7,), 2: draw.choice(((4, 4), (5, 3), (1, 5), (5, 1))), 3: (3, 2, 2)}[ndim]
        twins = Twins(sn.torch_optimizer(recipe), drawn([shape]))
        if taken(twins, f"shape {shape}:\n{source}"):
            return
    raise AssertionError("every rule was refused")


def taken(twins, what):
    """True if kernels step the rule as its own code does; False if they have no word for it."""
    try:
        for step in range(3):
            twins.step("random", step)
        twins.agree(equal_nan=True)
    except sn.BackendError as error:
        if "numbers" in str(error):
            raise AssertionError(what) from error
        return False
    except AssertionError as error:
        raise AssertionError(what) from error
    return True
