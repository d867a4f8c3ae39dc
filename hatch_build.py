"""The long description of the package: README.md, whose links lead somewhere on an index's page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def long_description(readme: str, source: str | None) -> str:
    """Return the README with absolute links; blocks of code stay as they are.

    Args:
        readme: text in Markdown whose relative links start at the repository's root.
        source: address of the repository on its forge. None: a link becomes its text, and a
            picture its caption, since an index has no files to link to.
    """

    def absolute(match: re.Match[str]) -> str:
        picture, text, path = match.groups()
        if source is None:
            return f"*{text}.*" if picture else text
        kind = "raw" if picture else "tree" if path.endswith("/") else "blob"
        return f"{picture}[{text}]({source.rstrip('/')}/{kind}/HEAD/{path})"

    parts = FENCED.split(readme)  # text and fenced code, in turn
    parts[::2] = (RELATIVE.sub(absolute, part) for part in parts[::2])
    return "".join(parts)


class CustomMetadataHook(MetadataHookInterface):
    """Adds the long description to the metadata of a build."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = long_description(readme, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
