"""Generate the gallery, with a page for each recipe, and the table of rules."""

from __future__ import annotations

import dataclasses
import html
import inspect
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

from docs.site import pictures
from docs.site.docstring import arguments, cell, escaped, summary, to_markdown
from docs.site.reference import target
from spherenorm import Chain, Recipe, Rule, bind, find_recipe, recipe_names, rules
from spherenorm.registry import is_builtin
from spherenorm_theory import TraceError, norm_growth


def pages(pool: Executor) -> dict[str, str]:
    """Return the pages by file name; the processes of a pool make them."""
    names = library_recipes()
    pictures.train("sgd")  # every picture shows it: forked processes have it in their cache
    texts = pool.map(_page, names)
    pages = {f"gallery/{name}.md": text for name, text in zip(names, texts, strict=True)}
    pages["gallery/index.md"] = _index(names)
    pages["rules-table.md"] = _rules()
    return pages


def library_recipes() -> list[str]:
    """Return the names of the recipes that the library defines."""
    return [name for name in recipe_names() if is_builtin(find_recipe(name))]


def _index(names: list[str]) -> str:
    rows = "".join(f"| [{n}]({n}.md) | {cell(summary(find_recipe(n)))} |\n" for n in names)
    tree = "\n".join(names)
    return (
        "# Gallery\n\nEvery recipe of the library: formula, law, defaults, source, and a picture "
        "of its norm and effective step on digits. All of it is generated from the code.\n\n"
        f"| recipe | |\n|---|---|\n{rows}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )


def _page(name: str) -> str:
    recipe = find_recipe(name)
    defaults = bind(recipe).defaults
    table = "".join(
        f"| `{n}` | `{default!r}` | {_meaning(n, recipe)} |\n" for n, default in defaults.items()
    )
    body = inspect.getsource(recipe).split('"""')[-1].rstrip()
    return f"""# {name}

{_without_args(to_markdown(recipe))}

## As a chain

```python
{inspect.cleandoc(body)}
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
"""


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
    return f"{text}The norm and the turn at which it comes to rest: `spherenorm theory {name}`."


def _rules() -> str:
    rows = "".join(
        f"| [{name}](#{target(f'spherenorm.rules.{name}', cls)})<br>{_fields(cls)} "
        f"| {cell(summary(cls))} | {_states(cls)} |\n"
        for name, cls in _public_rules()
    )
    return (
        "# All rules\n\nA chain of rules is an optimizer. `d` is the direction so far, `w` the "
        "weight, `g` its gradient. To write one of your own: [rules](../rules.md).\n\n"
        f"| rule and its arguments | formula | state |\n|---|---|---|\n{rows}"
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
    return f"`{', '.join(arguments_of_init)}`" if arguments_of_init else ""


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
    return html.escape(", ".join(f"`{n}`" for n in names))
