"""Recipes: functions from hyper-parameters to a rule, found by name and bound to values."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from spherenorm.numerics import as_number
from spherenorm.rule import Rule
from spherenorm.support import did_you_mean, file_of, look_up, signature_of, unknown_name
from spherenorm.torch_internals import is_functorch_tensor

Recipe = Callable[..., Rule]
"""A function whose arguments are hyper-parameters and whose result is a rule.

Example:
    >>> def halved(lr=0.1) -> sn.Rule:
    ...     return sn.chain(sn.rules.StepSize(lr), sn.rules.StepSize(0.5))
    >>> bind(halved).defaults
    mappingproxy({'lr': 0.1})
"""

_F = TypeVar("_F", bound=Recipe)


class _Wrapper(NamedTuple):
    """A wrapper: the author's function of a rule, and the function of recipes made from it."""

    function: Callable[..., Rule]
    wrap: Callable[[str | Recipe], Recipe]


class WrapperCall(NamedTuple):
    """The origin of a wrapped recipe: the wrapper's name, and the inner recipe."""

    wrapper_name: str
    inner: Recipe
    result: Recipe


_recipes: dict[tuple[str, str], Recipe] = {}
"""The registered recipes, by file and function name: a module that is loaded under two names
registers each of its recipes once."""
_wrappers: dict[str, _Wrapper] = {}
"""The wrappers, by the name before the parenthesis in "hyperball(lion)"."""
_defaults: dict[Recipe, Mapping[str, Any]] = {}
"""Cache of `defaults_of`, which every step of an optimizer asks. A plain dict: Dynamo ignores
`functools.cache`, and cannot trace `inspect.signature`."""


def recipe(function: _F) -> _F:
    """Register a recipe under its function's name and return it unchanged.

    The library's own names always mean the library's recipes. A name that two other modules
    register means neither: call each `module:function`. A function that is defined again (a
    notebook's cell, a reload) replaces the one before.

    Args:
        function: takes hyper-parameters by name and returns a rule.

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
    _recipes[_source(function)] = function
    return function


def wrapper(function: Callable[..., Rule]) -> Callable[[str | Recipe], Recipe]:
    """Turn a function of a rule into a function of recipes, and register it.

        @wrapper
        def halved(base, lr=0.1):
            return sn.chain(base, sn.rules.StepSize(lr), sn.rules.StepSize(0.5))

        print(sn.find_recipe("halved(sgd)") is halved("sgd"))  # True

    The hyper-parameters of the result are those of the inner recipe and the function's own. If the
    function has an `lr`, the inner recipe steps with lr=1 and without weight decay. A name that
    both have is one hyper-parameter where their defaults agree, as `view` of `hyperball(muon)`;
    where they differ, the inner recipe's is called `base_view`.

    Args:
        function: takes the inner recipe's rule as `base`, and hyper-parameters by name.
    """

    name = function.__name__

    @functools.cache
    def wrap_recipe(inner: Recipe) -> Recipe:
        wrapper_params = signature_of(function).parameters
        inner_params = signature_of(inner).parameters
        inner_defaults = defaults_of(inner)
        replaces_lr = "lr" in wrapper_params
        if replaces_lr and "lr" not in inner_defaults:
            raise ValueError(
                f"{name}: recipe {name_of(inner)!r} has no lr to take over; "
                f"it has {', '.join(inner_defaults)}"
            )
        fixed = {}
        if replaces_lr:
            fixed = {"lr": 1.0, "weight_decay": 0.0}
            fixed = {key: value for key, value in fixed.items() if key in inner_defaults}
        conflicting = {
            key
            for key, parameter in wrapper_params.items()
            if key in inner_defaults and parameter.default != inner_defaults[key]
        }
        outer_names = {}
        for key in inner_defaults:
            if key not in fixed:
                is_conflict = re.sub("^(base_)+", "", key) in conflicting
                outer_names[key] = f"base_{key}" if is_conflict else key

        def wrapped(**hyper_parameters: Any) -> Rule:
            inner_values = {
                key: hyper_parameters[outer_name]
                for key, outer_name in outer_names.items()
                if outer_name in hyper_parameters
            }
            wrapper_values = {
                key: value for key, value in hyper_parameters.items() if key in wrapper_params
            }
            return function(bind(inner, **inner_values, **fixed).rule, **wrapper_values)

        # The wrapper's lr comes first, then the inner recipe's parameters, then the wrapper's.
        parameters = {"lr": wrapper_params["lr"]} if replaces_lr else {}
        for key, outer_name in outer_names.items():
            parameters[outer_name] = inner_params[key].replace(name=outer_name)
        parameters |= _without_base(wrapper_params)
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        signature = inspect.Signature(
            [parameter.replace(kind=keyword_only) for parameter in parameters.values()]
        )
        wrapped.__signature__ = signature  # type: ignore[attr-defined]
        wrapped.__annotations__ = {
            **type_hints_of(inner),
            **type_hints_of(function),
            "return": Rule,
        }
        wrapped.__name__ = wrapped.__qualname__ = f"{name}_{inner.__name__}"
        wrapped.__doc__, wrapped.__module__ = function.__doc__, inner.__module__
        wrapped.wrapper_call = WrapperCall(name, inner, wrapped)  # type: ignore[attr-defined]
        return wrapped

    def wrap(base: str | Recipe) -> Recipe:
        return wrap_recipe(find_recipe(base))

    wrap.__name__ = wrap.__qualname__ = name
    wrap.__doc__, wrap.__module__ = function.__doc__, function.__module__
    _wrappers[name] = _Wrapper(function, wrap)
    return wrap


def wrapper_call(function: Recipe) -> WrapperCall | None:
    """Return how a wrapper made this recipe; None if it is no wrapped recipe."""
    call = getattr(function, "wrapper_call", None)
    # functools.wraps copies attributes to functions that are not the wrapped recipe itself.
    return call if isinstance(call, WrapperCall) and call.result is function else None


def is_builtin(function: Recipe) -> bool:
    """Return True for the library's recipes: those in `spherenorm.recipes` and `spherenorm.zoo`."""
    packages = ("spherenorm.recipes.", "spherenorm.zoo.")
    return function.__module__.startswith(packages) and wrapper_call(function) is None


def recipe_names() -> list[str]:
    """Return the names that find the registered recipes, in the order of registration.

    A recipe whose short name is shared is listed as `module:function`.

    Example:
        >>> recipe_names()[:3]
        ['sgd', 'sgdw', 'sgdp']
    """
    names = []
    for function in _recipes.values():
        short_name = function.__name__
        is_unique = _recipes_with_short_name(short_name) == [function]
        names.append(short_name if is_unique else qualified_name(function))
    return names


def hyper_parameter_names() -> set[str]:
    """Return the names of the hyper-parameters of all registered recipes and wrappers."""
    names: set[str] = set()
    for function in _recipes.values():
        names.update(defaults_of(function))
    for wrapper in _wrappers.values():
        names.update(_without_base(signature_of(wrapper.function).parameters))
    return names


def _without_base(parameters: Mapping[str, inspect.Parameter]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a wrapper's function, without the rule that it wraps."""
    return {name: parameter for name, parameter in parameters.items() if name != "base"}


def find_recipe(spec: str | Recipe) -> Recipe:
    """Return the recipe that `spec` stands for.

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
        return _recipe_of_class(spec)
    if callable(spec):
        return spec
    if not isinstance(spec, str):
        is_optimizer = callable(getattr(spec, "recipe", None))
        value = "an optimizer; give its class" if is_optimizer else repr(spec)
        raise TypeError(
            "a recipe is a function, a registered name or module:function, "
            f"got {type(spec).__name__} {value}"
        )
    match = re.fullmatch(r"(\w+)\((.+)\)", spec)
    if match:
        wrapper_name, inner_name = match.groups()
        if wrapper_name not in _wrappers:
            raise unknown_name("wrapper", wrapper_name, _wrappers)
        return _wrappers[wrapper_name].wrap(inner_name)
    candidates = recipes_named(spec)
    if len(candidates) > 1:
        names = " or ".join(map(qualified_name, candidates))
        raise ValueError(f"recipe {spec!r} may be {names}; say which")
    if candidates:
        return candidates[0]
    module_name, colon, _ = spec.partition(":")
    if not (module_name and colon):
        raise unknown_name("recipe", spec, recipe_names(), "(your own: module:function)")
    function: Recipe = look_up("recipe", spec, "function", callable)
    return function


def _recipe_of_class(cls: type) -> Recipe:
    """Return the recipe of an optimizer class that `torch_optimizer` made.

    Raises:
        TypeError: the class is another one.
    """
    recipe = getattr(cls, "recipe", None)
    if callable(recipe):
        return recipe  # type: ignore[no-any-return]
    same_name = cls.__name__.lower()
    hint = f"; the recipe of that name is {same_name!r}" if same_name in recipe_names() else ""
    raise TypeError(
        f"a recipe is a function, a registered name or module:function, got the class "
        f"{cls.__module__}.{cls.__qualname__}, which is made of none{hint}"
    )


def recipes_named(spec: str) -> list[Recipe]:
    """Return the registered recipes that a string may mean, without importing a module."""
    candidates = _recipes_with_short_name(spec)
    return candidates or [f for f in _recipes.values() if qualified_name(f) == spec]


@dataclass(frozen=True, eq=False)
class Bound:
    """A recipe with its hyper-parameters: everything that makes one rule. Made by `bind`.

    Attributes:
        recipe: the function.
        hyper_parameters: the value of each hyper-parameter, in the recipe's order: as given (but
            numpy's numbers as Python's), or the default. One that has no default and was not given
            is absent.
        explicit_names: the names of those that were given; the others have their defaults.

    Example:
        >>> bound = bind("sgdp", momentum=0.9)
        >>> print(bound, bound.rule.state_keys)
        sgdp(momentum=0.9) ('momentum',)
        >>> sorted(bound.explicit_names)
        ['momentum']
        >>> print(bound.replace(lr=0.1))
        sgdp(lr=0.1, momentum=0.9)
    """

    recipe: Recipe
    hyper_parameters: Mapping[str, Any]
    explicit_names: frozenset[str] = frozenset()

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
        """The rule that the recipe returns for these hyper-parameters.

        Raises:
            ValueError: a hyper-parameter lies outside its interval, or `betas` has another length
                than its default. The message starts with the values that are not the defaults.
            TypeError: a hyper-parameter has a wrong type or no value; the recipe returns no rule.
        """
        if torch.compiler.is_compiling():
            return self._build_rule()  # a cache would keep the tensors that Dynamo traces with
        if "_rule" not in self.__dict__:
            self.__dict__["_rule"] = self._build_rule()
        rule: Rule = self.__dict__["_rule"]
        return rule

    def _build_rule(self) -> Rule:
        try:
            self._check_number_of_betas()
            rule = self.recipe(**self.hyper_parameters)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{self}: {error}") from error
        if not isinstance(rule, Rule):
            raise TypeError(f"recipe {self.name!r} must return a rule, it returned {rule!r}")
        return rule

    def replace(self, **hyper_parameters: Any) -> Bound:
        """Return the same recipe with other values of some hyper-parameters.

        Raises:
            ValueError: the recipe has no such hyper-parameter.
        """
        given_values = {name: self.hyper_parameters[name] for name in self.explicit_names}
        return bind(self.recipe, **{**given_values, **hyper_parameters})

    def __str__(self) -> str:
        """Return the recipe as it is called, with the values that are not its defaults."""
        arguments = []
        for name, value in self.hyper_parameters.items():
            text = _format_value(value)
            if text != _format_value(self.defaults[name]):
                arguments.append(f"{name}={text}")
        return f"{self.name}({', '.join(arguments)})"

    def _check_number_of_betas(self) -> None:
        betas, default = self.hyper_parameters.get("betas"), self.defaults.get("betas")
        if not isinstance(default, tuple):
            return
        if not isinstance(betas, (tuple, list)) or len(betas) != len(default):
            raise ValueError(f"betas must be {len(default)} numbers, got {betas!r}")


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
    defaults = defaults_of(function)
    for name in hyper_parameters:
        if name not in defaults:
            hint = did_you_mean(name, defaults, f"it has {', '.join(defaults)}")
            raise ValueError(
                f"recipe {name_of(function)!r} has no hyper-parameter {name!r}; {hint}"
            )
    values = {}
    for name, default in defaults.items():
        if name in hyper_parameters or default is not inspect.Parameter.empty:
            try:
                values[name] = as_number(hyper_parameters.get(name, default))
            except ValueError as error:
                raise ValueError(f"recipe {name_of(function)!r}: {name}: {error}") from None
    return Bound(function, MappingProxyType(values), frozenset(hyper_parameters))


def name_of(function: Recipe) -> str:
    """Return the string that finds a recipe again, whatever recipes others register later.

    The library's recipes have their short names, wrapped ones "wrapper(inner)", all others
    `module:function`.
    """
    call = wrapper_call(function)
    if call is not None:
        return f"{call.wrapper_name}({name_of(call.inner)})"
    has_stable_name = is_builtin(function) and function in _recipes.values()
    return function.__name__ if has_stable_name else qualified_name(function)


def qualified_name(function: Recipe) -> str:
    """Return `module:function`."""
    return f"{function.__module__}:{getattr(function, '__qualname__', repr(function))}"


def defaults_of(function: Recipe) -> Mapping[str, Any]:
    """Return a recipe's hyper-parameters with their defaults, in order.

    `inspect.Parameter.empty` marks one without a default.

    Raises:
        TypeError: the function takes *args or **kwargs, so that its hyper-parameters have no names.
    """
    if function not in _defaults:
        _defaults[function] = _read_defaults(function)
    return _defaults[function]


def type_hints_of(function: Recipe) -> dict[str, Any]:
    """Return the types in a recipe's signature, by argument; none if one cannot be evaluated."""
    try:
        return typing.get_type_hints(function)
    except NameError:  # a type that is imported for type checkers alone
        return {}


def _read_defaults(function: Recipe) -> Mapping[str, Any]:
    defaults = {}
    for name, parameter in signature_of(function).parameters.items():
        if parameter.kind not in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        ):
            raise TypeError(
                f"recipe {qualified_name(function)}: hyper-parameters need names, got {parameter}"
            )
        defaults[name] = parameter.default
    return MappingProxyType(defaults)


def _format_value(value: Any) -> str:
    """Format a hyper-parameter for a message; a tensor of several values shows its shape."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_value, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Tensor) and (value.ndim or is_functorch_tensor(value)):
        return f"<tensor of shape {tuple(value.shape)}>"
    return repr(value)


def _recipes_with_short_name(name: str) -> list[Recipe]:
    """Return the registered recipes of a short name; the library's own one hides all others."""
    candidates = [function for function in _recipes.values() if function.__name__ == name]
    builtin = [function for function in candidates if is_builtin(function)]
    return builtin or candidates


def _source(function: Recipe) -> tuple[str, str]:
    return file_of(function.__module__) or function.__module__, function.__qualname__
