"""Convert the docstrings of this repository to Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

SECTIONS = ("Args", "Attributes", "Returns", "Raises", "Warns", "Yields")
LINE_LENGTH = 88
"""Columns of a line of code; wider ones are cut off at 1280 pixels, beside the contents."""

_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}|Examples?):\n((?:[ ]{{4}}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}\w[\w, *.]*): (.*(?:\n(?: +.*)?$)*)", re.MULTILINE)
_CODE = re.compile(r"(`[^`]+`|(?<!\S)\*{1,2}\w[^*]*[\w.]\*{1,2}(?!\w))")
"""Code and *emphasis*, which mean the same in Markdown."""
_SPECIAL = re.compile(r"([*<\[\]$~])|(?<!\w)_|_(?!\w)")


def to_markdown(thing: Any) -> str:
    """Convert the docstring of a class, a function or a module."""
    return text_to_markdown(inspect.getdoc(thing) or "")


def text_to_markdown(text: str) -> str:
    """Convert a docstring that is not indented."""
    text += "\n"
    parts, position = [], 0
    for section in _SECTION.finditer(text):
        parts.append(_prose(text[position : section.start()]))
        parts.append(_section(section[1], textwrap.dedent(section[2])))
        position = section.end()
    parts.append(_prose(text[position:]))
    return "\n\n".join(part for part in parts if part) + "\n"


def arguments(text: str) -> dict[str, str]:
    """Return the descriptions of the arguments in a docstring, by name."""
    descriptions = {}
    for section in _SECTION.finditer(text + "\n"):
        if section[1] != "Args":
            continue
        for names, description in _ENTRY.findall(textwrap.dedent(section[2])):
            descriptions |= dict.fromkeys(names.split(", "), " ".join(description.split()))
    return descriptions


def summary(thing: Any) -> str:
    """Return the first paragraph on one line; after a colon, with the formula below it."""
    paragraph, _, text = (inspect.getdoc(thing) or "").partition("\n\n")
    line = " ".join(paragraph.split())
    if line.endswith(":"):
        formulas = text.partition("\n\n")[0].splitlines()
        line += " " + "; ".join(f"`{formula.strip().rstrip(',')}`" for formula in formulas)
    return escaped(line)


def escaped(text: str) -> str:
    """Escape the characters of prose that Markdown would interpret, except in `code`."""
    parts = _CODE.split(text)
    return "".join(
        part if index % 2 else _SPECIAL.sub(lambda m: "\\" + m[0], part)
        for index, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """Escape bars, which end a cell of a table."""
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Convert paragraphs; indented blocks become code, and tables stay as they are."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("    "):
            parts.append(f"```text\n{_broken(textwrap.dedent(block))}\n```")
        elif block.startswith("|"):
            parts.append(block)
        elif block.startswith("Source:"):
            parts.append("*Source:* " + escaped(block.removeprefix("Source:").strip()))
        elif block.strip():
            parts.append(escaped(block))
    return "\n\n".join(parts)


def _broken(block: str) -> str:
    """Return a block whose lines of more than `LINE_LENGTH` break between formulas."""
    lines = []
    for line in block.split("\n"):
        formulas = line
        while len(formulas) > LINE_LENGTH and ",    " in formulas[:LINE_LENGTH]:
            end = formulas.rindex(",    ", 0, LINE_LENGTH) + 1
            lines.append(formulas[:end])
            formulas = formulas[end:].strip()
        lines.append(formulas)
    return "\n".join(lines)


def _section(name: str, text: str) -> str:
    if name.startswith("Example"):
        return f"**Example**\n\n```pycon\n{text.strip()}\n```"
    entries = _ENTRY.findall(text)
    if not entries:
        return f"**{name}**: {escaped(' '.join(text.split()))}"
    lines = [f"- `{names}`: {escaped(' '.join(text.split()))}" for names, text in entries]
    return f"**{name}**\n\n" + "\n".join(lines)
