"""Toy packages with entry points, as pip would leave them in a folder of sys.path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["install"]


def install(folder: Path, name: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Writes the metadata of a package into a folder. points: group -> name -> module:attribute."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, members in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in members.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
