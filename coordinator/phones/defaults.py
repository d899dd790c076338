"""Defaults of the phones' page, which the commands show without loading the server."""

from __future__ import annotations

__all__ = ["ADDRESS", "FACT", "PAGE"]

ADDRESS = "0.0.0.0:8601"  # a phone is another machine; only enrolled ones get in
PAGE = "/phone/"  # path of the page
FACT = "phones"  # name of the page's address in the authority's registry
