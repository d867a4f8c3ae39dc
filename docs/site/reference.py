"""The API reference: a page per module, with every public name."""

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

from docs.site.docstring import text_to_markdown, to_markdown

MODULES = {
    "spherenorm": "Nouns of the library, and what takes a model or an optimizer.",
    "spherenorm.optim": "Optimizers, and classes of them from recipes.",
    "spherenorm.recipes": "Recipes: functions from hyper-parameters to a rule.",
    "spherenorm.zoo": "Recipes that other libraries have.",
    "spherenorm.rules": "Update rules.",
    "spherenorm.zoo.rules": "Update rules of the zoo.",
    "spherenorm.functional": "Pure steps over dicts of parameters, and sweeps.",
    "spherenorm.probes": "Measurements while any loop trains.",
    "spherenorm.audit": "Scale-invariant weights of a model, and groups for an optimizer.",
    "spherenorm.metrics": "Norms and angles of two tensors.",
    "spherenorm.testing": "The promises of a rule, tried on yours.",
    "spherenorm_theory": "Laws, proofs and checks (extra `theory`).",
    "spherenorm_theory.report": "Laws as text and LaTeX (extra `theory`).",
}
"""The modules with public names; one that is itself a public name has a page of its own."""


class UndocumentedError(Exception):
    """Public names without a docstring."""


def pages() -> dict[str, str]:
    """The pages by file name.

    Raises:
        UndocumentedError: a public name has no docstring.
    """
    missing = [name for name, thing in public().items() if not docstring(name, thing)]
    if missing:
        raise UndocumentedError(f"public names without a docstring: {', '.join(missing)}")
    found = {f"reference/{module}.md": _page(module) for module in MODULES}
    links = "".join(f"| [{m}]({m}.md) | {what} |\n" for m, what in MODULES.items())
    tree = "\n".join(MODULES)
    found["reference/index.md"] = (
        "# Reference\n\nEvery public name, from its docstring. The examples run in the tests.\n\n"
        f"| module | |\n|---|---|\n{links}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return found


def public() -> dict[str, Any]:
    """Every public name with its module's, and what it stands for; modules are pages."""
    return {
        f"{module}.{name}": thing
        for module in MODULES
        for name in importlib.import_module(module).__all__
        if not isinstance(thing := getattr(importlib.import_module(module), name), ModuleType)
    }


def docstring(name: str, thing: Any) -> str:
    """The docstring of a public name; of a value, the string below its assignment."""
    if inspect.isclass(thing) or inspect.isroutine(thing):
        return inspect.getdoc(thing) or ""
    package, last = name.partition(".")[0], name.rpartition(".")[2]
    return _below_assignments(package).get(last, "")


@functools.cache
def _below_assignments(package: str) -> dict[str, str]:
    found: dict[str, str] = {}
    folder = Path(*importlib.import_module(package).__path__)
    for path in sorted(folder.rglob("*.py")):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node, after in pairwise(body):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            match after:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    names = [t.id for t in targets if isinstance(t, ast.Name)]
                    found |= dict.fromkeys(names, inspect.cleandoc(text))
    return found


def _page(module: str) -> str:
    found = importlib.import_module(module)
    names = [n for n in public() if n.rpartition(".")[0] == module]
    parts = [f"# {module}\n\n{to_markdown(found)}"]
    for name in names:
        last, thing = name.rpartition(".")[2], getattr(found, name.rpartition(".")[2])
        home = _home(name, thing)
        if home:
            parts.append(f"## {last}\n\nSee [{home}](#{target(home, thing)}).\n")
            continue
        head = f"({target(name, thing)})=\n## {last}\n\n{_signature(last, thing)}"
        parts.append(head + text_to_markdown(docstring(name, thing)))
        parts += [_method(last, *each) for each in _methods(thing)]
    return "\n".join(parts)


def target(name: str, thing: Any) -> str:
    """The anchor of a name; those of `Chain` and `chain` differ by more than their case."""
    kind = "class" if inspect.isclass(thing) else "def" if inspect.isroutine(thing) else "value"
    return f"{kind}-{name}"


def _home(name: str, thing: Any) -> str | None:
    """The name of the same thing in the module whose subject it is, if that is another one."""
    if not name.startswith("spherenorm.") or name.count(".") > 1:
        return None
    same = (n for n, other in public().items() if other is thing and n.count(".") > 1)
    return next(same, None)


def _signature(name: str, thing: Any) -> str:
    if not callable(thing) or not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=signature.empty)
    text = re.sub(
        r"<(?:[^<>]|<[^<>]*>)* at 0x[0-9a-f]+>", "...", str(shown)
    )  # an address says nothing
    kind = "class " if inspect.isclass(thing) else ""
    return f"```python\n{kind}{name}{text}\n```\n\n"


def _methods(thing: Any) -> list[tuple[str, Any]]:
    """The documented public methods and properties that a class itself defines."""
    own = vars(thing).items() if inspect.isclass(thing) else ()
    kinds = (property, staticmethod, classmethod, functools.cached_property)
    return [
        (name, value)
        for name, value in own
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, kinds))
        and value.__doc__  # of its own: what it inherits stands at the class that has it
        and name != "recipe"
    ]


def _method(cls: str, name: str, value: Any) -> str:
    function = getattr(value, "__func__", value)
    call = _signature(f"{cls}.{name}", function) if inspect.isfunction(function) else ""
    return f"### {cls}.{name}\n\n{call}{to_markdown(value)}"
