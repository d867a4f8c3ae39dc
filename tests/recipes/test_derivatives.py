"""Derivatives of steps, of first and second order and in all modes, are those of the values."""

import itertools

import pytest
import torch
from torch.func import jacfwd, jacrev

from spherenorm import bind
from tests.harness import ANY_WEIGHTS, ROWS, gradient
from tests.harness.rows import parameters
from tests.harness.tables import mostly_long

pytestmark = ANY_WEIGHTS

STEPS = 2
SMOOTH = {
    "lr": 0.05,
    "momentum": 0.6,
    "dampening": 0.1,
    "weight_decay": 0.2,
    "wd_ratio": 0.3,
    "eps": 0.1,
    "alpha": 0.4,
    "nu": 1.0,
    "betas": (0.7, 0.8),
}
"""Hyper-parameters, at values at which differences in float64 are good to nine digits."""

# (The dampening is left out where a momentum of 0 ignores it: there the step has a jump.)
ZEROS = {
    "inside": {},
    "switched off": {"momentum": 0.0, "weight_decay": 0.0, "alpha": 0.0, "dampening": None},
    "other zeros": {"wd_ratio": 0.0, "betas": (0.0, 0.8), "dampening": 0.0},
    "no step": {"lr": 0.0},
}


def loss_of(row, zeros):
    """A loss after some steps of `row`, as a function of one vector; and a value of the vector.

    Its entries are the hyper-parameters that are numbers, and the length of the start.
    """
    parameter_names = bind(row.cls.recipe).defaults
    given = {name: value for name, value in {**SMOOTH, **zeros}.items() if name in parameter_names}
    still = {name: 0.0 for name, value in given.items() if value is None}
    given = {name: value for name, value in given.items() if name not in still}
    if row.cls.recipe.__name__ == "rmsprop":
        given["alpha"] = 0.4  # of no memory, the centered variance is 0, of which no root has one
    start = next(w.detach() for w in parameters() if w.ndim == 2)
    grads = [
        gradient("row_tangential", start, torch.Generator().manual_seed(step), 0)
        for step in range(STEPS)
    ]
    mask = torch.ones_like(start)
    if "weight_decay" not in zeros:  # by which |w weight_decay|, in a second moment, has none at 0
        mask[1] = 0

    def loss(values):
        entries = iter(values)
        numbers = {
            name: tuple(next(entries) for _ in value) if name == "betas" else next(entries)
            for name, value in given.items()
        }
        rule, weight = row.rule(**numbers, **still), start * next(entries)
        state = rule.init(weight)
        for grad in grads:
            weight, state = rule.step(weight, mask * (grad + 0.1 * weight**2), state)
        return (weight**3).mean()

    flat = [x for value in given.values() for x in (value if type(value) is tuple else (value,))]
    return loss, torch.tensor([*flat, 1.0], dtype=torch.float64)


def differences(function, x, h=5e-4):
    """The derivative of `function` by each entry of `x`, by central differences of sixth order."""
    ways = h * torch.tensor([1.0, 2, 3, -1, -2, -3], dtype=x.dtype)[:, None, None]
    values = torch.vmap(torch.vmap(function))(x + ways * torch.eye(len(x), dtype=x.dtype))
    one, two, three = values[:3] - values[3:]
    return ((45 * one - 9 * two + three) / (60 * h)).movedim(0, -1)


SLOW = [row for row in ROWS if row.fewest == 2 or str(row).startswith("adamg")]
"""Their steps take long, and no number of theirs vanishes that no other row has."""


JUMPS_AT_REST = {"ngpt", "muonsphere", "spel"}
"""Recipes of a fixed sphere: any rate but 0 moves a weight there, so a rate of 0 is a jump."""


def concerned(row):
    """The cases of `ZEROS` that concern a recipe."""
    parameter_names = bind(row.cls.recipe).defaults.keys() - {"dampening"}
    if str(row).partition("-")[0] in JUMPS_AT_REST:
        parameter_names = parameter_names - {"lr"}
    return [at for at, zeros in ZEROS.items() if not zeros or zeros.keys() & parameter_names]


def few_rows():
    """Rows that together hold all rules: the one with most of those that are missing, in turn."""
    classes = {str(row): {type(each) for each in row.rule().walk()} for row in ROWS}
    missing, chosen_rows = set().union(*classes.values()), []
    while missing:
        row = max(ROWS, key=lambda row: len(classes[str(row)] & missing))
        missing -= classes[str(row)]
        chosen_rows.append(row)
    return chosen_rows


def cases(rows, slow=()):
    return [
        pytest.param(row, ZEROS[at], id=f"{row}-{at}")
        for row in rows
        for at in (concerned(row) if row not in slow else ("inside",))
    ]


@pytest.mark.parametrize(("row", "zeros"), mostly_long(cases(ROWS), kept=36))
def test_derivatives_by_all_hyper_parameters(row, zeros):
    """Also by those that are 0, where the term that they scale has vanished."""
    loss, x = loss_of(row, zeros)
    first = differences(loss, x)
    for mode in (jacfwd, jacrev):
        torch.testing.assert_close(mode(loss)(x), first, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("row", "zeros"),
    mostly_long(cases(few_rows(), slow=SLOW), kept=9),
)
def test_derivatives_of_second_order(row, zeros):
    loss, x = loss_of(row, zeros)
    second = differences(jacrev(loss), x)
    for outer, inner in itertools.product((jacfwd, jacrev), repeat=2):
        torch.testing.assert_close(outer(inner(loss))(x), second, rtol=1e-8, atol=1e-8)


SILENT = {"nothing": (slice(0),), "column": (slice(None), 1), "row": (1,), "all": ()}
"""Entries whose gradient is 0 at each step."""


@pytest.mark.parametrize("row", mostly_long(ROWS, kept=18), ids=str)
def test_derivatives_by_the_learning_rate_where_gradients_vanish(row):
    """Backward and forward: a step of 0, not nan."""
    start, h = next(w.detach() for w in row.parameters() if w.ndim == 2), 1e-6
    lr = torch.tensor(0.02, dtype=torch.float64)
    grads = [
        gradient("row_tangential", start, torch.Generator().manual_seed(step), 0)
        for step in range(STEPS)
    ]
    for name, entries in SILENT.items():
        mask = torch.zeros_like(start, dtype=torch.bool)
        mask[entries] = True

        def final(lr, mask=mask):
            rule, weight = row.rule(lr=lr), start
            state = rule.init(weight)
            for grad in grads:
                heard = torch.where(mask, 0, grad + 0.1 * weight**2)
                weight, state = rule.step(weight, heard, state)
            return (weight**3).sum()

        difference = (final(lr + h) - final(lr - h)) / (2 * h)
        backward = torch.func.grad(final)(lr)
        _, forward = torch.func.jvp(final, (lr,), (torch.ones_like(lr),))
        for derivative in (backward, forward):
            torch.testing.assert_close(
                derivative, difference, rtol=1e-5, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}"
            )
