"""The promises of a recipe, each a function of a `Subject`.

It returns what was compared, in words. It raises AssertionError with the first thing that does not
hold, or `RefusedError` with the reason why nothing can be compared.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from spherenorm.compile import BackendError
from spherenorm.optim import torch_optimizer
from spherenorm.recipes import sgdp
from spherenorm.registry import Recipe, wrapper_call
from spherenorm.rule import State, trial_state
from spherenorm.testing.subject import STEPS, RefusedError, Subject, apart, named
from spherenorm.testing.writes import writes_of
from spherenorm.torch_internals import pytree

ROUNDING = 1e-10
"""Of float64, through the cancellations of a projection."""
BATCHED = 1e-8
"""Of float64, through eigenvectors, which another order of sums turns by rounding over a gap."""


def pure(subject: Subject) -> str:
    """The same arguments give the same bits, also by a rule that is made anew."""
    rule = subject.rule()
    for weight, grad, state in subject.warm():
        with named(f"a step of shape {tuple(weight.shape)}"):
            first, again = rule.step(weight, grad, state), rule.step(weight, grad, state)
            anew = subject.rule().step(weight, grad, state)
        for other, when in ((again, "a second time"), (anew, "by the rule made anew")):
            off = apart(other, first, 0)
            assert off is None, f"the same step {when}: {off}"
    return "equal bits a second time, and by the rule made anew"


def writes_into_nothing(subject: Subject) -> str:
    """The arguments of each rule's `init`, `global_sum_terms` and `update` stay as they are."""
    rule = subject.rule()
    for weight, grad, state in subject.warm():
        with writes_of(rule) as writes, named(f"a step of shape {tuple(weight.shape)}"):
            rule.init(weight)
            rule.step(weight, grad, state)
        assert not writes, f"{writes[0]}; return new tensors instead"
    return "weight, gradient and state are as before"


def shapes(subject: Subject) -> str:
    """Weight and states keep their shape and dtype, whatever the shape of the weight."""
    for shape in subject.shapes:
        weight = subject.weight(shape)
        with named(f"steps of shape {shape}"):
            fresh = trial_state(subject.rule(), weight)
            moved, state = subject.run(subject.rule(), weight)
        assert moved.shape == weight.shape, f"a weight of shape {shape} comes back as {moved.shape}"
        assert state.keys() == fresh.keys(), f"{sorted(state)} after steps, {sorted(fresh)} before"
        for name, value in state.items():
            kinds = [(tuple(x.shape), x.dtype) for x in (value, fresh[name])]
            assert kinds[0] == kinds[1], f"the state {name!r} is {kinds[0]}, it was {kinds[1]}"
    taken = ", ".join(map(str, subject.shapes))
    why = "".join(f"; {shape} refused: {reason}" for shape, reason in subject.refused.items())
    assert subject.shapes, f"no weight is taken{why}"
    return f"{taken}{why}"


def dtypes(subject: Subject) -> str:
    """Half precision is the float32 step, rounded once; float32 is near float64."""
    rule = subject.rule()
    for shape in subject.shapes:
        double = subject.weight(shape).float().double()
        with named(f"steps of shape {shape}"):
            for dtype in (torch.bfloat16, torch.float16):
                weight = double.to(dtype)
                grad = subject.grad(weight, 0)
                ours = rule.step(weight, grad, trial_state(rule, weight))
                single = weight.float()
                moved, state = rule.step(single, grad.float(), trial_state(rule, single))
                off = apart(ours, (moved.to(dtype), state), 0)
                assert off is None, f"a step in {dtype} is not the float32 step, rounded: {off}"
            grad = subject.grad(double, 0).float().double()
            wide, _ = rule.step(double, grad, trial_state(rule, double))
            single, _ = rule.step(double.float(), grad.float(), trial_state(rule, double.float()))
        assert single.dtype is torch.float32, f"a float32 weight comes back as {single.dtype}"
        off = apart((single.double(), {}), (wide, {}), 1e-4)
        assert off is None, f"float32 differs from float64: {off}"
    return "half precision is float32, rounded once; float32 is near float64"


def finite(subject: Subject) -> str:
    """Zero gradients, and gradients of 1e-6 and 1e6, give finite steps."""
    rule = subject.rule()
    for shape in subject.shapes:
        for scale in (0.0, 1e-6, 1e6):
            weight = subject.weight(shape)
            state = trial_state(rule, weight)
            with named(f"gradients of {scale:g}"):
                for step in range(STEPS):
                    grad = scale * subject.grad(weight, step)
                    weight, state = rule.step(weight, grad, state)
            for what, x in {"the weight": weight, **state}.items():
                whole = bool(x.isfinite().all())
                assert whole, (
                    f"gradients of {scale:g}: {what} of shape {tuple(x.shape)} is not finite"
                )
    return "gradients of 0, 1e-6 and 1e6"


def acts(subject: Subject) -> str:
    """Each number and switch among the hyper-parameters changes a step; lr = 0 moves nothing."""
    awake = _awake(subject)
    tried = []
    for name, default in subject.bound.hyper_parameters.items():
        entries = enumerate(default) if isinstance(default, tuple | list) else [(None, default)]
        for index, entry in entries:
            if type(entry) not in (bool, int, float):
                continue
            if name in _unused_by_design(subject):
                continue
            label = name if index is None else f"{name}[{index}]"
            found = any(
                _changes_a_step(subject, name, index, _other_values(entry), base)
                for base in _bases(subject, awake, name)
            )
            assert found, f"{label} acts nowhere: no other value of it changed a step"
            tried.append(label)
    if "lr" in subject.bound.hyper_parameters and _is_taken(subject, {"lr": 0.0}):
        for base in ({}, awake):
            _moves_nothing(subject, {**base, "lr": 0.0})
    return ", ".join(tried) or "no numbers"


UNUSED: dict[Recipe, tuple[str, ...]] = {sgdp: ("eps",)}
"""Hyper-parameters that a recipe takes for another package's sake, as its docstring says."""
LATER_STEPS = 2 * STEPS
"""So many steps show a number that acts from the second step on, or every few steps."""
SMALLEST_ACTION = 1e-9
"""Relative to a weight's largest entry: less is rounding."""


def _unused_by_design(subject: Subject) -> tuple[str, ...]:
    """The names of `UNUSED` of the recipe, and of the recipes within a wrapped one."""
    recipe, names = subject.bound.recipe, UNUSED.get(subject.bound.recipe, ())
    while call := wrapper_call(recipe):
        recipe = call.inner
        names += UNUSED.get(recipe, ())
        if "weight_decay" not in subject.bound.hyper_parameters:  # the wrapper steps it without
            names += ("wd_ratio",)
    return names


def _other_values(entry: Any) -> list[Any]:
    """Values to compare one with, from near to far."""
    if isinstance(entry, bool):
        return [not entry]
    if isinstance(entry, int):
        return [entry + 1, 2, 1, 0]
    return [0.5 * entry, 0.5 * (1 + entry), entry + 0.1, 20.0 * entry, 1.0, 0.0, 1e-3 * entry]


def _awake(subject: Subject) -> dict[str, Any]:
    """Values for numbers that are 0 by default, which may switch others off: sgd's dampening acts
    beside a momentum alone."""
    chosen: dict[str, Any] = {}
    for name, default in subject.bound.hyper_parameters.items():
        if type(default) is float and default == 0 and name != "lr":
            for value in (0.5, 2.0):
                if _is_taken(subject, {**chosen, name: value}):
                    chosen[name] = value
                    break
    return chosen


def _bases(subject: Subject, awake: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Settings of the other hyper-parameters at which one may act: the defaults, the numbers that
    are 0 switched on, and each switch beside them."""
    awake = {other: value for other, value in awake.items() if other != name}
    yield {}
    if awake:
        yield awake
    for other, default in subject.bound.hyper_parameters.items():
        if isinstance(default, bool) and other != name:
            yield {**awake, other: not default}


def _changes_a_step(
    subject: Subject, name: str, index: int | None, values: list[Any], base: dict[str, Any]
) -> bool:
    """True if one of the values gives other weights than the default, for some weight."""
    default = subject.bound.hyper_parameters[name]
    if not _is_taken(subject, base):
        return False
    start = _trajectories(subject, base)
    for value in values:
        changed = value
        if index is not None:
            changed = type(default)((*default[:index], value, *default[index + 1 :]))
        if changed == default or not _is_taken(subject, {**base, name: changed}):
            continue
        other = _trajectories(subject, {**base, name: changed})
        for one, two in zip(start, other, strict=True):
            both_step = bool(one.any()) and bool(two.any())
            if both_step and apart((one, {}), (two, {}), SMALLEST_ACTION) is not None:
                return True
    return False


def _trajectories(subject: Subject, settings: dict[str, Any]) -> list[Tensor]:
    """A weight of each shape, and the one to evaluate with, after two steps and after all."""
    weights = []
    for shape in subject.shapes:
        rule, weight = subject.rule(**settings), subject.weight(shape)
        try:
            state = trial_state(rule, weight)
        except (TypeError, ValueError):  # the settings take fewer shapes: of none, nothing moves
            weights += [torch.zeros_like(weight)] * 4
            continue
        with named(f"steps of shape {shape} at {settings}"):
            for step in range(LATER_STEPS):
                weight, state = rule.step(weight, subject.grad(weight, step), state)
                if step in (1, LATER_STEPS - 1):
                    weights += [weight, rule.eval_weight(weight, state)]
    return weights


def _moves_nothing(subject: Subject, settings: dict[str, Any]) -> None:
    """A weight stays where it is, to rounding."""
    if not _is_taken(subject, settings):
        return
    for shape in subject.shapes:
        start = subject.weight(shape)
        with named(f"steps of shape {shape} at {settings}"):
            moved, _ = subject.run(subject.rule(**settings), start)
        off = apart((moved, {}), (start, {}), ROUNDING)
        others = {name: value for name, value in settings.items() if name != "lr"}
        beside = f" (and {others})" if others else ""
        assert off is None, f"lr = 0{beside} moves a weight: {off}"


def vmap(subject: Subject) -> str:
    """A batch of values of each number, and of weights, gives what they give one after another."""
    done = []
    cases = list(subject.warm())
    for weight, grad, state in cases:
        _weights_in_a_batch(subject, weight, grad, state)
    for what, values, enter in _numbers(subject):
        for weight, grad, state in cases:

            def stepped(value: Any, args: Any = (weight, grad, state), enter: Any = enter) -> Any:
                rule, (w, g, held) = subject.rule(**enter(value)), args
                return rule.step(w, g, {**trial_state(rule, w), **held})

            with named(f"vmap over {what}"):
                batch = torch.tensor(values, dtype=torch.float64)
                moved, new = torch.vmap(stepped)(batch)
            for i, value in enumerate(values):
                one = moved[i], {name: x[i] for name, x in new.items()}
                off = apart(one, stepped(value), ROUNDING)
                assert off is None, f"vmap over {what}, at {value:g}: {off}"
        done.append(what)
    return ", ".join(["weights", *done])


def _weights_in_a_batch(subject: Subject, weight: Tensor, grad: Tensor, state: State) -> None:
    """Two weights, the second a step further, step in a batch as they do one after another."""
    rule = subject.rule()
    with named(f"vmap over weights of shape {tuple(weight.shape)}"):
        further, later = rule.step(weight, grad, state)
        pairs = [(weight, grad, state), (further, subject.grad(further, 3), later)]
        batch = pytree.tree_map(lambda *both: torch.stack(both), *pairs)
        moved, new = torch.vmap(rule.step)(*batch)
        ones = [rule.step(*each) for each in pairs]
    for i, one in enumerate(ones):
        off = apart((moved[i], {name: x[i] for name, x in new.items()}), one, BATCHED)
        assert off is None, f"vmap over weights: {off}"


def _numbers(
    subject: Subject,
) -> Iterator[tuple[str, list[float], Callable[[Any], dict[str, Any]]]]:
    """Each number among the hyper-parameters: its name, values to try, and how to set it."""
    for name, default in subject.bound.hyper_parameters.items():
        entries = default if isinstance(default, tuple | list) else (default,)
        for i, entry in enumerate(entries):
            if type(entry) is not float:
                continue

            def enter(value: Any, name: str = name, i: int = i, default: Any = default) -> Any:
                if not isinstance(default, tuple | list):
                    return {name: value}
                return {name: type(default)((*default[:i], value, *default[i + 1 :]))}

            near = [0.9 * entry, 0.95 * entry, entry] if entry else [0.0, 0.01, 0.02]
            values = [value for value in near if _is_taken(subject, enter(value))]
            if not entry and values:  # a Python 0 may leave a term out, and its state with it
                names = subject.rule(**enter(values[-1])).state_keys
                values = [v for v in values if subject.rule(**enter(v)).state_keys == names]
            if values:
                what = f"{name}[{i}]" if isinstance(default, tuple | list) else name
                yield what, values, enter


def _is_taken(subject: Subject, values: dict[str, Any]) -> bool:
    try:
        subject.rule(**values)
    except (ValueError, TypeError):
        return False
    return True


def compiled(subject: Subject) -> str:
    """`backend="compiled"` gives the numbers of the rule's own code."""
    own = _trained(subject, "rule")
    try:
        ours = _trained(subject, "compiled")
    except BackendError as error:
        # (A kernel is compared with the rule's own code before it steps anything.)
        kind = AssertionError if "other numbers" in str(error) else RefusedError
        raise kind(str(error)) from error
    for one, other in zip(ours, own, strict=True):
        off = apart(one, other, 1e-8)
        assert off is None, off
    return f"{STEPS} steps of the rule's own code"


def resumes(subject: Subject) -> str:
    """A run goes on bit for bit from a saved state_dict, which loads with weights_only=True."""
    whole = _trained(subject, "auto", steps=2 * STEPS)
    again = _trained(subject, "auto", steps=2 * STEPS, save_at=STEPS)
    for one, other in zip(again, whole, strict=True):
        off = apart(one, other, 0)
        assert off is None, f"after loading: {off}"
    return "equal bits after saving and loading"


def _trained(
    subject: Subject, backend: str, steps: int = STEPS, save_at: int | None = None
) -> list[tuple[Tensor, dict[str, Tensor]]]:
    """Weights and states after some steps of a torch optimizer."""
    cls = torch_optimizer(subject.bound.recipe)
    weights = [subject.weight(shape).requires_grad_() for shape in subject.shapes]

    def made() -> torch.optim.Optimizer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of weights that cannot move on their sphere
            return cls(weights, backend=backend, **subject.bound.hyper_parameters)

    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        optimizer = made()
        for step in range(steps):
            if step == save_at:
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                optimizer = made()
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            for weight in weights:
                weight.grad = subject.grad(weight, step)
            optimizer.step()
    return [(w.detach(), {k: x.detach() for k, x in optimizer.state[w].items()}) for w in weights]
