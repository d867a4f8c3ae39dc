"""Recipes: functions from hyper-parameters to a rule, found by name and bound to values."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from spherenorm.annotations import signature_of
from spherenorm.numerics import as_number
from spherenorm.rule import Rule
from spherenorm.support import did_you_mean, file_of, look_up, unknown_name

Recipe = Callable[..., Rule]
"""A function whose arguments are hyper-parameters and whose result is a rule.

Example:
    >>> def halved(lr=0.1) -> sn.Rule:
    ...     return sn.chain(sn.rules.StepSize(lr), sn.rules.StepSize(0.5))
    >>> bind(halved).defaults
    mappingproxy({'lr': 0.1})
"""

_F = TypeVar("_F", bound=Recipe)
_registered: dict[tuple[str, str], Recipe] = {}
"""By file and function, so that a module that is loaded under two names has each recipe once."""
_defaults: dict[Recipe, Mapping[str, Any]] = {}
"""The hyper-parameters of the recipes that were read; see `defaults_of`."""
_wrappers: dict[str, Callable[[str | Recipe], Recipe]] = {}
"""By the name that stands before the parenthesis in a recipe's name; see `wrapper`."""
_of_wrappers: set[str] = set()
"""The hyper-parameters of wrappers."""
_wrapped: dict[Recipe, tuple[str, Recipe]] = {}
"""The wrapper's name and the inner recipe of the recipes that wrappers have made."""


def recipe(function: _F) -> _F:
    """Register a recipe under its function's name and return it unchanged.

    The library's own names always mean the library's recipes. A name that two other modules
    register means neither: call each `module:function`. A function that is defined again (a
    notebook's cell, a reload) replaces the one before.

    Args:
        function: of hyper-parameters by name; it returns a rule.

    Raises:
        TypeError: the function takes *args or **kwargs, so that its hyper-parameters have no names.

    Example:
        >>> @sn.recipe
        ... def halved(lr=0.1):
        ...     return sn.chain(sn.rules.StepSize(lr), sn.rules.StepSize(0.5))
        >>> sn.find_recipe("halved")(lr=0.2).rules
        (StepSize(lr=0.2), StepSize(lr=0.5))
    """
    defaults_of(function)
    _registered[_source(function)] = function
    return function


def wrapper(function: Callable[..., Rule]) -> Callable[[str | Recipe], Recipe]:
    """Make a function of a rule one of a recipe: it turns each recipe into another one.

        @wrapper
        def halved(base, lr=0.1):
            return sn.chain(base, sn.rules.StepSize(lr), sn.rules.StepSize(0.5))

        print(sn.find_recipe("halved(sgd)") is halved("sgd"))  # True

    The hyper-parameters of the result are those of the inner recipe and the function's own. If the
    function has an `lr`, the inner recipe steps with lr=1 and without weight decay. A name that
    both have is one hyper-parameter where their defaults agree, as `view` of `hyperball(muon)`;
    where they differ, the inner recipe's is called `base_view`.

    Args:
        function: of the inner recipe's rule, and of hyper-parameters.
    """

    @functools.cache
    def made(inner: Recipe) -> Recipe:
        name, own = function.__name__, signature_of(function).parameters
        known = defaults_of(inner)
        if "lr" in own and "lr" not in known:
            has = f"it has {', '.join(known)}"
            raise ValueError(f"{name}: recipe {name_of(inner)!r} has no lr to take over; {has}")
        fixed = {"lr": 1.0, "weight_decay": 0.0} if "lr" in own else {}
        fixed = {key: value for key, value in fixed.items() if key in known}
        two = {key for key in own if key in known and own[key].default != known[key]}
        names = {
            key: f"base_{key}" if re.sub("^(base_)+", "", key) in two else key
            for key in known
            if key not in fixed
        }
        theirs = signature_of(inner).parameters
        kept = {outer: theirs[key].replace(name=outer) for key, outer in names.items()}

        def outer(**given: Any) -> Rule:
            within = {key: given[name] for key, name in names.items() if name in given}
            ours = {key: value for key, value in given.items() if key in own}
            return function(bind(inner, **within, **fixed).rule, **ours)

        ours = {key: p for key, p in own.items() if key != "base"}
        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in ({n: p for n, p in ours.items() if n == "lr"} | kept | ours).values()
        ]
        outer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        outer.__annotations__ = {**hints_of(inner), **hints_of(function), "return": Rule}
        outer.__name__ = outer.__qualname__ = f"{name}_{inner.__name__}"
        outer.__doc__, outer.__module__ = function.__doc__, inner.__module__
        _wrapped[outer] = name, inner
        return outer

    def wrap(base: str | Recipe) -> Recipe:
        return made(find_recipe(base))

    wrap.__name__ = wrap.__qualname__ = function.__name__
    wrap.__doc__, wrap.__module__ = function.__doc__, function.__module__
    _wrappers[function.__name__] = wrap
    _of_wrappers.update(key for key in signature_of(function).parameters if key != "base")
    return wrap


def is_builtin(function: Recipe) -> bool:
    """Return True for the library's recipes: those in `spherenorm.recipes` and `spherenorm.zoo`."""
    packages = ("spherenorm.recipes.", "spherenorm.zoo.")
    return function.__module__.startswith(packages) and function not in _wrapped


def recipe_names() -> list[str]:
    """The names that find the registered recipes, in order; `module:function` for shared names.

    Example:
        >>> recipe_names()[:3]
        ['sgd', 'sgdw', 'sgdp']
    """
    return [f.__name__ if _named(f.__name__) == [f] else _location(f) for f in _registered.values()]


def hyper_parameter_names() -> set[str]:
    """The names of the hyper-parameters of all registered recipes and wrappers."""
    return _of_wrappers.union(*(defaults_of(each) for each in _registered.values()))


def find_recipe(spec: str | Recipe) -> Recipe:
    """The recipe that `spec` stands for.

    The module that runs as a script is not imported a second time under its own name.

    Args:
        spec: a registered name, `module:function`, one of these within a wrapper, such as
            "hyperball(lion)", or a recipe itself. An optimizer class made of a recipe stands for
            that recipe.

    Raises:
        ValueError: there is no recipe of that name (the message lists the nearest), or two.
        TypeError: `spec` is neither a string nor a function, or a class of something else.

    Example:
        >>> find_recipe("adamp")
        <function adamp at ...>
    """
    if isinstance(spec, type) and not issubclass(spec, Rule):
        made_of = getattr(spec, "recipe", None)
        if callable(made_of):
            return made_of  # type: ignore[no-any-return]
        near = [name for name in recipe_names() if name == spec.__name__.lower()]
        instead = f"; the recipe of that name is {near[0]!r}" if near else ""
        raise TypeError(
            f"a recipe is a function, a registered name or module:function, got the class "
            f"{spec.__module__}.{spec.__qualname__}, which is made of none{instead}"
        )
    if callable(spec):
        return spec
    if not isinstance(spec, str):
        of_instance = callable(getattr(spec, "recipe", None))
        got = "an optimizer; give its class" if of_instance else repr(spec)
        raise TypeError(
            "a recipe is a function, a registered name or module:function, "
            f"got {type(spec).__name__} {got}"
        )
    if match := re.fullmatch(r"(\w+)\((.+)\)", spec):
        if match[1] not in _wrappers:
            raise unknown_name("wrapper", match[1], _wrappers)
        return _wrappers[match[1]](match[2])
    found = recipes_named(spec)
    if len(found) > 1:
        raise ValueError(f"recipe {spec!r} may be {' or '.join(map(_location, found))}; say which")
    if found:
        return found[0]
    module_name, colon, _ = spec.partition(":")
    if not (module_name and colon):
        raise unknown_name("recipe", spec, recipe_names(), "(your own: module:function)")
    function: Recipe = look_up("recipe", spec, "function", callable)
    return function


def recipes_named(spec: str) -> list[Recipe]:
    """The registered recipes that a string may mean; nothing is imported for it."""
    return _named(spec) or [f for f in _registered.values() if _location(f) == spec]


@dataclass(frozen=True, eq=False)
class Bound:
    """A recipe with its hyper-parameters: everything that makes one rule. Made by `bind`.

    Attributes:
        recipe: the function.
        hyper_parameters: the value of each hyper-parameter, in the recipe's order: as given (but
            numpy's numbers as Python's), or the default. One that has no default and was not given
            is absent.
        given: the names of those that were given; the others have their defaults.

    Example:
        >>> bound = bind("sgdp", momentum=0.9)
        >>> print(bound, bound.rule.state_keys)
        sgdp(momentum=0.9) ('momentum',)
        >>> sorted(bound.given)
        ['momentum']
        >>> print(bound.replace(lr=0.1))
        sgdp(lr=0.1, momentum=0.9)
    """

    recipe: Recipe
    hyper_parameters: Mapping[str, Any]
    given: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The string that finds the recipe again; see `name_of`."""
        return name_of(self.recipe)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The recipe's hyper-parameters with their defaults; see `defaults_of`."""
        return defaults_of(self.recipe)

    @property
    def rule(self) -> Rule:
        """The rule that the recipe makes of the hyper-parameters.

        Raises:
            ValueError: a hyper-parameter lies outside its interval, or `betas` has another length
                than its default. The message starts with the values that are not the defaults.
            TypeError: a hyper-parameter has a wrong type or no value; the recipe returns no rule.
        """
        if torch.compiler.is_compiling():  # a cache would keep what torch.compile traces with
            return self._made()
        if "_rule" not in self.__dict__:
            self.__dict__["_rule"] = self._made()
        made: Rule = self.__dict__["_rule"]
        return made

    def _made(self) -> Rule:
        try:
            self._refuse_other_betas()
            rule = self.recipe(**self.hyper_parameters)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self}: {error}") from error
        if not isinstance(rule, Rule):
            raise TypeError(f"recipe {self.name!r} must return a rule, it returned {rule!r}")
        return rule

    def replace(self, **hyper_parameters: Any) -> Bound:
        """The same recipe with other values of some hyper-parameters.

        Raises:
            ValueError: the recipe has no such hyper-parameter.
        """
        given = {name: self.hyper_parameters[name] for name in self.given}
        return bind(self.recipe, **{**given, **hyper_parameters})

    def __str__(self) -> str:
        """The recipe as it is called, with the values that are not its defaults."""
        chosen = ", ".join(
            f"{name}={_shown(value)}"
            for name, value in self.hyper_parameters.items()
            if _shown(value) != _shown(self.defaults[name])
        )
        return f"{self.name}({chosen})"

    def _refuse_other_betas(self) -> None:
        value, default = self.hyper_parameters.get("betas"), self.defaults.get("betas")
        if isinstance(default, tuple) and not (
            isinstance(value, (tuple, list)) and len(value) == len(default)
        ):
            raise ValueError(f"betas must be {len(default)} numbers, got {value!r}")


def bind(recipe: str | Recipe, /, **hyper_parameters: Any) -> Bound:
    """Give a recipe values for its hyper-parameters; the others keep their defaults.

    Args:
        recipe: a recipe, its registered name, or `module:function`; or an optimizer class.
        **hyper_parameters: by name: numbers, or 0-dim tensors, and what else the recipe takes.

    Returns:
        The recipe and all its hyper-parameters. Its `rule` is made, and checked, when it is asked
        for.

    Raises:
        ValueError: there is no such recipe, or it has no such hyper-parameter.

    Example:
        >>> bound = bind("sgdp", lr=0.1)
        >>> bound.name, bound.hyper_parameters["momentum"], bound.rule.state_keys
        ('sgdp', 0.0, ('momentum',))
    """
    function = find_recipe(recipe)
    known = defaults_of(function)
    for name in hyper_parameters:
        if name not in known:
            lacks = f"recipe {name_of(function)!r} has no hyper-parameter {name!r}"
            nearest = did_you_mean(name, known, f"it has {', '.join(known)}")
            raise ValueError(f"{lacks}; {nearest}")
    values = {}
    for name, default in known.items():
        if name in hyper_parameters or default is not inspect.Parameter.empty:
            try:
                values[name] = as_number(hyper_parameters.get(name, default))
            except ValueError as error:
                raise ValueError(f"recipe {name_of(function)!r}: {name}: {error}") from None
    return Bound(function, MappingProxyType(values), frozenset(hyper_parameters))


def name_of(function: Recipe) -> str:
    """The string that finds a recipe again, whatever recipes others register later.

    The library's recipes have their short names, all others `module:function`.
    """
    if function in _wrapped:
        wrapper, inner = _wrapped[function]
        return f"{wrapper}({name_of(inner)})"
    lasting = is_builtin(function) and function in _registered.values()
    return function.__name__ if lasting else _location(function)


def defaults_of(function: Recipe) -> Mapping[str, Any]:
    """A recipe's hyper-parameters with their defaults, in order.

    `inspect.Parameter.empty` marks one without a default.

    Raises:
        TypeError: the function takes *args or **kwargs, so that its hyper-parameters have no names.
    """
    # Reading a signature takes longer than stepping a small weight. (torch.compile warns of
    # `functools.cache`.)
    if function not in _defaults:
        _defaults[function] = _read_defaults(function)
    return _defaults[function]


def hints_of(function: Recipe) -> dict[str, Any]:
    """The types that a recipe's signature declares, by argument; none if one cannot be found."""
    try:
        return typing.get_type_hints(function)
    except NameError:  # of a type that is imported for type checkers alone
        return {}


def _read_defaults(function: Recipe) -> Mapping[str, Any]:
    parameters = signature_of(function).parameters
    for parameter in parameters.values():
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise TypeError(
                f"recipe {_location(function)}: hyper-parameters need names, got {parameter}"
            )
    return MappingProxyType({name: each.default for name, each in parameters.items()})


def _shown(value: Any) -> str:
    """A hyper-parameter in a message; a tensor of several values is shown by its shape."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Tensor):
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        return f"<tensor of shape {tuple(value.shape)}>" if value.ndim or wrapped else repr(value)
    return repr(value)


def _named(name: str) -> list[Recipe]:
    """The registered recipes of a short name; the library's own recipe hides all others."""
    found = [function for function in _registered.values() if function.__name__ == name]
    return [function for function in found if is_builtin(function)] or found


def _location(function: Recipe) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', repr(function))}"


def _source(function: Recipe) -> tuple[str, str]:
    return file_of(function.__module__) or function.__module__, function.__qualname__
