"""`python -m experiments run norm-growth`: the comparison experiments, from the command line."""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.runner import Run
from experiments.studies import norm_growth
from spherenorm.registry import build, defaults, find_recipe, names

STUDIES = {norm_growth.NAME: norm_growth}

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_show_locals=False, help=__doc__)
console = Console()


@app.callback()
def main() -> None:
    """Comparison experiments on scale-invariant weights."""


@app.command()
def run(
    study: Annotated[str | None, typer.Argument(help="Which study.")] = None,
    optimizers: Annotated[str | None, typer.Option(help="Comma-separated: recipe names, or module:function for your own.")] = None,
    seeds: Annotated[str, typer.Option(help="How many (3), a range (0:10) or a list (1,4,7).")] = "3",
    epochs: Annotated[int, typer.Option(min=1)] = norm_growth.EPOCHS,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder for the picture and the numbers.")] = Path("runs"),
    list_: Annotated[bool, typer.Option("--list", help="Show the studies and the recipes, and run nothing.")] = False,
) -> None:
    """Run a study: train, print its table, write its picture and the numbers behind it."""
    if list_:
        _list()
        return
    if study not in STUDIES:
        raise typer.BadParameter(_unknown("study", study, list(STUDIES)), param_hint="STUDY")
    chosen = optimizers.split(",") if optimizers is not None else list(norm_growth.OPTIMIZERS)
    for optimizer in chosen:
        try:
            build(find_recipe(optimizer), norm_growth.OPTIMIZERS.get(optimizer, {}))
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error), param_hint="--optimizers") from None
    seed_list, folder = _parse_seeds(seeds), out / norm_growth.NAME
    _check_device(device)
    with Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True
    ) as progress:
        bar = progress.add_task("training", total=len(chosen) * len(seed_list))

        def done(finished: Run) -> None:
            progress.advance(bar)
            outcome = f"score {finished.score:.2f} %" if finished.diverged_at is None else f"diverged at step {finished.diverged_at}"
            progress.console.print(
                f"{finished.optimizer} seed {finished.seed}: norm {finished.norm[0]:.3f} -> {finished.norm[-1]:.3f}, {outcome}"
            )

        runs = norm_growth.run(chosen, seed_list, epochs, device, folder, done)
    console.print(norm_growth.table(runs))
    console.print(f"picture {norm_growth.picture(runs, folder)}, numbers {folder / norm_growth.NAME}.json and .csv", soft_wrap=True)


def _list() -> None:
    console.print("[bold]studies[/bold]")
    for name, module in STUDIES.items():
        console.print(f"  {name}: {(module.__doc__ or '').splitlines()[0]}", soft_wrap=True)
    console.print("[bold]recipes[/bold]")
    for name in names():
        recipe = find_recipe(name)
        console.print(
            f"  {name}({', '.join(defaults(recipe))}): {(inspect.getdoc(recipe) or '').splitlines()[0]}", soft_wrap=True, highlight=False
        )


def _parse_seeds(text: str) -> list[int]:
    try:
        if ":" in text:
            first, last = text.split(":")
            seeds = list(range(int(first), int(last)))
        elif "," in text:
            seeds = [int(seed) for seed in text.split(",")]
        else:
            seeds = list(range(int(text)))
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise typer.BadParameter(f"{text!r}: give a count (3), a range (0:10) or a list (1,4,7) of seeds", param_hint="--seeds")
    return list(dict.fromkeys(seeds))


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise typer.BadParameter(f"{device!r} cannot be used: {str(error).splitlines()[0]}", param_hint="--device") from None


def _unknown(what: str, given: str | None, known: list[str]) -> str:
    close = difflib.get_close_matches(given or "", known, n=3, cutoff=0.4)
    return f"no {what} is named {given!r}; " + (f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(known)}")


if __name__ == "__main__":
    app()
