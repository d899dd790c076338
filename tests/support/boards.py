"""Board boards under tests/edge_agent/boards: files of the kernel and outputs of commands."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

BOARDS = Path(__file__).parents[1] / "edge_agent" / "boards"


@dataclass(frozen=True)
class Board:
    """One recorded board. Outputs of commands are files under `commands`, named by their words
    joined with `_`; variables of the environment are lines of the file `environment`.
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
        """Change or add a file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def load_board(name: str) -> Board:
    """Return a recorded board, which must not be changed."""
    assert (BOARDS / name).is_dir(), name
    return Board(BOARDS / name)


def copy_board(name: str, folder: Path) -> Board:
    """Copy a recorded board into a folder, so that a test can change it."""
    return Board(Path(shutil.copytree(BOARDS / name, folder / name)))
