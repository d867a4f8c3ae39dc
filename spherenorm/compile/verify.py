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
from spherenorm.rule import Rule, State, initial_state_keeping_rng

RunStep = Callable[[Tensor, Tensor, State], None]
"""Steps a weight in place, from its gradient and its state."""
PureStep = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
"""Returns the new weight and state, such as `rule.step`."""

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
    require_no_capture(device)
    visible = key.with_visible_steps()
    mismatch = find_mismatch(visible.rule, _run_by(executor, visible), shape, dtype, device)
    if mismatch is not None:
        raise ResultMismatch(
            f"the {executor.name} would give other numbers than the rule's own code: {mismatch}"
        )


def require_no_capture(device: torch.device) -> None:
    """Require that no CUDA graph is being captured, in which nothing can be compiled or compared.

    Raises:
        RuntimeError: one is being captured.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("take a step before it is captured: it is compared with own code once")


def verify_storage(
    executor: Executor,
    twin: Executor,
    key: RuleKey,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Compare an executor in half precision with its float32 twin, rounded once to half precision.

    In half precision a step that is 5 % wrong may hide in the rounding of the weight. The twin runs
    the same program on float32, where `verify_executor` sees 0.1 %; what is left to compare is how
    half precision is loaded and stored.

    Args:
        executor: of weights in half precision.
        twin: the same program on float32.
        key, shape, dtype, device: see `verify_executor`.

    Raises:
        ResultMismatch: the executor loads or stores otherwise than torch.
    """
    visible = key.with_visible_steps()
    run_twin = _run_by(twin, visible)

    def twin_step(weight: Tensor, grad: Tensor, state: State) -> tuple[Tensor, State]:
        new_weight, new_state = weight.float(), {name: x.clone() for name, x in state.items()}
        run_twin(new_weight, grad.float(), new_state)
        return new_weight.to(dtype), new_state

    mismatch = find_mismatch(
        visible.rule, _run_by(executor, visible), shape, dtype, device, twin_step
    )
    if mismatch is not None:
        raise ResultMismatch(
            f"the {executor.name} would give other numbers than its float32 twin: {mismatch}"
        )


def _run_by(executor: Executor, key: RuleKey) -> RunStep:
    def run(weight: Tensor, grad: Tensor, state: State) -> None:
        steps = [WeightStep(weight, grad, state)]
        executor.bind(steps, [executor]).run(steps, key.scalars)

    return run


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
    rule: Rule,
    run: RunStep,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    twin_step: PureStep | None = None,
) -> str | None:
    """Step random weights by `run` and by the rule's own code.

    Args:
        rule: the rule.
        run: the step to compare.
        shape, dtype, device: of the weights.
        twin_step: replaces the rule's own code as the reference. Its weights are compared almost
            bit by bit.

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
        state = {
            name: value.clone() for name, value in initial_state_keeping_rng(rule, weight).items()
        }
        if not is_fresh:
            for name, value in state.items():
                drawn = draw(torch.rand, *value.shape)
                state[name] = _random_state(drawn, value, may_count=bool(shape))
        mismatch = _compare_step(
            run, twin_step or rule.step, weight, grad, state, exact_weight=twin_step is not None
        )
        if mismatch is not None:
            return mismatch
    return None


def _random_state(drawn: Tensor, like: Tensor, may_count: bool) -> Tensor:
    """Return a positive state, as second moments are; a counter is a whole number."""
    is_counter = like.ndim == 0 and may_count
    values = 3 + (4 * drawn).round() if is_counter else drawn + 0.1
    return values.to(like.dtype).to(like.device)


def _compare_step(
    run: RunStep,
    reference: PureStep,
    weight: Tensor,
    grad: Tensor,
    state: State,
    exact_weight: bool,
) -> str | None:
    """Compare one step by `run` with one by the reference."""
    stepped, stepped_state = weight.clone(), {name: x.clone() for name, x in state.items()}
    run(stepped, grad.clone(), stepped_state)
    expected, expected_state = reference(weight, grad, state)
    state_dtype = compute_dtype(weight.dtype)  # the states of a half-precision weight are float32
    inputs = [weight, grad, *state.values()]
    largest = max((x.cpu().double().abs().max().item() for x in inputs if x.numel()), default=0.0)
    cancellation = torch.finfo(state_dtype).eps * largest
    comparisons = [("the weight", stepped, expected, weight, weight.dtype)]
    for name, value in expected_state.items():
        row = (f"the state {name!r}", stepped_state[name], value, state[name], state_dtype)
        comparisons.append(row)
    for what, actual, wanted, old, dtype in comparisons:
        if exact_weight and old is weight:
            error = compare_rounded(actual, wanted)
        else:
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


def compare_rounded(actual: Tensor, expected: Tensor) -> str | None:
    """Return the error of tensors that were rounded from nearly equal float32 ones, in words.

    A sum in another order may move one entry over a rounding boundary, to the next number.
    """
    actual, expected = actual.cpu(), expected.cpu()
    unequal = (actual != expected) & ~(actual.isnan() & expected.isnan())
    if not unequal.any():
        return None
    error = (actual.double() - expected.double()).abs()[unequal]
    one_rounding = torch.finfo(actual.dtype).eps * expected.double().abs()[unequal]
    if unequal.sum() == 1 and (error <= one_rounding).all():
        return None
    return f"{error.max().item():.1e} in {int(unequal.sum())} of {actual.numel()} entries"
