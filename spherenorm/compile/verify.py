"""Stage 5, verify: compare an executor with the rule's own code once, before it moves a weight.

A compiler may be wrong, and a user's rule may take another branch on a number than on a tensor that
stands for it. Both sides step small random weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spherenorm.compile.interface import Executor, WeightStep
from spherenorm.compile.rule_key import RuleKey
from spherenorm.numerics import compute_dtype
from spherenorm.record import Unsupported
from spherenorm.rule import Rule, State, trial_state

RunStep = Callable[[Tensor, Tensor, State], None]
"""Steps a weight in place, from its gradient and its state."""

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 1e-2}
"""Allowed error relative to the largest step: far above rounding, far below a wrong formula."""
ROUNDINGS = {torch.float64: 32, torch.float32: 32, torch.bfloat16: 2, torch.float16: 2}
"""Roundings of the result that are allowed on top; half precision is rounded once."""
TRIALS = ((True, 0.0), (True, 9.0), (False, 1.0))
"""(from a fresh state, radial part of the first row): fresh states with tangential rows, then with
a radial one among them, both of which a wrong projection does not pass; and a random state."""


class ResultMismatch(Unsupported):
    """An executor gives other numbers than the rule's own code."""


def verify_executor(
    executor: Executor,
    key: RuleKey,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Compare an executor with the rule's own code.

    Args:
        executor: of weights of `shape`.
        key: of the rule; it is compared at visible step sizes.
        shape, dtype, device: of the weights.

    Raises:
        ResultMismatch: the numbers differ.
        RuntimeError: a CUDA graph is being captured, which must not contain the comparison.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("take a step before it is captured: it is compared with own code once")
    visible = key.with_visible_steps()

    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        steps = [WeightStep(weight, grad, state)]
        executor.bind(steps, executor.literals[None]).run(steps, visible.scalars)

    mismatch = find_mismatch(visible.rule, run, shape, dtype, device)
    if mismatch is not None:
        raise ResultMismatch(
            f"the {executor.name} would give other numbers than the rule's own code: {mismatch}"
        )


def small_shape(rule: Rule, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a small shape with the same equal lengths and order of lengths; none is below 3.

    (A unit of one entry, or none, has steps that are nothing but rounding on a sphere.) A shape for
    which a view of the rule has no units when it is small is returned as it is.
    """
    lengths = sorted(set(shape))
    small = tuple(3 + lengths.index(length) for length in shape)
    try:
        rule.init(torch.ones(small, device="cpu"))
    except ValueError:
        return shape
    return small


def find_mismatch(
    rule: Rule, run: RunStep, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Step random weights by `run` and by the rule's own code.

    Args:
        rule: the rule.
        run: the step to compare.
        shape, dtype, device: of the weights.

    Returns:
        The largest error in words, or None if rounding explains it.
    """
    # Drawn on a CPU, whatever the default device is.
    generator = torch.Generator("cpu").manual_seed(0)

    def draw(sample: Callable[..., Tensor], *lengths: int) -> Tensor:
        return sample(lengths, generator=generator, dtype=torch.float64, device="cpu")

    for is_fresh, radial in TRIALS:
        weight, grad = draw(torch.randn, *shape), draw(torch.randn, *shape)
        if is_fresh and weight.ndim > 1:
            dims = tuple(range(1, weight.ndim))
            share = (weight * grad).sum(dims, True) / weight.square().sum(dims, True)
            grad -= share * weight
            grad[:1] += radial * (share * weight)[:1]
        weight, grad = weight.to(dtype).to(device), grad.to(dtype).to(device)
        state = {name: value.clone() for name, value in trial_state(rule, weight).items()}
        if not is_fresh:
            for name, value in state.items():
                drawn = draw(torch.rand, *value.shape)
                state[name] = _random_state(drawn, value, may_count=bool(shape))
        mismatch = _compare_step(rule, run, weight, grad, state)
        if mismatch is not None:
            return mismatch
    return None


def _random_state(drawn: Tensor, like: Tensor, may_count: bool) -> Tensor:
    """Return a positive state, as second moments are; a counter is a whole number."""
    is_counter = like.ndim == 0 and may_count
    values = 3 + (4 * drawn).round() if is_counter else drawn + 0.1
    return values.to(like.dtype).to(like.device)


def _compare_step(
    rule: Rule, run: RunStep, weight: Tensor, grad: Tensor, state: State
) -> str | None:
    """Compare one step by `run` with one by the rule's own code."""
    stepped, stepped_state = weight.clone(), {name: x.clone() for name, x in state.items()}
    run(stepped, grad.clone(), stepped_state)
    expected, expected_state = rule.step(weight, grad, state)
    state_dtype = compute_dtype(weight.dtype)  # the states of a half-precision weight are float32
    inputs = [weight, grad, *state.values()]
    largest = max((x.cpu().double().abs().max().item() for x in inputs if x.numel()), default=0.0)
    cancellation = torch.finfo(state_dtype).eps * largest
    comparisons = [("the weight", stepped, expected, weight, weight.dtype)]
    for name, value in expected_state.items():
        row = (f"the state {name!r}", stepped_state[name], value, state[name], state_dtype)
        comparisons.append(row)
    for what, actual, wanted, old, dtype in comparisons:
        error = compare_tensors(actual, wanted, old, dtype, cancellation)
        if error is not None:
            shape = tuple(weight.shape)
            return f"{what} is off by {error} after one step of random weights of shape {shape}"
    return None


def compare_tensors(
    actual: Tensor, expected: Tensor, old: Tensor, dtype: torch.dtype, cancellation: float
) -> str | None:
    """Return the error of `actual` in words, if rounding does not explain it.

    Args:
        actual, expected: two results of one step.
        old: the tensor before the step.
        dtype: to which the results are rounded.
        cancellation: what is left of terms that cancel, such as the tangential part of a radial
            row.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"its kind, {tuple(actual.shape)} of {actual.dtype}"
    # On the CPU, since a device may have no float64.
    actual, expected, old = actual.cpu(), expected.cpu(), old.cpu()
    if actual.dtype not in TOLERANCE:
        return None if torch.equal(actual, expected) else "whole numbers"
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    finite = actual.isfinite() & expected.isfinite()
    if not (same | finite).all():
        return "an infinity or a nan"
    if not actual.numel():
        return None
    is_number = expected.isfinite()
    actual, expected, old = (x.double().where(is_number, 0) for x in (actual, expected, old))
    step_size = (expected - old).abs().max()
    magnitude = torch.maximum(expected.abs().max(), old.abs().max())
    error = (actual - expected).abs().max()
    rounding = ROUNDINGS[dtype] * torch.finfo(dtype).eps * magnitude + cancellation
    if error <= TOLERANCE[dtype] * step_size + rounding:
        return None
    return f"{error.item():.1e}, on a way of {step_size.item():.1e}"
