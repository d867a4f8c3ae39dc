"""Wrappers: norm control that takes its direction from any recipe, a user's too.

    >>> rule = hyperball("sgd")(lr=0.5)
    >>> weight = torch.tensor([3.0, 0.0])
    >>> rule.step(weight, torch.tensor([0.0, 7.0]), rule.init(weight))[0]
    tensor([ 2.6833, -1.3416])
    >>> Rotational = sn.torch_optimizer("rotational(lion)", "Rotational")

A wrapper with an `lr` of its own runs the wrapped recipe with a learning rate of 1 and without
weight decay. The other hyper-parameters of the recipe are hyper-parameters of the result. A name
that both have is one hyper-parameter if the defaults agree; otherwise the recipe's is called
`base_view`, say.
"""

from __future__ import annotations

import copy

from spherenorm import rules as r
from spherenorm.manifolds import EUCLIDEAN
from spherenorm.numerics import Scalar
from spherenorm.registry import wrapper
from spherenorm.rule import Chain, Rule, chain
from spherenorm.views import ViewLike

__all__ = ["averaged", "blocks", "hyperball", "low_precision", "radial_brake", "rotational"]


def _refuse_eval_weight(wrapper_name: str, base: Rule) -> None:
    """Refuse a rule that has an evaluation weight, which the wrapper's steps would not change.

    Raises:
        ValueError: `base` has one.
    """
    if not base.has_eval_weight:
        return
    if wrapper_name == "averaged":
        remedy = "leave averaged(...) out, and evaluate with that one"
    elif any(isinstance(rule, r.WeightAverage) for rule in base.walk()):
        remedy = f"write averaged({wrapper_name}(...)), with the average around the steps"
    else:
        remedy = "take a recipe without one, such as adamw"
    raise ValueError(
        f"{wrapper_name}: its recipe has a weight to evaluate with of its own; {remedy}"
    )


@wrapper
def averaged(base: Rule, decay: Scalar = 0.999, start: Scalar = 0) -> Chain:
    """Average the weights of any optimizer, to evaluate with; its steps stay as they are.

        a_t = decay a_{t-1} + (1 - decay) w_t;    at decay = 1 the mean of all w

    `optimizer.reset_averages()` restarts it; with a decay of 1 the present weight then counts in
    the place of all earlier ones.

    Args:
        base: a recipe, or its name.
        decay: in [0, 1].
        start: number of steps before the average starts, in [0, inf).

    Example:
        >>> optimizer = sn.torch_optimizer("averaged(adamw)")([torch.ones(2)], lr=1e-3, decay=0.99)
        >>> with optimizer.evaluating():
        ...     pass  # here the parameters are the averages

    Source: see `rules.WeightAverage`.
    """
    _refuse_eval_weight("averaged", base)
    return chain(base, r.WeightAverage(decay, start), manifold=base.manifold)


@wrapper
def blocks(base: Rule, shares: tuple[int, ...] | None = None, dims: int = 1) -> Chain:
    """Step blocks of the rows of a tensor as separate weights, by any optimizer.

    Args:
        base: a recipe, or its name; without averages and global sums.
        shares: the relative number of rows of each block: (4, 1, 1) for fused queries, keys and
            values with four heads of queries for one of keys. None is (1, 1, 1), or (1,) if `dims`
            is more than 1.
        dims: how many leading dimensions count the rows: 2 for a stack (layers, experts, m, n),
            which `base` takes as (layers experts, m, n), with matrices where its view is "channel".

    Raises:
        TypeError, ValueError: other shares or dims; a weight whose rows do not divide so.

    Example:
        >>> fused = torch.nn.Linear(8, 12, bias=False).weight
        >>> optimizer = sn.torch_optimizer("blocks(muon)")([fused], lr=0.02, shares=(4, 1, 1))
        >>> fused.grad = torch.randn(12, 8)
        >>> optimizer.step()
        >>> {key: tuple(x.shape) for key, x in optimizer.state[fused].items()}
        {'momentum_buffer': (8, 8), 'momentum_buffer_2': (2, 8), 'momentum_buffer_3': (2, 8)}

    Source: see `rules.Blocks`.
    """
    if shares is None:
        shares = (1, 1, 1) if dims == 1 else (1,)
    if not isinstance(shares, (list, tuple)):
        raise TypeError(f"blocks: shares must be a tuple of whole numbers, got {shares!r}")
    shares = tuple(shares)
    return chain(r.Blocks(tuple(copy.copy(base) for _ in shares), shares, dims))


@wrapper
def hyperball(
    base: Rule,
    lr: Scalar = 0.02,
    tangent: bool = False,
    radius: str | Scalar = "initial",
    view: ViewLike = "layer",
) -> Chain:
    """Keep |w| under any optimizer, so that a step turns w by about lr (the hyperball):

        w <- R N(w - lr |w| N(u)),    N(x) = x / |x|,    u the direction of the recipe.

    With <u, w> = 0 the turn is arctan(lr). A weight decay of the recipe would change the rate only.

    Args:
        base: a recipe, or its name.
        lr: the length of the step relative to |w|, in [0, inf).
        tangent: remove the radial part of u first, so that each turn is arctan(lr).
        radius: R: "initial" is |w_0|, "shape" the norm of entries of variance 1 / fan_in, for
            weights that start at 0; or a number. See `rules.FixedNorm`.
        view: splits a weight into the units whose norm stays; each is one matrix, too, where the
            recipe's own view is the layer by default, as Muon's.

    Source: Wen et al. 2026 (Hyperball), arXiv:2606.16899.
    """
    _refuse_eval_weight("hyperball", base)
    projected = [r.RadialProjection(view)] if tangent else []
    normalized = r.NormalizedUpdate(view, "weight")
    return chain(base, *projected, normalized, r.StepSize(lr), r.FixedNorm(view, radius))  # type: ignore[arg-type]


@wrapper
def rotational(
    base: Rule,
    lr: Scalar = 0.02,
    memory: Scalar = 0.9,
    eps: Scalar = 1e-8,
    zero_mean: bool = True,
    view: ViewLike = "channel",
) -> Chain:
    """Turn each unit by lr a step on average, in the direction of any optimizer.

    This is rotational equilibrium from the start, as soon as the average of the direction's length
    has settled. The turn that AdamW comes to by itself, with its learning rate eta and its decay
    lambda, is sqrt(2 eta lambda (1 - beta1) / (1 + beta1)); `spherenorm_theory.rotational_rate`
    derives lr from the code of any recipe. Give it matrices; biases and gains need another group.

    Args:
        base: a recipe, or its name.
        lr: the average turn of a unit in radians, in [0, inf).
        memory: the EMA coefficient of the direction's squared length over steps, in [0, 1).
        eps: added to that length, and the recipe's own if that is as large, in [0, inf).
        zero_mean: remove the mean of each unit's direction.
        view: splits a weight into the units that turn.

    Source: Kosson et al. 2024 (rotational equilibrium), Algorithm 1.
    """
    _refuse_eval_weight("rotational", base)
    return chain(
        base,
        r.RadialProjection(view),
        *([r.Centralization(view)] if zero_mean else []),
        r.NormalizedUpdate(view, "weight", memory, eps),
        r.StepSize(lr),
        r.FixedNorm(view),
    )


@wrapper
def radial_brake(
    base: Rule,
    lr: Scalar = 0.02,
    outward: Scalar = 0.5,
    inward: Scalar = 1.0,
    floor: Scalar = 0.35,
    view: ViewLike = "layer",
) -> Chain:
    """Let |w| change by the radial part of any optimizer's steps alone, halved where it grows |w|.

    The step is at least lr floor |w| long. AdamP removes the radial part, and lets |w| grow.

    Args:
        base: a recipe, or its name.
        lr: the step size, in [0, inf).
        outward, inward: the share of a radial part that stays; see `rules.RadialProjection`.
        floor: the least relative length of a step; see `rules.UpdateFloor`.
        view: splits a weight into its units.

    Source: modded-nanogpt, track 3, record 29.
    """
    _refuse_eval_weight("radial_brake", base)
    return chain(
        base,
        r.RadialProjection(view, outward, inward),
        r.UpdateFloor(floor, view),
        r.StepSize(lr),
        r.FixedNorm(view, "intended"),
    )


@wrapper
def low_precision(
    base: Rule,
    states: str = "stochastic",
    weights: str = "nearest",
    seed: Scalar = 0,
    only: tuple[str, ...] | None = None,
) -> Chain:
    """Keep the states of any optimizer in bfloat16, and let such weights move by small steps.

    An AdamW of bfloat16 weights takes 6 bytes an entry with this, 10 without it.

    Args:
        base: a recipe, or its name.
        states: how states are rounded to bfloat16: "stochastic" or "nearest"; "full" keeps them in
            float32.
        weights: "stochastic" rounds each new weight to bfloat16 at random, so that the mean is the
            weight after the recipe's step. "nearest" leaves the rounding to the weight's dtype.
        seed: the seed of the rounding noise, a whole number in [0, inf).
        only: names of the states to keep in bfloat16, such as ("exp_avg",); None means all.

    Raises:
        ValueError: an unknown rounding or state, or a recipe on a manifold.

    Example:
        >>> weight = torch.ones(3, dtype=torch.bfloat16)
        >>> optimizer = sn.torch_optimizer("low_precision(adamw)")([weight], weights="stochastic")
        >>> weight.grad = torch.ones_like(weight)
        >>> optimizer.step()
        >>> optimizer.state[weight]["exp_avg"].dtype
        torch.bfloat16

    Source: see `rules.LowPrecisionState` and `rules.StochasticRounding`.
    """
    if states not in ("stochastic", "nearest", "full"):
        raise ValueError(f"states must be one of stochastic, nearest, full, got {states!r}")
    if weights not in ("stochastic", "nearest"):
        raise ValueError(f"weights must be one of stochastic, nearest, got {weights!r}")
    if base.manifold != EUCLIDEAN:
        raise ValueError(f"low_precision is for flat space, the recipe has {base.manifold!r}")
    if states != "full":
        base = r.LowPrecisionState(base, states, seed, only)  # type: ignore[arg-type]
    rounding = [r.StochasticRounding(seed)] if weights == "stochastic" else []
    return chain(base, *rounding)
