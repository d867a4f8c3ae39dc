"""The paper's statements and its thirteen benchmarks, ahead of the sections of its studies."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from spherenorm_experiments.lookup import registered
from spherenorm_experiments.report import Overview, Section, html_templates, template_environment
from spherenorm_experiments.tables import to_markdown
from spherenorm_paper.findings import RULE, Outcome, findings, findings_table, summary
from spherenorm_paper.thirteen import thirteen_table

TEMPLATES = Path(__file__).with_name("templates")

TITLE = "the paper's statements, measured"


def overview(sections: Sequence[Section]) -> Overview | None:
    """Render what these sections say of the paper as a whole; None if they say nothing of it."""
    studies = registered("STUDIES")
    paper_sections = [section for section in sections if section.study.name in studies]
    first_screen = summary(paper_sections)
    if first_screen is None:
        return None
    statements, benchmarks = findings(paper_sections), thirteen_table(paper_sections)
    content = {
        "summary": first_screen,
        "findings": statements,
        "tested": sum(finding.outcome is not Outcome.NOT_TESTED for finding in statements),
        "statements": findings_table(statements),
        "thirteen": benchmarks,
        "rule": RULE.replace("\n", " "),
        "date": datetime.date.today().isoformat(),
    }
    links = {} if benchmarks is None else {"thirteen": "Benchmarks"}
    return Overview(
        TITLE,
        Markup(_html("head.html.j2").render(content)),
        {**links, "statements": "Statements"},
        Markup(_html("body.html.j2").render(content)),
        _markdown().render(content),
        [RULE.replace("\n", " ")],
    )


@functools.cache
def _html(name: str) -> jinja2.Template:
    return html_templates(TEMPLATES).get_template(name)


@functools.cache
def _markdown() -> jinja2.Template:
    environment = template_environment(TEMPLATES, autoescape=False)
    environment.filters["markdown"] = to_markdown
    return environment.get_template("overview.md.j2")
