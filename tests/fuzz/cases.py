"""Random cases: a chain of rules, its numbers, weights and gradients, and changes between steps.

A case is a pure function of (path, seed, number); the path only limits the draw to what it takes.
"""

from __future__ import annotations

import functools
import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import rules as r
from tests.harness import FAMILIES, gradient

STEPS = 8
SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025)
SCALES = (1e-30, 1e-6, 1e6, 1e20, 1e30)
SPECIAL = ("zero", "nan", "inf", "all nan", "none")
ENDS = (0.0, 1e-300, 1e-12, 1e-8, 1 - 1e-8, 1 - 1e-12, 1.0, 30.0, 1e8)
Place = tuple[int, int]
"""The index of a group, and of a weight in it."""


@dataclass(frozen=True)
class Limits:
    """The cases that a path takes.

    Attributes:
        same: so many consecutive cases share a structure, since paths keep what they make of one.
        zeros: zeros and integers come and go within a structure.
        every_rule: those too that kernels have no word for.
        numbers: the types of numbers.
        entries: the most that a weight has.
    """

    same: int = 5
    views: tuple[str, ...] = ("channel", "layer", "dim=1", "groups=2", "groups=4", "dim=1,groups=2")
    dtypes: tuple[str, ...] = ("float64",) * 5 + ("float32",) * 3 + ("bfloat16", "float16")
    layouts: tuple[str, ...] = ("contiguous",) * 6 + ("transposed", "channels_last", "sliced") * 2
    grads: tuple[str, ...] = ("transposed", "channels_last", "sliced", "expanded")
    zeros: bool = True
    every_rule: bool = True
    numbers: tuple[str, ...] = ("float",) * 4 + ("tensor", "numpy")
    changes: tuple[str, ...] = ("add", "state_dict", "deepcopy")
    special: tuple[str, ...] = SPECIAL
    entries: int = 9500


PLAIN = Limits(layouts=("contiguous",), numbers=("float",), changes=())
COMPILED = Limits(
    same=40,
    views=("channel", "layer"),
    dtypes=("float64", "float32", "bfloat16"),
    layouts=("contiguous", "contiguous", "channels_last"),
    zeros=False,
    every_rule=False,
)
LIMITS = {
    "auto": Limits(),
    "rule": Limits(),
    "compiled": COMPILED,
    "shim": replace(COMPILED, dtypes=("float64", "float32", "bfloat16", "float16")),
    "batched": Limits(same=10),
    "sweep": replace(PLAIN, special=SPECIAL[:-1]),
    "dtensor": replace(
        PLAIN, dtypes=("float64",) * 5 + ("float32",), numbers=Limits.numbers, changes=("add",)
    ),
    "derivative": replace(PLAIN, same=1, dtypes=("float64",), special=("zero",), entries=300),
}

# ------------------------------------------------------------------ chains


@dataclass(frozen=True)
class Structure:
    """The source of a recipe, and the interval of each of its numbers."""

    source: str
    numbers: tuple[tuple[str, sn.Interval], ...]

    @property
    def recipe(self) -> Callable[..., sn.Rule]:
        return _made(self.source)


@functools.cache
def _made(source: str) -> Callable[..., sn.Rule]:
    made: dict[str, Any] = dict(globals())  # Dynamo looks for them in the module of that name
    exec(source, made)
    return made["recipe"]


LIBRARY = ("adam", "adamg", "adamp", "adamw", "rmsprop", "sgd", "sgdg", "sgdp", "sgdw")
"""The recipes whose every hyper-parameter is drawn."""
INTERVALS = {
    **dict.fromkeys(("lr", "eps", "weight_decay", "wd_ratio", "alpha"), "[0, inf)"),
    **dict.fromkeys(("momentum", "beta1", "beta2", "rmsprop alpha"), "[0, 1)"),
    **dict.fromkeys(("delta", "nu"), "(0, inf)"),
    "dampening": "[0, 1]",
}
FREE = [
    *(r.HeavyBall, r.HeavyBall, r.ExponentialAverage, r.AdaptiveMoments, r.RootMeanSquare),
    *(r.UnitMoments, r.CoupledDecay, r.UnitClip, r.DecoupledDecay, r.RadialProjection),
]
"""Rules that stand anywhere in a chain; a projection and a decay may need a test before them."""


class _Writer:
    """Writes rules with numbers by name, and remembers the intervals."""

    def __init__(self, draw: random.Random, limits: Limits) -> None:
        self.draw, self.limits, self.numbers = draw, limits, dict[str, sn.Interval]()

    def number(self, name: str, interval: sn.Interval) -> str:
        while name in self.numbers:
            name += "_"
        self.numbers[name] = interval
        return name

    def argument(self, name: str, kind: str, interval: sn.Interval | None) -> str | None:
        """A field of a rule or a parameter of a recipe; None leaves it at its default."""
        choose = self.draw.choice
        if ("None" in kind or "Optional" in kind) and name != "name" and choose((True, False)):
            return "None"
        if interval is not None:
            return self.number(name, interval)
        drawn = {
            "view": lambda: repr(choose(self.limits.views)),
            "views": lambda: str(tuple(choose((("channel", "layer"), self.some_views())))),
            "per": lambda: choose(("'tensor'", "'unit'")),
            "name": lambda: choose(("None",) * 8 + ("'first'", "'second'")),
        }
        if name in drawn:
            return drawn[name]()
        return choose(("True", "False")) if kind == "bool" else None

    def some_views(self) -> list[str]:
        return self.draw.sample(self.limits.views, self.draw.choice((1, 2)))

    def called(self, name: str, arguments: dict[str, str | None]) -> str:
        return f"{name}({', '.join(f'{k}={v}' for k, v in arguments.items() if v is not None)})"

    def rule(self, cls: type[sn.Rule], **given: str) -> str:
        arguments = {
            f.name: given.get(f.name)
            or self.argument(f.name, str(f.type), f.metadata.get("interval"))
            for f in fields(cls)
        }
        return self.called(f"r.{cls.__name__}", arguments)

    def recipe(self) -> str:
        name, arguments = self.draw.choice(LIBRARY), {}
        for key, parameter in inspect.signature(sn.find_recipe(name)).parameters.items():
            if key == "betas":
                pair = [
                    self.number(beta, sn.Interval.parse("[0, 1)")) for beta in ("beta1", "beta2")
                ]
                arguments[key] = f"({', '.join(pair)})"
                continue
            spelling = INTERVALS.get(f"{name} {key}", INTERVALS.get(key))
            interval = None if spelling is None else sn.Interval.parse(spelling)
            arguments[key] = self.argument(key, str(parameter.annotation), interval)
        if name in ("sgdg", "adamg") and not self.limits.every_rule:
            del self.numbers[arguments["alpha"]]
            arguments["alpha"] = "0.0"
        return self.called(f"sn.recipes.{name}", arguments)

    def test(self) -> str:
        remembers = self.limits.every_rule and self.draw.random() < 0.3
        return self.rule(r.AccumulatedInvarianceTest if remembers else r.ScaleInvarianceTest)

    def feedback(self) -> str:
        tested = f"sn.chain({self.test()}, r.RadialProjection())"
        inner = (*map(self.rule, (r.RadialProjection, r.UnitClip, r.CoupledDecay)), tested)
        return self.rule(r.FeedbackMomentum, rule=self.draw.choice(inner))

    def chain(self) -> str:
        """Rules in any order, with a step size, mostly last, in any manifold."""
        kinds = [functools.partial(self.rule, cls) for cls in FREE]
        kinds += [self.test, self.test, self.feedback, lambda: "r.RadialProjection()"]
        if self.limits.every_rule:
            kinds.append(functools.partial(self.rule, r.OrthogonalityRegularization))
        rules = [self.draw.choice(kinds)() for _ in range(self.draw.randint(2, 5))]
        last = len(rules) if self.draw.random() < 0.7 else self.draw.randint(0, len(rules))
        rules.insert(last, self.rule(r.StepSize))
        if self.draw.random() < 0.2:
            rules[:2] = [f"sn.chain({', '.join(rules[:2])})"]
        if self.draw.random() < 0.25:
            rules.append(f"manifold=sn.Sphere({self.draw.choice(self.limits.views)!r})")
        return f"sn.chain({', '.join(rules)})"


@functools.cache
def draw_structure(seed: int, index: int, limits: Limits) -> Structure:
    """A recipe of the library or any chain, of which a (4, 4) weight can take a step."""
    draw = random.Random(f"structure {seed} {index}")
    while True:
        writer = _Writer(draw, limits)
        body = writer.recipe() if draw.random() < 0.4 else writer.chain()
        used = {k: v for k, v in writer.numbers.items() if _occurs(k, body)}
        parameters = ", ".join(f"{name}={_ordinary(of)[1]}" for name, of in used.items())
        structure = Structure(f"def recipe({parameters}):\n    return {body}\n", (*used.items(),))
        if _is_legal(structure, (4, 4)):
            return structure


def _occurs(name: str, body: str) -> bool:
    return any(f"{before}{name}{end}" in body for before in "=( " for end in ",)")


def _is_legal(structure: Structure, shape: tuple[int, ...]) -> bool:
    """True if the rules go together and have units in a weight of this shape."""
    try:
        rule, weight = structure.recipe(), torch.ones(shape, dtype=torch.float64)
        rule.step(weight, weight, rule.init(weight))
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------ numbers


def _ordinary(interval: sn.Interval) -> tuple[float, ...]:
    if interval.high == 1:
        return (0.1, 0.5, 0.9, 0.999) if interval.open_high else (0.1, 0.5)
    return (1e-3, 0.01, 0.1, 0.5)


def _draw_numbers(
    draw: random.Random, limits: Limits, structure: Structure, off: set[str], change: bool
) -> tuple[dict[str, Any], ...]:
    """The numbers of each step; with `change` some of them change, and perhaps change back.

    Args:
        off: the names of those that are 0.
    """
    odd = draw.choice((0.0, 0.3, 0.6))
    kinds = {name: draw.choice(limits.numbers) for name, _ in structure.numbers}

    def one(name: str, interval: sn.Interval) -> Any:
        if name in off:
            return 0.0
        ends = [v for v in ENDS if v in interval]
        value = draw.choice(ends if draw.random() < odd else _ordinary(interval))
        kept = not limits.zeros and "tensor" in limits.numbers and value == 0 and name != "lr"
        if kinds[name] == "tensor" or kept:
            return torch.tensor(value, dtype=torch.float64)
        if kinds[name] == "numpy":
            single = np.float32(value)
            same = (float(single) == 0) == (value == 0) and float(single) in interval
            return single if same else np.float64(value)
        return int(value) if limits.zeros and value in (0, 1) and draw.random() < 0.2 else value

    steps = [{name: one(name, interval) for name, interval in structure.numbers}] * STEPS
    for name, interval in structure.numbers if change else ():
        if draw.random() < 0.4:
            first, last = sorted(draw.sample(range(1, STEPS + 1), 2))
            value = 0.0 if name == "lr" and draw.random() < 0.5 else one(name, interval)
            steps[first:last] = [{**step, name: value} for step in steps[first:last]]
    return tuple(steps)


# ------------------------------------------------------------------ weights


@dataclass(frozen=True)
class Weight:
    """A weight and its gradients, step by step.

    Attributes:
        start: "random", "zero rows", "unit", or a scale.
        kinds: what gradients are: a family and a scale, or one of `SPECIAL`.
        shard: the dimension that DTensor shards, or None.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str
    start: str
    kinds: tuple[str, ...]
    grad_layout: str
    shard: int | None
    seed: int

    def first(self) -> Tensor:
        w = torch.randn(self.shape, generator=self._generator(0), dtype=torch.float64)
        if self.start == "zero rows" and w.ndim:
            w[::2] = 0
        elif self.start == "unit" and w.numel():
            w = sn.Sphere("channel").normalize(w)
        elif self.start not in ("random", "zero rows", "unit"):
            w = w * float(self.start)
        return w.to(getattr(torch, self.dtype))

    def gradient(self, weight: Tensor, step: int) -> Tensor | None:
        """The gradient of a step at which the weight is `weight`, contiguous."""
        kind, generator = self.kinds[step], self._generator(1 + step)
        if kind == "none":
            return None
        noise = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        if kind in SPECIAL:
            g = noise * {"zero": 0.0, "all nan": math.nan}.get(kind, 1.0)
            if kind in ("nan", "inf") and g.numel():
                g.view(-1)[int(torch.randint(g.numel(), (), generator=generator))] = float(kind)
        else:
            family, scale = kind.split("*")
            plain = not weight.numel() or weight.ndim < 2
            g = noise if plain else gradient(family, weight.double(), generator, step)
            g = torch.where(g.isfinite(), g, noise) * float(scale)
        if self.grad_layout == "expanded" and g.ndim and len(g):
            g = g[:1].expand(self.shape).contiguous()
        return g.to(weight.dtype)

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * (STEPS + 1) + step)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """A copy of `x` in the given memory layout, where its shape has one."""
    if layout == "transposed" and x.ndim > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "channels_last" and x.ndim == 4:
        return x.clone(memory_format=torch.channels_last)
    if layout == "sliced" and x.ndim:
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), 7.0, dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "expanded" and x.ndim and len(x):
        return x[:1].clone().expand(x.shape)
    return x.clone(memory_format=torch.contiguous_format)


def _draw_weight(draw: random.Random, limits: Limits, structure: Structure) -> Weight:
    shape = _draw_shape(draw, limits.entries)
    while not _is_legal(structure, shape):
        shape = _draw_shape(draw, limits.entries)
    if draw.random() < 0.4:  # one kind at every step
        kinds = (_draw_kind(draw, limits, 0.15),) * STEPS
    else:
        odd = draw.choice((0.0, 0.1, 0.3))
        kinds = tuple(_draw_kind(draw, limits, odd) for _ in range(STEPS))
    return Weight(
        shape,
        draw.choice(limits.dtypes),
        draw.choice(limits.layouts),
        draw.choice(("random",) * 4 + ("zero rows", "unit", "1e-20", "1e-3", "1e10")),
        kinds,
        draw.choice(("contiguous",) * 2 + limits.grads),
        draw.choice((0, 0, 1, None) if len(shape) > 1 else (0, None) if shape else (None,)),
        draw.getrandbits(32),
    )


def _draw_shape(draw: random.Random, most: int) -> tuple[int, ...]:
    while True:
        ndim = draw.choice((0, 1, 2, 2, 2, 2, 3, 4))
        shape = [draw.choice(SIZES[: draw.choice((4, 9, 21))]) for _ in range(ndim)]
        if shape and draw.random() < 0.03:
            shape[draw.choice((0, -1))] = 0
        if math.prod(shape) <= most:
            return tuple(shape)


def _draw_kind(draw: random.Random, limits: Limits, odd: float) -> str:
    if draw.random() < odd:
        return draw.choice(limits.special)
    scale = draw.choice(SCALES) if draw.random() < odd + 0.15 else 1.0
    return f"{draw.choice(FAMILIES)}*{scale:g}"


# ------------------------------------------------------------------ cases


@dataclass(frozen=True)
class Group:
    """A param_group: its weights, its numbers at each step, and the step that first has it."""

    weights: tuple[Weight, ...]
    numbers: tuple[dict[str, Any], ...]
    since: int = 0


@dataclass(frozen=True)
class Case:
    """Eight steps of one recipe.

    Attributes:
        changes: what is done to the optimizer before a step: "state_dict" or "deepcopy".
        factors: the schedule of the learning rates of a sweep. Its points are the groups, which
            have equal weights and gradients. Empty for other paths.
    """

    seed: int
    number: int
    structure: Structure
    groups: tuple[Group, ...]
    maximize: bool = False
    changes: tuple[tuple[int, str], ...] = ()
    factors: tuple[float, ...] = ()

    @property
    def weights(self) -> dict[Place, Weight]:
        return {(g, i): w for g, each in enumerate(self.groups) for i, w in enumerate(each.weights)}


def draw_case(path: str, seed: int, number: int) -> Case:
    """The case of that number for `path`; "auto" and "rule" have the same."""
    limits = LIMITS[path]
    index = number // limits.same
    structure = draw_structure(seed, index, limits)
    draw = random.Random(f"zeros {seed} {index}")
    may = [name for name, interval in structure.numbers if name != "lr" and 0 in interval]
    off = {name for name in may if not limits.zeros and draw.random() < 0.2}
    draw = random.Random(f"case {seed} {number}")
    if path == "sweep":
        return _draw_sweep(draw, limits, structure, seed, number)
    groups = []
    for g in range(draw.choice((1, 1, 1, 2, 3))):
        numbers = _draw_numbers(draw, limits, structure, off, draw.random() < 0.4)
        count = draw.choice((1, 1, 2))
        weights = tuple(_draw_weight(draw, limits, structure) for _ in range(count))
        late = g and "add" in limits.changes and draw.random() < 0.5
        groups.append(Group(weights, numbers, draw.randint(1, STEPS - 1) if late else 0))
    copies = [c for c in ("state_dict", "deepcopy") if c in limits.changes]
    changes = [(draw.randint(1, STEPS - 1), c) for c in copies if draw.random() < 0.15]
    maximize = draw.random() < 0.1
    return Case(seed, number, structure, tuple(groups), maximize, tuple(changes))


def _draw_sweep(
    draw: random.Random, limits: Limits, structure: Structure, seed: int, number: int
) -> Case:
    """Two points, the groups, times two seeds, which are adjacent weights."""
    one, two = (_draw_numbers(draw, limits, structure, set(), False)[0] for _ in range(2))
    swept = {name for name in one if name == "lr" or draw.random() < 0.5}  # (a schedule needs lr)
    factors = (1.0,) * STEPS
    if draw.random() < 0.5:
        factors = (1.0, *(draw.choice((1.0, 0.5, 0.1, 0.0, 2.0)) for _ in range(STEPS - 1)))
    drawn = [_draw_weight(draw, limits, structure) for _ in range(draw.choice((1, 2)))]
    weights = tuple(replace(w, seed=w.seed + i) for w in drawn for i in range(2))
    groups = tuple(
        Group(weights, tuple({**point, "lr": point["lr"] * f} for f in factors))
        for point in (one, {**one, **{name: two[name] for name in swept}})
    )
    return Case(seed, number, structure, groups, factors=factors)
