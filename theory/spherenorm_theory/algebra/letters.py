"""Rules that are one letter of a law: they are not looked into, and their length is known.

Before a step is recorded, `marked` exchanges such a rule in the recipe's tree for a `Letter`, whose
update calls one marker operation. Recorder, rules and kernels stay as they are; the record of Muon
has 5 operations in place of 135, and scale, view and precision are inside of the letter.

| letter | rule | known |
|---|---|---|
| O | `Orthogonalize` | degree 0; \\|O\\|^2 = c^2 q rank, c the rule's scale, q measured |
| N | `Graft`, in a recipe with O | degree 0; the length of its argument |
| T | `StiefelProjection` | nothing |
"""

from __future__ import annotations

import dataclasses
from typing import Any

import sympy as sp
import torch
from torch import Tensor

from spherenorm import Rule, State, Update
from spherenorm import rules as r

SCALE, SHARE, RANK = (sp.Symbol(name, positive=True) for name in ("c", "q", "rank"))
"""Of an orthogonal factor: c, the rule's scale; q, the mean square of its singular values over c^2,
1 of an exact factor; and the rank of the matrix."""

MARK = "spherenorm_letter.mark.default"
"""The name of the marker operation: of a direction, the weight, and the place of the rule."""

_LIBRARY: Any = torch.library.Library("spherenorm_letter", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define("mark(Tensor x, Tensor weight, int place) -> Tensor")
_LIBRARY.impl("mark", lambda x, weight, place: x.clone(), "CompositeExplicitAutograd")


class Letter(Rule):
    """Stands where `rule` stood, with its states; `place` is its place among the letters."""

    rule: Rule
    place: int = 0

    def update(self, update: Update, state: State) -> tuple[Update, State]:
        mark = torch.ops.spherenorm_letter.mark
        direction: Tensor = mark(update.direction, update.weight, self.place)
        return update.replace(direction=direction), dict(state)


def marked(rule: Rule) -> tuple[Rule, tuple[Rule, ...]]:
    """A rule with a letter for each rule that is one, at any depth, and the rules they stand for.

    Example:
        >>> import spherenorm as sn
        >>> marked(sn.recipes.muon())[1]
        (Orthogonalize(...),)
    """
    kinds: tuple[type[Rule], ...] = (r.Orthogonalize, r.StiefelProjection)
    if any(isinstance(each, r.Orthogonalize) for each in rule.walk()):
        kinds = (*kinds, r.Graft)
    found: list[Rule] = []

    def exchanged(x: Any) -> Any:
        if isinstance(x, tuple):
            new = tuple(map(exchanged, x))
            return x if all(a is b for a, b in zip(x, new, strict=True)) else new
        if isinstance(x, kinds):
            found.append(x)
            return Letter(x, len(found) - 1)
        if not isinstance(x, Rule):
            return x
        fields = [f.name for f in dataclasses.fields(x) if f.init]
        changed = {n: new for n in fields if (new := exchanged(old := getattr(x, n))) is not old}
        return dataclasses.replace(x, **changed) if changed else x

    return exchanged(rule), tuple(found)


def states_of_letters(rule: Rule) -> dict[int, dict[str, str]]:
    """For each letter, by its place, its rule's states by their names in the state of `rule`."""
    if isinstance(rule, Letter):
        return {rule.place: dict(rule.child_keys[0])}
    found: dict[int, dict[str, str]] = {}
    for child, outer in zip(rule.children, rule.child_keys, strict=True):
        for place, keys in states_of_letters(child).items():
            found[place] = {own: outer[key] for own, key in keys.items()}
    return found
