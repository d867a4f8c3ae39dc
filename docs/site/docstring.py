"""Docstrings of this repository as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Warns", "Yields")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}|Examples?):\n((?:[ ]{{4}}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w, *.]*): (.*(?:\n(?: +.*)?$)*)", re.MULTILINE)
_CODE = re.compile(r"(`[^`]+`|(?<!\S)\*{1,2}\w[^*]*[\w.]\*{1,2}(?!\w))")
"""Code, and *emphasis* of a docstring's own: these stay."""
_SPECIAL = re.compile(r"([*<\[\]$~])|(?<!\w)_|_(?!\w)")


def to_markdown(thing: Any) -> str:
    """The docstring of a class, a function or a module."""
    return text_to_markdown(inspect.getdoc(thing) or "")


def text_to_markdown(text: str) -> str:
    """A docstring without its indentation."""
    text += "\n"
    parts, at = [], 0
    for found in _SECTION.finditer(text):
        parts += [_prose(text[at : found.start()]), _section(found[1], textwrap.dedent(found[2]))]
        at = found.end()
    return "\n\n".join(part for part in [*parts, _prose(text[at:])] if part) + "\n"


def arguments(text: str) -> dict[str, str]:
    """The arguments that a docstring has, and what it says of each."""
    sections = [found[2] for found in _SECTION.finditer(text + "\n") if found[1] == "Args"]
    entries = [each for text in sections for each in _ENTRY.findall(textwrap.dedent(text))]
    return {name: " ".join(said.split()) for names, said in entries for name in names.split(", ")}


def summary(thing: Any) -> str:
    """The first paragraph, on one line, and the formula that is indented below it if it ends so."""
    first, _, rest = (inspect.getdoc(thing) or "").partition("\n\n")
    line = " ".join(first.split())
    if line.endswith(":"):
        block = rest.partition("\n\n")[0]
        line += " " + "; ".join(f"`{each.strip()}`" for each in block.splitlines())
    return escaped(line)


def escaped(text: str) -> str:
    """Prose whose signs mean themselves in Markdown; `code` stays."""
    parts = _CODE.split(text)
    return "".join(
        part if index % 2 else _SPECIAL.sub(lambda m: "\\" + m[0], part)
        for index, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """Markdown for a cell of a table, where a bar would begin the next cell."""
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Paragraphs; what is indented is code as it stands, and so is a table."""
    found = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("    ") or block.lstrip().startswith("|"):
            code = block.startswith("    ")
            found.append(f"```text\n{textwrap.dedent(block)}\n```" if code else block)
        elif block.startswith("Source:"):
            found.append("*Source:* " + escaped(block.removeprefix("Source:").strip()))
        elif block.strip():
            found.append(escaped(block))
    return "\n\n".join(found)


def _section(name: str, text: str) -> str:
    if name.startswith("Example"):
        return f"**Example**\n\n```pycon\n{text.strip()}\n```"
    entries = _ENTRY.findall(text)
    if not entries:
        return f"**{name}**: {escaped(' '.join(text.split()))}"
    lines = [f"- `{names}`: {escaped(' '.join(said.split()))}" for names, said in entries]
    return f"**{name}**\n\n" + "\n".join(lines)
