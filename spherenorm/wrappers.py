"""Wrappers: recipes made of any recipe, a user's too, and of each other.

    >>> rule = hyperball("sgd")(lr=0.5)
    >>> weight = torch.tensor([3.0, 0.0])
    >>> rule.step(weight, torch.tensor([0.0, 7.0]), rule.init(weight))[0]
    tensor([ 2.6833, -1.3416])
    >>> optimizer = sn.torch_optimizer("schedulefree(cautious(muon))")([torch.eye(2)], lr=0.02)

A wrapper with an `lr` of its own runs the wrapped recipe with a learning rate of 1 and without
weight decay. The other hyper-parameters of the recipe are hyper-parameters of the result. A name
that both have is one hyper-parameter if the defaults agree; otherwise the recipe's is called
`base_view`, say.

`cautious`, `schedulefree`, `gpa`, `lookahead`, `emanesterov` and `graft` need a recipe whose rules
leave open where the step ends (`Rule.uses_endpoint`), and so go inside a hyperball:
"hyperball(cautious(adamw))".
"""

from __future__ import annotations

import copy

from spherenorm import rules as r
from spherenorm.manifolds import EUCLIDEAN
from spherenorm.numerics import Scalar
from spherenorm.registry import default_of, wrapper
from spherenorm.rule import Chain, Rule, chain
from spherenorm.views import ViewLike

__all__ = [
    "averaged",
    "blocks",
    "cautious",
    "emanesterov",
    "gpa",
    "graft",
    "hyperball",
    "lookahead",
    "low_precision",
    "radial_brake",
    "rotational",
    "schedulefree",
]


def _why_evaluated(base: Rule) -> str | None:
    """Return why a wrapper that moves the weight refuses a rule with an evaluation weight."""
    if not base.has_eval_weight:
        return None
    return (
        f"{_evaluated_rule(base)} has a weight to evaluate with, which would not follow the steps"
    )


def _why_averaged(base: Rule) -> str | None:
    """Return why `averaged` refuses a rule with an evaluation weight."""
    if not base.has_eval_weight:
        return None
    rule = _evaluated_rule(base)
    return f"{rule} has a weight to evaluate with: leave averaged(...) out, and take that one"


def _evaluated_rule(base: Rule) -> str:
    """Return the class of the first rule that defines `eval_weight`."""
    rules = [rule for rule in base.walk() if type(rule).eval_weight is not Rule.eval_weight]
    return type(rules[0]).__name__


def _why_ended(base: Rule) -> str | None:
    """Return why a wrapper that changes the end of the step refuses a rule that sets it."""
    for rule in base.walk():
        if rule.uses_endpoint:
            return f"{type(rule).__name__} sets where the step ends, which a later rule would undo"
    if base.manifold != EUCLIDEAN:
        return f"weights move on {base.manifold!r}, and the wrapper needs straight steps"
    return _why_evaluated(base)


@wrapper(refuses=_why_averaged)
def averaged(base: Rule, decay: Scalar = 0.999, start: Scalar = 0) -> Chain:
    """Average the weights of any optimizer, to evaluate with; its steps stay as they are.

        a_t = decay a_{t-1} + (1 - decay) w_t;    at decay = 1 the mean of all w

    `optimizer.reset_averages()` restarts it; with a decay of 1 the present weight then counts in
    the place of all earlier ones.

    Args:
        base: a recipe, or its name.
        decay: decay rate of the average, in [0, 1].
        start: number of steps before the average starts, in [0, inf).

    Example:
        >>> optimizer = sn.torch_optimizer("averaged(adamw)")([torch.ones(2)], lr=1e-3, decay=0.99)
        >>> with optimizer.evaluating():
        ...     pass  # here the parameters are the averages

    Source: see `rules.WeightAverage`.
    """
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


@wrapper(refuses=_why_evaluated)
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
    projected = [r.RadialProjection(view)] if tangent else []
    normalized = r.NormalizedUpdate(view, "weight")
    return chain(base, *projected, normalized, r.StepSize(lr), r.FixedNorm(view, radius))  # type: ignore[arg-type]


@wrapper(refuses=_why_evaluated)
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
    return chain(
        base,
        r.RadialProjection(view),
        *([r.Centralization(view)] if zero_mean else []),
        r.NormalizedUpdate(view, "weight", memory, eps),
        r.StepSize(lr),
        r.FixedNorm(view),
    )


@wrapper(refuses=_why_evaluated)
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


@wrapper(refuses=_why_ended)
def cautious(
    base: Rule,
    lr: Scalar = default_of("base"),
    weight_decay: Scalar = default_of("base", otherwise=0.0),
    min_share: Scalar = 1e-3,
) -> Chain:
    """Take back the entries of any optimizer's step that disagree with the gradient:

        c = 1 where u g > 0, else 0,
        w <- w - lr (u c / max(mean(c), min_share) + weight_decay w),

    u the direction of the recipe. The decay is decoupled, whatever the recipe's own is.

    Args:
        base: a recipe, or its name.
        lr: learning rate, in [0, inf); by default the recipe's.
        weight_decay: coefficient of the decay, in [0, inf); by default the recipe's, or 0 if it
            has none.
        min_share: the minimum of the share of entries that agree, in (0, 1].

    Example:
        >>> rule, weight = cautious("sgd")(lr=0.1, momentum=0.9), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for grad in (-1.0, 0.5):  # the momentum still points the other way
        ...     weight, state = rule.step(weight, torch.tensor([grad]), state)
        >>> weight
        tensor([0.1000])

    Source: Liang et al. 2024, arXiv:2411.16085, Algorithm 1.
    """
    decay = r.DecoupledDecay(weight_decay)
    return chain(base, r.CautiousMask(min_share), decay, r.StepSize(lr))


@wrapper(refuses=_why_ended)
def schedulefree(base: Rule, lr: Scalar, interpolation: Scalar = 0.9, power: Scalar = 0.0) -> Chain:
    """Step z by any optimizer with gradients at y, and evaluate at an average x of the iterates z:

        z <- z - d(y),    x <- (1 - c) x + c z,    y <- (1 - interpolation) z + interpolation x,
        c = s_t / (s_1 + ... + s_t),    s_t = t^power max(lr_1, ..., lr_t)^2,

    d the step of the recipe, with its rate and decay. The average takes the place of a schedule's
    decay; a warmup of lr stays useful. The interpolation is the momentum of the paper, and the
    recipe's own momentum comes on top: "schedulefree(adamw)" with betas=(0.0, 0.999) is the paper's
    schedule-free AdamW. Evaluate with `eval_weight`, and call `optimizer.reset_averages()` after
    writing into the parameters.

    Args:
        base: a recipe, or its name.
        lr: the recipe's learning rate.
        interpolation: where y lies between z and x, in [0, 1).
        power: exponent of the step count in the average, in [0, inf).

    Example:
        >>> rule, weight = schedulefree("sgd")(lr=1.0), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(3):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> rule.eval_weight(weight, state)  # the mean of 1, 2 and 3
        tensor([2.])

    Source: Defazio et al. 2024, arXiv:2405.15682.
    """
    return chain(base, r.ScheduleFree(interpolation, lr, power))


@wrapper(refuses=_why_ended)
def gpa(base: Rule, interpolation: Scalar = 0.7, memory: Scalar = 0.9967) -> Chain:
    """Step z by any optimizer with gradients at y, and evaluate at an exponential average x of z:

        z <- z - d(y),    x <- memory x + (1 - memory) z,
        y <- (1 - interpolation) z + interpolation x,

    d the step of the recipe, with its rate and decay. This is generalized primal averaging, which
    makes each step smooth that DiLoCo of one worker takes every k steps: memory = 0.9967 stands for
    k = 32, 0.9869 for k = 8. Evaluate with `eval_weight`, and call `optimizer.reset_averages()`
    after writing into the parameters.

    Args:
        base: a recipe, or its name.
        interpolation: where y lies between z and x, in [0, 1].
        memory: decay rate of x, in [0, 1).

    Example:
        >>> rule, weight = gpa("sgd")(lr=1.0, interpolation=0.5, memory=0.5), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-1.0]), rule.init(weight))[0]  # z = 1, x = 0.5
        tensor([0.7500])

    Source: Defazio et al. 2025, arXiv:2512.17131, with the decay of the release.
    """
    return chain(base, r.PrimalAverage(interpolation, memory))


@wrapper(refuses=_why_ended)
def lookahead(base: Rule, alpha: Scalar = 0.5, every: int = 5) -> Chain:
    """Go back a part of the way after every k-th step of any optimizer:

        s <- s + alpha (w - s),    w <- s    after each `every` steps.

    s is a state, and the weight to evaluate with. Call `optimizer.reset_averages()` after writing
    into the parameters.

    Args:
        base: a recipe, or its name.
        alpha: the share of the way that remains, in [0, 1].
        every: k, the number of steps, in [1, inf).

    Example:
        >>> rule, weight = lookahead("sgd")(lr=1.0, every=2), torch.zeros(1)
        >>> state = rule.init(weight)
        >>> for _ in range(2):
        ...     weight, state = rule.step(weight, torch.tensor([-1.0]), state)
        >>> weight
        tensor([1.])

    Source: Zhang et al. 2019, arXiv:1907.08610, Algorithm 1.
    """
    return chain(base, r.Lookahead(alpha, every))


@wrapper(refuses=_why_ended)
def emanesterov(base: Rule, lookahead: Scalar = 0.5, memory: Scalar = 0.9) -> Chain:
    """Take the gradients of any optimizer ahead of the weight, along the trend of its steps:

        w' = y - d(y),    m <- memory m + (1 - memory) (w' - w),    y <- w' + lookahead m,

    d the step of the recipe. The model holds y; evaluate with `eval_weight`, which is w. Call
    `optimizer.reset_averages()` after writing into the parameters.

    Args:
        base: a recipe, or its name.
        lookahead: the distance ahead, in average steps, in [0, inf).
        memory: decay rate of the average of steps m, in [0, 1).

    Example:
        >>> rule, weight = emanesterov("sgd")(lr=1.0, memory=0.0), torch.zeros(1)
        >>> rule.step(weight, torch.tensor([-1.0]), rule.init(weight))[0]  # half a step ahead
        tensor([1.5000])

    Source: Yau et al. 2026, arXiv:2605.25395.
    """
    return chain(base, r.TrendLookahead(lookahead, memory))


@wrapper(refuses=_why_ended)
def graft(
    direction: Rule,
    length: Rule,
    lr: Scalar = default_of("length"),
    weight_decay: Scalar = default_of("direction", otherwise=0.0),
    view: ViewLike = "layer",
) -> Chain:
    """Step along the direction of one optimizer, by the length of another one's step:

        w <- w - lr (|l| d / |d| + weight_decay w),

    d and l the directions of the two recipes. By name: "graft(muon, adamw)". Hyper-parameters have
    the names of the first recipe; those of the second start with `length_`.

    Args:
        direction: a recipe, or its name.
        length: a recipe, or its name.
        lr: learning rate, in [0, inf); by default that of `length`.
        weight_decay: decoupled decay, in [0, inf); by default that of `direction`, or 0.
        view: splits a weight into the units whose steps have that length.

    Example:
        >>> optimizer = sn.torch_optimizer("graft(muon, adamw)")([torch.eye(2)], length_eps=1e-6)
        >>> rule, weight = graft("sgd", "lion")(lr=0.1), torch.zeros(2)
        >>> rule.step(weight, torch.tensor([-3.0, -4.0]), rule.init(weight))[0].norm()
        tensor(0.1414)

    Source: Agarwal et al. 2020 (learning-rate grafting), arXiv:2002.11803.
    """
    decay = r.DecoupledDecay(weight_decay)
    return chain(r.Graft(direction, length, view), decay, r.StepSize(lr))
