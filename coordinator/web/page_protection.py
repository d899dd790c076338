"""Protect the web page from other sites: security headers, and checks of each request's origin."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from federated.safe_text import make_safe

__all__ = ["HEADERS", "ProtectPages"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class ProtectPages:
    """Middleware that sets the security headers, and refuses other names of this server and
    changes from pages of other origins.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] = ()) -> None:
        """hosts: see `Site`."""
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        request = Request(scope)
        if self._hosts and (name := find_host(request)) not in self._hosts:
            # text, since a person sees it: such a name leads to no page that could show it
            refusal = Response(describe_foreign_name(name), 400, media_type="text/plain")
            await refusal(scope, receive, send_protected)
            return
        site = request.headers.get("sec-fetch-site", "same-origin")
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        foreign = origin is not None and origin.partition("://")[2] != host
        if request.method != "GET" and (foreign or site not in ("same-origin", "none")):
            error = describe_foreign_page(origin or "another site", host)
            await JSONResponse({"error": error}, 403)(scope, receive, send_protected)
        else:
            await self._app(scope, receive, send_protected)


def find_host(request: Request) -> str:
    """Return the name by which a request calls this server; empty if it is not valid."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def describe_foreign_page(origin: str, host: str) -> str:
    return (
        f"Refused, because the request comes from a page of {make_safe(origin, 80)}, but this "
        f"server is '{make_safe(host, 80)}'. Open the address that `coordinator web` printed. A "
        "proxy in front of this server must keep the header Host."
    )


def describe_foreign_name(name: str) -> str:
    return (
        f"This server does not answer to the name '{make_safe(name, 80)}', so that no other site "
        "can pretend to be it. Open the address that `coordinator web` printed. To use the page "
        "from other machines, start it with --listen, --certificate and --key.\n"
    )
