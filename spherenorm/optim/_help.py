"""The docstring of an optimizer class: its recipe's, with the meaning of every argument."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping

from spherenorm._registry import Recipe, defaults_of, registered

SHARED_ARGS = {
    "params": "parameters, named parameters, or param_groups; a group may override any "
    'hyper-parameter, and name another "recipe".',
    "maximize": "ascend instead of descend.",
    "backend": 'the path of a step: "auto", "rule" or "compiled"; see `spherenorm.explain`.',
}
WORDS = {
    "lr": "the learning rate",
    "momentum": "the share of the momentum that a step keeps",
    "dampening": "1 minus the share of a gradient that enters the momentum",
    "weight_decay": "the coefficient of the weight decay",
    "betas": "the shares of themselves that the two moments keep in a step",
    "eps": "keeps a division by a root finite",
    "nesterov": "look ahead by one step of the momentum",
    "delta": "the threshold of sqrt(dim(w)) |cos(w, g)|",
    "views": "how weights split into the units that are tested, tried in order",
    "per": "what is decided at once",
}
"""The meaning of a name in every recipe, for an entry that gives no more than an interval."""
_ARGS = re.compile(r"^Args:\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n(?: .*)?$)*)", re.MULTILINE)
_AS_FOR = re.compile(r"as for `(\w+)`\.?$")
_BARE = re.compile(r"in [\[(]|of the test ")
_RECIPES_EXAMPLE = re.compile(r"^Examples?:\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_EXAMPLE = """
Example:
    >>> optimizer = {name}([torch.eye(2)])
    >>> optimizer.param_groups[0]["lr"]
    {lr!r}
"""
_WIDTH = 92


def arguments_of(recipe: Recipe) -> dict[str, str]:
    """The meaning of each hyper-parameter, from the docstring of a recipe.

    An entry "as for `adam`" is that of the registered recipe of this name. A hyper-parameter
    without an entry has an empty meaning.

    Example:
        >>> arguments_of(sn.find_recipe("adamp"))["betas"]
        'decay rates of the two moments, each in [0, 1).'
    """
    written = _entries(recipe)
    found = {name: _resolved(name, written.get(name, "")) for name in defaults_of(recipe)}
    return {name: _in_words(name, meaning) for name, meaning in found.items()}


def class_doc(recipe: Recipe, name: str | None = None) -> str:
    """The docstring of the optimizer class of a recipe; with its name it has an example of it."""
    text = (inspect.getdoc(recipe) or f"The optimizer of the recipe {recipe.__name__}.") + "\n"
    values = defaults_of(recipe)
    meanings = {"params": SHARED_ARGS["params"], **arguments_of(recipe)}
    meanings |= {name: SHARED_ARGS[name] for name in ("maximize", "backend")}
    defaults = {**values, "maximize": False, "backend": "auto"}
    args = "Args:\n" + "".join(
        textwrap.fill(
            f"{name}: {_with_default(meaning, name, defaults)}",
            _WIDTH,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_on_hyphens=False,
        )
        + "\n"
        for name, meaning in meanings.items()
    )
    if name is not None and "lr" in values:
        text = _RECIPES_EXAMPLE.sub("", text)
        args += _EXAMPLE.format(name=name, lr=values["lr"])
    found = _ARGS.search(text)
    if found is None:
        return f"{text.rstrip()}\n\n{args}"
    rest = text[found.end() :].strip("\n")
    return f"{text[: found.start()]}{args}" + (f"\n{rest}\n" if rest else "")


def _in_words(name: str, meaning: str) -> str:
    if name not in WORDS or not (meaning == "" or _BARE.match(meaning)):
        return meaning
    return f"{WORDS[name]}, {meaning}" if meaning else f"{WORDS[name]}."


def _with_default(meaning: str, name: str, defaults: Mapping[str, object]) -> str:
    if name not in defaults:
        return meaning
    default = f"(default {defaults[name]!r})"
    return f"{meaning.rstrip('.')} {default}." if meaning else default


def _entries(recipe: Recipe) -> dict[str, str]:
    found = _ARGS.search((inspect.getdoc(recipe) or "") + "\n")
    if found is None:
        return {}
    entries = _ENTRY.findall(textwrap.dedent(found[1]))
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def _resolved(name: str, meaning: str) -> str:
    while found := _AS_FOR.search(meaning):
        others = registered(found[1])
        entry = _entries(others[0]).get(name, "") if others else ""
        if not entry or entry == meaning:
            return meaning
        meaning = entry
    return meaning
