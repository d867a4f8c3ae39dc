"""The laws of an optimizer's recipes beside the measurements of a probe."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import sympy as sp
import torch
from torch import Tensor, nn

from spherenorm import Recipe, bind, find_recipe
from spherenorm.optim import RecipeOptimizer, unwrap
from spherenorm.probes import Measurement
from spherenorm_theory.algebra.hyper_parameters import are_numbers, is_number, numbers_by_name
from spherenorm_theory.algebra.trace import TraceError
from spherenorm_theory.laws.equilibrium import Equilibrium, equilibrium, without_eps
from spherenorm_theory.laws.law import Law, norm_growth
from spherenorm_theory.laws.mean_field import NoEquilibriumError

OF_TORCH = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}
"""The recipes that are the steps of torch's optimizers."""

Choices = tuple[tuple[str, Any], ...]


class _Found(NamedTuple):
    """The recipe of a group: what is no number and no default, and the numbers by symbol."""

    recipe: Recipe
    choices: Choices
    numbers: dict[str, float]

    def values(self, symbols: Iterable[sp.Symbol]) -> dict[sp.Symbol, float]:
        """The numbers of symbols."""
        return {s: self.numbers[s.name] for s in symbols if s.name in self.numbers}


class RunLaw:
    """The norm and the turn that the law of a weight's recipe says. Made by `run_law`.

    It reads the hyper-parameters that the optimizer has at the moment, so that schedules count.

    Example:
        >>> import spherenorm as sn
        >>> weight = torch.nn.Parameter(torch.eye(2))
        >>> optimizer = sn.optim.SGDP([weight], lr=0.1, weight_decay=0.1)
        >>> law = run_law(optimizer)
        >>> with sn.probe(optimizer, every=1) as probe:
        ...     weight.grad = torch.eye(2).flip(0)
        ...     optimizer.step()
        >>> found = probe.measurements[0]
        >>> abs(law.predict(found) - found.norm) < 1e-6
        True
    """

    def __init__(self, optimizer: Any, names: Mapping[str, Tensor]) -> None:
        self._optimizer = optimizer
        self._groups = _groups_of(optimizer, names)

    def __repr__(self) -> str:
        recipes = dict.fromkeys(group["recipe"] for group in self._optimizer.param_groups)
        return f"<law of {', '.join(recipes)} for {len(self._groups)} weights>"

    def predict(self, measured: Measurement) -> float:
        r"""The norm after the step, of the norm before it and the turn.

        Where the cross term is 0, w' = (1 - kappa) w + s with s orthogonal to w, so that
        |w'| = (1 - kappa) |w| / cos(turn). It is exact of one unit, and of the root mean square
        over units up to the spread of their turns.

        Returns:
            nan where the law is open, its assumption fails (the weight was not found
            scale-invariant), or there is none.
        """
        found = self._recipe(measured)
        law = None if found is None else _law(found.recipe, found.choices)
        if law is None or found is None or not (law.constant or law.cross == 0):
            return math.nan
        if law.constant:
            return measured.norm_before
        kappa = law.kappa.subs(found.values(law.kappa.free_symbols))
        if kappa.free_symbols:
            return math.nan  # it changes with a state
        kept, cosine = 1 - float(kappa), math.cos(measured.turn)
        # (a step that is orthogonal to w turns it by less than a right angle)
        return float(kept) * measured.norm_before / cosine if cosine > 0 else math.nan

    def turn(self, measured: Measurement) -> float:
        """The turn per step at which the weight settles under random gradients; see `equilibrium`.

        Returns:
            nan without decay, or where the recipe has no equilibrium or the weight was not found
            scale-invariant.
        """
        found = self._recipe(measured)
        law = None if found is None else _equilibrium(found.recipe, found.choices)
        if law is None or found is None:
            return math.nan
        try:
            chord = law.rotation(found.values(law.traced.free.values()))
        except NoEquilibriumError:
            return math.nan
        return 2 * math.asin(chord / 2) if chord < 2 else math.nan

    def _recipe(self, measured: Measurement) -> _Found | None:
        """The recipe of a weight that was found scale-invariant, as its group has it now."""
        index = self._groups.get(measured.weight)
        if index is None or measured.invariant_view is None:
            return None
        group: Mapping[str, Any] = self._optimizer.param_groups[index]
        name = group.get("recipe") or OF_TORCH.get(type(self._optimizer))
        if name is None or group.get("amsgrad"):
            return None
        own = getattr(self._optimizer, "recipe", None)
        bound = bind(own if own is not None and own.__name__ == name else find_recipe(name))
        values = {n: _plain(group[n]) for n in bound.defaults if n in group}
        choices = {
            n: x
            for n, x in values.items()
            if not (is_number(x) or are_numbers(x)) and x != bound.defaults[n]
        }
        numbers = {n: float(x) for n, x in numbers_by_name(values).items() if is_number(x)}
        return _Found(bound.recipe, tuple(sorted(choices.items())), numbers)


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


def _groups_of(optimizer: Any, names: Mapping[str, Tensor]) -> dict[str, int]:
    """The index of the param_group of each weight, by the name that a probe gives it."""
    known = {id(weight): name for name, weight in names.items()}
    found, count = {}, 0
    for index, group in enumerate(optimizer.param_groups):
        own = group.get("param_names", [None] * len(group["params"]))
        for weight, name in zip(group["params"], own, strict=True):
            found[known.get(id(weight), name or str(count))] = index
            count += 1
    return found


def _plain(value: Any) -> Any:
    """A group's value as recipes have it: no list, and no tensor."""
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return float(value) if isinstance(value, Tensor) else value


@functools.cache
def _law(recipe: Recipe, choices: Choices) -> Law | None:
    try:
        return norm_growth(recipe, **dict(choices))
    except (TraceError, ValueError):
        return None


@functools.cache
def _equilibrium(recipe: Recipe, choices: Choices) -> Equilibrium | None:
    try:
        return equilibrium(recipe, **dict(choices), **without_eps(recipe))
    except (NoEquilibriumError, TraceError, ValueError):
        return None
