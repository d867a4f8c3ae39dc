"""Laws and their status, as rows of a table; as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spherenorm.registry import Recipe, defaults, find_recipe, reference
from theory import beyond, lemmas
from theory.detection import count_false_positives, false_positive_law
from theory.equilibrium import NoEquilibriumError, equilibrium
from theory.norm_growth import NormGrowth, norm_growth
from theory.normalized import equation_4
from theory.numeric import check
from theory.proof import Proof
from theory.random_walk import check_equilibrium
from theory.tasks import TASKS
from theory.text import show
from theory.trace import trace

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
    """A part of the report, by the name that the progress bar shows."""

    name: str
    rows: Callable[[], list[Row]]


PAPER = (equation_4, lemmas.effective_step, lemmas.lemma_2_1, lemmas.lemma_2_2, lemmas.lemma_2_2_scheduled,
         lemmas.corollary_2_3, lemmas.equation_14, lemmas.proposition_3_1, beyond.adam_can_shrink)  # fmt: skip
BEYOND = (beyond.momentum_by_any_name, beyond.nesterov_never_shrinks, beyond.ratio_laws, beyond.sphere_keeps_the_norm,
          beyond.projected_buffer, beyond.equilibria_of_the_literature, beyond.matched_decay, false_positive_law)  # fmt: skip

TRAINING: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
NOISE: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
NOISE_ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 0.0}


def paper() -> list[Job]:
    """The paper's statements, what goes beyond them, and both against float64 runs."""
    jobs = [Job(f.__name__, _proof_rows("The paper's statements", f)) for f in PAPER]
    jobs += [Job(f.__name__, _proof_rows("Beyond the paper", f)) for f in BEYOND]
    for recipe in ("sgd", "sgdw", "sgdp", "adamp", "sgdg"):
        hypers = {n: v for n, v in TRAINING.items() if n in defaults(find_recipe(recipe)) and recipe != "sgdg"}
        jobs.append(Job(f"train {recipe}", lambda recipe=recipe, hypers=hypers: _training_rows(recipe, hypers)))  # type: ignore[misc]
    jobs.append(Job("broken assumptions", _broken_rows))
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
    jobs += [Job(f"equilibrium of {n}", lambda n=n, h=h: [_settled_row(n, h)]) for n, h in noise]  # type: ignore[misc]
    return [*jobs, Job("false positives", _false_positive_rows)]


def _proof_rows(section: str, prove: Callable[[], Proof]) -> Callable[[], list[Row]]:
    def rows() -> list[Row]:
        proof = prove()
        details = [*(f"Counterexample: {c}" for c in proof.counterexamples), f"Instead: {proof.corrected}" if proof.corrected else ""]
        status = ". ".join(
            [
                f"{proof.status} (residuals that are 0: {len(proof.residuals)})" if proof.proved else proof.status,
                *filter(None, [*details, f"Note: {proof.remark}" if proof.remark else ""]),
            ]
        )
        return [Row(section, proof.name, proof.statement, status, good=proof.proved)]

    return rows


RUNS = "Checked on float64 runs"


def _training_rows(recipe: str | Recipe, hypers: dict[str, Any], section: str = RUNS, **structure: Any) -> list[Row]:
    rows = []
    for task in ("network", "toy-2d", "toy-3d"):
        result = check(recipe, task, **hypers, **structure)
        kind = "; cross term measured, so an identity" if result.identity else ""
        detail = ", ".join(f"{n} {m.residual:.0e}" for n, m in result.weights.items())
        status = (
            f"checked to {result.residual:.1e} in 200 steps ({detail}{kind})" if result.passed else f"FAILS: {'; '.join(result.complaints)}"
        )
        formula = "|w_t|^2 at every step, predicted from |w_0|^2 and |s_t|^2"
        rows.append(Row(section, f"{result.recipe} on {task}", formula, status, good=result.passed))
    return rows


def _broken_rows() -> list[Row]:
    rows = []
    for name, task in TASKS.items():
        if task.spoiled:
            result = check("sgdp", name, **TRAINING)
            said = "; ".join(result.complaints)
            verdict = f"law holds to {result.residual:.1e} all the same" if result.passed else f"law off by {result.residual:.1e}"
            rows.append(Row(RUNS, f"sgdp on {name}", f"broken on purpose: {task.spoiled}", f"{verdict}; noticed: {said}", good=bool(said)))
    plain = check("sgd", law=norm_growth("sgd", weight_decay=0.0), **TRAINING)
    rows.append(Row(RUNS, "Lemma 2.2 with decay", plain.complaints[0], f"off by {plain.residual:.1e}: the lemma is one without decay"))
    return rows


def _settled_row(recipe: str | Recipe, hypers: dict[str, Any], section: str = RUNS) -> Row:
    settled = check_equilibrium(recipe, **hypers)
    held = ", ".join(f"{n}={v}" for n, v in hypers.items())
    status = (
        f"|w| {settled.norm[0]:.4f} predicted, {settled.norm[1]:.4f} measured; effective step {settled.rotation[0]:.5f}, "
        f"{settled.rotation[1]:.5f}: checked to {settled.error:.2%} (tolerance 2 %)"
    )
    return Row(section, f"equilibrium of {settled.law.name}", held, status if settled.passed else f"FAILS: {status}", good=settled.passed)


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
        rows.append(Row(RUNS, "false positives", ", ".join(f"{k}={v}" for k, v in case.items()), str(counted), good=counted.passed))
    return rows


def recipe_jobs(recipe: str | Recipe, **given: Any) -> list[Job]:
    """The law of one recipe: derived, and checked."""
    function = find_recipe(recipe)
    name = reference(function)
    traced = trace(function, **given)
    law = norm_growth(traced)
    hypers = {**given, **_busy(function, law)}
    return [
        Job(f"law of {name}", lambda: list(_law_rows(law))),
        Job(f"train {name}", lambda: _training_rows(function, hypers, name)),
        Job(f"equilibrium of {name}", lambda: _equilibrium_rows(function, law, given, hypers)),
    ]


def _law_rows(law: NormGrowth) -> Iterator[Row]:
    proved = "proved" if law.residual == 0 else f"NOT proved, residual {show(law.residual)}"
    yield Row(
        law.name,
        "law",
        f"|w'|^2 = {show(law.law.rhs)}",
        f"{proved} (residual 0); {'; '.join(law.assumptions)}",
        law.latex(),
        law.residual == 0,
    )
    if law.constant:
        yield Row(law.name, "momentum's growth term", "none", "the norm is constant")
        return
    yield Row(law.name, "step", f"w' = {law.kept} + s, s = {law.drive}", "traced")
    term = "gone: the step is orthogonal to the weight" if law.cross == 0 else "there"
    yield Row(law.name, "momentum's growth term", f"<w,s> = {show(law.cross)}", law.open_because or term)
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
    return {n: on.get(law.step.traced.intervals.get(n, ""), 0.01) for n, v in defaults(function).items() if n in symbols and v == 0}


def _equilibrium_rows(function: Recipe, law: NormGrowth, given: dict[str, Any], hypers: dict[str, Any]) -> list[Row]:
    held = {**given, **({"eps": 0.0} if "eps" in law.step.traced.intervals else {})}
    try:
        settled = equilibrium(function, **held)
    except NoEquilibriumError as error:
        return [Row(law.name, "equilibrium", "", f"not applicable: {error}")]
    assumed = "random gradients, entries of equal second moment, eps = 0" if "eps" in held else "random gradients"
    rows = [Row(law.name, f"equilibrium: {name}", formula, f"derived; {assumed}") for name, formula in settled.formulas().items()]
    decay = law.step.traced.symbols.get("weight_decay")
    if decay is None or not law.kappa.has(decay):
        return [*rows, Row(law.name, "equilibrium, measured", "", "not applicable: no weight_decay in kappa to set a time scale by")]
    # 600 steps of warm-up hold several relaxation times at kappa = 1 %.
    values = {
        **hypers,
        **held,
        "lr": 0.1 if "eps" not in held else 0.01,
        **({"betas": (0.9, 0.99)} if "betas" in defaults(function) else {}),
    }
    per_decay = law.kappa.subs({s: v for s, v in law.step.traced.values(**values).items() if s != decay}).coeff(decay)
    return [*rows, _settled_row(function, {**values, "weight_decay": round(float(0.01 / per_decay), 9)}, law.name)]


def to_markdown(rows: list[Row]) -> str:
    """The rows as Markdown tables, one per section."""
    lines = ["# Laws and their status", ""]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"## {section}", "", "| statement | formula | status |", "|---|---|---|"]
        lines += [f"| {r.name} | `{r.formula}` | {r.status} |".replace("||", "| |") for r in map(_escaped, rows) if r.section == section]
        lines += ["", *(f"$$\n{r.latex}\n$$\n" for r in rows if r.section == section and r.latex)]
    return "\n".join(lines)


def _escaped(row: Row) -> Row:
    return Row(row.section, row.name, row.formula.replace("|", "\\|"), row.status.replace("|", "\\|"))


def to_latex(rows: list[Row]) -> str:
    """The rows as a standalone LaTeX document."""
    lines = ["\\documentclass{article}", "\\usepackage{amsmath,longtable}", "\\begin{document}", "\\section*{Laws and their status}"]
    for section in dict.fromkeys(row.section for row in rows):
        lines += [f"\\subsection*{{{_tex(section)}}}"]
        lines += [f"\\begin{{equation*}}\n{r.latex}\n\\end{{equation*}}" for r in rows if r.section == section and r.latex]
        lines += ["\\begin{longtable}{p{0.2\\textwidth}p{0.38\\textwidth}p{0.34\\textwidth}}"]
        lines += [f"{_tex(r.name)} & \\texttt{{{_tex(r.formula)}}} & {_tex(r.status)} \\\\" for r in rows if r.section == section]
        lines += ["\\end{longtable}"]
    return "\n".join([*lines, "\\end{document}", ""])


def _tex(text: str) -> str:
    words = {"\\": "textbackslash", "~": "textasciitilde", "^": "textasciicircum", "<": "textless", ">": "textgreater", "|": "textbar"}
    special = {c: f"\\{word}{{}}" for c, word in words.items()} | {c: f"\\{c}" for c in "&%$#_{}"} | {"∞": r"$\infty$"}
    return "".join(special.get(c, c) for c in text)
