"""Recipes whose code takes some numbers otherwise than others, where a law could be false.

Most look at the type of a number: a trace sees tensors, and users give plain numbers.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch

import spherenorm as sn
from spherenorm import Rule, Scalar, chain
from spherenorm import rules as r
from spherenorm.numerics import is_concrete
from tests.theory.recipes import By, Keeps, count


def of_plain(number, function):
    """The function of a plain number; a tensor as it is."""
    return number if isinstance(number, torch.Tensor) else function(number)


def steps(factor, lr):
    """Momentum, and the direction times a factor."""
    return chain(r.HeavyBall(0.9), By(lambda w, d, c: d * c, (factor,)), r.StepSize(lr))


def capped(lr=0.1, c=4.0):
    return steps(of_plain(c, lambda x: min(x, 2.0)), lr)


def capped_by_an_error(lr=0.1, c=4.0):
    with contextlib.suppress(Exception):
        c = min(c, 2.0)
    return steps(c, lr)


def raised(lr=0.1, c=0.01):
    return steps(of_plain(c, lambda x: max(x, 0.02)), lr)


def doubled_above_one(lr=0.1, c=3.0):
    return steps(of_plain(c, lambda x: 2 * x if x > 1 else x), lr)


def truncated(lr=0.1, c=2.7):
    return steps(of_plain(c, int), lr)


def rounded(lr=0.1, c=1.4):
    return steps(of_plain(c, round), lr)


def turned(lr=0.1, c=5.0):
    return steps(of_plain(c, lambda x: x if x < 3 else -x), lr)


def without_sign(lr=0.1, c=-2.0):
    return steps(of_plain(c, abs), lr)


def other_at_one(lr=0.1, c=1.0):
    return steps(of_plain(c, lambda x: 3.0 if x == 1 else x), lr)


def other_at_a_whole_number(lr=0.1, c=2.0):
    return steps(of_plain(c, lambda x: 3.0 if float(x).is_integer() else x), lr)


def other_beyond_all(lr=0.1, c=1e7):
    return steps(of_plain(c, lambda x: 1.0 if x > 1e6 else x), lr)


def other_for_tiny(lr=0.1, c=1e-9):
    return steps(of_plain(c, lambda x: 1.0 if x < 1e-6 else x), lr)


def fast_rate(lr=10.0, c=0.5):
    return steps(c, of_plain(lr, lambda x: min(x, 1.0)))


def long_memory(lr=0.1, momentum=0.999):
    return chain(r.HeavyBall(of_plain(momentum, lambda x: min(x, 0.99))), r.StepSize(lr))


def second_of_a_tuple(lr=0.1, betas=(0.5, 0.999)):
    beta2 = of_plain(betas[1], lambda x: min(x, 0.99))
    return chain(r.HeavyBall(betas[0]), r.HeavyBall(beta2), r.StepSize(lr))


def by_length(lr=0.1, betas=(0.5, 0.9, 0.8)):
    used_betas = betas[:2] if len(betas) > 2 else betas
    return chain(*(r.HeavyBall(beta) for beta in used_betas), r.StepSize(lr))


def decay_of_two(lr=0.1, c=4.0, weight_decay=0.01):
    """The number acts in two rules, and in one of them otherwise."""
    share = of_plain(c, lambda x: min(x, 2.0))
    momentum = By(lambda w, d, x: d * x, (c,))
    return chain(momentum, r.DecoupledDecay(share * weight_decay), r.StepSize(lr))


class Start(Rule):
    """The direction times a state that starts at a number."""

    c: Scalar = 4.0
    state_names = ("size",)

    def init(self, weight):
        size = of_plain(self.c, lambda x: min(x, 2.0))
        return {"size": torch.as_tensor(size, dtype=torch.float64).clone()}

    def update(self, update, state):
        return update.replace(direction=update.direction * state["size"]), dict(state)


def started(lr=0.1, c=4.0):
    return chain(r.HeavyBall(0.9), Start(c), r.StepSize(lr))


class LateStart(Start):
    """A state that starts at another number, and moves to this one."""

    def update(self, update, state):
        size = (state["size"] + self.c) / 2
        return update.replace(direction=update.direction * size), {"size": size}


def started_late(lr=0.1, c=4.0):
    return chain(r.HeavyBall(0.9), LateStart(c), r.StepSize(lr))


def counting(function, *numbers):
    def update(w, d, step, *numbers):
        return d * function(step + 1, *numbers), step + 1

    return Keeps(update, count, "step", numbers)


def warm(lr=0.1, k=50):
    """A warm-up that torch's operations decide."""
    return chain(counting(lambda t, k: (t / k).clamp(max=1.0), k), r.StepSize(lr))


def warm_by_plain(lr=0.1, k=50):
    last = of_plain(k, lambda x: min(x, 20))
    return chain(counting(lambda t, k: (t / k).clamp(max=1.0), last), r.StepSize(lr))


def late_and_large(lr=0.1, c=4.0, k=50):
    """Above one, and after k steps."""
    late = of_plain(c, lambda x: 2.0 * x if x > 1 else x)
    return chain(
        counting(lambda t, c, late, k: torch.where(t > k, t * 0 + late, t * 0 + c), c, late, k),
        r.StepSize(lr),
    )


def late_sign(lr=0.1, k=7.5):
    """A sign that the count decides; k is rounded where it is plain."""
    return chain(counting(lambda t, k: torch.sign(k - t), of_plain(k, round)), r.StepSize(lr))


def read_by_numpy(lr=0.1, c=4.0):
    return steps(float(np.asarray(c)) if isinstance(c, float) else float(c.numpy()), lr)


def branching(lr=0.1, c=4.0):
    return steps(2 * c if c > 1 else c, lr)


def clamped(lr=0.1, c=4.0):
    """A cap that torch's operations decide, for plain numbers too."""

    def function(w, d, c):
        return d * torch.as_tensor(c, dtype=torch.float64).clamp(max=2.0)

    return chain(r.HeavyBall(0.9), By(function, (c,)), r.StepSize(lr))


def stepping(lr=0.1, c=3.4):
    """A floor that torch's operations take."""

    def function(w, d, c):
        return d * torch.floor(torch.as_tensor(c, dtype=torch.float64))

    return chain(r.HeavyBall(0.9), By(function, (c,)), r.StepSize(lr))


def equal(lr=0.1, c=1.0):
    """Equal to one only by choice, which torch's operations decide."""

    def function(w, d, c):
        c = torch.as_tensor(c, dtype=torch.float64)
        return d * torch.where(c == 1, c * 0 + 3, c)

    return chain(r.HeavyBall(0.9), By(function, (c,)), r.StepSize(lr))


def another_state(lr=0.1, c=4.0):
    return chain(*of_plain([r.HeavyBall(0.9)] if not_large(c) else [], list), r.StepSize(lr))


def not_large(c):
    return isinstance(c, torch.Tensor) or c < 2


def rows_of_large(lr=0.1, c=4.0):
    """Otherwise where the number is large and the weight has several rows."""

    def function(w, d, c):
        return d * c if isinstance(c, torch.Tensor) or len(w) == 1 else d * min(c, 2.0)

    return chain(r.HeavyBall(0.9), By(function, (c,)), r.StepSize(lr))


def flagged(lr=0.1, flag=False, c=4.0):
    return steps(of_plain(c, lambda x: min(x, 2.0)) if flag else c, lr)


def usual_but_capped(lr=0.1, c=0.5):
    return steps(of_plain(c, lambda x: min(x, 2.0)), lr)


def far_but_capped(lr=0.1, c=0.5):
    """Beyond all numbers that are drawn."""
    return steps(of_plain(c, lambda x: min(x, 1e6)), lr)


def decays(lr=0.1, weight_decay=0.01):
    return chain(r.DecoupledDecay(weight_decay), r.StepSize(lr))


def decays_at_most(lr=0.1, weight_decay=0.01):
    """Beyond all numbers that are drawn."""
    return decays(lr, of_plain(weight_decay, lambda x: min(x, 2e3)))


def seen_as_it_runs(test):
    """Half the direction where a test of weight and direction holds, which no trace can decide."""

    def function(w, d):
        holds = test(w, d)
        return d / 2 if is_concrete(holds) and bool(holds) else d

    def recipe(lr=0.1):
        return chain(By(function), r.StepSize(lr))

    return recipe


large_weight = seen_as_it_runs(lambda w, d: w.norm() > 50)
small_weight = seen_as_it_runs(lambda w, d: w.norm() < 1e-2)
large_direction = seen_as_it_runs(lambda w, d: d.norm() > 100)


def in_a_window(lr=0.1):
    """Half the direction at the steps between two, which no trace can decide."""

    def function(w, d, t):
        inside = (t > 60) & (t < 290)
        return (d / 2 if is_concrete(inside) and bool(inside) else d), t + 1

    return chain(Keeps(function, count, "step"), r.StepSize(lr))


def by_shape(test):
    """Half the direction for weights of some shapes."""

    def recipe(lr=0.1):
        return chain(By(lambda w, d: d / 2 if test(w) else d), r.StepSize(lr))

    return recipe


of_float32 = by_shape(lambda w: w.dtype == torch.float32)
of_an_even_size = by_shape(lambda w: w.shape[-1] % 2 == 0)
of_many_rows = by_shape(lambda w: len(w) > 5)
of_many_entries = by_shape(lambda w: w.numel() > 400)


def clipped_as_a_whole(lr=0.1):
    """A clip that acts on long directions alone, of all units together."""
    return chain(By(lambda w, d: d * (300 / d.norm()).clamp(max=1.0)), r.StepSize(lr))


def decays_a_long_whole(lr=0.1):
    """A decay that acts on long weights alone, of all units together."""
    return chain(By(lambda w, d: d + w * (w.norm() > 300)), r.StepSize(lr))


def decays_each_seventh(lr=0.1, weight_decay=0.1):
    def function(w, d, t, weight_decay):
        is_due = torch.remainder(t + 1, 7) == 0
        return d + torch.where(is_due, weight_decay * w, torch.zeros_like(w)), t + 1

    return chain(Keeps(function, count, "step", (weight_decay,)), r.StepSize(lr))


def of_a_list(lr=0.1, betas=[0.9, 0.8]):  # noqa: B006  (the recipe asks for its type)
    factor = 2.0 if isinstance(betas, list) else 1.0
    scale = By(lambda w, d, c: d * c, (factor,))
    return chain(r.HeavyBall(betas[0]), r.HeavyBall(betas[1]), scale, r.StepSize(lr))


class LongFactor(r.Orthogonalize):
    """An orthogonal factor times the norm of the weight, of which no letter O is true."""

    def update(self, update, state):
        new, state = super().update(update, state)
        return new.replace(direction=new.direction * update.weight.norm()), state


def long_factor(lr=0.1, momentum=0.9):
    return chain(r.HeavyBall(momentum), LongFactor(), r.StepSize(lr))


def number(value):
    """A state of one number, which starts at `value`."""
    return lambda weight: torch.full((), float(value), dtype=torch.float64)


def by_own_state(factor, after, start=0):
    """A factor of the direction by a state that evolves by itself."""

    def function(w, d, c):
        c = after(c)
        return d * factor(c), c

    def recipe(lr=0.1, momentum=0.5, weight_decay=0.1):
        keeps = Keeps(function, number(start))
        last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
        return chain(keeps, r.HeavyBall(momentum), *last)

    return recipe


def half_where(condition):
    return lambda c: torch.where(condition(c), 0.5, 1.0)


def restart(is_at_end):
    """A count that starts again."""
    return lambda c: torch.where(is_at_end(c), torch.zeros_like(c), c + 1)


def restarted_momentum(lr=0.1, weight_decay=0.1):
    """A momentum that is 0 at each third step."""

    def function(w, d, c, m):
        c = torch.where(c >= 2, torch.zeros_like(c), c + 1)
        m = d + 0.5 * torch.where(c == 0, torch.zeros_like(m), m)
        return m, c, m

    class Restarted(Keeps):
        def init(self, weight):
            return {"c": count(weight), "m": torch.zeros_like(weight)}

    last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(Restarted(function, names="c m"), *last)


def decays_each_fifth(lr=0.1):
    def function(w, d, c):
        c = torch.where(c == 4, torch.zeros_like(c), c + 1)
        return torch.where(c == 0, d + 0.5 * w, d), c

    return chain(Keeps(function), r.StepSize(lr))


def counts_signs(lr=0.1, momentum=0.5, weight_decay=0.1):
    """A factor after three changes of direction, of which the gradients decide."""

    def function(w, d, c, m):
        c = c + torch.where((d * m).sum() < 0, 1.0, 0.0)
        return torch.where(c == 3, d, 0.5 * d), c, d

    class Counts(Keeps):
        def init(self, weight):
            return {"c": count(weight), "m": torch.zeros_like(weight)}

    last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(Counts(function, names="c m"), r.HeavyBall(momentum), *last)


def flags_a_long_gradient(lr=0.1, momentum=0.5, weight_decay=0.1):
    """Half the direction of each unit since its first long one."""

    def function(w, d, c):
        c = torch.where(d.norm(dim=1, keepdim=True) > 2, torch.ones_like(c), c)
        return torch.where(c > 0, 0.5 * d, d), c

    keeps = Keeps(function, lambda weight: torch.zeros_like(weight[:, :1]))
    last = r.DecoupledDecay(weight_decay), r.StepSize(lr)
    return chain(keeps, r.HeavyBall(momentum), *last)


OWN_STATES = {
    "cycle, equal": (by_own_state(half_where(lambda c: c == 0), restart(lambda c: c >= 2)), None),
    "cycle, less": (by_own_state(half_where(lambda c: c < 2), restart(lambda c: c == 3)), None),
    "cycle, mod": (by_own_state(half_where(lambda c: c != 0), lambda c: (c + 1) % 3), None),
    "long cycle": (by_own_state(half_where(lambda c: c == 0), restart(lambda c: c > 800)), None),
    "powers": (
        by_own_state(half_where(lambda c: c > 4), lambda c: torch.where(c < 8, 2 * c, 1.0), 1),
        None,
    ),
    "toggle": (by_own_state(lambda c: 1 + c, lambda c: 1 - c), None),
    "toggle, equal": (by_own_state(half_where(lambda c: c == 1), lambda c: 1 - c), None),
    "toggle, above": (by_own_state(half_where(lambda c: c > 0), lambda c: 1 - c), None),
    "sign": (by_own_state(lambda c: 2 + c, lambda c: -c, 1), None),
    "restarted momentum": (restarted_momentum, None),
    "decay": (decays_each_fifth, None),
    "signs of gradients": (counts_signs, None),
    "flag of gradients": (flags_a_long_gradient, None),
    "flag": (by_own_state(half_where(lambda c: c > 0), torch.ones_like), 0.5),
    "flag, equal": (by_own_state(half_where(lambda c: c == 0), lambda c: 0 * c + 1), 1.0),
    "saturates": (
        by_own_state(half_where(lambda c: c == 7), lambda c: (c + 1).clamp(max=7)),
        0.5,
    ),
    "saturates late": (
        by_own_state(half_where(lambda c: c >= 5), lambda c: torch.where(c < 2000, c + 1, c)),
        0.5,
    ),
    "counts down": (
        by_own_state(half_where(lambda c: c > 0), lambda c: (c - 1).clamp(min=0), 9),
        1.0,
    ),
}
"""Recipes by a state of their own, and the factor that is left in the end; None without an end."""

averaged_capped = sn.wrappers.averaged(capped)
turned_capped = sn.wrappers.rotational(capped)
sphere_capped = sn.wrappers.hyperball(capped)

LAW, REFUSED = "law", "refused"
VERDICTS = [
    (capped, {}, REFUSED),
    (capped, {"c": 4.0}, LAW),
    (capped, {"c": 1.0}, LAW),
    (capped, {"lr": 3.0, "c": 4.0}, LAW),
    (capped_by_an_error, {}, REFUSED),
    (capped_by_an_error, {"c": 4.0}, LAW),
    (raised, {}, REFUSED),
    (raised, {"c": 0.01}, LAW),
    (doubled_above_one, {}, REFUSED),
    (doubled_above_one, {"c": 3.0}, LAW),
    (truncated, {}, REFUSED),
    (truncated, {"c": 2.7}, LAW),
    (rounded, {}, REFUSED),
    (rounded, {"c": 1.4}, LAW),
    (turned, {}, REFUSED),
    (turned, {"c": 5.0}, LAW),
    (without_sign, {}, REFUSED),
    (without_sign, {"c": -2.0}, LAW),
    (other_at_one, {}, REFUSED),
    (other_at_one, {"c": 1.0}, LAW),
    (other_at_one, {"c": 1.5}, LAW),
    (other_at_a_whole_number, {}, REFUSED),
    (other_at_a_whole_number, {"c": 2.0}, LAW),
    (other_beyond_all, {}, REFUSED),
    (other_beyond_all, {"c": 1e7}, LAW),
    (other_for_tiny, {}, REFUSED),
    (other_for_tiny, {"c": 1e-9}, LAW),
    (fast_rate, {}, REFUSED),
    (fast_rate, {"lr": 10.0}, LAW),
    (long_memory, {}, REFUSED),
    (long_memory, {"momentum": 0.999}, LAW),
    (second_of_a_tuple, {}, REFUSED),
    (second_of_a_tuple, {"betas": (0.5, 0.999)}, LAW),
    (by_length, {}, LAW),
    (by_length, {"betas": (0.5, 0.9, 0.7)}, LAW),
    (decay_of_two, {}, REFUSED),
    (decay_of_two, {"c": 4.0}, LAW),
    (started, {}, REFUSED),
    (started, {"c": 4.0}, LAW),
    (started_late, {}, LAW),
    (warm, {}, LAW),
    (warm, {"k": 30.0}, LAW),
    (warm_by_plain, {}, REFUSED),
    (warm_by_plain, {"k": 50.0}, LAW),
    (late_and_large, {}, REFUSED),
    (late_and_large, {"c": 4.0, "k": 50.0}, LAW),
    (late_sign, {}, REFUSED),
    (late_sign, {"k": 7.5}, LAW),
    (late_sign, {"k": 8.0}, LAW),
    (read_by_numpy, {}, REFUSED),
    (read_by_numpy, {"c": 4.0}, LAW),
    (branching, {}, REFUSED),
    (branching, {"c": 4.0}, LAW),
    (branching, {"c": 0.5}, LAW),
    (clamped, {}, LAW),
    (clamped, {"c": 4.0}, LAW),
    (stepping, {}, REFUSED),
    (stepping, {"c": 3.4}, REFUSED),
    (equal, {}, REFUSED),
    (equal, {"c": 1.0}, LAW),
    (another_state, {}, REFUSED),
    (another_state, {"c": 4.0}, LAW),
    (rows_of_large, {}, LAW),
    (flagged, {}, LAW),
    (flagged, {"flag": True}, REFUSED),
    (flagged, {"flag": True, "c": 4.0}, LAW),
    (usual_but_capped, {}, REFUSED),
    (usual_but_capped, {"c": 0.5}, LAW),
    (usual_but_capped, {"c": 3.0}, LAW),
    (far_but_capped, {}, LAW),
    (far_but_capped, {"c": 1e7}, LAW),
    (large_weight, {}, REFUSED),
    (small_weight, {}, REFUSED),
    (large_direction, {}, REFUSED),
    (in_a_window, {}, REFUSED),
    (of_float32, {}, REFUSED),
    (of_an_even_size, {}, REFUSED),
    (of_many_rows, {}, LAW),
    (of_many_entries, {}, REFUSED),
    (clipped_as_a_whole, {}, LAW),
    (decays_each_seventh, {}, LAW),
    (of_a_list, {}, LAW),
    (of_a_list, {"betas": (0.5, 0.25)}, LAW),
    (long_factor, {}, REFUSED),
    (averaged_capped, {}, REFUSED),
    (averaged_capped, {"c": 4.0, "start": 0}, LAW),
    (turned_capped, {}, REFUSED),
    (turned_capped, {"c": 4.0}, LAW),
    (sphere_capped, {}, LAW),
    (sphere_capped, {"c": 4.0}, LAW),
]
"""A recipe, the numbers that are given, and whether there is a law for them."""
