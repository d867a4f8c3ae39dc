"""The rows of a report, and their two forms: text of 80 columns and LaTeX."""

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
from spherenorm_theory.claim import Claim, Kind, Proof, Refutation
from spherenorm_theory.equilibria.equilibrium import Equilibrium, equilibrium, turn_of, without_eps
from spherenorm_theory.equilibria.mean_field import NoEquilibriumError, drop_transients
from spherenorm_theory.hyper_parameters import (
    are_numbers,
    is_number,
    resolve_recipe,
    static_arguments,
    static_arguments_of_run,
)
from spherenorm_theory.norm_law import NormLaw, norm_growth, verified_trace
from spherenorm_theory.printing import (
    COLUMNS,
    SHORT,
    Statement,
    escape_latex,
    latex,
    paragraph,
    show,
    wrapped,
)
from spherenorm_theory.proofs import STATEMENTS
from spherenorm_theory.tracing import Trace, TraceError


@dataclass(frozen=True)
class Row:
    """One statement of a report.

    Attributes:
        name: of the statement.
        content: a statement in parts, a formula, or text, of which several lines stay as they are.
        status: "proved", "checked to x", "not applicable", ... and why.
        good: False fails the command.

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
    """A title with rows, which may be made one after the other.

    Example:
        >>> print(Section("ours", [Row("a sum", "1 + 1 = 2", "proved")]).title)
        ours
    """

    title: str
    rows: Iterable[Row]


def to_text(row: Row) -> str:
    """A row in lines of 80 columns.

    Example:
        >>> print(to_text(Row("a sum", "1 + 1 = 2", "proved")))
        a sum. proved
            1 + 1 = 2
    """
    plain = isinstance(row.content, (str, Statement))
    text = str(row.content) if plain else show(row.content)
    if "\n" in text:
        return f"{text}\n{paragraph('Check', row.status)}" if row.status else text
    return "\n".join([paragraph(row.name, row.status), *(wrapped(text) if text else ())])


HEAD = r"""\documentclass{article}
\usepackage{amsmath,amssymb,amsthm}
\newtheorem{proposition}{Proposition}
\newtheorem{equilibrium}{Equilibrium}
\allowdisplaybreaks\raggedright
\begin{document}
\section*{Laws and their status}"""


def to_latex(sections: Iterable[Section]) -> str:
    r"""The sections as a standalone LaTeX document.

    Example:
        >>> ours = Section("ours", [Row("a sum", "1 + 1 = 2", "proved")])
        >>> print(to_latex([ours]).splitlines()[7])
        \subsection*{ours}
    """
    lines = [HEAD]
    for title, rows in sections:
        lines.append(f"\\subsection*{{{escape_latex(title)}}}")
        lines += [line for row in rows for line in (*_latex_lines(row), "")]
    return "\n".join([*lines, "\\end{document}", ""])


def _latex_lines(row: Row) -> Iterator[str]:
    if isinstance(row.content, Statement):
        yield row.content.latex()
        return
    yield f"\\paragraph{{{escape_latex(row.name)}}} {escape_latex(row.status)}"
    if not isinstance(row.content, str):
        yield f"\\[{latex(row.content)}\\]"
    elif row.content:
        yield f"\\begin{{verbatim}}\n{row.content}\n\\end{{verbatim}}"


# Two recipes side by side: laws, effective decay, growth, and the settings of equal turns.


LABEL = 11
SWITCHED_ON = {"weight_decay": 0.01, "momentum": 0.9}
"""The hyper-parameters at which a recipe is compared whose default is 0."""
RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Between two of these a learning rate is looked for."""


@dataclass(frozen=True)
class Side:
    """One of the two recipes.

    Attributes:
        law: of its norm.
        rest: its equilibrium; None if it has none.
        settings: the numbers at which its turn is taken.
        traced: the recipe at these settings.
    """

    law: NormLaw
    equilibrium: Equilibrium | None
    settings: dict[str, Any]
    traced: Trace

    @staticmethod
    def of(recipe: Recipe, own: dict[str, Any]) -> Side:
        """The side of a recipe, with hyper-parameters that are held."""
        law, known, rest = norm_growth(recipe, **own), bind(recipe).defaults, None
        with contextlib.suppress(ValueError):
            rest = equilibrium(recipe, **static_arguments(own), **without_eps(recipe))
        settings = {n: x for n, x in known.items() if (is_number(x) and x != 0) or are_numbers(x)}
        settings |= {n: x for n, x in SWITCHED_ON.items() if known.get(n) == 0}
        settings = {"lr": 0.1, **settings, **own, **without_eps(recipe)}
        traced = verified_trace(recipe, **static_arguments_of_run(recipe, settings))
        return Side(law, rest, settings, traced)

    def turn(self, lr: float) -> float:
        """The turn per step at rest, at a learning rate; nan where there is none."""
        with contextlib.suppress(ValueError):
            return turn_of(self.traced, self.traced.values(**{**self.settings, "lr": lr}))
        return math.nan


def comparison_report(first: str | Recipe, second: str | Recipe, **given: Any) -> Section:
    """The comparison of two recipes.

    Raises:
        ValueError: no such recipe, or neither has a hyper-parameter that is given.

    Example:
        >>> print(comparison_report("sgdw", "sgdp").title)
        sgdw and sgdp
    """
    recipes = [resolve_recipe(each) for each in (first, second)]
    known = [bind(each).defaults for each in recipes]
    title = " and ".join(bind(each).name for each in recipes)
    if unknown := given.keys() - known[0].keys() - known[1].keys():
        raise ValueError(f"{title} have no hyper-parameter {min(unknown)!r}")
    own = [{n: x for n, x in given.items() if n in each} for each in known]
    sides = [*map(Side.of, recipes, own)]
    return Section(title, [Row(title, _side_by_side(*sides), "")])


def _side_by_side(a: Side, b: Side) -> str:
    """Two laws in two columns."""
    width, lines = (COLUMNS - LABEL - 4) // 2, list[str]()
    for (label, left), (_, right) in zip(_cells(a), _cells(b), strict=True):
        columns = zip_longest([label], _fill(left, width), _fill(right, width), fillvalue="")
        lines += [f"{head:{LABEL}}  {x:{width}}  {y}".rstrip() for head, x, y in columns]
    return "\n".join([*lines, "", *_equal_turns(a, b)])


def _fill(text: str, width: int = COLUMNS) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _cells(side: Side) -> Iterator[tuple[str, str]]:
    """The lines of one side, each with its label."""
    law, lines = side.law, side.equilibrium.formulas() if side.equilibrium is not None else {}
    keep = "" if law.kappa == 0 else f"({show(law.retention)}) "
    step = f"{keep}w + s, s = {show(law.drive)}" if not law.constant else show(law.step.weight)
    shown = law.growth is None and law.cross != 0 and not law.constant
    norm = f"~ {lines['|w|']}" if "|w|" in lines else "numbers alone" if lines else "none"
    yield "", law.name.upper()
    yield "step", f"w' = {step}"
    yield "norm", show(law.equation)
    yield "decay", show(law.kappa) if not law.constant else "none: held"
    yield "growth", describe_growth(law) + (f"; <w, s> = {show(law.cross)}" if shown else "")
    yield "|w| at rest", "held" if law.constant and not lines else norm
    others = ", ".join(f"{n}={x}" for n, x in side.settings.items() if n not in ("lr", "eps"))
    turn, square = side.turn(side.settings["lr"]), lines.get("turn^2", "")
    number = f"{turn:.4g} rad a step at lr={side.settings['lr']:g}, {others}"
    number = "no number" if math.isnan(turn) else number
    formula = lines.get("turn", f"sqrt({square})" if 0 < len(square) < 60 else "")
    yield "turn", f"{formula}; {number}" if formula else number


def describe_growth(law: NormLaw) -> str:
    """The growth that a law adds to the norm that decay leaves, and what is known of it.

    Example:
        >>> print(describe_growth(norm_growth("sgdp")))
        |s|^2 alone: <w, s> = 0
    """
    if law.constant:
        return f"none: |w'| = {show(law.length)}"
    if law.cross == 0:
        return "|s|^2 alone: <w, s> = 0"
    if law.open_because:
        return f"|s|^2 + 2 <w, s>, open: {law.open_because.rpartition('; so ')[0]}"
    if law.growth is not None:
        A, B = law.growth
        return f"|s|^2 + 2 <w, s>, where <w', s'> = ({show(A)}) <w, s> + ({show(B)}) |s|^2"
    carried = ", ".join(sorted(map(show, law.unknowns)))
    return f"|s|^2 + 2 <w, s>, from the recursion of {carried}"


def _equal_turns(a: Side, b: Side) -> list[str]:
    """The settings at which both turn equally: in symbols for small lr, and in numbers."""
    lines, forms = [], [*_small_turns(a, b)]
    if len(forms) == 2:
        equal = f"equal turns for small lr where {show(sp.Eq(*forms, evaluate=False))}"
        lines += _fill(f"{equal} (1: {a.law.name}, 2: {b.law.name})")
    for of, to in ((a, b), (b, a)):
        lr = of.settings["lr"]
        turn = of.turn(lr)
        if not math.isnan(found := _rate_of_turn(to, turn)):
            at = f"{of.law.name} does at lr={lr:g} ({turn:.4g} rad a step)"
            lines += _fill(f"{to.law.name} turns as {at} where its own lr is {found:.4g}")
    return lines or ["no settings of equal turns: one of the two has no turn at rest"]


def _small_turns(*sides: Side) -> Iterator[sp.Expr]:
    """The squared turns for small lr, with the number of its recipe behind each hyper-parameter."""
    for n, rest in enumerate((side.equilibrium for side in sides), 1):
        if rest is not None and rest.squared_rotation.is_rational_function():
            small = rest.leading(rest.squared_rotation)
            names = {s: f"{SHORT.get(s.name, s.name)}[{n}]" for s in small.free_symbols}
            yield small.subs({s: sp.Symbol(name, positive=True) for s, name in names.items()})


def _rate_of_turn(side: Side, turn: float) -> float:
    """The learning rate at which a recipe turns so; nan where there is none."""
    from scipy.optimize import brentq  # seconds to import

    def off(power: float) -> float:
        found = side.turn(math.exp(power))
        return math.log(found / turn) if found > 0 else math.nan

    grid = [(x, off(x)) for x in map(math.log, RATES)] if turn > 0 else []
    for (low, hypotheses), (high, over) in pairwise(grid):
        if hypotheses <= 0 <= over:
            return float(math.exp(brentq(off, low, high, xtol=1e-8)))
    return math.nan


# Reports: on a recipe, its law and equilibrium and runs that check both; on the paper, proofs.


PROBLEMS = ("network", "convolutions", "toy-3d")
"""The problems on which the assumptions of the laws hold."""
STEPS = 60
"""Of a run on one of them."""
MATRIX: dict[str, Any] = {"shape": (24, 40), "steps": 2000}
UNITS: dict[str, Any] = {"shape": (32, 256), "steps": 200, "warm_up": 500}
"""A run of a recipe that orthogonalizes, and of another one."""
SETTLES, SLOWEST = 0.01, 0.004
"""kappa of a run, at which 500 steps of warm-up hold several relaxation times; the least one."""


def recipe_report(recipe: str | Recipe, **given: Any) -> Section:
    """The law of one recipe, derived at once, and its checks.

    Args:
        recipe: a recipe, its registered name, or "module:function".
        given: hyper-parameters to hold at a value.

    Raises:
        ValueError: no such recipe or hyper-parameter, or its step cannot be traced.

    Example:
        >>> first, *checks = recipe_report("sgdp").rows
        >>> first.name, len(checks)
        ('law', 5)
    """
    function = resolve_recipe(recipe)
    law = norm_growth(function, **given)
    return Section(law.name, _recipe_rows(law, function, given))


def _recipe_rows(law: NormLaw, function: Recipe, given: dict[str, Any]) -> Iterator[Row]:
    failed = [claim.about for claim in law.claims if not claim.holds]
    status = f"NOT shown: {', '.join(failed)}" if failed else ""
    yield Row("law", law.proposition(), status, not failed)
    running = {**switch_on(function, law.step.traced), **given}
    for problem in PROBLEMS if not law.step.traced.opaque_rules else ():
        yield _training_row(law, function, problem, running)
    yield from equilibrium_rows(function, given)


def _training_row(law: NormLaw, function: Recipe, problem: str, running: dict[str, Any]) -> Row:
    """The check of a law on a problem; a recipe of one's own may take no such weights."""
    name = f"{law.name} on {problem}"
    try:
        result = check(function, problem, law=law, steps=STEPS, **running)
    except Exception as error:
        why = " ".join(str(error).split())
        return Row(name, "", f"FAILED: {type(error).__name__}: {why}", good=False)
    # A law does not apply where units are others than the rule's; other weights still check it.
    good = all(each.passed or not each.applies for each in result.weights.values())
    kind = "; identity only, the cross term was measured" if law.open_because else ""
    off = ((n, x) for n, x in result.weights.items() if not x.passed)
    why = "".join(f"; {n}: {note}" for n, x in off for note in x.notes)
    return Row(name, "", f"{Kind.CHECKED}: {result.verdict} in {STEPS} steps{kind}{why}", good)


def equilibrium_rows(function: Recipe, given: dict[str, Any]) -> Iterator[Row]:
    """The equilibrium, and a run of random gradients that checks it.

    Args:
        function: the recipe.
        given: hyper-parameters to hold at a value.
    """
    try:
        law = equilibrium(function, **static_arguments(given), **without_eps(function))
    except (NoEquilibriumError, TraceError) as error:
        yield Row("Equilibrium", "", f"not applicable: {error}")
        return
    yield Row("equilibrium", law.proposition(), "")
    try:
        values = _values_that_settle(law, given)
        result = check_equilibrium(function, **(MATRIX if law.factor else UNITS), **values)
    except ValueError as error:
        yield Row("Run", "", f"not checked: {error}")
        return
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    status = f"{Kind.CHECKED if result.passed else 'FAILS'}: {result}"
    yield Row("Run", shown, status, result.passed)


def _values_that_settle(law: Equilibrium, given: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters of a run that settles within the warm-up, by its decay if that is free."""
    traced, defaults = law.traced, bind(law.traced.recipe).defaults
    usual: dict[str, Any] = {"lr": 0.01 if "eps" in defaults else 0.1}
    usual |= {"betas": (0.9, 0.99)} if "betas" in defaults else {}
    values = {**switch_on(traced.recipe, traced), **usual, **given, **without_eps(traced.recipe)}
    kappa = drop_transients(law.kappa, law.mean.step)
    if kappa.has(traced.symbols.get("weight_decay")):
        at_one = traced.values(**{**values, "weight_decay": 1.0})
        share = float(kappa.subs(traced.exact_values).subs(at_one))  # kappa is linear in it
        values["weight_decay"] = given.get("weight_decay", round(SETTLES / share, 9))
        if share * values["weight_decay"] >= SLOWEST:
            return values
    raise NoEquilibriumError("no decay settles the norm in a run")


CHECKED = ("sgd", "sgdp", "adamp", "sgdg")
"""The recipes of which the report on the paper has the laws and the runs that check them."""


def paper_report() -> Iterator[Section]:
    """The paper's statements, statements beyond them, and the reports on its recipes.

    Example:
        >>> print(next(paper_report()).title)
        The paper's statements
    """
    for title, proofs in STATEMENTS.items():
        yield Section(title, (row for prove in proofs for row in _proof_rows(prove())))
    yield from map(recipe_report, CHECKED)


def _proof_rows(proof: Proof) -> Iterator[Row]:
    """The statement with its status, then the claims that it rests on and other readings."""
    first, *steps = proof.claims
    note = f"{proof.status}. Note: {proof.remark}" if proof.remark else proof.status
    yield Row(f"{proof.name}: {first.about}", first.relation, note, proof.proved)
    parts: tuple[Claim | Refutation, ...] = (*steps, *proof.counterexamples)
    for each in parts:
        another = ", another reading" if isinstance(each, Refutation) else ""
        yield Row(
            f"{proof.name}{another}: {each.about}", each.relation, each.justification, each.holds
        )
