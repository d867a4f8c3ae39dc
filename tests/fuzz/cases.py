"""Random cases: a chain of rules, its numbers, weights and gradients, and changes between steps.

A case is a pure function of (path, seed, number); the path only limits the draw to what it takes.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import spherenorm as sn
from spherenorm import rules as r
from tests import gradients

STEPS = 8
SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025)
MOST_ENTRIES = 9500
ORDINARY = {
    sn.Interval.parse("[0, 1)"): (0.1, 0.5, 0.9, 0.999),
    sn.Interval.parse("[0, 1]"): (0.1, 0.5),
}
ORDINARY_ELSEWHERE = (1e-3, 0.01, 0.1, 0.5)
ENDS = (0.0, 1e-300, 1e-12, 1e-8, 1 - 1e-8, 1 - 1e-12, 1.0, 30.0, 1e8)
SCALES = (1e-30, 1e-6, 1e6, 1e20, 1e30)
SPECIAL = ("zero", "nan", "inf", "all nan", "none")


@dataclass(frozen=True)
class Limits:
    """The cases that a path takes."""

    same: int = 5  # consecutive cases share a structure, since paths keep what they make of one
    views: tuple[str, ...] = ("channel", "layer", "dim=1", "groups=2", "groups=4", "dim=1,groups=2")
    dtypes: tuple[str, ...] = ("float64",) * 5 + ("float32",) * 3 + ("bfloat16", "float16")
    layouts: tuple[str, ...] = ("contiguous",) * 3 + ("transposed", "channels_last", "sliced")
    structural_zeros: bool = True  # zeros and integers come and go within a structure
    every_rule: bool = True  # those too that only Inductor compiles
    changes: tuple[str, ...] = ("numbers", "add", "state_dict", "deepcopy", "none")
    tensors: bool = True  # numbers may be 0-dim tensors
    memory: bool = True  # gradients may lie in weights and states, memory may hold the negative
    negative: bool = True  # that of weights, too
    overlaps: bool = True  # weights may overlap
    entries: int = MOST_ENTRIES  # of a weight
    finite: bool = False  # gradients are


LIMITS = {
    "auto": Limits(),
    "rule": Limits(),
    "compiled": Limits(
        same=40,
        views=("channel", "layer"),
        dtypes=("float64", "float32", "bfloat16"),
        layouts=("contiguous", "contiguous", "channels_last"),
        structural_zeros=False,
        every_rule=False,
        negative=False,
        overlaps=False,
    ),
    "sweep": Limits(layouts=("contiguous",), changes=("numbers",), tensors=False, memory=False),
    "dtensor": Limits(
        dtypes=("float64",) * 5 + ("float32",),
        layouts=("contiguous",),
        changes=("numbers", "none", "add"),
        memory=False,
    ),
    "derivative": Limits(
        same=1,
        dtypes=("float64",),
        layouts=("contiguous",),
        changes=("numbers",),
        tensors=False,
        memory=False,
        entries=300,
        finite=True,
    ),
}
INDUCTOR_EVERY = 50
"""One compiled case in so many may go to Inductor, which takes seconds."""


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


class _Writer:
    """Writes rules with numbers by name, and remembers the intervals."""

    def __init__(self, draw: random.Random, limits: Limits) -> None:
        self.draw, self.limits, self.numbers = draw, limits, {}

    def number(self, name: str, interval: str | sn.Interval) -> str:
        while name in self.numbers:
            name += "_"
        parsed = interval if isinstance(interval, sn.Interval) else sn.Interval.parse(interval)
        self.numbers[name] = parsed
        return name

    def rule(self, cls: type[sn.Rule], **options: Any) -> str:
        """A rule whose fields with an interval are numbers of the recipe."""
        arguments = []
        for f in fields(cls):
            if f.name in options:
                arguments.append(f"{f.name}={options[f.name]}")
            elif "interval" in f.metadata:
                arguments.append(f"{f.name}={self.number(f.name, f.metadata['interval'])}")
            elif f.type == "bool":
                arguments.append(f"{f.name}={self.draw.random() < 0.5}")
            elif f.name == "name" and self.draw.random() < 0.2:
                arguments.append(f"name={self.draw.choice(('first', 'second'))!r}")
            elif f.name == "view":
                arguments.append(f"view={self.view()!r}")
            elif f.name == "views":
                arguments.append(f"views={self.views()}")
            elif f.name == "per":
                arguments.append(f"per={self.draw.choice(('tensor', 'unit'))!r}")
        return f"r.{cls.__name__}({', '.join(arguments)})"

    def view(self) -> str:
        return self.draw.choice(self.limits.views)

    def views(self) -> tuple[str, ...]:
        if self.draw.random() < 0.5:
            return ("channel", "layer")
        return tuple(self.draw.sample(self.limits.views, self.draw.choice((1, 2))))

    def test(self) -> str:
        remembers = self.limits.every_rule and self.draw.random() < 0.3
        return self.rule(r.AccumulatedInvarianceTest if remembers else r.ScaleInvarianceTest)

    def decay(self) -> str:
        ratio = self.draw.choice((None, "ratio"))
        return self.rule(
            r.DecoupledDecay, invariant_ratio=ratio and self.number("wd_ratio", "[0, inf)")
        )

    def feedback(self) -> str:
        inner = self.draw.choice(
            (
                lambda: self.rule(r.RadialProjection),
                lambda: f"sn.chain({self.rule(r.ScaleInvarianceTest)}, r.RadialProjection())",
                lambda: self.rule(r.UnitClip),
                lambda: self.rule(r.CoupledDecay),
            )
        )()
        return self.rule(r.FeedbackMomentum, rule=inner)

    def chain(self) -> str:
        """Rules in any order, with a step size, mostly last, in any manifold."""
        kinds = [
            *(functools.partial(self.rule, cls) for cls in _FREE),
            *(self.test, self.test, self.decay, self.feedback),
            lambda: "r.RadialProjection()",
            lambda: self.rule(r.RadialProjection),
        ]
        if self.limits.every_rule:
            kinds.append(lambda: self.rule(r.OrthogonalityRegularization))
        rules = [self.draw.choice(kinds)() for _ in range(self.draw.randint(2, 5))]
        last = len(rules) if self.draw.random() < 0.7 else self.draw.randint(0, len(rules))
        rules.insert(last, self.rule(r.StepSize))
        if self.draw.random() < 0.2:
            rules[:2] = [f"sn.chain({', '.join(rules[:2])})"]
        sphere = f", manifold=sn.Sphere({self.view()!r})" if self.draw.random() < 0.25 else ""
        return f"sn.chain({', '.join(rules)}{sphere})"


LIBRARY = ("adam", "adamg", "adamp", "adamw", "rmsprop", "sgd", "sgdg", "sgdp", "sgdw")
"""The recipes whose every hyper-parameter is drawn."""


def _library(writer: _Writer) -> str:
    """A recipe of the library, with numbers for its numbers."""
    draw, number = writer.draw, writer.number

    def flag() -> bool:
        return draw.random() < 0.5

    name = draw.choice(LIBRARY)
    arguments: dict[str, Any] = {"lr": number("lr", "[0, inf)")}
    if name in ("adam", "adamw", "adamp", "adamg"):
        arguments["betas"] = f"({number('beta1', '[0, 1)')}, {number('beta2', '[0, 1)')})"
        arguments["eps"] = number("eps", "[0, inf)")
    else:
        arguments["momentum"] = number("momentum", "[0, 1)")
    if name in ("sgd", "sgdw", "sgdp"):
        arguments["dampening"], arguments["nesterov"] = number("dampening", "[0, 1]"), flag()
    if name not in ("sgdg", "adamg"):
        arguments["weight_decay"] = number("weight_decay", "[0, inf)")
    if name in ("sgdp", "adamp"):
        arguments["delta"], arguments["wd_ratio"] = (
            number("delta", "(0, inf)"),
            number("wd_ratio", "[0, inf)"),
        )
        arguments["views"], arguments["per"] = (
            writer.views(),
            repr(draw.choice(("tensor", "unit"))),
        )
    if name == "sgdp":
        arguments["project_buffer"] = not arguments["nesterov"] and flag()
    if name == "adamp":
        arguments["nesterov"] = flag()
    if name == "rmsprop":
        arguments |= {
            "alpha": number("alpha", "[0, 1)"),
            "eps": number("eps", "[0, inf)"),
            "centered": flag(),
        }
    if name in ("sgdg", "adamg"):
        arguments["nu"] = number("nu", "(0, inf)") if flag() else None
        arguments["alpha"] = (
            number("alpha", "[0, inf)") if writer.limits.every_rule and flag() else 0.0
        )
        arguments["view"] = repr(writer.view())
    return f"sn.recipes.{name}({', '.join(f'{k}={v}' for k, v in arguments.items())})"


_FREE = (
    r.HeavyBall, r.HeavyBall, r.ExponentialAverage, r.AdaptiveMoments, r.RootMeanSquare,
    r.UnitMoments, r.CoupledDecay, r.UnitClip,
)  # fmt: skip


@functools.cache
def draw_structure(seed: int, index: int, limits: Limits) -> Structure:
    """A recipe of the library or any chain, of which a (4, 4) weight can take a step."""
    draw = random.Random(f"structure {seed} {index}")
    while True:
        writer = _Writer(draw, limits)
        body = _library(writer) if draw.random() < 0.4 else writer.chain()
        parameters = ", ".join(
            f"{name}={_ordinary(interval)[1]}" for name, interval in writer.numbers.items()
        )
        source = f"def recipe({parameters}):\n    return {body}\n"
        structure = Structure(source, tuple(writer.numbers.items()))
        if _is_legal(structure, (4, 4)):
            return structure


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
    return ORDINARY.get(interval, ORDINARY_ELSEWHERE)


@dataclass
class _Numbers:
    """Draws the numbers of one group."""

    draw: random.Random
    limits: Limits
    structure: Structure
    zeros: frozenset[str]
    odd: float = field(init=False)
    kinds: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.odd = self.draw.choice((0.0, 0.3, 0.6))
        kinds = ("number",) * 4 + ("tensor",) if self.limits.tensors else ("number",)
        self.kinds = {name: self.draw.choice(kinds) for name, _ in self.structure.numbers}

    def one(self, name: str, interval: sn.Interval) -> float | Tensor:
        if name in self.zeros:
            return 0.0
        if self.draw.random() < self.odd:
            value = self.draw.choice([v for v in ENDS if v in interval])
        else:
            value = self.draw.choice(_ordinary(interval))
        if self.kinds[name] == "tensor" or (
            value == 0 and name != "lr" and self.limits.tensors and not self.limits.structural_zeros
        ):
            return torch.tensor(value, dtype=torch.float64)
        if self.limits.structural_zeros and value in (0, 1) and self.draw.random() < 0.2:
            return int(value)
        return value

    def over_time(self, change: bool) -> tuple[dict[str, Any], ...]:
        """The numbers of each step; with `change` some of them change, and perhaps change back."""
        now = {name: self.one(name, interval) for name, interval in self.structure.numbers}
        steps = [dict(now) for _ in range(STEPS)]
        for name, interval in self.structure.numbers if change else ():
            if self.draw.random() < 0.4:
                first, last = sorted(self.draw.sample(range(1, STEPS + 1), 2))
                value = (
                    0.0 if name == "lr" and self.draw.random() < 0.5 else self.one(name, interval)
                )
                for step in steps[first:last]:
                    step[name] = value
        return tuple(steps)


# ------------------------------------------------------------------ weights


@dataclass(frozen=True)
class Weight:
    """A weight and its gradients, step by step.

    Attributes:
        start: "random", "zero rows", "unit", or a scale.
        kinds: what gradients are: a family of `tests.harness.gradients` and a scale, or one of `SPECIAL`.
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

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

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
            g = noise * (kind != "zero")
            if kind == "all nan":
                g = g * float("nan")
            elif kind in ("nan", "inf") and g.numel():
                g.view(-1)[int(torch.randint(g.numel(), (), generator=generator))] = float(kind)
        else:
            family, scale = kind.split("*")
            plain = not weight.numel() or weight.ndim < 2
            g = noise if plain else gradients.gradient(family, weight.double(), generator, step)
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
    if layout == "conjugate" and x.dtype in (torch.float32, torch.float64):
        return torch.complex(x, -x).conj().imag
    if layout in ("negative", "conjugate"):
        return torch._neg_view(-x)
    return x.clone(memory_format=torch.contiguous_format)


def _draw_weight(draw: random.Random, limits: Limits, structure: Structure) -> Weight:
    while True:
        shape = _draw_shape(draw, limits.entries)
        if _is_legal(structure, shape):
            break
    if draw.random() < 0.4:  # one kind at every step
        kinds = (_draw_kind(draw, 0.15),) * STEPS
    else:
        odd = draw.choice((0.0, 0.1, 0.3))
        kinds = tuple(_draw_kind(draw, odd) for _ in range(STEPS))
    left_out = SPECIAL[1:] if limits.finite else () if "none" in limits.changes else ("none",)
    kinds = tuple("zero" if kind in left_out else kind for kind in kinds)
    return Weight(
        shape,
        draw.choice(limits.dtypes),
        draw.choice(limits.layouts),
        draw.choice(("random",) * 4 + ("zero rows", "unit", "1e-20", "1e-3", "1e10")),
        kinds,
        draw.choice(
            ("contiguous", "contiguous", "transposed", "channels_last", "sliced", "expanded")
        ),
        draw.choice((0, 0, 1, None))
        if len(shape) > 1
        else draw.choice((0, None))
        if shape
        else None,
        draw.getrandbits(32),
    )


def _draw_shape(draw: random.Random, most: int) -> tuple[int, ...]:
    while True:
        ndim = draw.choice((0, 1, 2, 2, 2, 2, 3, 4))
        shape = tuple(draw.choice(SIZES[: draw.choice((4, 9, 21))]) for _ in range(ndim))
        if shape and draw.random() < 0.03:
            shape = (*shape[:-1], 0) if draw.random() < 0.5 else (0, *shape[1:])
        numel = functools.reduce(lambda a, b: a * b, shape, 1)
        if numel <= most:
            return shape


def _draw_kind(draw: random.Random, odd: float) -> str:
    if draw.random() < odd:
        return draw.choice(SPECIAL)
    scale = draw.choice(SCALES) if draw.random() < odd + 0.15 else 1.0
    return f"{draw.choice(gradients.FAMILIES)}*{scale:g}"


# ------------------------------------------------------------------ cases


@dataclass(frozen=True)
class Group:
    """A param_group: its weights, its numbers at each step, and the step that first has it."""

    weights: tuple[Weight, ...]
    numbers: tuple[dict[str, Any], ...]
    since: int = 0


@dataclass(frozen=True)
class Lent:
    """At a step, a gradient that lies at the end of another tensor's memory.

    Attributes:
        place: of the gradient's weight.
        owner: the place of the weight in whose memory it lies.
        state: it lies in the owner's first state instead.
    """

    step: int
    place: tuple[int, int]
    owner: tuple[int, int]
    state: bool


@dataclass(frozen=True)
class Case:
    """Eight steps of one recipe.

    Attributes:
        changes: what is done to the optimizer before a step: "state_dict" or "deepcopy".
        factors: the schedule of the learning rates of a sweep. Its points are the groups, which
            have equal weights and gradients. Empty for other paths.
        lent: the gradients in others' memory, whose values the run of the path decides.
        overlap: two weights, and how many of the last entries of the first are the first ones of
            the second. They step one after the other.
        negated: the steps before which the memory of states comes to hold their negative.
    """

    seed: int
    number: int
    structure: Structure
    groups: tuple[Group, ...]
    maximize: bool
    changes: tuple[tuple[int, str], ...]
    factors: tuple[float, ...] = ()
    lent: tuple[Lent, ...] = ()
    overlap: tuple[tuple[int, int], tuple[int, int], int] | None = None
    negated: tuple[int, ...] = ()

    @property
    def sweep(self) -> bool:
        return bool(self.factors)

    def __str__(self) -> str:
        lines = [f"case {self.number} of seed {self.seed}", self.structure.source.strip()]
        lines += [f"maximize={self.maximize} changes={dict(self.changes)}"]
        lines += [f"overlap={self.overlap} negated={self.negated}", *map(str, self.lent)]
        for group in self.groups:
            lines.append(f"group, since step {group.since}:")
            last: dict[str, Any] = {}
            for step, numbers in enumerate(group.numbers):
                new = {
                    name: value for name, value in numbers.items() if last.get(name) is not value
                }
                lines += (
                    [f"  step {step}: {', '.join(f'{k}={v}' for k, v in new.items())}"]
                    if new
                    else []
                )
                last = numbers
            lines += [f"  {weight}" for weight in group.weights]
        return "\n".join(lines)


def draw_case(path: str, seed: int, number: int) -> Case:
    """The case of that number for `path`; "auto" and "rule" have the same."""
    limits = LIMITS[path]
    index = number // limits.same
    if path == "compiled" and number % INDUCTOR_EVERY == INDUCTOR_EVERY - 1:
        limits, index = (
            Limits(
                dtypes=("float64", "float32"),
                layouts=("contiguous",),
                structural_zeros=False,
                overlaps=False,
            ),
            -number,
        )
    structure = draw_structure(seed, index, limits)
    draw = random.Random(f"zeros {seed} {index}")
    switched_off = [
        name for name, interval in structure.numbers if name != "lr" and interval.low in interval
    ]
    zeros = (
        frozenset()
        if limits.structural_zeros
        else frozenset(name for name in switched_off if draw.random() < 0.2)
    )
    draw = random.Random(f"case {seed} {number}")
    if path == "sweep":
        return _draw_sweep(draw, limits, structure, seed, number)
    groups = []
    for g in range(draw.choice((1, 1, 1, 2, 3)) if index >= 0 else 1):
        numbers = _Numbers(draw, limits, structure, zeros).over_time(draw.random() < 0.4)
        weights = tuple(
            _draw_weight(draw, limits, structure)
            for _ in range(draw.choice((1, 1, 2)) if index >= 0 else 1)
        )
        since = (
            draw.randint(1, STEPS - 1)
            if g and "add" in limits.changes and draw.random() < 0.5
            else 0
        )
        groups.append(Group(weights, numbers, since))
    changes = [
        (draw.randint(1, STEPS - 1), c)
        for c in ("state_dict", "deepcopy")
        if c in limits.changes and draw.random() < 0.15
    ]
    maximize = draw.random() < 0.1
    case = Case(seed, number, structure, tuple(groups), maximize, tuple(changes))
    return _in_memory(case, limits) if limits.memory else case


def _in_memory(case: Case, limits: Limits) -> Case:
    """The case with numbers of numpy, and with tensors in unusual memory."""
    draw = random.Random(f"memory {case.seed} {case.number}")
    groups = [
        replace(
            group,
            weights=tuple(_perhaps_negative(draw, limits, weight) for weight in group.weights),
            numbers=_of_numpy(group.numbers, case.structure)
            if draw.random() < 0.2
            else group.numbers,
        )
        for group in case.groups
    ]
    weights = {(g, i): w for g, group in enumerate(groups) for i, w in enumerate(group.weights)}
    pairs = [
        (p, q)
        for p, one in weights.items()
        for q, other in weights.items()
        if one.dtype == other.dtype and 0 < one.numel <= other.numel
    ]
    often = draw.choice((0.0, 0.0, 0.4))
    lent = tuple(
        Lent(step, *draw.choice(pairs), draw.random() < 0.3)
        for step in range(STEPS)
        if pairs and draw.random() < often
    )
    overlap = None
    if limits.overlaps and draw.random() < 0.3:
        at_once = [
            (p, q)
            for p, q in pairs
            if p != q
            and {weights[p].layout, weights[q].layout} == {"contiguous"}
            and not (case.groups[p[0]].since or case.groups[q[0]].since)
        ]
        if at_once:
            p, q = sorted(draw.choice(at_once))
            smaller = min(weights[p].numel, weights[q].numel)
            overlap = p, q, draw.choice((smaller, draw.randint(1, smaller)))
    negated = tuple(step for step in range(1, STEPS) if draw.random() < 0.05)
    return replace(case, groups=tuple(groups), lent=lent, overlap=overlap, negated=negated)


def _perhaps_negative(draw: random.Random, limits: Limits, weight: Weight) -> Weight:
    if draw.random() < 0.15:
        weight = replace(weight, grad_layout=draw.choice(("negative", "conjugate")))
    if limits.negative and draw.random() < 0.08:
        weight = replace(weight, layout="negative")
    return weight


def _of_numpy(
    numbers: tuple[dict[str, Any], ...], structure: Structure
) -> tuple[dict[str, Any], ...]:
    intervals = dict(structure.numbers)

    def converted(name: str, value: Any) -> Any:
        if type(value) is not float:
            return value
        single = np.float32(value)
        kept = (float(single) == 0) == (value == 0) and float(single) in intervals[name]
        return single if kept else np.float64(value)

    return tuple({name: converted(name, x) for name, x in step.items()} for step in numbers)


def _draw_sweep(
    draw: random.Random, limits: Limits, structure: Structure, seed: int, number: int
) -> Case:
    """Two points, the groups, times two seeds, which are adjacent weights."""
    one, two = (
        _Numbers(draw, limits, structure, frozenset()).over_time(False)[0] for _ in range(2)
    )
    swept = {
        name for name in one if name == "lr" or draw.random() < 0.5
    }  # a schedule needs lr among them
    two = {name: two[name] if name in swept else one[name] for name in one}
    factors = (1.0,) * STEPS
    if draw.random() < 0.5:
        factors = (1.0, *(draw.choice((1.0, 0.5, 0.1, 0.0, 2.0)) for _ in range(STEPS - 1)))
    weights = []
    for _ in range(draw.choice((1, 2))):
        weight = _draw_weight(draw, limits, structure)
        weights += [weight, Weight(**{**vars(weight), "seed": weight.seed + 1})]
    groups = tuple(
        Group(tuple(weights), tuple({**p, "lr": p["lr"] * f} for f in factors)) for p in (one, two)
    )
    return Case(seed, number, structure, groups, False, (), factors)
