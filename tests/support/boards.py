"""Boards that are not here, as recorded file trees under tests/edge_agent/boards: files of the
kernel, and what commands printed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

BOARDS = Path(__file__).parents[1] / "edge_agent" / "boards"


@dataclass(frozen=True)
class Recorded:
    """One board. Its commands' words are files under `commands`, joined by `_`; its environment's
    variables are lines of `environment`.
    """

    root: Path

    def run(self, *words: str) -> str:
        path = self.root / "commands" / "_".join(words)
        return path.read_text().strip() if path.exists() else ""

    @property
    def environment(self) -> dict[str, str]:
        path = self.root / "environment"
        return (
            dict(line.split("=", 1) for line in path.read_text().splitlines())
            if path.exists()
            else {}
        )

    def write(self, name: str, content: str) -> None:
        """Change or add a file of a copy."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def recorded(name: str) -> Recorded:
    """Return a recorded board; read-only."""
    assert (BOARDS / name).is_dir(), name
    return Recorded(BOARDS / name)


def copied(name: str, folder: Path) -> Recorded:
    """Return a copy of a board to change."""
    return Recorded(Path(shutil.copytree(BOARDS / name, folder / name)))
