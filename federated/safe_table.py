"""Tables of text that other machines may have sent."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from federated.safe_text import make_safe

__all__ = ["SafeTable"]


class SafeTable(Table):
    """A table that shows strings as they are, never as markup, without control characters."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        super().add_row(
            *(Text(make_safe(cell)) if isinstance(cell, str) else cell for cell in cells),
            **options,
        )
