"""Looks at what there is: studies, stored runs and what they say, data sets on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from spherenorm.support import one_line, unknown_name
from spherenorm_experiments.cli.options import (
    DEFAULT_OUT,
    FAILED,
    NOTE,
    AsJson,
    Data,
    Out,
    Studies,
    answer,
    as_text,
    console,
    existing_store,
    flag,
    say,
    say_error,
)
from spherenorm_experiments.store import BULKY

if TYPE_CHECKING:
    from spherenorm_experiments.lookup import Layout
    from spherenorm_experiments.report import ComparisonText, Section

LISTED = 12
"""More claims than these are counted on a terminal; the page has them."""

COMMENTS = {"csv": "# {}", "latex": "% {}", "markdown": "### {}"}
"""The line above a table, by format."""

RESULTS = Path("experiments/results")
"""In a checkout, from which the site takes them."""


def list_(as_json: AsJson = False) -> None:
    """The studies, tasks and recipes."""
    from spherenorm import bind, recipe_names
    from spherenorm_experiments.comparison import find_study, study_classes
    from spherenorm_experiments.lookup import load_registered, registered

    catalog = {
        "studies": {name: find_study(name).title() for name in study_classes()},
        "tasks": {
            name: (load_registered("TASKS", name).__doc__ or "").splitlines()[0]
            for name in registered("TASKS")
        },
        "recipes": {name: f"({', '.join(bind(name).defaults)})" for name in recipe_names()},
    }
    if as_json:
        return answer(catalog)
    for heading, entries in catalog.items():
        console.print(f"[bold]{heading}[/bold] (your own: module:name)")
        for name, text in entries.items():
            say(f"  [cyan]{name}[/cyan] {escape(text)}")


def status(out: Out = DEFAULT_OUT, as_json: AsJson = False) -> None:
    """The runs of the store by state, and what went wrong."""
    from spherenorm_experiments.plan import read_requests

    store = existing_store(out)
    states: dict[str, int] = {}
    unreadable = read_requests(store)[1].items()
    problems = [{"run": f"plans/{name}", "error": text} for name, text in unreadable]
    running: list[dict[str, Any]] = []
    ended = {row.name for row in store.rows()}
    for folder in store.folders():
        state, document = folder.state(), folder.status()
        names = document.get("names") or [folder.name]
        if state == "failed" and ended.issuperset(names):  # they have ended in another batch
            continue
        states[state] = states.get(state, 0) + len(names)
        if state == "failed":
            problems.append({"run": folder.name, "error": document.get("error", "")})
        if state == "running" and (progress := folder.progress()) is not None:
            running.append({"run": folder.name, **progress})
    if as_json:
        return answer({"runs": states, "running": running, "problems": problems})
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    say(counts or f"no runs in {out}")
    for entry in running:
        seconds_left = entry.get("remaining")
        parts = [f"step {entry['step']} of {entry['steps']}", f"{entry['rate']:.3g} steps/s"]
        parts += [] if seconds_left is None else [f"{seconds_left:.0f} s left"]
        last = {name: entry["last"].get(name) for name in ("loss", "validation")}
        parts += [f"{name} {value:.4g}" for name, value in last.items() if value is not None]
        say(f"[cyan]{entry['run']}[/cyan]: {escape(', '.join(parts))}")
    for problem in problems:
        say(f"[red]{problem['run']}[/red]: {escape(problem['error'])}")


def show(
    run: Annotated[str, typer.Argument(help="The beginning of its name, or of the hash in it.")],
    out: Out = DEFAULT_OUT,
) -> None:
    """Print one run as a JSON document: its state, its settings and its summary."""
    store = existing_store(out)
    rows = {row.name: row for row in store.rows()}
    folders = {
        folder.name: folder for folder in store.folders() if folder.path.parent.name == "runs"
    }
    names = [*dict.fromkeys([*folders, *rows])]
    matches = [n for n in names if n == run] or [
        n for n in names if n.startswith(run) or n.rsplit("-", 2)[-2:][0].startswith(run)
    ]
    if len(matches) != 1:
        some = f": {', '.join(matches[:3])}, ...; give more of it" if matches else ""
        raise ValueError(f"{len(matches) or 'no'} runs begin with {run!r} in {out}{some}")
    row, folder = rows.get(matches[0]), folders.get(matches[0])
    folder = folder if row is None else row.folder
    assert folder is not None
    about: dict[str, Any] = {} if row is None else {
        "settings": row.spec.to_json(),
        "summary": {name: x for name, x in row.summary.items() if name not in BULKY},
        "about": dict(row.about),
        "code": list(row.code),
    }  # fmt: skip
    files = [str(path) for path in sorted(folder.path.iterdir()) if path.name != "lock"]
    error = folder.status().get("error", "")
    answer({"run": matches[0], "state": folder.state(), "error": error, **about, "files": files})


def report(
    studies: Studies = None,
    out: Out = DEFAULT_OUT,
    file: Annotated[Path | None, flag("The page; report.html in the store by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page: the scorecard of claims, and the tables and pictures."""
    study_sections, incomplete = _read_sections(studies or (), out)
    problems = show_page(study_sections, file or out / "report.html", as_json)
    if incomplete or problems:
        raise typer.Exit(FAILED)


def show_page(
    study_sections: Sequence[Section],
    path: Path,
    as_json: bool = False,
    *,
    failures_are_said: bool = False,
) -> list[str]:
    """Write a page, say what its claims are and where it lies.

    Args:
        failures_are_said: the command has named each run that failed when it did.

    Returns:
        The problems of its sections, which are said too.
    """
    from spherenorm_experiments.report import ComparisonText, is_comparison, write_report

    claims, problems = write_report(study_sections, path)
    notes = [
        f"{section.label}: {note}"
        for section in study_sections
        for note in (section.notes_on_results if failures_are_said else section.notes)
    ]
    if as_json:
        answer({"page": str(path), "claims": claims, "notes": notes})
    else:
        if len(study_sections) == 1 and not problems and study_sections[0].summary:
            for line in study_sections[0].summary:
                say(escape(line))
        elif is_comparison(study_sections) and not problems:
            _show_comparison(ComparisonText(study_sections[0]))
        else:
            _show_claims(claims)
        say(escape(f"page: {path}"))
        for note in notes:
            say_error(note, NOTE)
    for problem in problems:
        say_error(problem)
    return problems


def _show_comparison(text: ComparisonText) -> None:
    """Print what was compared, the scores, a verdict on each pair, and where to go on."""
    say(escape(f"{text.title}. {text.about}"))
    for table in text.study.tables(text.section.results)[:1]:
        console.print(as_text(table, table.title.partition(" (")[0]))  # the title has the direction
    for sentence in [*text.best_points, *text.sentences, *text.advice]:
        say(escape(str(sentence)))


def _show_claims(claims: Sequence[Mapping[str, Any]]) -> None:
    """Print the claims, or how many there are."""
    from spherenorm_experiments.report import group_by_kind
    from spherenorm_experiments.verdict import AGAINST, FOR

    if len(claims) > LISTED:
        for group in group_by_kind(claims):
            say(f"[bold]{escape(group.title)}[/bold]: {group.listed}")
        return
    for claim in claims:
        verdict = claim["verdict"]
        color = "green" if verdict in FOR else "red" if verdict in AGAINST else "yellow"
        numbers = "; ".join(filter(None, [claim["ours"], claim["detail"]]))
        say(f"[{color}]{verdict:>15}[/{color}]  {claim['study']}: {escape(claim['text'])}")
        say(f"{'':17}{escape(numbers)}", style="dim")


def results(
    studies: Studies = None,
    out: Out = DEFAULT_OUT,
    into: Annotated[Path, flag("The folder of the pages.")] = RESULTS,
    figures: Annotated[bool, flag("The paper's figures, too: extra pictures, and Chrome.")] = False,
    rows: Annotated[
        bool,
        flag(
            "Also rows.parquet, of which --from makes the pages; studies of it that the store "
            "does not have keep theirs."
        ),
    ] = False,
    source: Annotated[
        str, flag("store, or rows: the file rows.parquet beside the pages.", "--from")
    ] = "store",
) -> None:
    """Write the results of stored runs in Markdown: an index, and a page for each study."""
    from spherenorm_experiments.results import FILE, merge, read_rows, write_results, write_rows

    if source not in ("store", "rows"):
        raise unknown_name("source of results", source, ("store", "rows"))
    if source == "rows":
        study_sections, incomplete = read_rows(into / FILE), False
    else:
        study_sections, incomplete = _read_sections(studies or (), out)
    if rows and source == "store" and (into / FILE).exists():
        study_sections = merge(read_rows(into / FILE), study_sections)
    if rows:
        say(f"rows: {into / FILE}, {write_rows(study_sections, into / FILE)} runs")
    index, *pages = write_results(study_sections, into, figures=figures)
    say(f"results: {index}, and {len(pages)} pages of studies beside it")
    if incomplete:
        raise typer.Exit(FAILED)


def export(
    studies: Studies = None,
    form: Annotated[str, flag("csv, latex or markdown.", "--format")] = "csv",
    out: Out = DEFAULT_OUT,
) -> None:
    """Print the tables and claims of studies, made of their numbers."""
    from spherenorm_experiments.tables import FORMATS
    from spherenorm_experiments.verdict import claims_table

    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    study_sections, incomplete = _read_sections(studies or (), out)
    for section in study_sections:
        for note in section.notes:
            say_error(f"{section.label}: {note}", NOTE)
        text = ""
        try:
            for table in (
                *section.study.all_tables(section.results),
                claims_table(section.decisions),
            ):
                title = COMMENTS[form].format(f"{section.label}: {table.title}")
                text += f"{title}\n{FORMATS[form](table)}\n"
        except Exception as error:  # a user's study may raise anything
            incomplete, text = True, ""
            say_error(f"{section.label}: {one_line(error)}")
        print(text, end="")  # not in the `try`: a reader such as `head` may close the pipe
    if incomplete:
        raise typer.Exit(FAILED)


def _read_sections(studies: Sequence[str], out: Path) -> tuple[list[Section], bool]:
    """Return the sections of these studies, or of all that were run if none is named.

    Returns:
        The sections, and True if a request cannot be read.

    Raises:
        ValueError: a name is wrong, or the store has no such study.
    """
    from spherenorm_experiments.comparison import find_study
    from spherenorm_experiments.plan import read_requests
    from spherenorm_experiments.report import sections

    store = existing_store(out)
    requests, unusable = read_requests(store)
    study_sections = sections(store, requests, studies)
    for name in {*studies} - {section.study.name for section in study_sections}:
        find_study(name)
    for name, text in unusable.items():
        say_error(f"plans/{name}: {text}")
    if not study_sections:
        raise ValueError(f"the store {out} holds no such study; `spherenorm run` comes first")
    return study_sections, bool(unusable)


def list_layouts() -> None:
    """The data sets, and the tree of files that each has on disk."""
    from spherenorm_experiments.lookup import layouts

    for name, layout in layouts().items():
        say(f"[bold]{name}[/bold] {layout.title} ({layout.source})")
        say(layout.tree.strip("\n"), markup=False)


def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which data sets; all that are there by default.")
    ] = None,
    folder: Data = None,
) -> None:
    """Compare the files in DIR/NAME with the official layout."""
    from spherenorm_experiments.lookup import data_folder, layouts, use_folder

    if folder is not None:
        use_folder(folder)
    root, by_name = data_folder("a data set"), layouts()
    for name in names or ():
        if name not in by_name:
            raise unknown_name("data set", name, by_name)
    chosen = names or [name for name in by_name if (root / name).is_dir()]
    if not chosen:
        raise ValueError(f"--data {str(root)!r} holds none of {', '.join(by_name)}")
    complete = [_is_complete(by_name[name], root / name) for name in chosen]
    if not all(complete):
        raise typer.Exit(FAILED)


def _is_complete(layout: Layout, folder: Path) -> bool:
    """Print if a data set has all files of its layout, or which of them it lacks."""
    try:
        layout.require(folder)
    except ValueError as error:
        say(f"[red]{layout.name}[/red]", end=" ")
        say(str(error), markup=False)
        return False
    say(f"{layout.name}: [green]complete[/green]")
    return True
