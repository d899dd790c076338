"""How a person names a broker: `HOST`, `HOST:PORT`, `mqtt://[user:password@]host[:port]` or `mqtts://...[?ca=FILE]`; IPv6 in brackets."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

from federated.errors import UsageError

__all__ = ["Address", "parse_address"]

PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class Address:
    """Where a broker is. ca: file of the certificate authority to trust, beside TLS's own; the password shows nowhere."""

    host: str
    port: int
    tls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Raises UsageError, saying what is wrong."""
    if "://" not in text:
        text = f"mqtt://{text}"
    scheme, rest = text.split("://", 1)
    if scheme not in PORTS:
        raise _wrong(text, f"the scheme '{scheme}' is neither mqtt nor mqtts")
    if rest.split("?")[0].split("@")[-1].count(":") > 1 and "[" not in rest:
        raise _wrong(text, "an IPv6 address goes in brackets, as in [::1]:1883")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    options = parse_qs(parts.query, keep_blank_values=True)
    if not host or port == 0:
        raise _wrong(text, "a host is missing" if not host else "port 0 is no broker's")
    if parts.path not in ("", "/") or options.keys() - {"ca"} or (options and scheme == "mqtt"):
        raise _wrong(text, "only '?ca=FILE' may follow, and only with mqtts://")
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return Address(host, PORTS[scheme] if port is None else port, scheme == "mqtts", user, password, options["ca"][0] if options else None)


def _wrong(text: str, why: str) -> UsageError:
    shown = text if "@" not in text else f"{text.split('://')[0]}://...@{text.rsplit('@', 1)[1]}"
    return UsageError(f"broker address '{shown}': {why}; expected HOST, HOST:PORT, mqtt://[user:password@]host[:port] or mqtts://...[?ca=FILE]")
