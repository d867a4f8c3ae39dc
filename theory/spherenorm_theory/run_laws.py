"""The law of an optimizer's run, beside the measurements of a probe."""

from __future__ import annotations

import collections
import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
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

RECIPES_OF_TORCH = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}
"""The recipes that take the steps of torch's optimizers."""


class RunLaw:
    """The norm and the turn of weights by the laws of their recipes; `run_law` makes one.

    It reads the hyper-parameters that the optimizer has at the moment, which are those of the next
    step where they have a schedule. A probe keeps a `snapshot` of it from before each step.

    Example:
        >>> run_law(torch.optim.SGD([torch.eye(2)], lr=0.1))
        RunLaw for 1 weights: 1 of sgd
    """

    def __init__(self, optimizer: Any, names: Mapping[str, Tensor]) -> None:
        self._optimizer = optimizer
        self._param_groups: Sequence[Mapping[str, Any]] | None = None
        name_of_weight = {id(weight): name for name, weight in names.items()}
        self._groups: dict[str, int] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for index, group in enumerate(optimizer.param_groups):
            group_names = group.get("param_names", [None] * len(group["params"]))
            for weight, group_name in zip(group["params"], group_names, strict=True):
                default = group_name or str(len(self._groups))
                name = name_of_weight.get(id(weight), default)
                self._groups[name], self._shapes[name] = index, tuple(weight.shape)

    def __repr__(self) -> str:
        counts = collections.Counter(
            self._recipe_name(self._present_groups[index]) or "no known recipe"
            for index in self._groups.values()
        )
        weights = ", ".join(f"{n} of {name}" for name, n in counts.items())
        return f"RunLaw for {len(self._groups)} weights: {weights}"

    def snapshot(self) -> RunLaw:
        """Return the law at the present hyper-parameters, whatever the optimizer does later.

        Example:
            >>> optimizer = torch.optim.SGD([torch.eye(2)], lr=0.1, momentum=0.9, weight_decay=0.1)
            >>> measured = Measurement(1, "0", "channel", 1.0, 1.0, 0.1, 0.1, 0.0, 1.0, "channel")
            >>> law = run_law(optimizer).snapshot()
            >>> optimizer.param_groups[0]["lr"] = 0.0001
            >>> round(law.turn(measured), 4), round(run_law(optimizer).turn(measured), 4)
            (0.1026, 0.0032)
        """
        snapshot = copy.copy(self)
        snapshot._param_groups = [
            {name: _copy_entry(value) for name, value in group.items() if name != "params"}
            for group in self._present_groups
        ]
        return snapshot

    @property
    def _present_groups(self) -> Sequence[Mapping[str, Any]]:
        if self._param_groups is not None:
            return self._param_groups
        return self._optimizer.param_groups  # type: ignore[no-any-return]

    def predict(self, measured: Measurement) -> float:
        r"""Predict the norm after the step from the norm before it and the turn.

        Where the cross term is 0, w' = (1 - kappa) w + s with s orthogonal to w, so that
        |w'| = (1 - kappa) |w| / cos(turn). This is exact for one unit, and for the root mean square
        over units up to the spread of their turns.

        Returns:
            nan where the law is open, its assumption fails (the weight was not found
            scale-invariant), its code takes another step at these numbers, or there is none.
        """
        law, hyper_parameters = self._law(measured, norm_growth)
        if law is None or law.sets_norm:
            return math.nan if law is None else measured.norm_before
        values = law.step.traced.free_values(**hyper_parameters)
        try:
            verify_numbers(law, values)
        except DifferenceError:
            return math.nan
        retention = law.retention.subs(values)
        cosine = math.cos(measured.turn)
        # A step orthogonal to w turns it by less than a right angle. A retention with free symbols
        # changes with a state.
        if law.cross != 0 or retention.free_symbols or cosine <= 0:
            return math.nan
        return float(retention) * measured.norm_before / cosine

    def turn(self, measured: Measurement) -> float:
        """Return the turn per step at which the weight settles at present; see `equilibrium`.

        Returns:
            nan without decay, or where the recipe has no equilibrium or the weight was not found
            scale-invariant.
        """
        law, hyper_parameters = self._law(measured, equilibrium)
        if law is None:
            return math.nan
        with suppress(ValueError):  # no equilibrium at these numbers, or no angle for the chord
            shape = (
                similar_shape(self._shapes[measured.weight])
                if law.orthogonal_factor_step
                else (64, 64)
            )
            effective_step = law.effective_step(law.traced.free_values(**hyper_parameters), shape)
            return 2 * math.asin(effective_step / 2)
        return math.nan

    def _recipe_name(self, group: Mapping[str, Any]) -> str | None:
        return group.get("recipe") or RECIPES_OF_TORCH.get(type(self._optimizer))

    def _law(self, measured: Measurement, derive: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
        """Return the law of a weight that was found scale-invariant, and its hyper-parameters."""
        index = self._groups.get(measured.weight)
        if index is None or measured.invariant_view is None:
            return None, {}
        group = self._present_groups[index]
        name = self._recipe_name(group)
        if name is None or group.get("amsgrad"):
            return None, {}
        recipe = getattr(self._optimizer, "recipe", None)
        if recipe is None or recipe.__name__ != name:
            recipe = find_recipe(name)
        values = {n: _to_python(group[n]) for n in bind(recipe).defaults if n in group}
        values |= without_eps(recipe) if derive is equilibrium else {}
        static = static_arguments_of_run(recipe, values)
        return _derive_cached(derive, recipe, tuple(sorted(static.items()))), values


def run_law(optimizer: Any, *, model: nn.Module | None = None) -> RunLaw:
    """Return the law of an optimizer's run, for `probe(law=...)` and `Page(equilibrium=...)`.

    Args:
        optimizer: an optimizer of this library, or SGD, Adam, AdamW or RMSprop of torch; or a
            wrapper that holds one as `.optimizer`.
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
        >>> measured = probe.measurements[0]
        >>> round(measured.norm, 6) == round(measured.predicted, 6), round(law.turn(measured), 4)
        (True, 0.0447)
    """
    optimizer = unwrap(optimizer)
    if not isinstance(optimizer, RecipeOptimizer) and type(optimizer) not in RECIPES_OF_TORCH:
        supported = ", ".join(optimizer_type.__name__ for optimizer_type in RECIPES_OF_TORCH)
        raise TypeError(
            f"run_law takes an optimizer of spherenorm, or {supported} of torch.optim, "
            f"got {type(optimizer).__name__}"
        )
    return RunLaw(optimizer, dict(model.named_parameters()) if model is not None else {})


def _copy_entry(value: Any) -> Any:
    """Return an entry of a param_group that no later write to a tensor or a list changes."""
    if isinstance(value, tuple | list):
        return tuple(map(_copy_entry, value))
    return value.clone() if isinstance(value, Tensor) else value


def _to_python(value: Any) -> Any:
    """Return a value of a param_group as recipes take it: a tuple for a list, no tensor."""
    if isinstance(value, tuple | list):
        return tuple(map(_to_python, value))
    return float(value) if isinstance(value, Tensor) else value


@functools.cache
def _derive_cached(
    derive: Callable[..., Any], recipe: Any, static: tuple[tuple[str, Any], ...]
) -> Any:
    """Return the law of a recipe; None where there is none."""
    with suppress(ValueError):
        return derive(recipe, **dict(static))
    return None
