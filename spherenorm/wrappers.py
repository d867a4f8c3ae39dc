"""Wrappers: norm control that takes its direction from any recipe, a user's too.

    >>> rule = hyperball("sgd")(lr=0.5)
    >>> weight = torch.tensor([3.0, 0.0])
    >>> rule.step(weight, torch.tensor([0.0, 7.0]), rule.init(weight))[0]
    tensor([ 2.6833, -1.3416])
    >>> Rotational = sn.torch_optimizer("rotational(lion)", "Rotational")

The recipe that is wrapped steps with a learning rate of 1 and without weight decay where the
wrapper has an `lr` of its own, which alone scales the step then; its other hyper-parameters are
those of the result. A name that both have is one where the defaults agree, and else the recipe's is
called `base_view`.
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


def _steps_alone(wrapped_by: str, base: Rule) -> None:
    """Refuse a rule that keeps a weight of its own, which the wrapper's steps would not reach."""
    if not base.has_eval_weight:
        return
    averages = any(isinstance(rule, r.WeightAverage) for rule in base.walk())
    if wrapped_by == "averaged":
        instead = "leave averaged(...) out, and evaluate with that one"
    elif averages:
        instead = f"write averaged({wrapped_by}(...)), with the average around the steps"
    else:
        instead = "take a recipe without one, such as adamw"
    raise ValueError(
        f"{wrapped_by}: its recipe has a weight to evaluate with of its own; {instead}"
    )


@wrapper
def averaged(base: Rule, decay: Scalar = 0.999, start: Scalar = 0) -> Chain:
    """Any optimizer, and an average of its weights to evaluate with; the steps stay as they are.

        a_t = decay a_{t-1} + (1 - decay) w_t;    at decay = 1 the mean of all w

    `optimizer.reset_averages()` begins it anew.

    Args:
        base: a recipe, or its name.
        decay: in [0, 1].
        start: steps before the first that counts, in [0, inf).

    Example:
        >>> optimizer = sn.torch_optimizer("averaged(adamw)")([torch.ones(2)], lr=1e-3, decay=0.99)
        >>> with optimizer.evaluating():
        ...     pass  # here the parameters are the averages

    Source: see `rules.WeightAverage`.
    """
    _steps_alone("averaged", base)
    return chain(base, r.WeightAverage(decay, start), manifold=base.manifold)


@wrapper
def blocks(base: Rule, shares: tuple[int, ...] | None = None, dims: int = 1) -> Chain:
    """Any optimizer, for tensors whose blocks of rows are weights of their own.

    Args:
        base: a recipe, or its name; without averages, or sums over all weights.
        shares: of the rows that each block has: (4, 1, 1) for fused queries, keys and values with
            four heads of queries for one of keys. None is (1, 1, 1), or (1,) where `dims` is more
            than 1.
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
    """Any optimizer on the hyperball: |w| stays as it was, and a step turns w by about lr:

        w <- R N(w - lr |w| N(u)),    N(x) = x / |x|,    u the direction of the recipe.

    With <u, w> = 0 the turn is arctan(lr); a weight decay of the recipe would change the rate only.

    Args:
        base: a recipe, or its name.
        lr: |w| times this is the length of the step, in [0, inf).
        tangent: take the radial part out of u first, so that each turn is arctan(lr).
        radius: R: "initial" is |w_0|, "shape" the norm of entries of variance 1 / fan_in, for
            weights that start at 0; or a number. See `rules.FixedNorm`.
        view: splits a weight into the units whose norm stays; each is one matrix, too, where the
            recipe's own view is the layer by default, as Muon's.

    Source: Wen et al. 2026 (Hyperball), arXiv:2606.16899.
    """
    _steps_alone("hyperball", base)
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
    """Any optimizer at the rate of rotational equilibrium from the start: a unit turns by lr a step
    on average, once the average of its direction's length has settled.

    The turn that AdamW comes to by itself, with its learning rate eta and its decay lambda, is
    sqrt(2 eta lambda (1 - beta1) / (1 + beta1)); `spherenorm_theory.rotational_rate` derives lr
    from the code of any recipe. For matrices; biases and gains belong elsewhere.

    Args:
        base: a recipe, or its name.
        lr: the average turn of a unit in radians, in [0, inf).
        memory: of the average over steps of the direction's length, in [0, 1).
        eps: added to that length, and the recipe's own if that is as large, in [0, inf).
        zero_mean: take the mean out of each unit's direction.
        view: splits a weight into the units that turn.

    Source: Kosson et al. 2024 (rotational equilibrium), Algorithm 1.
    """
    _steps_alone("rotational", base)
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
    """Any optimizer whose steps lengthen a weight by their radial part alone, and that by half.

    The step is at least lr floor |w| long. AdamP removes the radial part, and lets |w| grow.

    Args:
        base: a recipe, or its name.
        lr: in [0, inf).
        outward, inward: the share that stays of a radial part; see `rules.RadialProjection`.
        floor: see `rules.UpdateFloor`.
        view: splits a weight into its units.

    Source: modded-nanogpt, track 3, record 29.
    """
    _steps_alone("radial_brake", base)
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
    """Any optimizer with its states in bfloat16, and steps that do not stall on such weights.

    An AdamW of bfloat16 weights takes 6 bytes an entry with this, 10 without it.

    Args:
        base: a recipe, or its name.
        states: how they are rounded to bfloat16: "stochastic" or "nearest"; "full" keeps them in
            float32.
        weights: "stochastic" ends each step on the grid of bfloat16, by chance, so that the mean is
            that of the recipe's step: for weights in bfloat16. "nearest" leaves them as they are.
        seed: a whole number in [0, inf).
        only: names of the states to keep so, such as ("exp_avg",); None: all.

    Raises:
        ValueError: another word; no such state; a recipe on a manifold.

    Example:
        >>> weight = torch.ones(3, dtype=torch.bfloat16)
        >>> optimizer = sn.torch_optimizer("low_precision(adamw)")([weight], weights="stochastic")
        >>> weight.grad = torch.ones_like(weight)
        >>> optimizer.step()
        >>> optimizer.state[weight]["exp_avg"].dtype
        torch.bfloat16

    Source: see `rules.LowPrecisionState` and `rules.StochasticRounding`.
    """
    for name, value, others in (("states", states, ("full",)), ("weights", weights, ())):
        if value not in (known := ("stochastic", "nearest", *others)):
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if base.manifold != EUCLIDEAN:
        raise ValueError(f"low_precision is for flat space, the recipe has {base.manifold!r}")
    kept = base if states == "full" else r.LowPrecisionState(base, states, seed, only)  # type: ignore[arg-type]
    ends = [r.StochasticRounding(seed)] if weights == "stochastic" else []
    return chain(kept, *ends)
