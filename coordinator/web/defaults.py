"""Defaults of the web page, which the commands show without loading the server."""

from __future__ import annotations

__all__ = ["ADDRESS", "TOKEN"]

ADDRESS = "127.0.0.1:8600"
TOKEN = "web-token"  # noqa: S105  # file in the folder of the runs
