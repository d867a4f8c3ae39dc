"""The report: one self-contained HTML page that opens offline, with the scorecard of all claims on top."""

from __future__ import annotations

import datetime
import functools
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup, escape

from experiments.results import Results
from experiments.store import write_whole
from experiments.study import Study

__all__ = ["collect", "write_report"]


def collect(studies: Sequence[tuple[Study, Results]]) -> list[dict[str, Any]]:
    """What the page shows of each study."""
    return [
        {
            "name": study.name,
            "title": study.title(),
            "about": study.about().split("\n\n"),
            "runs": len(results),
            "planned": results.planned,
            "diverged": [_where_diverged(item) for item in results.diverged],
            "claims": [asdict(claim) for claim in study.claims(results)],
            "tables": study.tables(results),
            "pictures": study.pictures(results),
        }
        for study, results in studies
    ]


def write_report(studies: Sequence[tuple[Study, Results]], path: Path) -> list[dict[str, Any]]:
    """Write the page and return all claims with the names of their studies."""
    sections = collect(sorted(studies, key=lambda pair: order_of(pair[0].name)))
    claims = [{"study": section["name"], **claim} for section in sections for claim in section["claims"]]
    outcomes = ("reproduced", "not reproduced", "inconclusive")
    page = _template().render(
        sections=sections,
        claims=claims,
        counts={outcome: sum(claim["outcome"] == outcome for claim in claims) for outcome in outcomes},
        plotly=Markup(plotly.offline.get_plotlyjs().replace("</script", "<\\/script")),
        date=datetime.date.today().isoformat(),
        figure_json=_figure_json,
    )
    write_whole(path, page.encode())
    return claims


def order_of(name: str) -> tuple[int, str]:
    """The paper's figures and tables first, then its appendix, then our own."""
    known = ("f1", "f2", "f3", "t1", "t2", "c1", "weight-decay", "g1", "h6", "h7")
    return (known.index(name) if name in known else len(known), name)


def _figure_json(figure: Any) -> Markup:
    """Safe inside a script element."""
    return Markup(figure.to_json(remove_uids=True).replace("<", "\\u003c"))


def _where_diverged(item: Any) -> str:
    return f"{item.arm}, seed {item.spec.seed}: step {item.summary['diverged_at']}"


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(os.path.join(os.path.dirname(__file__), "templates"))
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["code"] = _code
    return environment.get_template("report.html.j2")


def _code(text: str) -> Markup:
    """`this` as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))
