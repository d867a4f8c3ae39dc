r"""A law as a paper states it, in text of 80 columns and in LaTeX, by one renderer.

| heading | what it holds |
|---|---|
| Setting | the unit, the dimension, the hyper-parameters and their open intervals |
| Assume | the hypotheses that the claims use, and what letters stand for |
| Then | the step, the norm, the cross term, its recursion |
| Closed form | the norm as a sum over the steps, and what that needs beside |
| Status | how it was shown, and what stays open |
"""

from __future__ import annotations

import math
import operator
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy as sp
from torch import Tensor

from spherenorm import Rule
from spherenorm import rules as r
from spherenorm_theory.algebra import (
    ANY,
    Claim,
    Entries,
    Hypothesis,
    Kind,
    Letters,
    Norm,
    Opaque,
    Vector,
    Writer,
    at,
    is_number,
    names_in,
)
from spherenorm_theory.laws.orthogonal import share_of
from spherenorm_theory.laws.split import Split
from spherenorm_theory.laws.verify import Agreement

COLUMNS = 80
INDENT = "    "
TIME = sp.Symbol("t", integer=True, nonnegative=True)

ENTRYWISE: dict[Any, tuple[str, str, bool]] = {
    operator.truediv: ("{0} / {1}", r"\frac{{{0}}}{{{1}}}", True),
    operator.mul: ("{0} * {1}", r"\left({0}\right) \odot \left({1}\right)", True),
    np.square: ("{0}^2", r"\left({0}\right)^{{2}}", True),
    np.sqrt: ("sqrt({0})", r"\sqrt{{{0}}}", False),
    np.reciprocal: ("1 / {0}", r"\frac{{1}}{{{0}}}", True),
    np.sign: ("sign({0})", r"\operatorname{{sign}}({0})", False),
    np.abs: ("abs({0})", r"\operatorname{{abs}}({0})", False),
}
"""Operations on each entry, in text and in LaTeX, and whether text brackets their arguments."""


@dataclass(frozen=True)
class Proposition:
    """A law in the form of a proposition; `str` is its text, `latex` its LaTeX.

    Attributes:
        law: that it states.
        claims: all that the law says.
        hypotheses: that it needs.
        agreement: the weights for which it holds.

    Example:
        >>> from spherenorm_theory import norm_growth
        >>> stated = norm_growth("sgdp").proposition()
        >>> str(stated).splitlines()[0], max(map(len, str(stated).splitlines())) <= 80
        ('Proposition (sgdp)', True)
    """

    law: Split
    claims: tuple[Claim, ...]
    hypotheses: tuple[Hypothesis, ...]
    agreement: Agreement

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that the law holds, with what they stand for."""
        return tuple(_meaning(self.law, name, self._writer()) for name in self._used())

    def _used(self) -> list[str]:
        """The letters that the printed formulas hold, and those within their meanings."""
        law, algebra = self.law, self.law.step.algebra
        shown = [law.drive, law.step.weight] if law.constant else [law.drive]
        waiting: list[Any] = [*shown, *(c.relation for c in self.claims), law.cross]
        known = [*algebra.named, *algebra.opaque, *(s.name for s in algebra.facts.cases)]
        used: list[str] = []
        while waiting:
            for name in names_in(waiting.pop()):
                if name in known and name not in used:
                    used.append(name)
                    waiting += _parts_of(law, name)
        return [name for name in known if name in used]

    def _writer(self, language: str = "text", letters: Letters | None = None) -> Writer:
        law = self.law
        parts = [law.drive, law.step.weight, *(c.relation for c in self.claims), law.kappa]
        parts += [sp.Symbol(s.name) for s in law.step.traced.free.values()]
        parts += [*law.step.facts.cases.values(), *law.step.algebra.named.values()]
        return Writer(parts, language, letters)

    def __str__(self) -> str:
        return f"Proposition ({self.law.name})\n{self._body(self._writer())}"

    __repr__ = __str__

    def latex(self, letters: Letters | None = None) -> str:
        r"""The proposition as an environment, for a document with amsmath and amsthm.

        Args:
            letters: LaTeX by name, such as {"lr": r"\alpha", "w": r"\theta"}.

        Raises:
            ValueError: two names would have one letter.

        Example:
            >>> from spherenorm_theory import norm_growth
            >>> print(norm_growth("sgdp").proposition().latex().splitlines()[0])
            \begin{proposition}[sgdp]
        """
        write = self._writer("latex", letters)
        name = escape_latex(self.law.name)
        lines = [rf"\begin{{proposition}}[{name}]", self._body(write), r"\end{proposition}"]
        return "\n".join(lines)

    def _body(self, write: Writer) -> str:
        closed = [c for c in self.claims if c.kind is Kind.INDUCTION]
        then = [
            *self._step_lines(write),
            *(write(c.relation) for c in self.claims if c not in closed),
        ]
        parts: list[tuple[str, Any]] = [
            ("Setting", "; ".join(self.setting(write)) + "."),
            ("Assume", self._assume(write)),
            *self._where(write),
            ("Then", then),
        ]
        for claim in closed:
            held = "; ".join(_in(write, each) for each in self.law.at_start)
            parts.append((f"Closed form ({held})" if held else "Closed form",
                          [write(claim.relation)]))  # fmt: skip
        parts.append(("Status", self._status(write)))
        return "\n".join(_part(heading, content, write) for heading, content in parts)

    def _step_lines(self, write: Writer) -> Iterator[str]:
        law = self.law
        new, old = write.name("w", "t+1"), write.name("w", "t")
        if law.constant:
            yield f"{new} = {write.vector(_timed(law.step.weight), 't')}"
            return
        keep = "" if law.kappa == 0 else f"{_bracketed(write, law.keep)} "
        s = write.name("s", "t")
        yield f"{new} = {keep}{old} + {s}"
        yield f"{s} = {write.vector(_timed(law.drive), 't')}"

    def setting(self, write: Writer | None = None) -> tuple[str, ...]:
        """The unit, the open intervals of hyper-parameters, and those that are held."""
        law, traced, write = self.law, self.law.step.traced, write or self._writer()
        unit = f"{_math(write, 'w')} is one unit of a weight, of {_math(write, 'd')} entries"
        if any(isinstance(x, r.Orthogonalize) for x in traced.letters):
            unit = f"{_math(write, 'w')} is one matrix"
        numbers = []
        for name, symbol in traced.free.items():
            if traced.intervals[name] == ANY and not _holds(law, symbol):
                continue
            short, interval = write(symbol), str(traced.intervals[name])
            if write.is_latex:
                numbers.append(rf"${short} \in {interval}$".replace("∞", r"\infty"))
            else:
                own = "" if short == name else f" = {name}"
                numbers.append(f"{short}{own} in {interval}".replace("∞", "inf"))
        for name, value in traced.held.items():
            if is_number(value) or isinstance(value, Tensor):
                shown = f"{value:g}" if is_number(value) else str(value.tolist())
                text = f"{name} = {shown}"
                numbers.append(f"${escape_latex(text)}$" if write.is_latex else text)
        return (f"{unit} ({self.agreement.note})", *numbers)

    def _assume(self, write: Writer) -> str:
        return "; ".join(_in(write, each) for each in self.hypotheses) + "."

    def _where(self, write: Writer) -> Iterator[tuple[str, list[str]]]:
        """The meanings of letters; of those that act on entries, nothing else is used."""
        lines = [_meaning(self.law, name, write) for name in self._used()]
        entrywise = [n for n in self._used() if n in self.law.step.algebra.opaque and n[0] in "ue"]
        if lines:
            note = " (entry by entry; the law holds for any such vectors)" if entrywise else ""
            yield f"Where{note}", lines

    def _status(self, write: Writer) -> str:
        law = self.law
        shown = "read off the record of the step, and held against its code in float64"
        if law.constant:
            return f"{shown}."
        kinds = {claim.kind for claim in self.claims}
        if Kind.INDUCTION in kinds:
            shown += "; the closed form is proved by induction over t"
        elif not law.open_because and law.cross != 0:
            shown += "; no closed form: " + _why_not_closed(law, self.agreement.from_start)
        if law.open_because:
            reason = law.open_because.rpartition("; so ")[0]
            shown = f"the norm is an identity in s, and the cross term is open ({reason})"
            shown = escape_latex(shown) if write.is_latex else shown
        return f"{shown}."


def _why_not_closed(law: Split, from_start: bool) -> str:
    """The reason why a law that is not open has no closed form."""
    if not from_start and law.growth is not None:
        return "the first step is of another kind"
    if any(law.recursion[u].has(Norm("w")) for u in law.unknowns):
        return "the norm enters the recursion"
    return "it has several unknowns, or factors that change from step to step"


def _holds(law: Split, symbol: sp.Symbol) -> bool:
    return symbol in sp.Tuple(*law.step.weight.values(), law.kappa).free_symbols


def _timed(vector: Vector) -> Vector:
    return vector.map(lambda c: at(c, TIME))


def _in(write: Writer, hypothesis: Hypothesis) -> str:
    """A hypothesis, at every time."""
    if isinstance(hypothesis, str):
        if not write.is_latex:
            return hypothesis
        constant = re.fullmatch(r"(\w+)_0 = 0", hypothesis)
        if constant:
            return f"${write.name(constant[1], '0')} = 0$"
        named = re.fullmatch(r"(.+) constant", hypothesis)
        if named:
            back = {short: name for name, short in _shorts().items()}
            symbols = [sp.Symbol(back.get(n, n)) for n in named[1].split(", ")]
            return ", ".join(f"${write(s)}$" for s in symbols) + " constant"
        return escape_latex(hypothesis)
    timed = hypothesis.func(*(at(x, TIME) for x in hypothesis.args), evaluate=False)
    return f"${write(timed)}$" if write.is_latex else write(timed)


def _shorts() -> Mapping[str, str]:
    from spherenorm_theory.algebra import SHORT

    return SHORT


def _math(write: Writer, text: str) -> str:
    return f"${text}$" if write.is_latex else text


def _bracketed(write: Writer, x: sp.Expr) -> str:
    text = write(x)
    if not x.is_Add:
        return text
    return rf"\left({text}\right)" if write.is_latex else f"({text})"


def _part(heading: str, content: Any, write: Writer) -> str:
    """One part: a paragraph, or displayed formulas."""
    if write.is_latex:
        if isinstance(content, str):
            return rf"\textbf{{{heading}.}} {content}"
        rows = " \\\\\n".join(_aligned(line) for line in content)
        body = f"\\begin{{align*}}\n{rows}\n\\end{{align*}}"
        return f"\\textbf{{{heading}.}}\n{body}"
    if isinstance(content, str):
        return paragraph(heading, content)
    return "\n".join([f"{heading}.", *(line for each in content for line in wrapped(each))])


def paragraph(heading: str, content: str) -> str:
    """A part in words, in lines of 80 columns."""
    return textwrap.fill(
        f"{heading}. {content}",
        COLUMNS,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _aligned(line: str) -> str:
    left, equals, right = line.partition(" = ")
    return f"{left} &{equals.strip()} {right}" if equals else line


def wrapped(formula: str, width: int = COLUMNS) -> list[str]:
    """A formula in lines, broken before an operator at the least depth of brackets."""
    lines, rest, indent = [], formula, INDENT
    while len(indent) + len(rest) > width:
        cut = _cut(rest, width - len(indent))
        if cut <= 0:
            break
        lines.append(indent + rest[:cut].rstrip())
        rest, indent = rest[cut:].lstrip(), 2 * INDENT
    return [*lines, indent + rest]


def _cut(text: str, width: int) -> int:
    """The place to break a line: before + - = or after a comma, late, at the least depth."""
    depth, best = 0, (math.inf, 0)
    for n, character in enumerate(text[:width]):
        depth += character in "([{<"
        depth -= character in ")]}>"
        if character == " " and n > 3:
            strong = text[n + 1 : n + 3] in ("+ ", "- ", "= ") or text[n - 1] == ","
            cost = max(depth, 0) + (0 if strong else 1.5) + 4 * (1 - n / width)
            best = min(best, (cost, -n))
    return -int(best[1]) or -1


def _parts_of(law: Split, name: str) -> list[Any]:
    """The parts of a letter's meaning."""
    algebra = law.step.algebra
    if name in algebra.named:
        return [algebra.named[name]]
    if name in algebra.opaque:
        return [*algebra.opaque[name].arguments]
    return [x for s, x in algebra.facts.cases.items() if s.name == name]


def _meaning(law: Split, name: str, write: Writer) -> str:
    """A letter and what it stands for: p_t = beta m_t + g_t."""
    algebra, letter = law.step.algebra, write.name(name, "t")
    if name in algebra.named:
        return f"{letter} = {_formula(write, algebra.named[name])}"
    if name in algebra.opaque:
        return f"{letter} = {_meaning_of_atom(algebra.opaque[name], write)}"
    (case,) = (x for s, x in algebra.facts.cases.items() if s.name == name)
    (first, condition), (second, _) = case.args
    one, two, when = (write(_at(x)) for x in (first, second, condition))
    if write.is_latex:
        return rf"{letter} = {one} \text{{ where }} {when} \text{{, else }} {two}"
    return f"{letter} = {one} where {when}, else {two}"


def _at(x: Any) -> Any:
    if isinstance(x, sp.Rel):
        return x.func(*(at(side, TIME) for side in x.args), evaluate=False)
    return at(x, TIME) if isinstance(x, sp.Expr) else x


def _formula(write: Writer, x: Any) -> str:
    if isinstance(x, Vector):
        return write.vector(_timed(x), "t")
    if isinstance(x, Entries):
        return rf"\text{{{escape_latex(str(x))}}}" if write.is_latex else str(x)
    return write(at(x, TIME)) if isinstance(x, sp.Expr) else str(x)


def _meaning_of_atom(made: Opaque, write: Writer) -> str:
    arguments = [_formula(write, x) for x in made.arguments]
    if isinstance(made.function, Rule):
        return _meaning_of_rule(made, arguments[0], write)
    text, tex, brackets = ENTRYWISE.get(made.function, ("", "", False))
    if text:
        loose = brackets and not write.is_latex
        pairs = zip(made.arguments, arguments, strict=True)
        inside = [f"({x})" if loose and _is_sum(a) else x for a, x in pairs]
        return (tex if write.is_latex else text).format(*inside)
    name, joined = getattr(made.function, "__name__", "f"), ", ".join(arguments)
    return rf"\operatorname{{{name}}}({joined})" if write.is_latex else f"{name}({joined})"


def _is_sum(x: Any) -> bool:
    return isinstance(x, Vector) and (len(x) > 1 or any(c != 1 for c in x.values()))


def _meaning_of_rule(made: Opaque, argument: str, write: Writer) -> str:
    rule = made.function
    name = {r.StiefelProjection: "tangent", r.SameLength: "same length"}.get(type(rule), "factor")
    if isinstance(rule, r.SameLength):
        name = type(rule.rule).__name__
    shown = rf"\operatorname{{{name}}}({argument})" if write.is_latex else f"{name}({argument})"
    if isinstance(rule, r.SameLength):
        note = ", as long as its argument"
    elif isinstance(rule, r.StiefelProjection):
        note = ", the part that is tangent to the Stiefel manifold"
    else:
        assert isinstance(rule, r.Orthogonalize)
        low, high = share_of(rule)
        square = r"\|O\|^2 = c^2 q \operatorname{rank}" if write.is_latex else "|O|^2 = c^2 q rank"
        note = (
            f", orthogonal, of degree 0;$SQUARE, c by the shape ({rule.scale}), "
            f"q in [{low:.2f}, {high:.2f}] for this iteration, 1 for an exact factor"
        )
        before, after = note.split("$SQUARE")
        if write.is_latex:
            before, after = (rf"\text{{{escape_latex(part)}}}" for part in (before, after))
        return f"{shown}{before} {square}{after}"
    return shown + (rf"\text{{{note}}}" if write.is_latex else note)


WORDS = {
    "\\": "textbackslash",
    "~": "textasciitilde",
    "^": "textasciicircum",
    "<": "textless",
    ">": "textgreater",
    "|": "textbar",
}
ESCAPES = {
    **{character: f"\\{word}{{}}" for character, word in WORDS.items()},
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "∞": r"$\infty$",
}


def escape_latex(text: str) -> str:
    """Plain text in LaTeX."""
    return "".join(ESCAPES.get(character, character) for character in text)
