"""Generate the gallery, with a page for each recipe, and the tables of rules."""

from __future__ import annotations

import dataclasses
import html
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from docs.site import pictures
from docs.site.docstring import arguments, cell, escaped, summary, to_markdown
from docs.site.reference import target
from spherenorm import (
    Chain,
    Recipe,
    Rule,
    bind,
    find_recipe,
    recipe_names,
    rules,
    torch_optimizer,
)
from spherenorm.registry import is_builtin
from spherenorm_theory import TraceError, norm_growth

SHARED_PACKAGES = ("spherenorm.recipes", "spherenorm.zoo")
"""Packages with functions that make a part of several chains."""

FAMILIES = {
    "spherenorm.recipes.sgd": "SGD and its variants",
    "spherenorm.recipes.adam": "Adam and its variants",
    "spherenorm.zoo.moments": "Other moments, masks and signs",
    "spherenorm.recipes.matrix": "Muon and its variants: orthogonalized steps of matrices",
    "spherenorm.zoo.matrices": "Relatives of Muon",
    "spherenorm.zoo.preconditioners": "Preconditioners of matrices",
    "spherenorm.recipes.sphere": "Control of the norm: spheres and projections",
    "spherenorm.zoo.sphere": "Fixed norms and manifolds",
    "spherenorm.zoo.averages": "Averages of gradients and of weights",
    "spherenorm.zoo.distance": "Step sizes that are estimated",
}
"""Titles of the families of recipes, by the module that defines them."""
_START = re.compile(r"Start with lr = ([\d.e-]*\d)")


def pages(pool: Executor) -> dict[str, str]:
    """Return the pages by file name; the processes of a pool make them."""
    names = library_recipes()
    pictures.train("sgd")  # every picture shows it: forked processes have it in their cache
    texts_and_thumbnails = dict(zip(names, pool.map(_page_and_thumbnail, names), strict=True))
    pages = {f"gallery/{name}.md": text for name, (text, _) in texts_and_thumbnails.items()}
    thumbnails = {name: thumbnail for name, (_, thumbnail) in texts_and_thumbnails.items()}
    pages["gallery/index.md"] = _index(names, thumbnails)
    pages["rules-table.md"] = _rules()
    return pages


def library_recipes() -> list[str]:
    """Return the names of the recipes that the library defines."""
    return [name for name in recipe_names() if is_builtin(find_recipe(name))]


def _index(names: list[str], thumbnails: Mapping[str, str]) -> str:
    families: dict[str, list[str]] = {title: [] for title in FAMILIES.values()}
    for name in names:
        families[FAMILIES[find_recipe(name).__module__]].append(name)
    sections = []
    for title, members in families.items():
        rows = "".join(
            f"| [{name}]({name}.md) | {thumbnails.get(name, '')} "
            f"| {cell(_first_sentence(find_recipe(name)))} |\n"
            for name in members
        )
        sections.append(f"## {title}\n\n| recipe | effective step | |\n|---|---|---|\n{rows}")
    tree = "\n".join(names)
    return (
        "# Gallery\n\nEvery recipe of the library: how to start with it, its chain, its law, its "
        "source, and a picture of its norm and effective step on digits. The small pictures show "
        f"the effective step over {pictures.STEPS} steps on a log scale, dashed that of SGD.\n\n"
        + "\n".join(sections)
        + f"\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


def _first_sentence(recipe: Recipe) -> str:
    """Return the first line of a recipe's docstring, without the formula below it."""
    paragraph = (inspect.getdoc(recipe) or "").partition("\n\n")[0]
    return escaped(" ".join(paragraph.split()).removesuffix(":").rstrip(".") + ".")


def _page_and_thumbnail(name: str) -> tuple[str, str]:
    return _page(name), _thumbnail(name)


def _page(name: str) -> str:
    recipe = find_recipe(name)
    defaults = bind(recipe).defaults
    table = "".join(
        f"| `{n}` | `{default!r}` | {_meaning(n, recipe)} |\n" for n, default in defaults.items()
    )
    description, example = _split_example(_without_args(to_markdown(recipe)))
    return f"""# {name}

```python
{_signature(name)}
```

{description}

## As a chain

```python
{_definition(recipe)}
```

## Its law

{_law(name)}

## Norm and effective step

32 units before a batch normalization, which read handwritten digits in batches of {pictures.BATCH};
the layer behind them is fixed. The curves are means over units. The learning rate is the one of
{pictures.RATES_SHOWN} whose mean loss over the last {pictures.LAST} of {pictures.STEPS} steps is
lowest; a momentum is 0.9. Dashed: SGD with momentum 0.9, chosen alike.

{_picture(name)}

## Hyper-parameters

| name | default | meaning |
|---|---|---|
{table}
{example}"""


def _signature(name: str) -> str:
    """Return the line that makes the optimizer, with the learning rate to start with."""
    start = _START.search(inspect.getdoc(find_recipe(name)) or "")
    lr = f", lr={start[1]}" if start else ""
    return f"optimizer = sn.optim.{torch_optimizer(name).__name__}(model.parameters(){lr})"


def _definition(recipe: Recipe) -> str:
    """Return the source of a recipe and of the functions that share its chain with others."""
    function = inspect.unwrap(recipe)
    names = function.__code__.co_names
    helpers = (function.__globals__.get(name) for name in names)
    shared = [
        helper
        for helper in helpers
        if inspect.isfunction(helper) and helper.__module__.startswith(SHARED_PACKAGES)
    ]
    return "\n\n\n".join(map(_without_docstring, [function, *shared]))


def _without_docstring(function: Callable[..., Any]) -> str:
    source = textwrap.dedent(inspect.getsource(function))
    head, _, rest = source.partition('"""')
    body = rest.rpartition('"""')[2]
    return f"{head.rstrip()}{body.rstrip()}" if rest else source.rstrip()


def _split_example(text: str) -> tuple[str, str]:
    """Return a page's description, and its example under a heading of its own."""
    before, heading, after = text.partition("**Example**\n\n")
    if not heading:
        return text, ""
    block, _, rest = after.partition("\n```\n")
    return f"{before}{rest.lstrip()}", f"\n## Example\n\n{block}\n```\n"


def _thumbnail(name: str) -> str:
    try:
        run = pictures.train(name)
    except ValueError:
        return ""
    return pictures.thumbnail(run, pictures.train("sgd"))


def _picture(name: str) -> str:
    try:
        run = pictures.train(name)
    except ValueError as error:
        shape = tuple(pictures.digits().start.shape)
        return f"It refuses a weight of shape {shape}: {escaped(str(error))}."
    figure = pictures.figure(run, pictures.train("sgd"))
    return f"Here the learning rate is {run.lr:g}.\n\n{figure}"


def _without_args(text: str) -> str:
    """Remove the arguments from a docstring; the page shows them in a table."""
    before, heading, after = text.partition("**Args**\n\n")
    return before + (after.partition("\n\n")[2] if heading else "")


def _meaning(argument: str, recipe: Recipe) -> str:
    """Return the description of an argument in the docstring of its recipe."""
    descriptions = arguments(inspect.getdoc(recipe) or "")
    return cell(escaped(descriptions.get(argument, "")))


def _law(name: str) -> str:
    try:
        law = norm_growth(name)
    except (TraceError, ValueError) as error:
        reason = " ".join(str(error).split()).removeprefix(f"{name}: ")
        return f"It has no law of a single unit: {escaped(reason)}."
    text = "Derived from the code above; see [theory](../../theory.md).\n\n"
    text += f"```text\n{law.proposition()}\n```\n\n"
    return f"{text}Its norm and turn in equilibrium: `spherenorm theory {name}`."


RULE_FAMILIES = {
    "momentum": "Momentum",
    "adaptive": "Preconditioners of entries",
    "orthogonalize": "Directions of matrices",
    "invariance": "Tests of scale invariance",
    "projection": "Projection",
    "norm": "Control of the norm",
    "decay": "Weight decay and regularization",
    "basic": "Step size, clipping and the like",
    "structure": "Parts of a tensor, and rules around rules",
    "precision": "Storage of states",
    "watch": "Numbers between two rules",
}
"""Titles of the families of rules, by the module of `spherenorm.rules` that defines them."""


def _breakable(name: str) -> str:
    """Return a name that a narrow column breaks between its words: Heavy<wbr>Ball."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", name)


def _rules() -> str:
    families: dict[str, list[str]] = {title: [] for title in RULE_FAMILIES.values()}
    for name, cls in _public_rules():
        row = (
            f"| [{_breakable(name)}](#{target(f'spherenorm.rules.{name}', cls)}) "
            f"| {cell(summary(cls))}{_fields(cls)}{_states(cls)} |\n"
        )
        families[RULE_FAMILIES[cls.__module__.rpartition(".")[2]]].append(row)
    tables = [
        f"## {title}\n\n| rule | what it does |\n|---|---|\n{''.join(rows)}"
        for title, rows in families.items()
        if rows
    ]
    return (
        "# All rules\n\nA chain of rules is an optimizer. `d` is the direction so far, `w` the "
        "weight, `g` its gradient. Below each formula stand the rule's arguments and the names of "
        "its states. To write one of your own: [rules](../rules.md).\n\n" + "\n".join(tables)
    )


def _public_rules() -> Iterator[tuple[str, type[Rule]]]:
    for name in rules.__all__:
        cls: Any = getattr(rules, name)
        if inspect.isclass(cls) and issubclass(cls, Rule):
            yield name, cls


def _fields(cls: type[Rule]) -> str:
    arguments_of_init = []
    for field in dataclasses.fields(cls):
        if field.name != "name" and field.init:
            default = "" if field.default is dataclasses.MISSING else f"={field.default!r}"
            arguments_of_init.append(f"{field.name}{default}")
    return f"<br>arguments: `{', '.join(arguments_of_init)}`" if arguments_of_init else ""


def _states(cls: type[Rule]) -> str:
    """Return the names of the states of a rule, which is made with 0.5 for required fields."""
    required = [
        f
        for f in dataclasses.fields(cls)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    values: dict[str, Any] = {f.name: Chain(()) if f.name == "rule" else 0.5 for f in required}
    try:
        names = cls(**values).state_keys
    except Exception:  # a base class, or a rule that needs other arguments
        return ""
    return "<br>states: " + html.escape(", ".join(f"`{n}`" for n in names)) if names else ""
