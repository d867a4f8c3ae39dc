"""Recipes: functions from hyper-parameters to a rule, found by name and bound to values."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar, overload

import torch
from torch import Tensor

from spherenorm.numerics import as_number
from spherenorm.rule import Rule
from spherenorm.support import (
    did_you_mean,
    file_of,
    look_up,
    signature_of,
    split_at_commas,
    unknown_name,
)
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
    """A wrapper: the author's function of rules, and the function of recipes made from it."""

    function: Callable[..., Rule]
    wrap: Callable[..., Recipe]
    refuses: Callable[[Rule], str | None]


class WrapperCall(NamedTuple):
    """The origin of a wrapped recipe.

    Attributes:
        wrapper_name: the name of the wrapper.
        inners: the recipes that it wraps.
        fixed_names: the hyper-parameters of these recipes that the wrapper fixes.
        result: the wrapped recipe.
    """

    wrapper_name: str
    inners: tuple[Recipe, ...]
    fixed_names: frozenset[str]
    result: Recipe


class _DefaultOf(NamedTuple):
    """The default of a wrapper's hyper-parameter, before a recipe is wrapped; see `default_of`."""

    rule_name: str
    otherwise: Any


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


def _refuse_nothing(rule: Rule) -> None:
    """Return None: a wrapper takes every rule by default."""


@overload
def wrapper(function: Callable[..., Rule]) -> Callable[..., Recipe]: ...


@overload
def wrapper(
    *, refuses: Callable[[Rule], str | None]
) -> Callable[[Callable[..., Rule]], Callable[..., Recipe]]: ...


def wrapper(
    function: Callable[..., Rule] | None = None,
    *,
    refuses: Callable[[Rule], str | None] = _refuse_nothing,
) -> Callable[..., Any]:
    """Turn a function of a rule into a function of recipes, and register it.

        @wrapper
        def halved(base, lr=0.1):
            return sn.chain(base, sn.rules.StepSize(lr), sn.rules.StepSize(0.5))

        print(sn.find_recipe("halved(sgd)") is halved("sgd"))  # True

    The hyper-parameters of the result are those of the inner recipe and the function's own. If the
    function has an `lr` with a default, the inner recipe steps with lr=1 and without weight decay.
    A name that both have is one hyper-parameter where their defaults agree, as `view` of
    `hyperball(muon)`; where they differ, the inner recipe's is called `base_view`. A parameter
    without a default is the inner recipe's hyper-parameter of that name, and both get its value.

    Further parameters that are annotated as `Rule` take further recipes: "graft(muon, adamw)". The
    names of their hyper-parameters then start with that of the parameter: length_betas, say.

    Args:
        function: takes the inner recipe's rule, rules of further recipes, and hyper-parameters by
            name. The default of one of these may be `default_of` an inner recipe.
        refuses: returns why the wrapper does not take an inner rule, or None if it takes it. The
            error also says which order of the wrappers is possible, if there is one.

    Raises:
        ValueError: when a recipe is wrapped, if it lacks a hyper-parameter that the function needs,
            or if the number of recipes is another one.
    """
    if function is None:
        return functools.partial(wrapper, refuses=refuses)
    wrap_recipes = functools.cache(functools.partial(_wrap, function, refuses))

    def wrap(*bases: str | Recipe) -> Recipe:
        return wrap_recipes(*map(find_recipe, bases))

    wrap.__name__ = wrap.__qualname__ = function.__name__
    wrap.__doc__, wrap.__module__ = function.__doc__, function.__module__
    _wrappers[function.__name__] = _Wrapper(function, wrap, refuses)
    return wrap


def default_of(rule_name: str, otherwise: Any = inspect.Parameter.empty) -> Any:
    """Give a hyper-parameter of a wrapper the default that it has in an inner recipe.

    Args:
        rule_name: the parameter of the wrapper's function that takes the recipe's rule.
        otherwise: the default if the recipe has no hyper-parameter of this name; without it, the
            wrapper refuses such a recipe.

    Example:
        >>> @sn.registry.wrapper
        ... def halved(base, lr=sn.registry.default_of("base")):
        ...     return sn.chain(base, sn.rules.StepSize(0.5), sn.rules.StepSize(lr))
        >>> sn.bind("halved(adamw)").defaults["lr"], sn.bind("halved(soap)").defaults["lr"]
        (0.001, 0.003)
    """
    return _DefaultOf(rule_name, otherwise)


def _wrap(
    function: Callable[..., Rule], refuses: Callable[[Rule], str | None], *inners: Recipe
) -> Recipe:
    """Return the recipe that a wrapper's function makes of recipes; see `wrapper`."""
    name, rule_names = function.__name__, _rule_names(function)
    if len(inners) != len(rule_names):
        raise ValueError(
            f"{name}: the number of recipes must be {len(rule_names)} ({', '.join(rule_names)}), "
            f"got {len(inners)} ({', '.join(map(name_of, inners))})"
        )
    parameters = _resolve_defaults(function, dict(zip(rule_names, inners, strict=True)))
    fixed = [_fixed_values(function, inner) for inner in inners]
    outer_names = _outer_names(parameters, dict(zip(rule_names, inners, strict=True)), fixed)

    def wrapped(**hyper_parameters: Any) -> Rule:
        rules = []
        for inner, fixed_values, names in zip(inners, fixed, outer_names, strict=True):
            values = {
                key: hyper_parameters[outer_name]
                for key, outer_name in names.items()
                if outer_name in hyper_parameters
            }
            rules.append(bind(inner, **values, **fixed_values).rule)
        for index, rule in enumerate(rules):
            reason = refuses(rule)
            if reason is not None:
                raise ValueError(
                    f"{name}: in {name_of(inners[index])}, {reason}; {_order_remedy(call, index)}"
                )
        values = {key: x.default for key, x in parameters.items() if x.default is not x.empty}
        values |= {key: x for key, x in hyper_parameters.items() if key in parameters}
        return function(*rules, **values)

    # The wrapper's lr comes first, then the inner recipes' parameters, then the wrapper's.
    signature = {key: x for key, x in parameters.items() if key == "lr"}
    hints: dict[str, Any] = {}
    for inner, names in zip(inners, outer_names, strict=True):
        inner_hints, inner_parameters = type_hints_of(inner), signature_of(inner).parameters
        for key, outer_name in names.items():
            signature.setdefault(outer_name, inner_parameters[key].replace(name=outer_name))
            hints[outer_name] = inner_hints.get(key, Any)
    for key, parameter in parameters.items():
        signature.setdefault(key, parameter)
    wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [x.replace(kind=inspect.Parameter.KEYWORD_ONLY) for x in signature.values()]
    )
    function_hints = {k: x for k, x in type_hints_of(function).items() if k in parameters}
    wrapped.__annotations__ = {**hints, **function_hints, "return": Rule}
    wrapped.__name__ = wrapped.__qualname__ = "_".join([name, *(x.__name__ for x in inners)])
    wrapped.__doc__, wrapped.__module__ = function.__doc__, inners[0].__module__
    call = WrapperCall(name, inners, frozenset().union(*fixed), wrapped)
    wrapped.wrapper_call = call  # type: ignore[attr-defined]
    return wrapped


def _rule_names(function: Callable[..., Rule]) -> tuple[str, ...]:
    """Return the parameters of a wrapper's function that take rules: the first, and typed ones."""
    hints = type_hints_of(function)
    first, *others = signature_of(function).parameters
    return (first, *(name for name in others if hints.get(name) is Rule))


def _own_parameters(function: Callable[..., Rule]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a wrapper's function that take hyper-parameters."""
    rule_names = _rule_names(function)
    parameters = signature_of(function).parameters
    return {name: x for name, x in parameters.items() if name not in rule_names}


def _resolve_defaults(
    function: Callable[..., Rule], inners: Mapping[str, Recipe]
) -> dict[str, inspect.Parameter]:
    """Return a wrapper's hyper-parameters, with the defaults that they take from inner recipes.

    Args:
        function: the wrapper's function.
        inners: the inner recipes, by the parameters that take their rules.
    """
    parameters = {}
    for name, parameter in _own_parameters(function).items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            default = default_of(next(iter(inners)))
        if isinstance(default, _DefaultOf):
            inner_defaults = defaults_of(inners[default.rule_name])
            if name not in inner_defaults and default.otherwise is inspect.Parameter.empty:
                _refuse_missing(function.__name__, inners[default.rule_name], name)
            default = inner_defaults.get(name, default.otherwise)
        parameters[name] = parameter.replace(default=default)
    return parameters


def _fixed_values(function: Callable[..., Rule], inner: Recipe) -> dict[str, float]:
    """Return the hyper-parameters of an inner recipe that a wrapper fixes, if it has an lr."""
    lr = _own_parameters(function).get("lr")
    if lr is None or lr.default is lr.empty:
        return {}
    inner_defaults = defaults_of(inner)
    if "lr" not in inner_defaults:
        _refuse_missing(function.__name__, inner, "lr")
    fixed = {"lr": 1.0, "weight_decay": 0.0}
    return {key: value for key, value in fixed.items() if key in inner_defaults}


def _refuse_missing(wrapper_name: str, inner: Recipe, name: str) -> NoReturn:
    """Raise the error of a recipe without a hyper-parameter that a wrapper needs."""
    raise ValueError(
        f"{wrapper_name}: recipe {name_of(inner)!r} has no {name} to take over; "
        f"it has {', '.join(defaults_of(inner))}"
    )


def _outer_names(
    parameters: Mapping[str, inspect.Parameter],
    inners: Mapping[str, Recipe],
    fixed: Sequence[Mapping[str, float]],
) -> list[dict[str, str]]:
    """Return the names in a wrapped recipe of each inner recipe's hyper-parameters.

    Args:
        parameters: the wrapper's hyper-parameters.
        inners: the inner recipes, by the parameters that take their rules.
        fixed: the hyper-parameters of each recipe that are none of the wrapped recipe.
    """
    (_, first), *others = inners.items()
    names_of_others: list[dict[str, str]] = []
    for (rule_name, inner), fixed_values in zip(others, fixed[1:], strict=True):
        names = [key for key in defaults_of(inner) if key not in fixed_values]
        names_of_others.append({key: f"{rule_name}_{key}" for key in names})
    defaults = defaults_of(first)
    conflicting = {outer_name for names in names_of_others for outer_name in names.values()}
    for key, parameter in parameters.items():
        if key in defaults and parameter.default != defaults[key]:
            conflicting.add(key)
    names_of_first = {}
    for key in defaults:
        if key not in fixed[0]:
            is_conflict = re.sub("^(base_)+", "", key) in conflicting
            names_of_first[key] = f"base_{key}" if is_conflict else key
    return [names_of_first, *names_of_others]


def _order_remedy(call: WrapperCall, index: int) -> str:
    """Return what to do about a wrapper that refuses an inner recipe, as the end of a sentence.

    It tries the wrapper further inside, within the outer ones of the wrappers of that recipe.
    """
    outer_names: list[str] = []
    inners, inner = [*call.inners], call.inners[index]
    while inner_call := wrapper_call(inner):
        outer_names.append(inner_call.wrapper_name)
        inner = inners[index] = inner_call.inners[0]
        candidate = _build_if_accepted(call.wrapper_name, *inners)
        for outer_name in reversed(outer_names):
            candidate = candidate and _build_if_accepted(outer_name, candidate)
        if candidate:
            names = [*outer_names, call.wrapper_name]
            order = f"{'('.join(names)}(...{')' * len(names)}"
            return f"put {' and '.join(outer_names)} around {call.wrapper_name}: {order}"
    outermost = wrapper_call(call.inners[index])
    if outermost is not None:
        return f"{call.wrapper_name} and {outermost.wrapper_name} do not combine"
    other = name_of(call.inners[index])
    return (
        f"{call.wrapper_name} and {other} do not combine: take a recipe without one, such as adamw"
    )


def _build_if_accepted(wrapper_name: str, *inners: Recipe) -> Recipe | None:
    """Return the wrapped recipe if its rule can be made at the defaults, otherwise None.

    Wrappers that refuse an inner recipe are not called, since their error would ask for remedies.
    """
    _, wrap, refuses = _wrappers[wrapper_name]
    try:
        if any(refuses(bind(inner).rule) for inner in inners):
            return None
        wrapped = wrap(*inners)
        bind(wrapped).rule  # noqa: B018  (a property, which raises)
    except (TypeError, ValueError):
        return None
    return wrapped


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
        if not short_name.isidentifier():
            continue  # a lambda: no name finds it
        is_unique = _recipes_with_short_name(short_name) == [function]
        names.append(short_name if is_unique else qualified_name(function))
    return names


def hyper_parameter_names() -> set[str]:
    """Return the names of the hyper-parameters of all registered recipes and wrappers."""
    names: set[str] = set()
    for function in _recipes.values():
        names.update(defaults_of(function))
    for wrapper in _wrappers.values():
        names.update(_own_parameters(wrapper.function))
    return names


def find_recipe(spec: str | Recipe) -> Recipe:
    """Return the recipe that `spec` stands for.

    The module that runs as a script is not imported a second time under its own name.

    Args:
        spec: a registered name, `module:function`, one of these within a wrapper, such as
            "hyperball(lion)" or "graft(muon, adamw)", or a recipe itself. An optimizer class made
            of a recipe stands for that recipe.

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
    n_opening, n_closing = spec.count("("), spec.count(")")
    if n_opening != n_closing:
        raise ValueError(f"recipe {spec!r} has {n_opening} '(' and {n_closing} ')'")
    match = re.fullmatch(r"(\w+)\((.*)\)", spec)
    if match:
        wrapper_name, inner_names = match.groups()
        if not inner_names.strip():
            raise ValueError(
                f"recipe {spec!r} lacks the recipe within, as in '{wrapper_name}(adamw)'"
            )
        if wrapper_name not in _wrappers:
            raise unknown_name("wrapper", wrapper_name, _wrappers)
        return _wrappers[wrapper_name].wrap(*split_at_commas(inner_names))
    candidates = recipes_named(spec)
    if len(candidates) > 1:
        names = " or ".join(map(qualified_name, candidates))
        raise ValueError(f"recipe {spec!r} may be {names}; say which")
    if candidates:
        return candidates[0]
    module_name, colon, _ = spec.partition(":")
    if not (module_name and colon):
        raise _unknown_recipe(spec)
    function: Recipe = look_up("recipe", spec, "function", callable)
    return function


def _unknown_recipe(name: str) -> ValueError:
    suggestion = did_you_mean(name, recipe_names(), "sn.recipe_names() has those of the library")
    return ValueError(f"no recipe is named {name!r}; {suggestion} (your own: module:function)")


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
        part: the label whose rule is meant, if the recipe returns a partition; else None.

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
    part: str | None = None

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
        if self.part is not None:
            if not rule.is_partition:
                raise ValueError(f"{self}: the recipe returns no partition with {self.part!r}")
            part: Rule = rule.rules[self.part]  # type: ignore[attr-defined]
            return part
        return rule

    def replace(self, **hyper_parameters: Any) -> Bound:
        """Return the same recipe with other values of some hyper-parameters.

        Raises:
            ValueError: the recipe has no such hyper-parameter.
        """
        given_values = {name: self.hyper_parameters[name] for name in self.explicit_names}
        return replace(bind(self.recipe, **{**given_values, **hyper_parameters}), part=self.part)

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
        return f"{call.wrapper_name}({', '.join(map(name_of, call.inners))})"
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
