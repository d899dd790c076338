"""Code blocks of the documentation's pages.

Tests run each block, unless a comment above it says why not: `<!-- not run: REASON, ... -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

__all__ = ["PAGES", "REASONS", "ROOT", "Block", "list_blocks"]

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "README", "SECURITY")),
    *sorted((ROOT / "docs").glob("*.md")),
]
REASONS = {
    "another host": "it is for several machines",
    "board": "it is for the hardware of a board",
    "download": "it downloads or installs something",
    "earlier version": "it is for a run of an earlier version",
    "output": "it shows what a command prints",
    "own code": "it names code of the reader",
    "root": "it changes this system, or needs its service manager",
    "time": "it takes more than 20 s",
}
MARK = re.compile(r"<!-- not run: (.+) -->\n?")
FILE = re.compile(r"`(\w+\.(?:py|toml))`")


@dataclass(frozen=True)
class Block:
    """One code block.

    language: that of the fence, such as `python`; `shell` for an indented block.
    text: its lines.
    file: the file in which the reader saves it, by the paragraph before it; empty: none.
    reasons: why no test runs it.
    """

    language: str
    text: str
    file: str
    reasons: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The lines, with those joined that a backslash continues, and without empty ones."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip()]


def list_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, without those that only Sphinx reads. Raises ValueError for a
    comment that is not above a block.
    """
    found, paragraph, reasons = list[Block](), "", ()
    for token in MarkdownIt().parse(page.read_text()):
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):
            language = token.info if token.type == "fence" else "shell"
            file = "".join(FILE.findall(paragraph)[-1:])
            found.append(Block(language, token.content, file, reasons))
            paragraph, reasons = "", ()
        elif reasons:
            raise ValueError(f"{page.name}: no block below <!-- not run: {', '.join(reasons)} -->")
        elif token.type == "inline":
            paragraph = token.content
        elif mark := MARK.fullmatch(token.content):
            reasons = tuple(mark[1].split(", "))
    return found
