"""Toy packages with entry points, written as pip would install them into a folder of sys.path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from models import extension_lookup

__all__ = ["forgotten_extensions", "install"]


@pytest.fixture
def forgotten_extensions() -> Iterator[None]:
    """Begin and end without loaded extensions, as a new process does."""

    def forget() -> None:
        extension_lookup.NAMED.clear()
        extension_lookup.load_packaged.cache_clear()

    forget()
    yield
    forget()


def install(folder: Path, name: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of a package into a folder. points: group -> name -> module:attribute."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, members in points.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in members.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
