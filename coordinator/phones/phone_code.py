"""Draw the code that a phone scans to join: the address of the phones' page with a token. The token
is the address's fragment, which browsers do not send, so that it reaches no log.
"""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import quote, urlsplit

import click

from coordinator.broker.local_addresses import find_own_address
from federated.errors import UsageError, require_extra
from federated.wire.enrolment_token import Token

__all__ = ["ANY", "draw_code", "find_host", "format_page_url"]

ANY = ("0.0.0.0", "::")  # noqa: S104  # nothing listens here


def find_host(page: str, host: str | None) -> str:
    """Return the name at which phones reach the page. page: its address as the coordinator listens;
    empty if it never served it. host: as the user says. Raises UsageError, MissingExtra.
    """
    load_segno()  # before a token is made
    if not page:
        raise UsageError(
            "--phone: no coordinator has served the phones' page yet; start one with: coordinator "
            "start --phones"
        )
    found = (host or urlsplit(page).hostname or "").strip("[]")
    return find_own_address(found) if found in ANY else found


def format_page_url(page: str, token: Token) -> str:
    """Return the address of the page for one phone, at the token's host."""
    parts = urlsplit(page)
    host = f"[{token.host}]" if ":" in token.host else token.host
    fragment = quote(str(token), safe="@:/-")
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path}#{fragment}"


def draw_code(text: str) -> str:
    """Return a QR code of half blocks for a terminal. Raises MissingExtra."""
    out = io.StringIO()
    load_segno().make(text, error="l", micro=False).terminal(out, border=2, compact=True)
    # the colours that scanners expect, also on a light terminal
    lines = out.getvalue().splitlines()
    return "\n".join(click.style(line, fg="bright_white", bg="black") for line in lines)


def load_segno() -> Any:
    with require_extra("coordinator enroll --phone", "web", "segno"):
        import segno
    return segno
