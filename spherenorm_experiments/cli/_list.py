"""`list`: the studies, tasks and recipes."""

from __future__ import annotations

import inspect

from rich.markup import escape

from spherenorm import bind, recipe_names
from spherenorm_experiments.cli._console import answer, console, say
from spherenorm_experiments.cli._options import AsJson
from spherenorm_experiments.core import task_classes
from spherenorm_experiments.study import study_classes

__all__ = ["list_"]


def list_(as_json: AsJson = False) -> None:
    """The studies, tasks and recipes."""
    studies = {name: cls().title() for name, cls in study_classes().items()}
    tasks = {
        name: (inspect.getdoc(cls) or "").splitlines()[0] for name, cls in task_classes().items()
    }
    recipes = {name: f"({', '.join(bind(name).defaults)})" for name in recipe_names()}
    if as_json:
        answer({"studies": studies, "tasks": tasks, "recipes": recipes})
        return
    for heading, entries in (
        ("studies", studies),
        ("tasks", tasks),
        ("recipes (your own: module:function)", recipes),
    ):
        console.print(f"[bold]{heading}[/bold]")
        for name, text in entries.items():
            say(f"  [cyan]{name}[/cyan] {escape(text)}")
