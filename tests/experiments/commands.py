"""Commands of the command line, invoked in this process, and what their page shows."""

import json
import re
import sys
from pathlib import Path

from typer.testing import CliRunner

from spherenorm_experiments.cli import app

ROOT = Path(__file__).parents[2]

STUDY = "spherenorm_tiny:TinyStudy"


def invoke(*arguments):
    return CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": "220", "NO_COLOR": "1"}
    )


def process(*arguments):
    """A command as the words of a process of its own."""
    return [sys.executable, "-m", "spherenorm", *map(str, arguments)]


def run_tiny(out, *more, study=STUDY):
    return invoke("run", study, "--tier", "smoke", "--jobs", 0, "--out", out, *more)


def claims_of(out):
    return json.loads(invoke("report", "--out", out, "--json").output)["claims"]


def arms_of(out, section="tiny"):
    body = re.search(
        rf'<section id="{section}">.*?</section>', (out / "report.html").read_text(), re.DOTALL
    ).group()
    return re.findall(r"<tr><td[^>]*>(.*?)</td>", re.sub("</?span[^>]*>", "", body))


def run_and_note(note, out, setting):
    """Run the tiny study, as a process among others, and note what it says."""
    result = run_tiny(out, "--json", "--set", setting)
    note.write_text(result.stdout)
    sys.exit(result.exit_code)
