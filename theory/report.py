"""Laws and their status, as rows of a table; as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from spherenorm.registry import Recipe, defaults, find_recipe, reference
from theory import beyond, lemmas
from theory.detection import count_false_positives, false_positive_law
from theory.equilibrium import DIMENSION, NoEquilibriumError, equilibrium, late
from theory.norm_growth import NormGrowth, norm_growth
from theory.normalized import equation_4
from theory.numeric import check
from theory.proof import Proof
from theory.random_walk import check_equilibrium, check_ratio
from theory.tasks import TASKS
from theory.text import show
from theory.trace import TraceError, are_numbers, found, is_number, settled, trace

__all__ = ["Job", "Row", "paper", "recipe_jobs", "to_latex", "to_markdown"]


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        section: the heading it belongs under.
        name: of the statement.
        formula: in text.
        status: "proved", "checked to x", "not applicable", ... and why.
        latex: the formula as LaTeX, where there is one.
    """

    section: str
    name: str
    formula: str
    status: str
    latex: str = ""
    good: bool = True


@dataclass(frozen=True)
class Job:
    """A part of the report: its section, and the name that the progress bar shows."""

    section: str
    name: str
    rows: Callable[[], list[Row]]

    def run(self) -> list[Row]:
        """The rows; a job that raises is a row too, so that it takes none of the others with it."""
        try:
            return self.rows()
        except Exception as error:
            return [
                Row(
                    self.section,
                    self.name,
                    "",
                    f"FAILED: {type(error).__name__}: {' '.join(str(error).split())}",
                    good=False,
                )
            ]


PAPER = (equation_4, lemmas.effective_step, lemmas.lemma_2_1, lemmas.lemma_2_2, lemmas.lemma_2_2_scheduled,
         lemmas.corollary_2_3, lemmas.equation_14, lemmas.proposition_3_1, beyond.adam_can_shrink)  # fmt: skip
BEYOND = (beyond.momentum_by_any_name, beyond.nesterov_never_shrinks, beyond.ratio_laws, beyond.sphere_keeps_the_norm,
          beyond.projected_buffer, beyond.equilibria_of_the_literature, beyond.matched_decay, false_positive_law)  # fmt: skip

STATEMENTS = {"The paper's statements": PAPER, "Beyond the paper": BEYOND}
RUNS = "Checked on float64 runs"

TRAINING: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
NOISE: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
NOISE_ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0}


def paper() -> list[Job]:
    """The paper's statements, what goes beyond them, and both against float64 runs."""
    jobs = [
        Job(s, f.__name__, partial(_proof_rows, s, f))
        for s, proofs in STATEMENTS.items()
        for f in proofs
    ]
    for recipe in ("sgd", "sgdw", "sgdp", "adamp", "sgdg"):
        hypers = {
            n: v
            for n, v in TRAINING.items()
            if n in defaults(find_recipe(recipe)) and recipe != "sgdg"
        }
        jobs += _training_jobs(recipe, hypers, RUNS)
    jobs.append(Job(RUNS, "broken assumptions", _broken_rows))
    noise: list[tuple[str, dict[str, Any]]] = [
        ("sgd", {**NOISE, "momentum": 0.0}),
        ("sgd", NOISE),
        ("sgd", {**NOISE, "nesterov": True}),
        ("sgdw", NOISE),
        ("sgdp", NOISE),
        ("sgdp", {**NOISE, "project_buffer": True}),
        ("adamw", {**NOISE_ADAM, "weight_decay": 1.0}),
        ("adamp", {**NOISE_ADAM, "weight_decay": 10.0}),
    ]
    jobs += [Job(RUNS, f"equilibrium of {n}", partial(_settled_rows, n, h, RUNS)) for n, h in noise]
    return [
        *jobs,
        Job(RUNS, "growth ratios", _ratio_rows),
        Job(RUNS, "false positives", _false_positive_rows),
    ]


def _proof_rows(section: str, prove: Callable[[], Proof]) -> list[Row]:
    proof = prove()
    details = [
        *(f"Counterexample: {c}" for c in proof.counterexamples),
        f"Instead: {proof.corrected}" if proof.corrected else "",
    ]
    status = ". ".join(
        [
            f"{proof.status} (residuals that are 0: {len(proof.residuals)})"
            if proof.proved
            else proof.status,
            *filter(None, [*details, f"Note: {proof.remark}" if proof.remark else ""]),
        ]
    )
    return [Row(section, proof.name, proof.statement, status, good=proof.proved)]


def _training_jobs(
    recipe: str | Recipe, hypers: dict[str, Any], section: str, law: NormGrowth | None = None
) -> list[Job]:
    name = reference(find_recipe(recipe))
    tasks = ("network", "toy-2d", "toy-3d")
    return [
        Job(
            section,
            f"{name} on {task}",
            partial(_training_rows, recipe, task, hypers, section, law),
        )
        for task in tasks
    ]


def _training_rows(
    recipe: str | Recipe, task: str, hypers: dict[str, Any], section: str, law: NormGrowth | None
) -> list[Row]:
    result = check(recipe, task, law=law, **hypers)
    # Where a unit does not move by itself the law says nothing; the other weights still check it.
    applies = {n: m for n, m in result.weights.items() if not m.apart}
    passed = bool(applies) and all(m.passed for m in applies.values())
    kind = "; cross term measured, so an identity" if result.identity else ""
    detail = ", ".join(f"{n} {m.residual:.0e}" for n, m in applies.items())
    status = (
        f"checked to {max(m.residual for m in applies.values()):.1e} in 200 steps ({detail}{kind})"
        if passed
        else "FAILS"
    )
    formula = "|w_t|^2 at every step, predicted from |w_0|^2 and |s_t|^2"
    said = (
        ""
        if result.passed
        else f"; {'; '.join(result.complaints) or f'off by {result.residual:.1e}'}"
    )
    return [Row(section, f"{result.recipe} on {task}", formula, status + said, good=passed)]


def _broken_rows() -> list[Row]:
    rows = []
    for name, task in TASKS.items():
        if task.spoiled:
            result = check("sgdp", name, **TRAINING)
            said = "; ".join(result.complaints)
            verdict = (
                f"law holds to {result.residual:.1e} all the same"
                if result.passed
                else f"law off by {result.residual:.1e}"
            )
            rows.append(
                Row(
                    RUNS,
                    f"sgdp on {name}",
                    f"broken on purpose: {task.spoiled}",
                    f"{verdict}; noticed: {said}",
                    good=bool(said),
                )
            )
    plain = check("sgd", law=norm_growth("sgd", weight_decay=0.0), **TRAINING)
    rows.append(
        Row(
            RUNS,
            "Lemma 2.2 with decay",
            plain.complaints[0],
            f"off by {plain.residual:.1e}: the lemma is one without decay",
        )
    )
    return rows


def _settled_rows(recipe: str | Recipe, hypers: dict[str, Any], section: str) -> list[Row]:
    settled = check_equilibrium(recipe, **hypers)
    held = ", ".join(f"{n}={v}" for n, v in hypers.items())
    status = (
        f"|w| {settled.norm[0]:.4f} predicted, {settled.norm[1]:.4f} measured; effective step {settled.rotation[0]:.5f}, "
        f"{settled.rotation[1]:.5f}: checked to {settled.error:.2%} (tolerance 2 %)"
    )
    status = status if settled.passed else f"FAILS: {status}"
    return [Row(section, f"equilibrium of {settled.law.name}", held, status, good=settled.passed)]


def _ratio_rows() -> list[Row]:
    plain = {**NOISE, "weight_decay": 0.0}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("sgd", plain),
        ("sgd", {**plain, "nesterov": True}),
        ("sgdw", NOISE),
        ("sgd", NOISE),
        ("sgdp", NOISE),
    ]
    rows = []
    for recipe, hypers in cases:
        ratio, held = (
            check_ratio(recipe, **hypers),
            ", ".join(f"{n}={v}" for n, v in hypers.items()),
        )
        rows.append(
            Row(
                RUNS,
                f"growth ratio of {recipe}",
                held,
                f"{'checked' if ratio.passed else 'FAILS'}: {ratio}",
                good=ratio.passed,
            )
        )
    return rows


def _false_positive_rows() -> list[Row]:
    cases: list[dict[str, Any]] = [
        {"dimension": 3},
        {"dimension": 64},
        {"dimension": 16, "channels": 4, "view": "layer"},
        {"dimension": 16, "channels": 4, "delta": 1.0},
    ]
    rows = []
    for case in cases:
        counted = count_false_positives(**case)
        rows.append(
            Row(
                RUNS,
                "false positives",
                ", ".join(f"{k}={v}" for k, v in case.items()),
                str(counted),
                good=counted.passed,
            )
        )
    return rows


def recipe_jobs(recipe: str | Recipe, **given: Any) -> list[Job]:
    """The law of one recipe: derived, and checked.

    Raises:
        ValueError: no such recipe or hyper-parameter, or its step cannot be traced.
    """
    function = found(recipe)
    law = norm_growth(function, **given)
    values = settled(function, given)
    hypers = {**{n: values[n] for n in given}, **_busy(function, law)}
    return [
        Job(law.name, f"law of {law.name}", lambda: list(_law_rows(law))),
        *_training_jobs(function, hypers, law.name, law),
        Job(law.name, f"equilibrium of {law.name}", lambda: _equilibrium_rows(function, given)),
        Job(
            law.name,
            f"equilibrium of {law.name}, measured",
            lambda: _measured_rows(function, hypers),
        ),
    ]


def _law_rows(law: NormGrowth) -> Iterator[Row]:
    proved = (
        "proved (residual 0)"
        if law.residual == 0
        else f"NOT proved (residual {show(law.residual)})"
    )
    yield Row(
        law.name,
        "law",
        f"|w'|^2 = {show(law.law.rhs)}",
        f"{proved}; {'; '.join(law.assumptions)}",
        law.latex(),
        law.residual == 0,
    )
    if law.constant:
        yield Row(law.name, "momentum's growth term", "none", "the norm is constant")
        return
    yield Row(law.name, "step", f"w' = {law.kept} + s, s = {law.drive}", "traced")
    term = "gone: the step is orthogonal to the weight" if law.cross == 0 else "there"
    yield Row(
        law.name, "momentum's growth term", f"<w,s> = {show(law.cross)}", law.open_because or term
    )
    for unknown, after in law.recursion.items():
        yield Row(law.name, "recursion", f"{unknown}' = {show(after)}", "derived from the trace")
    if law.first is not None and not law.starts_alike:
        yield Row(
            law.name,
            "first step",
            f"w' = {law.first.kept} + s, s = {law.first.drive}",
            "differs from the later ones; traced from the initial state",
        )
    if (closed := law.closed_form()) is not None:
        failed = [n for n, r in law.induction().items() if r != 0]
        yield Row(
            law.name, "closed form", f"{show(closed.lhs)} = {show(closed.rhs)}",
            f"NOT proved: {failed}" if failed else "proved by induction for every t", good=not failed,
        )  # fmt: skip
    else:
        why = (
            law.open_because
            or "several unknowns (z_t is a sum of powers of the matrix A), or another first step: see repr(norm_growth(...))"
        )
        yield Row(law.name, "closed form", "", f"not applicable: {why}")


def _busy(function: Recipe, law: NormGrowth) -> dict[str, Any]:
    """Values for a check run: hyper-parameters whose default switches a rule off get one that does not."""
    on = {"[0, 1)": 0.9, "[0, 1]": 0.5}
    symbols = law.step.traced.symbols
    return {
        n: on.get(law.step.traced.intervals.get(n, ""), 0.01)
        for n, v in defaults(function).items()
        if n in symbols and v == 0
    }


def _equilibrium_rows(function: Recipe, given: dict[str, Any]) -> list[Row]:
    name = reference(function)
    try:
        # eps spoils the closed form; a recipe that takes one and does not use it loses nothing.
        law = equilibrium(
            function, **{**given, **({"eps": 0.0} if "eps" in defaults(function) else {})}
        )
    except NoEquilibriumError as error:
        return [Row(name, "equilibrium", "", f"not applicable: {error}")]
    assumed = [
        "random gradients",
        *(["entries of equal second moment, eps = 0"] if law.fourth_power.has(DIMENSION) else []),
        *law.open,
    ]
    return [
        Row(name, f"equilibrium: {n}", formula, f"derived; {', '.join(assumed)}")
        for n, formula in law.formulas().items()
    ]


def _measured_rows(function: Recipe, hypers: dict[str, Any]) -> list[Row]:
    """The equilibrium law of the recipe, in symbols, against a run of which rate and decay make the time scale."""
    name = reference(function)
    held = {n: v for n, v in hypers.items() if v == 0 or not (is_number(v) or are_numbers(v))}
    try:
        traced = trace(function, **held)
    except TraceError as error:
        return [Row(name, "equilibrium, measured", "", f"not checked in symbols: {error}")]
    law = norm_growth(traced)
    kappa, decay = late(law.kappa, law.step), traced.symbols.get("weight_decay")
    if decay is None or not kappa.has(decay):
        return [
            Row(
                name,
                "equilibrium, measured",
                "",
                "not applicable: no weight_decay in kappa to set a time scale by",
            )
        ]
    adaptive = "eps" in traced.intervals or held.get("eps") == 0
    values = {
        **hypers,
        **({"lr": 0.01, "eps": 0.0} if adaptive else {"lr": 0.1}),
        **({"betas": (0.9, 0.99)} if "betas" in defaults(function) else {}),
    }
    # 600 steps of warm-up hold several relaxation times at kappa = 1 %.
    per_decay = kappa.subs({s: v for s, v in traced.values(**values).items() if s != decay}).coeff(
        decay
    )
    try:
        return _settled_rows(
            function, {**values, "weight_decay": round(float(0.01 / per_decay), 9)}, name
        )
    except NoEquilibriumError as error:
        return [Row(name, "equilibrium, measured", "", f"not checked: {error}")]


def to_markdown(rows: list[Row]) -> str:
    """The rows as Markdown tables, one per section."""
    lines = ["# Laws and their status", ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"## {_plain(section)}", "", "| statement | formula | status |", "|---|---|---|"]
        lines += [
            f"| {_plain(r.name)} | {_code(r.formula)} | {_plain(r.status)} |"
            for r in rows
            if r.section == section
        ]
        lines += ["", *(f"$$\n{r.latex}\n$$\n" for r in rows if r.section == section and r.latex)]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that Markdown takes for nothing but text, in a cell of a table too."""
    return re.sub(r"([\\`*_<|\[\]])", r"\\\1", text)


def _code(formula: str) -> str:
    """A formula as code, in which nothing but the cell's border needs an escape."""
    return f"`{formula}`".replace("|", "\\|") if formula else ""


def to_latex(rows: list[Row]) -> str:
    """The rows as a standalone LaTeX document."""
    lines = [
        "\\documentclass{article}",
        "\\usepackage{amsmath,longtable}",
        "\\begin{document}",
        "\\section*{Laws and their status}",
    ]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"\\subsection*{{{_tex(section)}}}"]
        lines += [
            f"\\begin{{equation*}}\n{r.latex}\n\\end{{equation*}}"
            for r in rows
            if r.section == section and r.latex
        ]
        lines += ["\\begin{longtable}{p{0.2\\textwidth}p{0.38\\textwidth}p{0.34\\textwidth}}"]
        lines += [
            f"{_tex(r.name)} & \\texttt{{{_tex(r.formula)}}} & {_tex(r.status)} \\\\"
            for r in rows
            if r.section == section
        ]
        lines += ["\\end{longtable}"]
    return "\n".join([*lines, "\\end{document}", ""])


def _tex(text: str) -> str:
    words = {
        "\\": "textbackslash",
        "~": "textasciitilde",
        "^": "textasciicircum",
        "<": "textless",
        ">": "textgreater",
        "|": "textbar",
    }
    special = (
        {c: f"\\{word}{{}}" for c, word in words.items()}
        | {c: f"\\{c}" for c in "&%$#_{}"}
        | {"∞": r"$\infty$"}
    )
    return "".join(special.get(c, c) for c in text)
