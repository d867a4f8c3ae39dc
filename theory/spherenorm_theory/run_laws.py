"""The laws of an optimizer's recipes beside the measurements of a probe."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from spherenorm import bind, find_recipe
from spherenorm.optim import RecipeOptimizer, unwrap
from spherenorm.probes import Measurement
from spherenorm_theory.equilibria.equilibrium import equilibrium, without_eps
from spherenorm_theory.hyper_parameters import static_arguments_of_run
from spherenorm_theory.norm_law import norm_growth
from spherenorm_theory.opaque_rules import similar_shape
from spherenorm_theory.verify import DifferenceError, verify_numbers

OF_TORCH = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}
"""The recipes that are the steps of torch's optimizers."""


class RunLaw:
    """The norm and the turn that the law of a weight's recipe says. Made by `run_law`.

    It reads the hyper-parameters that the optimizer has at the moment, so that schedules count.

    Example:
        >>> isinstance(run_law(torch.optim.SGD([torch.eye(2)], lr=0.1)), RunLaw)
        True
    """

    def __init__(self, optimizer: Any, names: Mapping[str, Tensor]) -> None:
        self._optimizer = optimizer
        known = {id(weight): name for name, weight in names.items()}
        self._groups: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for index, group in enumerate(optimizer.param_groups):
            own = group.get("param_names", [None] * len(group["params"]))
            for weight, name in zip(group["params"], own, strict=True):
                called = known.get(id(weight), name or str(len(self._groups)))
                self._groups[called], self._shapes[called] = index, tuple(weight.shape)

    def predict(self, measured: Measurement) -> float:
        r"""The norm after the step, of the norm before it and the turn.

        Where the cross term is 0, w' = (1 - kappa) w + s with s orthogonal to w, so that
        |w'| = (1 - kappa) |w| / cos(turn). It is exact of one unit, and of the root mean square
        over units up to the spread of their turns.

        Returns:
            nan where the law is open, its assumption fails (the weight was not found
            scale-invariant), its code takes another step at these numbers, or there is none.
        """
        law, values = self._law(measured, norm_growth)
        if law is None or law.constant:
            return math.nan if law is None else measured.norm_before
        numbers = law.step.traced.values(**values)
        try:
            verify_numbers(law, numbers)
        except DifferenceError:
            return math.nan
        kept = law.retention.subs(numbers)
        cosine = math.cos(measured.turn)
        # (a step that is orthogonal to w turns it by less than a right angle)
        if law.cross != 0 or kept.free_symbols or cosine <= 0:
            return math.nan  # of kappa: it changes with a state
        return float(kept) * measured.norm_before / cosine

    def turn(self, measured: Measurement) -> float:
        """The turn per step at which the weight settles under random gradients; see `equilibrium`.

        Returns:
            nan without decay, or where the recipe has no equilibrium or the weight was not found
            scale-invariant.
        """
        law, values = self._law(measured, equilibrium)
        with suppress(ValueError):
            shape = similar_shape(self._shapes[measured.weight]) if law and law.factor else (64, 64)
            chord = law.rotation(law.traced.values(**values), shape) if law else math.nan
            return 2 * math.asin(chord / 2)  # (no number beyond 2)
        return math.nan

    def _law(
        self, measured: Measurement, derive_law: Callable[..., Any]
    ) -> tuple[Any, dict[str, Any]]:
        """The law of a weight that was found scale-invariant, and its group's hyper-parameters."""
        index = self._groups.get(measured.weight)
        if index is None or measured.invariant_view is None:
            return None, {}
        group: Mapping[str, Any] = self._optimizer.param_groups[index]
        name = group.get("recipe") or OF_TORCH.get(type(self._optimizer))
        if name is None or group.get("amsgrad"):
            return None, {}
        own = getattr(self._optimizer, "recipe", None)
        recipe = own if own is not None and own.__name__ == name else find_recipe(name)
        values = {n: _plain(group[n]) for n in bind(recipe).defaults if n in group}
        values |= without_eps(recipe) if derive_law is equilibrium else {}
        held = static_arguments_of_run(recipe, values)
        return _derive_claim(derive_law, recipe, tuple(sorted(held.items()))), values


def run_law(optimizer: Any, *, model: nn.Module | None = None) -> RunLaw:
    """The law of an optimizer's run, for `probe(law=...)` and `Page(equilibrium=...)`.

    Args:
        optimizer: of this library, or SGD, Adam, AdamW or RMSprop of torch; or a wrapper that holds
            one as `.optimizer`.
        model: gives the weights their names, as for `probe`.

    Raises:
        TypeError: another kind of optimizer.

    Example:
        >>> import spherenorm as sn
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = sn.optim.SGDP([weight], lr=0.1, weight_decay=0.1)
        >>> law = run_law(optimizer)
        >>> with sn.probe(optimizer, every=1, law=law) as probe:
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> found = probe.measurements[0]
        >>> round(found.norm, 6) == round(found.predicted, 6), round(law.turn(found), 4)
        (True, 0.0447)
    """
    optimizer = unwrap(optimizer)
    if not isinstance(optimizer, RecipeOptimizer) and type(optimizer) not in OF_TORCH:
        known = ", ".join(each.__name__ for each in OF_TORCH)
        raise TypeError(
            f"run_law takes an optimizer of spherenorm, or {known} of torch.optim, "
            f"got {type(optimizer).__name__}"
        )
    return RunLaw(optimizer, dict(model.named_parameters()) if model is not None else {})


def _plain(value: Any) -> Any:
    """A group's value as recipes have it: no list, and no tensor."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return float(value) if isinstance(value, Tensor) else value


@functools.cache
def _derive_claim(
    derive_law: Callable[..., Any], recipe: Any, held: tuple[tuple[str, Any], ...]
) -> Any:
    """The law of a recipe; None where there is none."""
    with suppress(ValueError):
        return derive_law(recipe, **dict(held))
    return None
