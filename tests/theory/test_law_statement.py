"""The text of a law: a proposition whose relations are the ones that are decided."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import sympy as sp
import torch

import spherenorm as sn
from spherenorm import chain
from spherenorm import rules as r
from spherenorm_theory import Proof, equilibrium, norm_growth
from spherenorm_theory.claim import ProofKind
from spherenorm_theory.equilibria.equilibrium import without_eps
from spherenorm_theory.opaque_rules import mark_schedule
from spherenorm_theory.printing import words
from spherenorm_theory.report import LATEX_HEAD
from spherenorm_theory.symbols import Inner, Norm
from tests.harness.tables import mostly_long
from tests.theory.mutations import survivors
from tests.theory.recipes import WITH_LAWS, Keeps, by, law_of
from tests.theory.step import assert_is_the_step

WITHOUT_DECAY = {"weight_decay": 0.0, "dampening": 0.0}


def balanced(tex):
    depth = 0
    for n, character in enumerate(tex):
        escaped = n and tex[n - 1] == "\\"
        depth += (character == "{" and not escaped) - (character == "}" and not escaped)
        if depth < 0:
            return False
    begins, ends = (sorted(re.findall(rf"\\{x}{{(\w+\*?)}}", tex)) for x in ("begin", "end"))
    return depth == 0 and begins == ends and tex.count("$") % 2 == 0


@pytest.mark.parametrize("name", mostly_long(WITH_LAWS, kept=10))
def test_a_proposition_has_its_parts_in_text_and_latex(name):
    text = str(law_of(name).proposition())
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    headings = re.findall(r"^(\w+)[^\n]*\.", text, re.M)
    assert [h for h in ("Setting", "Assume", "Then", "Status") if h not in headings] == []
    assert ("Closed form" in text) is (law_of(name).closed_form() is not None)
    tex = law_of(name).latex()
    assert tex.startswith(r"\begin{proposition}")
    assert balanced(tex), tex
    assert "Norm(" not in tex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX is installed")
def test_its_latex_compiles(tmp_path):
    laws = [law_of(name) for name in ("sgdw", "adamp", "muon", "muonh", "sgdg")]
    laws += [equilibrium(name) for name in ("sgdw", "lion", "muon")]
    body = "\n".join(law.proposition().latex() for law in laws)
    (tmp_path / "laws.tex").write_text(f"{LATEX_HEAD}\n{body}\n\\end{{document}}\n")
    process = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "laws.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-2000:]


def test_letters_of_ones_own():
    tex = law_of("sgdw", dampening=0.0).latex({"w": r"\theta", "lr": r"\alpha"})
    assert r"\theta_{t+1}" in tex
    assert r"\eta" not in tex
    with pytest.raises(ValueError, match="cannot both be"):
        law_of("sgdw", dampening=0.0).latex({"lr": "x", "weight_decay": "x"})


def normalized(lr=0.1, momentum=0.9):
    return chain(r.HeavyBall(momentum), r.NormalizedUpdate("channel"), r.StepSize(lr))


def test_a_norm_that_is_divided_by_is_assumed_to_be_positive():
    law = norm_growth(normalized)
    assert "|p| > 0" in law.hypotheses_text
    assert "p_t = " in str(law)


def test_kinds_say_what_was_substituted():
    """The norm of an open law is an identity in s; where <w, s> was read off, it is derived."""
    assert law_of("adamw").claims[0].kind is ProofKind.IDENTITY
    assert law_of("sgdw").claims[0].kind is ProofKind.DERIVED
    assert "identity" not in law_of("sgdw").latex()
    assert "identity in s" in law_of("adamw").latex()


def test_a_closed_form_says_what_it_needs():
    law = law_of("sgdw", dampening=0.0)
    (closed,) = (c for c in law.claims if c.kind is ProofKind.INDUCTION)
    hypotheses = " ".join(map(words, closed.hypotheses))
    assert "constant" in hypotheses
    assert "m_0 = 0" in hypotheses
    assert "Closed form (lr, beta, wd constant; m_0 = 0)." in str(law)
    # lr is in <w, s> = -lr beta <w, m>, and in no coefficient of the recursion
    assert "Closed form (lr, beta constant; m_0 = 0)." in str(law_of("sgd", **WITHOUT_DECAY))


@pytest.mark.parametrize(("name", "settings"), [("sgd", WITHOUT_DECAY), ("muonh", {})])
def test_every_change_of_a_claim_is_noticed(name, settings):
    """The closed form too, whose induction is that of the record."""
    claims = law_of(name, **settings).claims
    assert all(claim.holds for claim in claims)
    results = [*survivors(Proof(name, claims))]
    assert len(results) > 15
    assert not [mutant for _, mutant, holds in results if holds]


def test_a_closed_form_of_another_law_fails():
    sound, other_law = law_of("sgdw", dampening=0.0), law_of("sgd", **WITHOUT_DECAY)
    (closed,) = (c for c in sound.claims if c.kind is ProofKind.INDUCTION)
    (foreign,) = (c for c in other_law.claims if c.kind is ProofKind.INDUCTION)
    assert not replace(closed, relation=foreign.relation).holds


def test_numbers_of_a_law_are_in_its_setting():
    text = " ".join(str(norm_growth("sgdp", momentum=0.9)).split())
    assert "momentum = 0.9" in text
    assert "10 lr ratio wd" in text


def test_an_equilibrium_shows_the_norm_first():
    lines = str(equilibrium("adamw", eps=0.0)).splitlines()
    first_formula = lines[lines.index("Then.") + 1]
    assert first_formula.strip().startswith("|w| ~ sqrt(lr d/(2 wd))")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ["sgdw", "sgdp", "adamw", "adamp"])
def test_the_norm_for_small_steps_is_the_root_of_the_leading_term(name):
    law = equilibrium(name, **without_eps(name))
    root, fourth = law.small_lr_formulas[Norm("w")], law.leading_term(law.fourth_power)
    numbers = dict.fromkeys(fourth.free_symbols, 0.3)
    assert root.subs(numbers) > 0
    assert root.subs(numbers) ** 4 == pytest.approx(float(fourth.subs(numbers)))


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "sgd",
            {"momentum": 0.0, "weight_decay": 0.0},
            "|w|^2 grows by |s|^2, the squared length of",
        ),
        ("sgdp", {}, "momentum adds nothing."),
        ("sgd", WITHOUT_DECAY, "and by -2 lr beta <w, m> from momentum."),
        ("sgd", {}, "by -2 lr beta (1 - lr wd (1 - tau)) <w, m> from momentum."),
        (
            "adamw",
            {},
            "Decay multiplies the norm by 1 - lr wd. |w|^2 then grows by |s|^2 + 2 (1 - ",
        ),
        ("muon", {}, "<w, s> has to be measured."),
        ("sgdg", {}, "Each step keeps the norm."),
        ("adamh", {}, "Each step sets the norm to radius."),
    ],
)
def test_a_law_begins_with_a_sentence(name, settings, sentence):
    law = law_of(name, **settings)
    summary = " ".join(str(law).partition("Setting.")[0].split())
    assert sentence in summary
    assert law.latex().splitlines()[1]


def test_a_setting_has_only_what_the_law_uses():
    """The threshold of SGDP's test decides, and is in no formula."""
    setting = str(law_of("sgdp")).partition("Assume.")[0]
    assert "delta" not in setting
    assert "the step without decay" in str(law_of("sgdp"))
    assert "of d entries" in str(law_of("lion"))
    assert "of d entries" not in str(law_of("sgdp"))


def test_hypotheses_are_relations():
    hypotheses = law_of("sgdp").hypotheses
    assert any(
        isinstance(hypothesis, sp.Rel) and hypothesis.has(Norm("w")) for hypothesis in hypotheses
    )
    assert norm_growth(by(lambda w, d: d)).hypotheses[0].lhs == Inner("w", "g")


def warmed_up(lr=0.1, momentum=0.9, weight_decay=0.1):
    """SGDW with a warm-up over 100 steps, whose value is marked as that of a schedule."""

    def function(w, d, t, lr, weight_decay):
        rate = mark_schedule((t / 100).clamp(max=1.0) * lr, "lr")
        return rate * (d + weight_decay * w), t

    step = Keeps(function, names="step", numbers=(lr, weight_decay))
    return chain(r.HeavyBall(momentum), step, r.StepSize(1.0))


def test_a_schedule_is_a_function_of_the_step_count():
    law = norm_growth(warmed_up)
    text = " ".join(str(law).split())
    assert "lr_t, the schedule of lr at the step number t + 1" in text
    assert "s_t = -lr_t (beta m_t + g_t)" in text
    assert "|w_{t+1}|^2 = (1 - lr_t wd)^2 |w_t|^2" in text
    assert "no closed form: lr changes from step to step" in text
    assert r"\eta_t" in law.latex()
    assert law.closed_form() is None
    assert [claim for claim in law.claims if not claim.holds] == []
    generator = torch.Generator().manual_seed(0)
    numbers = {"lr": 0.3, "momentum": 0.6, "weight_decay": 0.2}
    assert assert_is_the_step(law, (3, 4), numbers, generator)


@pytest.mark.parametrize(
    ("name", "scheduled", "why"),
    [
        ("sgdw", {"lr": sn.schedule.warmup_cosine(0.1, 10, 100)}, "lr changes"),
        ("adamw", {"betas": (sn.schedule.cosine(0.9, 50, 0.5), 0.99)}, "beta1_t m_t"),
    ],
)
def test_a_scheduled_hyper_parameter_has_the_letter_of_its_name(name, scheduled, why):
    law = norm_growth(name, **scheduled)
    text = " ".join(str(law).split())
    assert why in text
    (symbol,) = law.step.facts.scheduled
    assert f"{symbol}_t, the schedule of {symbol} at the step number t + 1" in text
    assert [claim for claim in law.claims if not claim.holds] == []
