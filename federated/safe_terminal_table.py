"""Terminal tables that are safe for text from other machines: no markup, no control characters."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from federated.safe_text import make_safe

__all__ = ["SafeTable", "make_table", "render_table"]


class SafeTable(Table):
    """A table that shows strings as they are, never as markup, without control characters."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(
            *(Text(make_safe(cell)) if isinstance(cell, str) else cell for cell in cells),
            **options,
        )


def make_table(*titles: str) -> SafeTable:
    """Return a table without lines. Its first column, which names the row, is never wrapped."""
    table = SafeTable(box=None, pad_edge=False, header_style="dim")
    for index, title in enumerate(titles):
        table.add_column(title, no_wrap=not index)
    return table


def render_table(table: Table, width: int | None = 150, *, styled: bool = True) -> str:
    """Return a table as text. width: of a line; None: of the terminal."""
    colours: Any = "auto" if styled else None
    # in a notebook it would print, too
    console = Console(width=width, color_system=colours, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip()
