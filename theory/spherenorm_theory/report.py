"""Reports as text and LaTeX: the law of a recipe, two recipes side by side, the paper's statements.

| report | function |
|---|---|
| one recipe: its law, its equilibrium, and runs that check both | `recipe_report` |
| two recipes side by side | `comparison_report` |
| the paper's statements on one page | `paper_page` |
| all statements, and the reports on the paper's recipes | `paper_report` |
"""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import sympy as sp

from spherenorm import Recipe, bind
from spherenorm_theory.checks import check, check_equilibrium, switch_on
from spherenorm_theory.claim import Claim, Proof, ProofKind, Refutation
from spherenorm_theory.equilibria.equilibrium import (
    Equilibrium,
    equilibrium,
    turn_of_trace,
    without_eps,
)
from spherenorm_theory.equilibria.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.hyper_parameters import (
    are_numbers,
    is_number,
    resolve_recipe,
    static_arguments,
    static_arguments_of_run,
)
from spherenorm_theory.norm_law import NormLaw, norm_growth, verified_trace
from spherenorm_theory.opaque_rules import SCALE
from spherenorm_theory.printing import (
    COLUMNS,
    SHORT,
    Part,
    Proposition,
    enumerated,
    escape_latex,
    latex,
    paragraph,
    show,
    wrapped,
)
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.tracing import Trace, TraceError

__all__ = [
    "Row",
    "Section",
    "comparison_report",
    "describe_growth",
    "paper_page",
    "paper_report",
    "recipe_report",
    "to_latex",
    "to_text",
]

PROBLEMS = ("network", "convolutions", "toy-3d")
"""The problems on which the assumptions of the laws hold."""
TRAINING_STEPS = 60
"""Steps of a run on one of them."""
MATRIX_RUN: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
"""The run of random gradients for a recipe that orthogonalizes."""
UNITS_RUN: dict[str, Any] = {"shape": (32, 256), "steps": 200, "warm_up": 500}
"""The run of random gradients for another recipe."""
RUN_KAPPA, MIN_KAPPA = 0.01, 0.004
"""Decay per step of a run, which 500 steps of warm-up settle; the smallest such decay."""
PAPER_RECIPES = ("sgd", "sgdp", "adamp", "sgdg")
"""The recipes whose laws and runs are in the report on the paper."""
SWITCHED_ON = {"weight_decay": 0.01, "momentum": 0.9}
"""Usual values for hyper-parameters whose default is 0."""
RATE_GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Learning rates between two of which one with a given turn is looked for."""
LABEL_WIDTH = 14
"""Width of the first column of a comparison."""
NO_FORMULA = "no short formula; see the turn for its number"
"""In the place of a stationary value that is computed in numbers alone."""
MAX_ROOT_LENGTH = 60
"""Length of a formula beyond which a comparison does not print its root."""


# Rows and sections


@dataclass(frozen=True)
class Row:
    """An entry of a report.

    Attributes:
        name: name of the entry.
        content: a statement in parts, a formula, or text whose line breaks are kept.
        status: "proved", "checked to x", "not applicable", ... and why.
        good: False if the command has to fail.

    Example:
        >>> row = Row("a sum", "1 + 1 = 2", "proved")
        >>> row.good
        True
    """

    name: str
    content: Any
    status: str
    good: bool = True


class Section(NamedTuple):
    """A title with rows, which may be computed while they are printed.

    Example:
        >>> print(Section("mine", [Row("a sum", "1 + 1 = 2", "proved")]).title)
        mine
    """

    title: str
    rows: Iterable[Row]


def to_text(row: Row) -> str:
    """Return a row in lines of 80 columns.

    Example:
        >>> print(to_text(Row("a sum", "1 + 1 = 2", "proved")))
        a sum. proved
            1 + 1 = 2
    """
    is_text = isinstance(row.content, (str, Proposition))
    text = str(row.content) if is_text else show(row.content)
    if "\n" in text:
        return f"{text}\n{paragraph('Check', row.status)}" if row.status else text
    return "\n".join([paragraph(row.name, row.status), *(wrapped(text) if text else ())])


LATEX_HEAD = r"""\documentclass{article}
\usepackage{amsmath,amssymb,amsthm}
\newtheorem{proposition}{Proposition}
\newtheorem{equilibrium}{Equilibrium}
\newtheorem{statement}{Statement}
\allowdisplaybreaks\raggedright
\begin{document}
\section*{Laws and their status}"""


def to_latex(sections: Iterable[Section]) -> str:
    r"""Return the sections as a LaTeX document.

    Example:
        >>> mine = Section("mine", [Row("a sum", "1 + 1 = 2", "proved")])
        >>> print(to_latex([mine]).splitlines()[8])
        \subsection*{mine}
    """
    lines = [LATEX_HEAD]
    for title, rows in sections:
        lines.append(f"\\subsection*{{{escape_latex(title)}}}")
        lines += [line for row in rows for line in (*_latex_lines(row), "")]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_lines(row: Row) -> Iterator[str]:
    if isinstance(row.content, Proposition):
        yield row.content.latex()
        return
    yield f"\\paragraph{{{escape_latex(row.name)}}} {escape_latex(row.status)}"
    if not isinstance(row.content, str):
        yield f"\\[{latex(row.content)}\\]"
    elif row.content:
        yield f"\\begin{{verbatim}}\n{row.content}\n\\end{{verbatim}}"


# One recipe


def recipe_report(recipe: str | Recipe, **hyper_parameters: Any) -> Section:
    """Return the law of one recipe, derived at once, and the rows that check it.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        **hyper_parameters: values at which hyper-parameters are fixed.

    Raises:
        ValueError: no such recipe or hyper-parameter, or its step cannot be traced.

    Example:
        >>> law, *checks = recipe_report("sgdp").rows
        >>> law.name, len(checks)
        ('law', 6)
    """
    function = resolve_recipe(recipe)
    law = norm_growth(function, **hyper_parameters)
    return Section(law.name, _recipe_rows(law, function, hyper_parameters))


def _recipe_rows(law: NormLaw, function: Recipe, hyper_parameters: dict[str, Any]) -> Iterator[Row]:
    """Yield the law of a recipe, and its comparison with runs of the training problems."""
    failed = [claim.about for claim in law.claims if not claim.holds]
    yield Row("law", law.proposition(), f"Not shown: {', '.join(failed)}" if failed else "",
              not failed)  # fmt: skip
    run_values = {**switch_on(function, law.step.traced), **hyper_parameters}
    if law.new_norm is not None and law.new_norm.has(SCALE):
        yield Row(
            "Runs", "", "not checked on training problems: each matrix has its own c, q and rank"
        )
    else:
        for problem in PROBLEMS:
            yield _training_row(law, function, problem, run_values)
    yield from equilibrium_rows(function, hyper_parameters)
    yield from _practice_rows(law, hyper_parameters)


def _training_row(law: NormLaw, function: Recipe, problem: str, run_values: dict[str, Any]) -> Row:
    """Return the check of a law on a problem, whose weights a user's recipe may refuse."""
    name = f"{law.name} on {problem}"
    try:
        result = check(function, problem, law=law, steps=TRAINING_STEPS, **run_values)
    except Exception as error:
        message = " ".join(str(error).split())
        return Row(name, "", f"Failed: {type(error).__name__}: {message}", good=False)
    # A law does not apply to weights with other units than the rule's; the others still check it.
    good = all(weight.passed or not weight.applies for weight in result.weights.values())
    verdict = f"{ProofKind.CHECKED}: {result.verdict}"
    identity = ["<w, s> was measured, so that only the steps are evidence"] * bool(law.open_because)
    return Row(name, "", "; ".join([verdict, *identity, *result.unexplained_failures]), good)


def equilibrium_rows(function: Recipe, hyper_parameters: dict[str, Any]) -> Iterator[Row]:
    """Yield the equilibrium, and a run of random gradients that checks it.

    Args:
        function: the recipe.
        hyper_parameters: values at which hyper-parameters are fixed.
    """
    try:
        law = equilibrium(function, **static_arguments(hyper_parameters), **without_eps(function))
    except (NoEquilibriumError, TraceError) as error:
        name = bind(function).name
        yield Row("Equilibrium", "", f"none: {str(error).removeprefix(f'{name}: ')}")
        return
    yield Row("equilibrium", law.proposition(), "")
    try:
        values = _values_that_settle(law, hyper_parameters)
        run = MATRIX_RUN if law.orthogonal_factor_step else UNITS_RUN
        result = check_equilibrium(function, **run, **values)
    except ValueError as error:
        yield Row("Run", "", f"not checked: {error}")
        return
    settings = ", ".join(f"{name}={value}" for name, value in values.items())
    status = f"{ProofKind.CHECKED if result.passed else 'fails'}: {result}"
    yield Row("Run", settings, status, result.passed)


def _values_that_settle(law: Equilibrium, hyper_parameters: dict[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters of a run that settles within the warm-up, by a free weight decay."""
    traced, defaults = law.traced, bind(law.traced.recipe).defaults
    run_defaults: dict[str, Any] = {"lr": 0.01 if "eps" in defaults else 0.1}
    run_defaults |= {"betas": (0.9, 0.99)} if "betas" in defaults else {}
    values = {**switch_on(traced.recipe, traced), **run_defaults, **hyper_parameters}
    values |= without_eps(traced.recipe)
    kappa = drop_transients(law.kappa, law.mean.step)
    if kappa.has(traced.symbols.get("weight_decay")):
        at_one = traced.free_values(**{**values, "weight_decay": 1.0})
        kappa_at_one = float(kappa.subs(traced.given_values).subs(at_one))  # kappa is linear in it
        settling = round(RUN_KAPPA / kappa_at_one, 9)
        values["weight_decay"] = hyper_parameters.get("weight_decay", settling)
        if kappa_at_one * values["weight_decay"] >= MIN_KAPPA:
            return values
    raise NoEquilibriumError("no decay settles the norm in a run")


def _practice_rows(law: NormLaw, hyper_parameters: dict[str, Any]) -> Iterator[Row]:
    """Yield the turn per step at usual hyper-parameters, where the recipe has one."""
    try:
        settings, traced = usual_settings(law.step.traced.recipe, hyper_parameters)
        turn = turn_of_trace(traced, traced.free_values(**settings))
    except ValueError:
        return
    numbers = ", ".join(f"{name}={x}" for name, x in settings.items() if name != "eps")
    yield Row(
        "In practice",
        "",
        f"{'In the long run' if law.sets_norm else 'At equilibrium'} the weight turns by "
        f"{turn:.4g} rad ({math.degrees(turn):.3g} degrees) per step, at {numbers}",
    )


def usual_settings(
    recipe: Recipe, hyper_parameters: dict[str, Any]
) -> tuple[dict[str, Any], Trace]:
    """Return usual hyper-parameters of a recipe, and its trace at them.

    Those whose default is 0 have the values of `SWITCHED_ON`, and eps is 0.

    Args:
        recipe: the recipe.
        hyper_parameters: values of some of them.

    Raises:
        ValueError: the step cannot be traced at them.
    """
    settings: dict[str, Any] = {"lr": 0.1}
    for name, value in bind(recipe).defaults.items():
        if (is_number(value) and value != 0) or are_numbers(value):
            settings[name] = value
        elif name in SWITCHED_ON and is_number(value):
            settings[name] = SWITCHED_ON[name]
    settings |= {**hyper_parameters, **without_eps(recipe)}
    return settings, verified_trace(recipe, **static_arguments_of_run(recipe, settings))


# Two recipes side by side


@dataclass(frozen=True)
class ComparedRecipe:
    """A recipe that is compared with another one.

    Attributes:
        law: the law of its norm.
        equilibrium: its equilibrium; None if it has none.
        settings: the numbers at which its turn is taken.
        traced: the recipe's trace at these settings.
    """

    law: NormLaw
    equilibrium: Equilibrium | None
    settings: dict[str, Any]
    traced: Trace

    @staticmethod
    def of(recipe: Recipe, hyper_parameters: dict[str, Any]) -> ComparedRecipe:
        """Return the laws of a recipe, with some hyper-parameters fixed."""
        law, stationary = norm_growth(recipe, **hyper_parameters), None
        static = {**static_arguments(hyper_parameters), **without_eps(recipe)}
        with contextlib.suppress(ValueError):
            stationary = equilibrium(recipe, **static)
        settings, traced = usual_settings(recipe, hyper_parameters)
        return ComparedRecipe(law, stationary, settings, traced)

    @property
    def missing_equilibrium(self) -> str:
        """What stands in the place of an equilibrium: without decay there is none."""
        has_decay = self.law.kappa != 0 or self.law.sets_norm
        return "not derived" if has_decay else "none"

    def turn(self, lr: float) -> float:
        """Return the equilibrium turn per step at a learning rate; nan where there is none."""
        with contextlib.suppress(ValueError):
            return turn_of_trace(
                self.traced, self.traced.free_values(**{**self.settings, "lr": lr})
            )
        return math.nan


def comparison_report(
    recipe_1: str | Recipe, recipe_2: str | Recipe, **hyper_parameters: Any
) -> Section:
    """Return the comparison of two recipes.

    Args:
        recipe_1, recipe_2: the recipes.
        **hyper_parameters: values at which hyper-parameters are fixed, in each recipe that has
            them.

    Raises:
        ValueError: no such recipe, or neither has one of the hyper-parameters.

    Example:
        >>> print(comparison_report("sgdw", "sgdp").title)
        sgdw and sgdp
    """
    recipes = [resolve_recipe(recipe_1), resolve_recipe(recipe_2)]
    names = [bind(recipe).defaults.keys() for recipe in recipes]
    title = " and ".join(bind(recipe).name for recipe in recipes)
    unknown = hyper_parameters.keys() - names[0] - names[1]
    if unknown:
        raise ValueError(f"{title} have no hyper-parameter {min(unknown)!r}")
    sides = [
        ComparedRecipe.of(recipe, {n: x for n, x in hyper_parameters.items() if n in defaults})
        for recipe, defaults in zip(recipes, names, strict=True)
    ]
    return Section(title, [Row(title, _side_by_side(*sides), "")])


def _side_by_side(a: ComparedRecipe, b: ComparedRecipe) -> str:
    """Return two laws in two columns."""
    width, lines = (COLUMNS - LABEL_WIDTH - 4) // 2, list[str]()
    for (label, text_a), (_, text_b) in zip(_cells(a), _cells(b), strict=True):
        sides = (wrapped(text, width, indent="") for text in (text_a, text_b))
        columns = zip_longest([label], *sides, fillvalue="")
        lines += [f"{head:{LABEL_WIDTH}}  {x:{width}}  {y}".rstrip() for head, x, y in columns]
    return "\n".join([*lines, "", *_equal_turns(a, b)])


def _fill(text: str, width: int = COLUMNS) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _cells(side: ComparedRecipe) -> Iterator[tuple[str, str]]:
    """Yield the lines of one recipe, each with its label."""
    law, formulas = side.law, dict[str, str]()
    if side.equilibrium is not None:
        formulas = side.equilibrium.formulas_as_text()
    yield "", law.name.upper()
    retention = "" if law.kappa == 0 else f"({show(law.retention)}) "
    step = f"{retention}w + s, s = {show(law.drive)}"
    yield "step", f"w' = {show(law.step.weight) if law.sets_norm else step}"
    yield "norm", show(law.equation)
    yield "decay", "none" if law.sets_norm else show(law.kappa)
    is_cross_shown = law.cross_recursion is None and law.cross != 0 and not law.sets_norm
    cross = f"; <w, s> = {show(law.cross)}" if is_cross_shown else ""
    yield "growth", describe_growth(law) + cross
    missing = side.missing_equilibrium
    norm = f"~ {formulas['|w|']}" if "|w|" in formulas else NO_FORMULA if formulas else missing
    yield "stationary |w|", "fixed" if law.sets_norm and not formulas else norm
    square = formulas.get("step^2", "")
    has_root = 0 < len(square) < MAX_ROOT_LENGTH
    exact_root = f"= sqrt({square})" if has_root else NO_FORMULA if square else missing
    small_lr_root = formulas.get("step")
    yield "effective step", exact_root if small_lr_root is None else f"~ {small_lr_root}"
    settings = [f"{n}={x}" for n, x in side.settings.items() if n not in ("lr", "eps")]
    turn, numbers = side.turn(side.settings["lr"]), [f"lr={side.settings['lr']:g}", *settings]
    yield "turn", missing if math.isnan(turn) else f"{turn:.4g} rad a step at {', '.join(numbers)}"


def describe_growth(law: NormLaw) -> str:
    """Describe the growth that a law adds to the norm that decay leaves.

    Example:
        >>> print(describe_growth(norm_growth("sgdp")))
        |s|^2 alone: <w, s> = 0
    """
    if law.sets_norm:
        return f"none: |w'| = {show(law.new_norm)}"
    if law.cross == 0:
        return "|s|^2 alone: <w, s> = 0"
    if law.open_because:
        return f"|s|^2 + 2 <w, s>, open: {law.open_because.rpartition('; so ')[0]}"
    if law.cross_recursion is not None:
        A, B = law.cross_recursion
        return f"|s|^2 + 2 <w, s>, where <w', s'> = ({show(A)}) <w, s> + ({show(B)}) |s|^2"
    products = ", ".join(sorted(map(show, law.required_products)))
    return f"|s|^2 + 2 <w, s>, from the recursion of {products}"


def _equal_turns(a: ComparedRecipe, b: ComparedRecipe) -> list[str]:
    """Return the settings of equal turns: in symbols for small lr, and in numbers."""
    lines, small_turns = list[str](), [*_small_squared_turns(a, b)]
    if len(small_turns) == 2:
        condition = show(sp.Eq(*small_turns, evaluate=False))
        numbering = f"(1: {a.law.name}, 2: {b.law.name})"
        lines += _fill(f"equal turns for small lr where {condition} {numbering}")
    for reference, other in ((a, b), (b, a)):
        lr = reference.settings["lr"]
        turn = reference.turn(lr)
        rate = _rate_of_turn(other, turn)
        if not math.isnan(rate):
            lines += _fill(
                f"{other.law.name} turns as {reference.law.name} does at lr={lr:g} "
                f"({turn:.4g} rad a step) where its own lr is {rate:.4g}"
            )
    without = [x.law.name for x in (a, b) if math.isnan(x.turn(x.settings["lr"]))]
    reason = (
        f"of {' and of '.join(without)} no equilibrium turn is derived; its own report says why"
    )
    return lines or _fill(f"no settings of equal turns: {reason}")


def _small_squared_turns(*sides: ComparedRecipe) -> Iterator[sp.Expr]:
    """Yield the squared turns for small lr, which are squared effective steps.

    Each hyper-parameter has its recipe's number.
    """
    for number, side in enumerate(sides, 1):
        law = side.equilibrium
        if law is not None and law.squared_effective_step.is_rational_function():
            small = law.leading_term(law.squared_effective_step)
            names = {s: f"{SHORT.get(s.name, s.name)}[{number}]" for s in small.free_symbols}
            yield small.subs({s: sp.Symbol(name, positive=True) for s, name in names.items()})


def _rate_of_turn(side: ComparedRecipe, turn: float) -> float:
    """Return the learning rate at which a recipe has a turn; nan where there is none."""
    from scipy.optimize import brentq  # takes seconds to import

    def log_ratio(log_rate: float) -> float:
        turn_there = side.turn(math.exp(log_rate))
        return math.log(turn_there / turn) if turn_there > 0 else math.nan

    grid = [(x, log_ratio(x)) for x in map(math.log, RATE_GRID)] if turn > 0 else []
    for (low, below), (high, above) in pairwise(grid):
        if below <= 0 <= above:
            return float(math.exp(brentq(log_ratio, low, high, xtol=1e-8)))
    return math.nan


# The paper


def paper_page() -> Section:
    """Return the paper's statements on one page, each with its verdict, assumptions and proof.

    Example:
        >>> print(next(iter(paper_page().rows)).content)  # doctest: +ELLIPSIS
        Statement (Eq. 4, Section 2.3)
        Holds as printed.
        Says.
            <w,grad f(w)> = 0
        ...
    """
    title = "The paper's statements"
    return Section(title, (_statement_row(prove()) for prove in STATEMENTS[title]))


def _statement_row(proof: Proof) -> Row:
    """Return a statement of the paper with its proof, as a reader checks it against the paper."""
    statement_claim, *steps = proof.claims
    parts = [Part("Says", (statement_claim.relation,), displayed=True)]
    if proof.hypotheses:
        parts.append(Part("Assumes", (enumerated(proof.hypotheses),)))
    parts.append(Part("Shown", (", ".join(proof.kinds),)))
    if steps:
        proof_lines = tuple((step.relation, f" ({step.about}; {step.kind})") for step in steps)
        parts.append(Part("Proof", proof_lines, displayed=True))
    if proof.counterexamples:
        readings = tuple(
            line
            for reading in proof.counterexamples
            for line in ((reading.relation, f" ({reading.about})"), reading.justification)
        )
        parts.append(Part("Does not hold", readings, displayed=True))
    verdict = proof.verdict if proof.proved else proof.status
    name = ", ".join(filter(None, (proof.name, proof.section)))
    statement = Proposition("Statement", name, tuple(parts), summary=verdict)
    return Row(proof.name, statement, "", proof.proved)


def paper_report() -> Iterator[Section]:
    """Yield the paper's statements, statements beyond them, and the reports on its recipes.

    Example:
        >>> print(next(paper_report()).title)
        The paper's statements
    """
    for title, proofs in STATEMENTS.items():
        yield Section(title, (row for prove in proofs for row in _proof_rows(prove())))
    yield from map(recipe_report, PAPER_RECIPES)


def _proof_rows(proof: Proof) -> Iterator[Row]:
    """Yield the statement with its status, then its steps and the readings that are refuted."""
    statement_claim, *steps = proof.claims
    status = f"{proof.status}. Note: {proof.remark}" if proof.remark else proof.status
    yield Row(
        f"{proof.name}: {statement_claim.about}", statement_claim.relation, status, proof.proved
    )
    parts: tuple[Claim | Refutation, ...] = (*steps, *proof.counterexamples)
    for part in parts:
        reading = ", another reading" if isinstance(part, Refutation) else ""
        name = f"{proof.name}{reading}: {part.about}"
        yield Row(name, part.relation, part.justification, part.holds)
