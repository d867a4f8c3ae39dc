"""Generate the API reference: a page for each module, with every public name."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from docs.site.docstring import LINE_LENGTH, text_to_markdown, to_markdown
from spherenorm.support import split_at_commas

MODULES = {
    "spherenorm": "The most used classes and functions.",
    "spherenorm.optim": "Optimizers for torch, one class for each recipe.",
    "spherenorm.recipes": "Recipes: functions from hyper-parameters to a rule.",
    "spherenorm.zoo": "Recipes that other libraries have.",
    "spherenorm.rules": "Update rules.",
    "spherenorm.zoo.rules": "Update rules of the zoo.",
    "spherenorm.schedule": "Hyper-parameters that are functions of the step count.",
    "spherenorm.functional": "Pure steps over dicts of parameters, and sweeps.",
    "spherenorm.probes": "Measurements while any loop trains.",
    "spherenorm.audit": "Scale-invariant weights of a model, and groups for an optimizer.",
    "spherenorm.metrics": "Norms and angles of two tensors.",
    "spherenorm.testing": "Tests of a rule or recipe of your own.",
    "spherenorm_theory": "Laws, proofs and checks (extra `theory`).",
    "spherenorm_theory.report": "Laws as text and LaTeX (extra `theory`).",
}
"""The modules with public names, with a description of each."""


class UndocumentedError(Exception):
    """Public names without a docstring."""


def pages() -> dict[str, str]:
    """Return the pages by file name.

    Raises:
        UndocumentedError: a public name has no docstring.
    """
    missing = [name for name, thing in public().items() if not docstring(name, thing)]
    if missing:
        raise UndocumentedError(f"public names without a docstring: {', '.join(missing)}")
    pages = {f"reference/{module}.md": _page(module) for module in MODULES}
    links = "".join(f"| [{m}]({m}.md) | {what} |\n" for m, what in MODULES.items())
    tree = "\n".join(MODULES)
    pages["reference/index.md"] = (
        "# Reference\n\nEvery public name, from its docstring. The examples run in the tests.\n\n"
        f"| module | |\n|---|---|\n{links}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return pages


def public() -> dict[str, Any]:
    """Return every public object that is not a module, by its qualified name."""
    return {
        f"{module}.{name}": thing
        for module in MODULES
        for name in importlib.import_module(module).__all__
        if not isinstance(thing := getattr(importlib.import_module(module), name), ModuleType)
    }


def docstring(name: str, thing: Any) -> str:
    """Return the docstring of a public name; for a constant, the string below its assignment."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    package, last = name.partition(".")[0], name.rpartition(".")[2]
    return _below_assignments(package).get(last, "")


@functools.cache
def _below_assignments(package: str) -> dict[str, str]:
    docstrings: dict[str, str] = {}
    folder = Path(*importlib.import_module(package).__path__)
    for path in sorted(folder.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in pairwise(body):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    names = [t.id for t in targets if isinstance(t, ast.Name)]
                    docstrings |= dict.fromkeys(names, inspect.cleandoc(text))
    return docstrings


def _page(module: str) -> str:
    imported = importlib.import_module(module)
    names = [n for n in public() if n.rpartition(".")[0] == module]
    parts = [f"# {module}\n\n{to_markdown(imported)}"]
    for name in names:
        last = name.rpartition(".")[2]
        thing = getattr(imported, last)
        home = _home(name, thing)
        if home:
            parts.append(f"## {last}\n\nSee [{home}](#{target(home, thing)}).\n")
            continue
        head = f"({target(name, thing)})=\n## {last}\n\n{_signature(last, thing)}"
        parts.append(head + text_to_markdown(docstring(name, thing)))
        parts += [_method(last, method, value) for method, value in _methods(thing)]
    return "\n".join(parts)


def target(name: str, thing: Any) -> str:
    """Return the anchor of a name; those of `Chain` and `chain` must differ in more than case."""
    kind = "class" if inspect.isclass(thing) else "def" if inspect.isroutine(thing) else "value"
    return f"{kind}-{name}"


def _home(name: str, thing: Any) -> str | None:
    """Return the name of an object in its home module, if that is another module."""
    if not name.startswith("spherenorm.") or name.count(".") > 1:
        return None
    aliases = (n for n, value in public().items() if value is thing and n.count(".") > 1)
    return next(aliases, None)


def _signature(name: str, thing: Any) -> str:
    if not callable(thing) or not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    signature = signature.replace(parameters=parameters, return_annotation=signature.empty)
    text = re.sub(r"<(?:[^<>]|<[^<>]*>)* at 0x[0-9a-f]+>", "...", str(signature))
    kind = "class " if inspect.isclass(thing) else ""
    return f"```python\n{_wrapped(f'{kind}{name}', text)}\n```\n\n"


def _wrapped(head: str, signature: str) -> str:
    """Return a name and its signature in lines of at most `LINE_LENGTH`.

    They break between parameters, as a formatter breaks a call.
    """
    if len(head) + len(signature) <= LINE_LENGTH:
        return head + signature
    lines, line = [], "   "
    for parameter in map(_shortened, split_at_commas(signature[1:-1])):
        if len(line) + len(parameter) + 2 > LINE_LENGTH:
            lines.append(line)
            line = "   "
        line += f" {parameter},"
    return "\n".join([f"{head}(", *lines, line, ")"])


def _shortened(parameter: str) -> str:
    """Return a parameter, whose default is left out where it would take a line of its own."""
    name, equals, default = parameter.partition("=")
    return parameter if len(default) <= LINE_LENGTH // 2 else f"{name}{equals}..."


def _methods(thing: Any) -> list[tuple[str, Any]]:
    """Return the documented public methods and properties that a class itself defines."""
    attributes = vars(thing).items() if inspect.isclass(thing) else ()
    kinds = (property, staticmethod, classmethod, functools.cached_property)
    return [
        (name, value)
        for name, value in attributes
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, kinds))
        and value.__doc__
        and name != "recipe"
    ]


def _method(cls: str, name: str, value: Any) -> str:
    function = getattr(value, "__func__", value)
    call = _signature(f"{cls}.{name}", function) if inspect.isfunction(function) else ""
    return f"### {cls}.{name}\n\n{call}{to_markdown(value)}"
